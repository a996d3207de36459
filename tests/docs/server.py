"""Runs commands and programs of the guides, each in a process that was forked after torch was imported.

Importing torch takes longer than most of what the guides run, so it is imported once. Requests and answers are lines of
JSON: {"kind", "text", "folder"} and {"code", "output"}.
"""

import json
import os
import shlex
import signal
import sys
import tempfile
import traceback

import monograph.commands.inspect
import monograph.commands.on_ranks
import monograph.commands.precompile
import monograph.run  # noqa: F401 - imported for every child
from monograph.cli import main
from tests.docs.commands import check_command

TIMEOUT_SECONDS = 600


def run(kind: str, text: str) -> int:
    """Run one request in this process; `parse` reads a command as the command line would and stops there."""
    if kind == "python":
        exec(compile(text, "block.py", "exec"), {"__name__": "__main__"})
        return 0
    words = shlex.split(text)
    if words[0] != "monograph" or any(mark in text for mark in ("|", ">", "&&", "$(")):
        os.execvp("bash", ["bash", "-euc", text])
    if kind == "parse":
        check_command(words[1:])
        return 0
    return main(words[1:])


def serve_child(request: dict[str, str], output: int) -> None:
    """Carry out a request with its output in a file; never returns."""
    signal.alarm(TIMEOUT_SECONDS)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(request["folder"])
    sys.path.insert(0, request["folder"])
    code = 1
    try:
        code = run(request["kind"], request["text"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Answer requests until there are no more."""
    for line in sys.stdin:
        with tempfile.TemporaryFile() as file:
            child = os.fork()
            if child == 0:
                serve_child(json.loads(line), file.fileno())
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            file.seek(0)
            print(json.dumps({"code": code, "output": file.read().decode(errors="replace")}), flush=True)


if __name__ == "__main__":
    serve()

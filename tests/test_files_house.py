"""Files are opened, replaced, deleted and read as JSON in the places of monograph/system, and nowhere else.

A call that goes around them needs a line here with its reason; a line that no call needs any more fails, too.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "monograph").rglob("*.py"))
PLACES = "monograph/system/"
FUNCTIONS = {
    *("os.open", "os.rename", "os.replace", "os.unlink", "os.remove", "os.truncate", "os.removedirs", "os.link"),
    *("shutil.rmtree", "shutil.move", "shutil.copyfile", "shutil.copy", "shutil.copy2", "shutil.copytree"),
    *("json.load", "json.loads", "open", "io.open", "gzip.open"),
}
METHODS = {"write_text", "write_bytes", "read_text", "read_bytes", "unlink", "touch", "hardlink_to"}
"""Of paths; `open`, `rename` and `replace` are told from those of other classes by their arguments."""
OPENERS = {"open_own", "create_own"}
"""What is opened by these may be wrapped by `open`."""
SYSTEM = "files of the kernel, which are read whole"
OWN_CODE = "source files of this package or of the user's model"
OWN_JSON = "JSON that this process has just written"
MADE_NOW = "files in a temporary folder of this process"
ALLOWED = {
    "commands/launch_job.py": (".write_text", MADE_NOW),
    "commands/terminal.py": ("os.open", "the null device"),
    "compat/flight.py": ("json.loads", "what torch in this process has just returned"),
    "config/docs.py": (".read_text", OWN_CODE),
    "config/sources.py": (".read_bytes", OWN_CODE),
    "execute/artifact/describe.py": ("json.loads", OWN_JSON),
    "execute/artifact/folder.py": (
        "os.open os.replace open .unlink",
        "a place itself: permissions are read from the open file, a signature replaces its own manifest",
    ),
    "execute/artifact/keys.py": ("os.open", "a place itself: the permissions of a key are read from the open file"),
    "execute/artifact/load.py": (".write_bytes", MADE_NOW),
    "execute/artifact/machine.py": (".read_text .read_bytes", OWN_CODE),
    "execute/artifact/make.py": (".read_bytes", MADE_NOW),
    "execute/memory_limits.py": (".read_text", SYSTEM),
    "execute/profile.py": ("os.replace .unlink", "torch writes the trace; it gets its name when it is whole"),
    "execute/step_cache/key.py": ("json.loads", OWN_JSON),
    "graph/sources.py": (".read_text", OWN_CODE),
    "kernels/tuned_file.py": (".read_bytes", OWN_CODE),
    "launch/local_rendezvous.py": ("os.open", "a temporary folder of this process is opened, to lock it"),
    "launch/rank_limits.py": (".read_text", SYSTEM),
    "locks/folder_lock.py": ("os.open", "a folder is opened, to see whether its path still leads to it"),
    "locks/holder.py": (".read_text", SYSTEM),
    "locks/lock_file.py": (".unlink os.rename", "names of a lock that was checked to be one"),
    "parallel/error_file.py": ("os.replace", "torch's launcher names the file and reads it"),
    "parallel/flight.py": (".unlink", "this rank's report, by its own name in the run's folder"),
    "parallel/rank_devices.py": ("json.loads", "what another rank of this job has sent"),
    "report/folder.py": (".unlink", "files that an earlier report lists"),
    "report/join_traces.py": ("json.loads", "traces of any size, in which profilers name keys twice"),
    "report/page.py": (".read_text", "pages that come with this package"),
    "strict_json.py": ("json.loads", OWN_JSON),
    "train/checkpoint/disk.py": ("os.open os.rename os.unlink", "a place itself: the files of checkpoints"),
    "train/checkpoint/writer.py": ("json.loads", OWN_JSON),
    "train/data/builtin.py": (".read_bytes", OWN_CODE),
    "train/data/files.py": ("json.loads", "rows of datasets, of bounded length, which name keys twice and hold NaN"),
    "train/data/open_bytes.py": ("os.open open", "a place itself: data files, whose size nothing bounds"),
    "train/data/text_pieces.py": ("json.loads", "what the tokenizers library in this process has just written"),
    "train/launch_logs.py": (".rename .unlink shutil.move", "the folder of this launch, or the link in its place"),
    "train/set_aside.py": (".rename", "renames the name itself, to one that nothing has"),
    "train/startup.py": (".read_text", SYSTEM),
    "whole_file.py": (
        "os.replace .unlink .open",
        "a place itself: a new file gets the name of an older one; streams are written to",
    ),
}
"""File below monograph/ -> calls that may stand in it, reason."""
UNCHANGED = {
    "commands/compare.py": ".read_text",
    "launch/agent.py": ".read_text",
    "launch/local.py": ".read_text",
    "train/checkpoint/hf_folder.py": ".open",
    "train/checkpoint/slow_writers.py": "json.loads",
    "train/data/shards.py": "os.open",
    "train/profiler.py": ".open .rename .unlink",
}
"""Calls from before these places existed; a change that takes one over takes it from this list."""


def find_calls(tree):
    """(line, name) of every call that opens, reads, replaces or deletes a file by its path."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := name_call(node, names)):
            yield node.lineno, name


def name_call(call, names):
    """The name under which a call is listed; None for calls of other kinds."""
    if isinstance(call.func, ast.Name):
        full = names.get(call.func.id, call.func.id)
        return full if full in FUNCTIONS and not wraps_own(call, full) else None
    if not isinstance(call.func, ast.Attribute):
        return None
    method, owner = call.func.attr, call.func.value
    if isinstance(owner, ast.Name):
        full = f"{names.get(owner.id, owner.id)}.{method}"
        if full in FUNCTIONS:
            return full
        if full.startswith("dataclasses."):
            return None
    if method == "open" and any(is_mode(each) for each in (*call.args[:1], *(word.value for word in call.keywords))):
        return ".open"
    takes_one = len(call.args) == 1 and not call.keywords
    return f".{method}" if method in METHODS or (method in ("rename", "replace") and takes_one) else None


def wraps_own(call, name):
    first = call.args[0] if call.args else None
    return name == "open" and isinstance(first, ast.Call) and getattr(first.func, "id", "") in OPENERS


def is_mode(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and set(node.value) <= set("rwaxbt+")


def find_misplaced():
    """File -> names of the calls in it that no place of monograph/system makes."""
    found = {}
    for path in PACKAGE:
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(PLACES):
            for line, call in find_calls(ast.parse(path.read_bytes())):
                found.setdefault(name, {}).setdefault(call, line)
    return found


def test_files_are_opened_replaced_and_deleted_in_their_places_only():
    misplaced = find_misplaced()
    allowed = {f"monograph/{name}": set(calls.split()) for name, (calls, _) in ALLOWED.items()}
    for name, calls in UNCHANGED.items():
        allowed[f"monograph/{name}"] = set(calls.split())
    complaints = [
        f"{name}:{line} calls {call}: use monograph/system, or give a reason in {Path(__file__).name}"
        for name, calls in misplaced.items()
        for call, line in calls.items()
        if call not in allowed.get(name, ())
    ]
    complaints += [
        f"{name} no longer calls {call}: take it from the list in {Path(__file__).name}"
        for name, calls in allowed.items()
        for call in sorted(calls - misplaced.get(name, {}).keys())
    ]
    assert not complaints, "\n" + "\n".join(complaints)


PRINTING = ("print(", "sys.stdout.write(", "sys.stderr.write(", "Console(", "Text.from_markup(", "from_markup(")
"""Calls that print, or that take text for markup; outside of monograph/system/console.py nothing is printed by them."""


def find_printing(tree):
    """(line, call) of every call that prints past monograph/system/console.py."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (call := f"{ast.unparse(node.func)}(") in PRINTING:
            yield node.lineno, call


def test_text_is_printed_by_one_module_which_escapes_it():
    around = [
        f"{path.relative_to(ROOT)}:{line} calls {call}: use monograph/system/console.py"
        for path in PACKAGE
        if path.name != "console.py"
        for line, call in find_printing(ast.parse(path.read_bytes()))
    ]
    assert not around, "\n" + "\n".join(around)
    planted = "print(x)\nConsole().print(y)\nsys.stdout.write(z)\nconsole.print(y)"
    assert sorted(line for line, _ in find_printing(ast.parse(planted))) == [1, 2, 3]


def test_every_exception_has_one_reason():
    assert not ALLOWED.keys() & UNCHANGED.keys()
    assert all(calls and reason for calls, reason in ALLOWED.values())


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import os\nos.open(path, os.O_RDWR)", "os.open"),
        ("import os as system\nsystem.replace(a, b)", "os.replace"),
        ("from os import unlink as drop\ndrop(path)", "os.unlink"),
        ("from shutil import rmtree\nrmtree(folder)", "shutil.rmtree"),
        ("with open(path, 'w') as file: pass", "open"),
        ("with open(path) as file: pass", "open"),
        ("path.open('ab')", ".open"),
        ("path.open(mode='x')", ".open"),
        ("(folder / 'x').write_text(text)", ".write_text"),
        ("Path(name).unlink(missing_ok=True)", ".unlink"),
        ("prepared.rename(path)", ".rename"),
        ("prepared.replace(path)", ".replace"),
        ("import json\njson.load(file)", "json.load"),
        ("from json import loads\nloads(path.name)", "json.loads"),
    ],
)
def test_a_call_that_goes_around_the_places_is_found(code, expected):
    assert [name for _, name in find_calls(ast.parse(code))] == [expected]


@pytest.mark.parametrize(
    "code",
    [
        "with open(create_own(path), 'wb') as file: pass",
        "with open(open_own(path, flags), 'ab') as file: pass",
        "text.replace('a', 'b')",
        "import dataclasses\ndataclasses.replace(config, steps=3)",
        "from dataclasses import replace\nreplace(config)",
        "self.disk.rename(old, new)",
        "source.open(plan)",
        "json.dumps(value)",
    ],
)
def test_other_calls_of_the_same_names_are_left_alone(code):
    assert list(find_calls(ast.parse(code))) == []

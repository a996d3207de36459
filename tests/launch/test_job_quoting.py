"""Options of `monograph launch` in job files: one value where they belong, or refused; the rest of the file stays."""

import json
import os
import subprocess
from dataclasses import fields
from pathlib import Path

import jsonschema
import pytest
import yaml

from monograph.commands.launch_arguments import LaunchOptions
from tests.launch.test_job_files import SHARED, expand, launch

ODD = {
    "a shell command": "x; touch PWN;",
    "a substitution": "$(touch PWN)`touch PWN`",
    "a line break": "a\n#SBATCH --wrap=x\ntouch PWN",
    "a carriage return": "a\rtouch PWN",
    "a line separator": "a\u2028touch PWN\x85b",
    "spaces": "/opt/my env/bin/python",
    "quotes": "a'b\"c\\",
    "a YAML key": "a: b",
    "a colon at the end": "aws:",
    "two YAML keys": "H100:8, x: 1",
    "a YAML list": "[a, b]",
    "an anchor": "&a",
    "a tag": "!!python/object:os.system x",
    "a comment": "a #b",
    "a reserved letter": "@a",
    "a truth value": "yes",
    "null": "~",
    "a number": "123",
    "a number in floating point": "1e3",
    "a number to the base of 60": "1:30",
    "a dash": "-",
    "an option": "--wrap=x",
    "nothing": "",
    "a terminal command": "a\x1b[2Jb",
    "other letters": "größe",
    "a byte that is no text": "a\udcffb",
}
ENGINES = {
    "slurm": (),
    "kubernetes": ("--image", "an/image:1", "--volume_claim", "claim", *SHARED),
    "skypilot": ("--accelerators", "H100", "--volume_claim", "claim", *SHARED),
    "torchrun": (),
}
OF_ENGINE = {
    "slurm": ("time", "partition", "account"),
    "kubernetes": ("image", "volume_claim"),
    "skypilot": ("accelerators", "infra", "volume_claim"),
    "torchrun": (),
}
PLACEHOLDERS = {"time": "12:34:56", "name": "placeholder"}
CASES = [(engine, name) for engine, names in OF_ENGINE.items() for name in ("name", "python", "mount", *names)]
CASES = [(engine, name) for engine, name in CASES if name != "mount" or "--mount" in ENGINES[engine]]


def render(capsys, engine, option, value):
    """The job file with an option's value, or (exit code, error)."""
    words = list(ENGINES[engine])
    if option == "mount":
        words[words.index("--mount") + 1] = value
        words[words.index("--job.dump_folder") + 1] = f"{value}/run"
    elif f"--{option}" in words:
        words[words.index(f"--{option}") + 1] = value
    else:
        words += [f"--{option}={value}"]
    return launch(capsys, engine, "--nodes", "2", *words)


def replaced(value, old, new):
    """A YAML value with a text replaced in all of its texts and keys."""
    if isinstance(value, dict):
        return {replaced(key, old, new): replaced(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [replaced(item, old, new) for item in value]
    return value.replace(old, new) if isinstance(value, str) else value


def split_job(engine, text):
    """The shell script of a job, and its file as a parser reads it, without the script."""
    if engine in ("slurm", "torchrun"):
        return text, [line for line in text.splitlines() if line.startswith("#SBATCH")]
    documents = list(yaml.safe_load_all(text))
    schema = json.loads((Path(__file__).parent / "schemas" / f"{engine}.json").read_text())
    for document in documents:
        jsonschema.validate(document, schema)
    last = documents[-1]
    return last.pop("run") if engine == "skypilot" else expand(last["spec"]["trainer"]["command"].pop(), {}), documents


def run_agent(script, command, folder):
    """Run a script with an agent that only notes how it was called; return that."""
    agent = Path(command)
    agent.parent.mkdir(parents=True)
    agent.write_text(f'#!/bin/bash\nprintf "%s\\0" "$0" "$@" > {folder}/called\n')
    agent.chmod(0o755)
    stubs = 'srun() { shift 2; "$@"; }; scontrol() { echo a; }; exec() { "$@"; }\n'
    variables = {"SLURM_JOB_NODELIST": "a", "SLURM_JOB_ID": "1", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "1"}
    variables |= {"SKYPILOT_NODE_IPS": "a", "SKYPILOT_TASK_ID": "1", "HEAD": "a", "PATH": os.environ["PATH"]}
    subprocess.run(["bash", "-c", stubs + script], cwd=folder, env=variables, check=True)
    return (folder / "called").read_text().split("\0")


def test_every_option_that_is_text_is_tried_here():
    texts = {field.name for field in fields(LaunchOptions) if field.type is str or field.type == "str"}
    assert texts - {"on", "out"} == {option for _, option in CASES}


@pytest.mark.parametrize(("engine", "option"), CASES)
def test_an_option_with_an_odd_value_is_one_value_or_is_refused_by_name(engine, option, capsys):
    plain = PLACEHOLDERS.get(option, "/placeholder" if option == "mount" else "placeholder")
    _, expected = split_job(engine, render(capsys, engine, option, plain))
    refused = 0
    for what, value in ODD.items():
        found = render(capsys, engine, option, value)
        if isinstance(found, tuple):
            code, said = found
            assert code == 2 and f"--{option}" in said, (what, said)
            assert not set(said) & set("\x1b\r\u2028\x85"), what
            refused += 1
            continue
        assert "\ntouch" not in found and "\x1b" not in found, what
        script, parsed = split_job(engine, found)
        subprocess.run(["bash", "-n"], input=os.fsencode(script), check=True)
        if value and option != "name":
            assert parsed == replaced(expected, plain, value), what
    assert refused >= 3, "line breaks and terminal commands stand in no job file"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["my env", "x; touch PWN;", "$(touch PWN)'s"], ids=["spaces", "commands", "quotes"])
def test_the_interpreter_is_called_whatever_its_path_is(engine, name, capsys, tmp_path):
    python = f"{tmp_path}/{name}/bin/python"
    script, _ = split_job(engine, render(capsys, engine, "python", python))
    assert run_agent(script, python, tmp_path)[:4] == [python, "-P", "-m", "monograph.launch.agent"]
    assert not list(tmp_path.rglob("PWN"))


def test_the_home_folder_of_the_node_is_found_by_its_sign(capsys):
    script = render(capsys, "torchrun", "python", "~/my env/bin/python")
    assert "exec ~/'my env/bin/python' -P -m monograph.launch.agent" in script

"""`monograph launch`: job files are as the examples show, valid for their engines, refused where they cannot work."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from monograph.cli import main
from tests.docs.commands import check_command

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "launch"
SHARED = ("--mount", "/shared", "--job.dump_folder", "/shared/llama3_8b")
JOBS = {
    "slurm.sh": ("slurm", "--time", "12:00:00"),
    "torchrun.sh": ("torchrun",),
    "kubernetes.yaml": ("kubernetes", "--image", "registry/monograph:0.1", "--volume_claim", "shared", *SHARED),
    "skypilot.yaml": ("skypilot", "--accelerators", "H100", *SHARED),
}
ELASTIC = ("--min-nodes", "1", "--training.global_batch_size", "16")


def launch(capsys, engine, *words, recipe="llama3_8b"):
    """What the command prints; on an error, its exit code and text."""
    code = main(["launch", recipe, "--on", engine, *words])
    said = capsys.readouterr()
    return said.out if code == 0 else (code, said.err)


@pytest.mark.parametrize("file", JOBS)
def test_the_examples_are_what_the_command_prints(file, capsys):
    engine, *words = JOBS[file]
    printed = launch(capsys, engine, "--nodes", "2", "--gpus-per-node", "8", *words)
    if os.environ.get("UPDATE_GOLDENS"):
        (EXAMPLES / file).write_text(printed)
    assert (EXAMPLES / file).read_text() == printed


@pytest.mark.parametrize("file", JOBS)
@pytest.mark.parametrize("extra", [(), ELASTIC, ("--debug.device", "cpu"), ("--name", "x1", "--max-restarts", "0")])
def test_job_files_are_valid_for_their_engine(file, extra, capsys):
    engine, *words = JOBS[file]
    printed = launch(capsys, engine, "--nodes", "2", "--gpus-per-node", "8", *words, *extra)
    if file.endswith(".yaml"):
        schema = json.loads((Path(__file__).parent / "schemas" / f"{engine}.json").read_text())
        documents = list(yaml.safe_load_all(printed))
        assert len(documents) == (2 if engine == "kubernetes" else 1)
        for document in documents:
            jsonschema.validate(document, schema)
        last = documents[-1]
        script = last["run"] if engine == "skypilot" else last["spec"]["trainer"]["command"][-1]
    else:
        script = printed
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    (line,) = [each for each in script.replace("\\\n", " ").splitlines() if "-m monograph train" in each]
    words = shlex.split(line.partition("-m monograph ")[2])
    check_command(words)
    assert words[-2:] == ["--checkpoint.load", "auto"]
    assert ("--nnodes 1:2" in line) == (extra == ELASTIC)


def test_what_the_user_wrote_about_resuming_stays(capsys):
    words = ("--nodes", "1", "--gpus-per-node", "2", "--checkpoint.load", "latest", "--job.dump_folder", "/data/a b")
    printed = launch(capsys, "torchrun", *words)
    assert (
        "--checkpoint.load latest --job.dump_folder '/data/a b' --debug.device cuda\n" in printed
        and "auto" not in printed
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("slurm --nodes 0", "--nodes must be >= 1"),
        ("slrum", "did you mean 'slurm'"),
        ("slurm --nodes 3 --gpus-per-node 8 --parallelism.data_parallel_shard_degree 16", "24"),
        ("slurm --nodes 2 --min-nodes 1 --training.global_batch_size -1", "--training.global_batch_size 16"),
        ("slurm --nodes 2 --min-nodes 1 --training.global_batch_size 24", "global_batch_size 24"),
        ("slurm --nodes 3 --parallelism.data_parallel_shard_degree 16", "another --nodes or --gpus_per_node"),
        ("kubernetes --image x --job.dump_folder out/a;b", "--job.dump_folder '/shared/a;b'"),
        ("slurm --nodes 3 --min-nodes 1 --training.global_batch_size 24", "does not fit 2 nodes"),
        ("slurm --nodes 1 --min-nodes 2", "never more nodes"),
        ("slurm --image x", "--image while --on is slurm"),
        ("kubernetes", "--image is missing"),
        ("kubernetes --image x --job.dump_folder outputs", "lost with it"),
        ("kubernetes --image x --mount /m --job.dump_folder /m/run", "--volume_claim"),
        ("skypilot --job.dump_folder /shared/run", "--accelerators is missing"),
        ("slurm --name Has_Capitals", "lower case"),
        ("slurm --port 70000", "--port"),
        ("slurm --partition a\\n#SBATCH", "--partition 'a"),
        ("skypilot --accelerators H100 --volume-claim v", "a claim is mounted somewhere"),
        ("slurm --seconds-to-save 5", "--seconds_to_save must be in 60..65535"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_printed(words, expected, capsys):
    code, said = launch(capsys, *words.split())
    assert code == 2 and expected in said, said


def test_a_model_whose_state_does_not_fit_the_devices_is_refused_with_the_numbers(capsys):
    code, said = launch(capsys, "slurm", "--nodes", "2", recipe="deepseek_v3_671b")
    assert code == 2 and "80 GB of H100" in said and "more --nodes" in said
    assert "80 GB" in launch(capsys, "slurm", "--nodes", "64", recipe="deepseek_v3_671b")
    assert "186 GB on GB200" in launch(
        capsys, "slurm", "--nodes", "64", "--machine", "gb200", recipe="deepseek_v3_671b"
    )


def test_groups_that_leave_a_node_are_noted_with_the_degree_that_would_not(capsys):
    words = ("--nodes", "4", "--gpus-per-node", "4", "--parallelism.tensor_parallel_degree", "8")
    assert "--parallelism.tensor_parallel_degree 4 keeps them inside" in launch(capsys, "slurm", *words)
    assert "keeps them inside" not in launch(capsys, "slurm", *words, "--machine", "gb200")
    assert "keeps them inside" not in launch(capsys, "slurm", "--nodes", "4", "--gpus-per-node", "8", *words[4:])


def find_grace(printed):
    """The seconds that an engine leaves a job, by every name that says so."""
    return {int(each) for each in re.findall(r"(?:TERM@|--wait=|terminationGracePeriodSeconds: )(\d+)", printed)}


@pytest.mark.parametrize("engine", ["slurm.sh", "kubernetes.yaml"])
def test_the_time_to_stop_follows_from_the_size_of_a_checkpoint_and_the_agent_keeps_within_it(engine, capsys):
    on, *words = JOBS[engine]
    in_turn = ("--checkpoint.async_save", "false")
    jobs = [
        launch(capsys, on, *words, "--nodes", str(nodes), *extra, recipe="llama3_70b")
        for nodes, extra in ((64, in_turn), (16, in_turn), (16, ("--checkpoint.async_save", "true")))
    ]
    (many,), (few,), (saving_twice,) = map(find_grace, jobs)
    assert 180 <= many < few < saving_twice, "fewer nodes write more each, and a save under way comes first"
    for text, seconds in zip(jobs, (many, few, saving_twice), strict=True):
        agent = int(re.search(r'TORCH_ELASTIC_SHUTDOWN_TIMEOUT\W+(?:value: ")?(\d+)', text)[1])
        assert seconds - 60 <= agent < seconds
    assert find_grace(launch(capsys, on, *words, "--seconds-to-save", "900")) == {900}


def test_a_job_without_checkpoints_is_noted(capsys):
    assert "every restart begins at step 1" in launch(capsys, "slurm", "--checkpoint.enabled", "false")


HOSTILE = "a\ntouch injected\n'; touch injected; '\"$(touch injected)`touch injected`\\\t\u2028b"


@pytest.mark.parametrize("file", JOBS)
def test_what_a_user_wrote_is_one_word_of_the_job_whatever_is_in_it(file, capsys, tmp_path):
    """Line breaks end comments and YAML blocks; what follows them would run, or be read as another field."""
    engine, *words = JOBS[file]
    printed = launch(capsys, engine, *words, "--job.description", HOSTILE)
    assert not [line for line in printed.splitlines() if line.strip().startswith(("touch", "'; touch"))]
    script = printed
    if file.endswith(".yaml"):
        last = list(yaml.safe_load_all(printed))[-1]
        script = last["run"] if engine == "skypilot" else expand(last["spec"]["trainer"]["command"][-1], {})
    stub = (
        'python() { printf \'%s\\0\' "$@" > words; }; srun() { shift 2; "$@"; }; scontrol() { :; }; exec() { "$@"; }\n'
    )
    variables = {"SLURM_JOB_NODELIST": "a", "SLURM_JOB_ID": "1", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "1"}
    variables |= {"SKYPILOT_NODE_IPS": "a", "SKYPILOT_TASK_ID": "1", "HEAD": "a", "PATH": os.environ["PATH"]}
    subprocess.run(["bash", "-c", stub + script], cwd=tmp_path, env=variables, check=True)
    assert HOSTILE in (tmp_path / "words").read_bytes().decode().split("\0")
    assert [path.name for path in tmp_path.iterdir()] == ["words"], "and nothing of it ran"


def expand(text, variables):
    """A command as Kubernetes hands it over: $(NAME) by its value where there is one, and $$ as one sign."""

    def replace(found):
        name = found[1]
        return "$" if name is None else variables.get(name, found[0])

    return re.sub(r"\$(?:\$|\(([^)]*)\))", replace, text)


def test_signs_that_kubernetes_would_replace_arrive_as_they_were_written(capsys):
    on, *words = JOBS["kubernetes.yaml"]
    odd = "a$$b$$$(HOME)$(PET_NNODES)$c$"
    command = list(yaml.safe_load_all(launch(capsys, on, *words, "--job.description", odd)))[-1]["spec"]["trainer"][
        "command"
    ][-1]
    script = expand(command, {"HOME": "/root", "PET_NNODES": "2"})
    assert odd in shlex.split(script) and '"$PET_MASTER_ADDR:$PET_MASTER_PORT"' in script


def test_notes_are_printed_beside_a_file_that_a_terminal_does_not_show(capsys, monkeypatch):
    assert main(["launch", "llama3_8b", "--on", "slurm"]) == 0
    assert "note: " in capsys.readouterr().err
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["launch", "llama3_8b", "--on", "slurm"]) == 0
    said = capsys.readouterr()
    assert "# note: " in said.out and said.err == "note: not simulated: a test\n"


def test_the_command_in_a_job_file_makes_the_same_file_again(capsys):
    printed = launch(capsys, "slurm", *ELASTIC, "--nodes", "2", "--partition", "a", "--python", "/a b/python")
    line = next(each for each in printed.splitlines() if each.startswith("# monograph launch"))
    assert main(shlex.split(line.removeprefix("# monograph "))) == 0
    assert capsys.readouterr().out == printed


def test_a_skypilot_job_keeps_its_folder_on_a_volume_and_recommends_no_bucket(capsys):
    named = launch(capsys, *JOBS["skypilot.yaml"], "--volume-claim", "team-disk", "--nodes", "2")
    assert yaml.safe_load(named)["volumes"] == {"/shared": "team-disk"}
    assert "MOUNT_CACHED" not in named and "mode: MOUNT" not in named


def test_submitting_needs_the_engine_and_torchrun_needs_one_node(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, said = launch(capsys, "slurm", "--submit")
    assert code == 2 and "sbatch, which is not on the PATH" in said
    code, said = launch(capsys, "torchrun", "--nodes", "2", "--submit")
    assert code == 2 and "run it on every node" in said


@pytest.mark.parametrize(("engine", "tool"), [("slurm", "sbatch"), ("kubernetes", "kubectl"), ("skypilot", "sky")])
def test_submitting_hands_the_printed_file_to_the_engine(engine, tool, capsys, monkeypatch, tmp_path):
    stub = tmp_path / tool
    stub.write_text(f'#!/bin/bash\necho "$@" > {tmp_path}/words\ncp "${{!#}}" {tmp_path}/file\nexit ${{CODE:-0}}\n')
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = next(words for name, *words in JOBS.values() if name == engine)
    printed = launch(capsys, engine, *words)
    assert main(["launch", "llama3_8b", "--on", engine, *words, "--submit", "--out", str(tmp_path / "kept")]) == 0
    assert (tmp_path / "file").read_text() == (tmp_path / "kept").read_text() == printed
    capsys.readouterr()
    monkeypatch.setenv("CODE", "3")
    code, said = launch(capsys, engine, *words, "--submit")
    assert code == 1 and "exit code 3" in said

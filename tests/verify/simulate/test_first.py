"""Meshes are simulated before ranks are started, a job is printed, or a plan ends; wrong numbers stop them."""

import pytest

from monograph.cli import main
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe
from monograph.verify.simulate import first
from tests.verify.seeded_bugs import BUGS

TP2 = ("llama3_debugmodel", "--model.n_layers", "1", "--parallelism.tensor_parallel_degree", "2")
COMMANDS = {
    "launch": ("launch", *TP2, "--on", "torchrun", "--gpus_per_node", "2"),
    "verify": ("verify", *TP2, "--ranks", "2", "--debug.device", "cpu"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_numbers_stop_what_would_cost_more(name, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("monograph.cli.LAUNCHER", f"{__name__}:refuse_to_start")
    words = [*COMMANDS[name], "--job.dump_folder", str(tmp_path)]
    with BUGS["norm_counted_twice"].plant():
        assert main(words) == 1
    said = capsys.readouterr()
    assert said.out == "" and "the numbers are not those of one device" in said.err
    assert "gradient norm differs" in said.err and "--simulate" in said.err.partition("do:")[2]


def refuse_to_start(*_):
    """In the place of what starts ranks."""
    raise AssertionError("ranks were started")


def test_a_job_whose_mesh_was_simulated_says_so_beside_its_file(capsys, tmp_path):
    words = [*COMMANDS["launch"], "--job.dump_folder", str(tmp_path)]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "note: simulated, equal to one device in fp64: an update on 2 ranks (tp 2)" in " ".join(said.err.split())
    assert "simulat" not in said.out, "a job file does not depend on it"
    assert main([*words, "--simulate", "false"]) == 0
    again = capsys.readouterr()
    assert again.out == said.out and "simulat" not in again.err


def test_a_run_that_cannot_be_simulated_goes_on_with_the_reason(monkeypatch):
    def fail(*_):
        raise NotImplementedError("an op nobody knows\nand more")

    monkeypatch.setattr(first, "simulate", fail)
    line = first.simulate_first(load_recipe("llama3_debugmodel"), Mesh(tp=2), instead="")
    assert line == "not simulated: NotImplementedError: an op nobody knows"

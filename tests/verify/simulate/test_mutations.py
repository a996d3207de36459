"""A generated fault in a captured step is refused if and only if a rank would train with other numbers.

`python -m tests.verify.simulate.test_mutations [MODEL]` tries all of them and prints a table.
"""

import argparse
import collections
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from monograph.capture.capture import capture
from monograph.parallel.groups import fake_groups
from monograph.run import build_source, make_example
from monograph.train.layout import count_ranks, plan_run_mesh
from monograph.verify.simulate.coordinates import Coordinates
from monograph.verify.simulate.outcome import TOLERANCE
from monograph.verify.simulate.rounds import plan_round
from monograph.verify.simulate.small_copy import make_small_copy
from tests.kit.tiny import tiny
from tests.verify.simulate.mutants import list_mutants
from tests.verify.simulate.naive import NaiveMesh

MESHES = {
    "llama3": {"shard": 2, "cp": 2, "tp": 2},
    "qwen3_moe": {"shard": 2, "tp": 2, "ep": 2},
    "deepseek_v3": {"shard": 2, "cp": 2, "tp": 2, "ep": 4},
    "gpt_oss": {"shard": 2, "tp": 2, "ep": 4},
    "llama4": {"shard": 2, "tp": 2, "ep": 2, "etp": 2},
    "gemma3": {"shard": 2, "cp": 2, "tp": 2},
    "mistral": {"replicate": 2, "cp": 2, "method": "ulysses"},
}
BETWEEN = 10.0
"""Differences within this factor of the tolerance are on neither side of it."""


class Trial:
    """A healthy step of one family, and verdicts on its mutants."""

    def __init__(self, model, folder):
        config = tiny(model, folder, **MESHES[model])
        self.mesh = plan_run_mesh(config, count_ranks(config.parallelism))
        small = make_small_copy(config, self.mesh)
        with fake_groups(self.mesh, 0, torch.device("cpu")) as groups:
            source, _ = build_source(small, groups)
            self.graph = capture(source, make_example(small, source))
            self.planned = plan_round(small, source, Coordinates(self.mesh))
        assert self.planned.check(self.graph, "captured").comparison.is_equal
        self.truth = NaiveMesh(self.graph, self.planned)
        self.mutants = list(list_mutants(self.graph, self.mesh))

    def judge(self, mutant):
        """(what the simulation says, what is true): refused or equal, and between for what is near the tolerance."""
        changed = mutant.apply(self.graph)
        try:
            gap = self.truth.compare(changed)
        except Exception:
            gap = float("inf")
        try:
            said = "equal" if self.planned.check(changed, "mutant").comparison.is_equal else "refused"
        except Exception:
            said = "refused"
        if TOLERANCE / BETWEEN < gap < TOLERANCE * BETWEEN:
            return said, "between"
        return said, "refused" if gap > TOLERANCE else "equal"


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    return Trial("llama3", tmp_path_factory.mktemp("mutants"))


def test_a_generated_fault_is_refused_if_and_only_if_a_number_changes(trial):
    chosen = np.random.default_rng(0).choice(len(trial.mutants), 24, replace=False)
    verdicts = [(str(trial.mutants[number]), *trial.judge(trial.mutants[number])) for number in chosen]
    assert [each for each in verdicts if each[2] != "between" and each[1] != each[2]] == []
    assert sum(true == "refused" for _, _, true in verdicts) >= 16


def test_every_kind_of_fault_is_generated(trial):
    counts = collections.Counter(mutant.kind for mutant in trial.mutants)
    assert set(counts) == {"collective", "coordinate", "slice", "mask", "constant", "scalar"}
    assert len({str(mutant) for mutant in trial.mutants}) == len(trial.mutants)


@pytest.mark.long
@pytest.mark.parametrize("model", MESHES)
def test_faults_of_every_family_are_refused_if_and_only_if_a_number_changes(model, tmp_path):
    trial = Trial(model, tmp_path)
    chosen = np.random.default_rng(1).choice(len(trial.mutants), 100, replace=False)
    verdicts = [(str(trial.mutants[number]), *trial.judge(trial.mutants[number])) for number in chosen]
    assert [each for each in verdicts if each[2] != "between" and each[1] != each[2]] == []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(MESHES))
    parser.add_argument("--most", type=int, default=1_000_000)
    given = parser.parse_args()
    for model in given.models:
        begin, counts, wrong = time.process_time(), collections.Counter(), []
        with TemporaryDirectory() as folder:
            trial = Trial(model, Path(folder))
        order = np.random.default_rng(0).permutation(len(trial.mutants))[: given.most]
        for number in order:
            mutant = trial.mutants[number]
            said, true = trial.judge(mutant)
            counts[mutant.kind, true] += 1
            if true != "between" and said != true:
                wrong.append(f"{mutant}: {said}, and it is {true}")
                print(wrong[-1], flush=True)
        seconds = time.process_time() - begin
        print(f"{model} on {trial.mesh.world_size} ranks: {len(order)} of {len(trial.mutants)} faults, {seconds:.0f} s")
        for (kind, true), count in sorted(counts.items()):
            print(f"  {kind}, {true}: {count}")
        print(f"  judged wrongly: {len(wrong)}", flush=True)


if __name__ == "__main__":
    main()

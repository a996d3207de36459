"""What every family promises besides equal bits: it learns, runs from artifacts, predicts with a cache, counts work."""

import pytest
import torch

from monograph.cli import main
from monograph.models.gemma2.sizes import gemma2_debugmodel
from monograph.models.gemma3.sizes import gemma3_debugmodel
from monograph.models.gpt_oss.sizes import gpt_oss_20b, gpt_oss_debugmodel
from monograph.models.init import initialize
from monograph.models.llama4.sizes import llama4_debugmodel, llama4_scout
from monograph.models.mistral.sizes import mistral_debugmodel
from monograph.parallel.groups import joined_groups
from monograph.train.layout import plan_run_mesh
from tests.execute.artifacts import make_artifact, make_config, nothing_made
from tests.execute.updates import CPU, differences, make_updates
from tests.kit.runs import read_records

FAMILIES = {
    "gpt_oss": gpt_oss_debugmodel,
    "llama4": llama4_debugmodel,
    "mistral": mistral_debugmodel,
    "gemma2": gemma2_debugmodel,
    "gemma3": gemma3_debugmodel,
}
DENSE = ("mistral", "gemma2", "gemma3")
"""Models like those of which `make test` has others already."""
LONG = [pytest.param(family, marks=pytest.mark.long) if family in DENSE else family for family in FAMILIES]
ROUTINGS = ((), (2, 3))


@pytest.mark.parametrize("family", LONG)
def test_a_debug_recipe_brings_the_loss_clearly_down(family, tmp_path):
    short = "--training.steps 36 --training.local_batch_size 2 --training.seq_len 96 --model.n_layers 2"
    quiet = "--validator.interval 0 --checkpoint.enabled false --metrics.progress off --debug.device cpu"
    words = [f"{family}_debugmodel", *short.split(), *quiet.split(), "--job.dump_folder", str(tmp_path)]
    assert main(["train", *words]) == 0
    losses = [record["loss"] for record in read_records(tmp_path) if "loss" in record]
    assert losses[0] > 5.5 and sum(losses[-10:]) / 10 < 3.3, losses


@pytest.mark.parametrize("family", LONG)
def test_a_run_from_an_artifact_has_the_bits_of_eager_without_tracing(family, tmp_path):
    sizes = {"shard": 1}
    layers = {"model.n_layers": 2 if family == "llama4" else 1}  # every second block of llama4 has experts
    make_artifact(tmp_path, tmp_path / "artifact", layers, ranks=1, model=family, **sizes)
    eager = make_config(tmp_path, {**layers, "compile.mode": "eager"}, model=family, **sizes)
    loaded = make_config(tmp_path, {**layers, "compile.artifact": str(tmp_path / "artifact")}, model=family, **sizes)
    with joined_groups(plan_run_mesh(eager, 1), CPU) as groups:
        wanted = make_updates(eager, groups, routings=ROUTINGS)
        with nothing_made():
            found = make_updates(loaded, groups, routings=ROUTINGS)
    assert differences(wanted, found) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_prediction_with_a_cache_says_what_the_whole_text_says(family):
    config = FAMILIES[family]()
    changes = {"n_layers": 4, "chunk": 6} if family == "llama4" else {"n_layers": 6, "window": 5}
    model = config.replace(**changes, init_std=0.1).build().double().eval()
    initialize(model, 1)
    padding = (0, 4, 7)
    tokens = torch.randint(0, 512, (3, 20), generator=torch.Generator().manual_seed(2))
    cache = model.new_cache(3, 20, padding)
    with torch.no_grad():
        found = [model.predict(tokens[:, :9], cache=cache), model.predict(tokens[:, 9:12], cache=cache)]
        found += [model.predict(tokens[:, index : index + 1], cache=cache) for index in range(12, 20)]
        together = torch.cat(found, dim=1)
        for row, start in enumerate(padding):
            alone = model.predict(tokens[row : row + 1, start:])[0]
            torch.testing.assert_close(together[row, start:], alone, rtol=0, atol=1e-4)


def test_flops_count_what_windows_and_chunks_leave():
    with torch.device("meta"):
        windowed, chunked = gpt_oss_20b().build(), llama4_scout().replace(n_layers=4).build()
    width, n = 64 * 2 * 64, 4096
    found = windowed.flops(n)
    assert found.attention == 6 * 12 * width * (128 + n)
    assert found.seen == 6 * 12 * width * (128 - 128**2 / (2 * n) + n / 2)
    experts = 24 * (3 * 2880 * 2880 * 4 + 2880 * 32)
    rest = 24 * (2 * 2880 * 64 * (64 + 8)) + 201088 * 2880
    assert found.matmul == 6 * (experts + rest)
    width, n = 40 * 2 * 128, 20000
    found = chunked.flops(n)
    assert found.attention == 6 * width * (3 * 8192 + n)
    mean = (2 * 8192**2 + (n - 2 * 8192) ** 2) / (2 * n)
    assert found.seen == pytest.approx(6 * width * (3 * mean + n / 2))

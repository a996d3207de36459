"""The protocol of models, with one that is no decoder: no tokens, two kinds of blocks, a carry of two values."""

import pytest
import torch

import monograph as mg
from monograph.bench import draw_batch
from monograph.capture.block_repeats import BlockRepeat, find_block_repeats
from monograph.capture.capture import capture
from monograph.checks.model_checks import check_model
from monograph.cli import main
from monograph.errors import ConfigError
from monograph.parallel.groups import fake_groups, joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import build_source, build_step, make_example
from monograph.train.records import read_records
from monograph.train.update import apply_update
from tests.kit.denoiser import Denoiser, denoiser
from tests.kit.ranks import pool
from tests.verify.on_ranks import verify_on_ranks

CPU = torch.device("cpu")
WAYS = {"fsdp2": ("eager", "fsdp2"), "sharded": ("eager", "graph"), "graph": ("graph", "auto")}


def train_updates(way):
    """Losses, weights and state after three updates of random batches."""
    mode, fsdp = WAYS[way]
    config = denoiser()
    config.compile.mode, config.parallelism.fsdp = mode, fsdp
    with joined_groups(Mesh(), CPU) as groups:
        step = build_step(config, groups)
        optimizer = config.plan_optimizer().build(parameters=step.parameters, weight_cache=step.weight_cache)
        generator, losses = torch.Generator().manual_seed(3), []
        for _ in range(3):
            batch = draw_batch(config, step.model.batch_spec, generator)
            losses.append(step(batch, step.compute_scalars([batch])))
            apply_update(step, optimizer, loss=losses[-1], lr=0.01, max_norm=1.0)
        evaluated = step.evaluate(batch, step.compute_scalars([batch]))
        found = {name: value.clone() for name, value in step.parameters.items()} | {"seen": step.model.seen.clone()}
        step.close()
    return [*losses, evaluated], found


def test_graph_mode_gives_the_bits_of_its_modules_and_fsdp2_the_same_within_rounding():
    """The first block gets one value twice: FSDP2 wraps both, so autograd adds their gradients in another order."""
    losses, wanted = train_updates("sharded")
    assert wanted["seen"] > 0 and len({float(loss) for loss in losses}) == 4
    again, found = train_updates("graph")
    assert all(map(torch.equal, losses, again))
    assert [name for name in wanted if not torch.equal(wanted[name], found[name])] == []
    again, found = train_updates("fsdp2")
    torch.testing.assert_close(again, losses, rtol=1e-6, atol=0)
    torch.testing.assert_close(found, {name: value.detach() for name, value in wanted.items()}, rtol=1e-5, atol=1e-7)


def test_identical_blocks_of_each_kind_are_captured_once_and_copied():
    config = denoiser()
    with fake_groups(Mesh(dp_shard=2), 0, CPU) as groups:
        source, _ = build_source(config, groups)
        repeats = find_block_repeats(source.model, source.table)
        assert repeats == [BlockRepeat(0, 4), BlockRepeat(5, 9)]
        inputs = make_example(config, source)
        copied, traced = (capture(source, inputs, repeats=each) for each in (repeats, []))
    assert copied.text(folded=False) == traced.text(folded=False)
    units = {mg.tag_of(node).unit: mg.tag_of(node).block for node in copied.nodes}
    assert units["double_blocks.2"] == 2 and units["single_blocks.2"] == 7 and units["enter"] is None
    assert "double_blocks.*.to_image" in copied.text()


@pytest.mark.long
def test_check_model_accepts_it_and_ranks_compute_what_one_device_computes(tmp_path):
    config = denoiser()
    rows = list(check_model(config))
    assert [row.status for row in rows] == ["ok", "ok", "ok", "ok", "not tested"], rows
    config.job.dump_folder = str(tmp_path)
    verdict = pool.run(2, verify_on_ranks, config)[0]
    assert verdict.is_equal, verdict.blame
    assert {"double_blocks.4", "single_blocks.4", "double_blocks.0.norm"} <= set(verdict.all.rows)


@pytest.mark.long
def test_it_trains_and_resumes_from_the_command_line(tmp_path):
    whole, half = tmp_path / "whole", tmp_path / "half"
    words = ["train", "tests.kit.denoiser:denoiser", "--checkpoint.enabled", "true", "--job.dump_folder"]
    assert main([*words, str(whole)]) == 0
    assert main([*words, str(half), "--training.steps", "3"]) == 0
    assert main([*words, str(half), "--checkpoint.load", "latest"]) == 0
    losses, again = (
        [each["loss"] for each in read_records(folder / "metrics.jsonl") if "loss" in each] for folder in (whole, half)
    )
    assert losses == again and len(losses) == 6


def test_what_it_cannot_do_is_refused():
    config = denoiser()
    config.parallelism.tensor_parallel_degree = 2
    with pytest.raises(ConfigError, match="tensor_parallel_degree is 2"), fake_groups(Mesh(tp=2), 0, CPU) as groups:
        build_source(config, groups)
    with pytest.raises(ConfigError, match="Denoiser cannot predict"):
        Denoiser(Denoiser.Config()).predict()

"""One update after another: the whole trainer against a loop that anyone would write in plain PyTorch."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from monograph.bench import draw_batch
from monograph.models.init import initialize
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import build_step, train
from monograph.train.adamw import AdamW
from monograph.train.build_optimizer import build_optimizer
from monograph.train.data.batch import Batch
from monograph.train.data.cursor import Cursor
from monograph.train.update import add_gradients, apply_update
from tests.kit.denoiser import denoiser
from tests.kit.runs import Watched, read_records, read_step, tiny_run, watched_run, write_texts
from tests.kit.tiny import tiny

SHORT = "the quick brown fox. "


@pytest.fixture
def uneven_texts(tmp_path):
    """Documents of very different lengths: the last token of each has no label, so sequences differ in valid tokens."""
    lengths = [3, 1, 2, 90, 1, 1, 4, 150, 2, 2, 1, 60, 1, 3, 1, 120] * 12
    return str(write_texts(tmp_path / "texts.jsonl", [SHORT[:length] * (1 + length // 20) for length in lengths]))


def read_batches(config, count, local_batch_size):
    """The first micro-batches, straight from the loader."""
    loader = config.dataloader.build(
        tokenizer=config.tokenizer.build(),
        seq_len=config.training.seq_len,
        vocab_size=config.model.vocab_size,
        seed=config.debug.seed,
        split="train",
    )
    with loader.batches(Cursor(), local_batch_size=local_batch_size, global_batch_size=local_batch_size) as batches:
        return [next(batches) for _ in range(count)]


def train_plainly(config):
    """Mean cross entropy of all logits, clip_grad_norm_, AdamW: (records, model, optimizer)."""
    model = config.model.build()
    initialize(model, config.debug.seed)
    settings = config.optimizer
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, betas=(settings.beta1, settings.beta2), eps=settings.eps, fused=True)
    scheduler = config.lr_scheduler.build(peak=settings.lr, steps=config.training.steps)
    size = max(config.training.local_batch_size, config.training.global_batch_size)
    records = []
    for number, batch in enumerate(read_batches(config, config.training.steps, size), start=1):
        logits = model.predict(batch.tensors["tokens"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch.tensors["labels"].flatten(), ignore_index=-100)
        loss.backward()
        limit = config.training.max_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        for group in adamw.param_groups:
            group["lr"] = scheduler.lr(number)
        adamw.step()
        adamw.zero_grad()
        records.append({"loss": loss.item(), "grad_norm": norm.item()})
    return records, model, adamw


def assert_trained_alike(folder, config, records, model, adamw):
    for mine, plain in zip(read_records(folder), records, strict=True):
        assert mine["loss"] == pytest.approx(plain["loss"], rel=1e-6)
        assert mine["grad_norm"] == pytest.approx(plain["grad_norm"], rel=1e-5)
    saved = read_step(folder, config.training.steps)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(saved[f"model/{name}"], parameter.detach(), rtol=1e-5, atol=2e-6)
        for kind in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(
                saved[f"optimizer/{kind}/{name}"], adamw.state[parameter][kind], rtol=1e-4, atol=1e-7
            )


@pytest.mark.parametrize("max_norm", [0.05, 1000.0, 0.0], ids=["clipped", "clipping has nothing to do", "not clipped"])
def test_training_equals_a_plain_pytorch_loop(tmp_path, max_norm):
    config = tiny_run(tmp_path / "run", {"training.max_norm": max_norm, "training.steps": 4})
    train(config)
    assert_trained_alike(tmp_path / "run", config, *train_plainly(config))


def test_clipping_scales_the_whole_gradient_to_the_norm_and_zero_switches_it_off(tmp_path):
    first = {}
    for max_norm in (0.0, 0.05):
        folder = tmp_path / str(max_norm)
        train(tiny_run(folder, {"training.max_norm": max_norm, "training.steps": 1}))
        moments = [value for name, value in read_step(folder, 1).items() if name.startswith("optimizer/exp_avg/")]
        first[max_norm] = (torch.cat([value.flatten() for value in moments]).double() / (1 - 0.9)).norm().item()
        (record,) = read_records(folder)
        assert record["grad_norm"] > 1, "the norm that is reported is the one before clipping"
    assert first[0.05] == pytest.approx(0.05, rel=1e-4)
    assert first[0.0] == pytest.approx(record["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("local_batch_size", [2, *(pytest.param(size, marks=pytest.mark.long) for size in (4, 1))])
def test_an_update_in_several_micro_batches_equals_one_large_batch(tmp_path, uneven_texts, local_batch_size):
    common = {"dataloader.dataset": uneven_texts, "training.global_batch_size": 8, "training.max_norm": 0.0}
    large = tiny_run(tmp_path / "large", common | {"training.local_batch_size": 8, "training.steps": 2})
    parts = tiny_run(tmp_path / "parts", common | {"training.local_batch_size": local_batch_size, "training.steps": 2})
    micro_batches = read_batches(parts, 8 // local_batch_size, local_batch_size)
    valid = [int((batch.tensors["labels"] != -100).sum()) for batch in micro_batches]
    assert max(valid) - min(valid) >= 2, "the micro-batches must not all weigh the same, or nothing is tested"
    train(large)
    train(parts)
    for one, several in zip(read_records(tmp_path / "large"), read_records(tmp_path / "parts"), strict=True):
        assert several["loss"] == pytest.approx(one["loss"], rel=1e-6)
        assert several["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-6)
        assert several["cursor"] == one["cursor"] and several["tokens"] == one["tokens"]
    one, several = read_step(tmp_path / "large", 2), read_step(tmp_path / "parts", 2)
    for name in one:
        if name.startswith(("model/", "optimizer/exp_avg/")):
            torch.testing.assert_close(several[name], one[name], rtol=1e-5, atol=1e-6)


def test_experts_are_balanced_by_the_tokens_of_all_micro_batches(tmp_path):
    for name, local_batch_size in (("large", 8), ("parts", 2)):
        changes = {"training.global_batch_size": 8, "training.local_batch_size": local_batch_size, "training.steps": 1}
        train(tiny_run(tmp_path / name, changes, model="deepseek_v3"))
    (large,), (parts,) = read_records(tmp_path / "large"), read_records(tmp_path / "parts")
    assert parts["expert_load"] == large["expert_load"]
    bias = "model/layers.1.moe.router.expert_bias"
    moved = read_step(tmp_path / "parts", 1)[bias]
    assert torch.equal(moved, read_step(tmp_path / "large", 1)[bias]) and moved.any()


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("model", ["deepseek_v3", "denoiser"])
def test_an_update_that_is_refused_changes_nothing_and_neither_do_those_after_it(model, mode, tmp_path):
    """No weight, no moment, nothing that a model changes once an update: biases of experts, the denoiser's `seen`."""
    config = denoiser() if model == "denoiser" else tiny(model, tmp_path)
    config.compile.mode, config.parallelism.fsdp = mode, "graph"
    states, generator = [], torch.Generator().manual_seed(3)
    with joined_groups(Mesh(), torch.device("cpu")) as groups:
        step = build_step(config, groups)
        optimizer = build_optimizer(config.plan_optimizer(), step)
        for factor in (1.0, 1.0, float("nan"), 1.0):
            batch = draw_batch(config, step.model.batch_spec, generator)
            loss = add_gradients(step, [Batch(batch, Cursor())]) * factor
            apply_update(step, optimizer, loss=loss, lr=0.01, max_norm=1.0)
            kept = {name: value.clone() for name, value in step.model.state_dict().items() if "expert_bias" in name}
            kept |= {"seen": step.model.seen.clone()} if model == "denoiser" else {}
            states.append(kept | {name: value.detach().clone() for name, value in step.parameters.items()})
            states[-1] |= {f"{name} {kind}": value.clone() for (kind, name), value in optimizer.state().items()}
        step.close()
    unlike = [{name for name in one if not torch.equal(one[name], other[name])} for one, other in pairwise(states)]
    assert any(name.endswith(("expert_bias", "seen")) for name in unlike[0])
    assert unlike[1:] == [set(), set()]


def test_no_accumulation_unless_it_is_asked_for(tmp_path):
    train(tiny_run(tmp_path, {"training.local_batch_size": 3, "training.steps": 2}))
    assert [record["cursor"]["sample"] for record in read_records(tmp_path)] == [3, 6]
    assert [record["tokens"] for record in read_records(tmp_path)] == [3 * 32, 6 * 32]


PRECISIONS = [("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("float32", "float32")]


@pytest.mark.parametrize(("stored", "compute"), PRECISIONS, ids=["mixed", "pure bfloat16", "pure float32"])
def test_weights_are_stored_in_one_precision_and_used_in_the_other(tmp_path, monkeypatch, stored, compute):
    gradients = set()
    update = AdamW.step

    def watch(self, *args, **kwargs):
        gradients.update(parameter.grad.dtype for parameter in self.parameters.values())
        return update(self, *args, **kwargs)

    monkeypatch.setattr(AdamW, "step", watch)
    config = watched_run(tmp_path, {"training.dtype": stored, "training.compute_dtype": compute})
    train(config)
    stored_dtype, compute_dtype = getattr(torch, stored), getattr(torch, compute)
    assert {dtype for seen in Watched.seen for dtype in seen["weights"]} == {compute_dtype}
    assert {seen["stream"] for seen in Watched.seen} == {compute_dtype}
    assert gradients == {stored_dtype}
    saved = read_step(tmp_path, 3)
    assert {value.dtype for name, value in saved.items() if name.startswith(("model/", "optimizer/"))} == {stored_dtype}
    if stored == "float32":
        weight = saved["model/head.output.weight"]
        assert not torch.equal(weight, weight.bfloat16().float()), "masters must hold more than bfloat16 can"


def test_the_loss_is_float32_whatever_the_compute_precision(tmp_path):
    for compute in ("bfloat16", "float32"):
        train(tiny_run(tmp_path / compute, {"training.compute_dtype": compute}))
    mixed, exact = (read_records(tmp_path / name) for name in ("bfloat16", "float32"))
    assert any(record["loss"] != torch.tensor(record["loss"]).bfloat16().item() for record in mixed)
    assert mixed[0]["loss"] == pytest.approx(exact[0]["loss"], rel=2e-3)
    assert mixed[0]["loss"] != exact[0]["loss"]

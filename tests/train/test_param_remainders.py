"""bf16 weights with the rest of their fp32 masters in the optimizer: updates of fp32, in the memory of fp32 alone."""

import pytest
import torch

from monograph.errors import ConfigError, MonographError
from monograph.kernels.param_remainders import combine_master
from monograph.run import train
from monograph.train.optimizer_config import AdamWConfig
from tests.kit.runs import differing, read_exact, read_records, read_step, tiny_run

SPLIT = {"training.dtype": "bfloat16", "training.compute_dtype": "bfloat16", "optimizer.store_param_remainders": True}
WIDE = {"training.compute_dtype": "bfloat16", "optimizer.implementation": "single_pass"}
FINE = {"loss": torch.tensor(1.0), "grad_norm": torch.tensor(1.0)}


def make_gradients(step):
    generator = torch.Generator().manual_seed(step)
    return {"a": torch.randn(40, 30, generator=generator), "b": torch.randn(50, generator=generator)}


def update(config, dtype, steps=20):
    parameters = {name: torch.nn.Parameter(value.bfloat16().to(dtype)) for name, value in make_gradients(0).items()}
    optimizer = config.build(parameters=parameters)
    for step in range(1, steps + 1):
        for name, gradient in make_gradients(step).items():
            parameters[name].grad_dtype = None
            parameters[name].grad = gradient.bfloat16()
        optimizer.step(1e-4, **FINE)
    return {name: value.detach() for name, value in parameters.items()}, optimizer.state()


@pytest.mark.parametrize("state_dtype", ["auto", "bfloat16"])
def test_masters_and_moments_have_the_bits_of_updates_with_fp32_weights(state_dtype):
    config = AdamWConfig(implementation="single_pass", state_dtype=state_dtype)
    wide, state = update(config, torch.float32)
    narrow, split = update(config.replace(store_param_remainders=True), torch.bfloat16)
    assert set(split) == set(state) | {("remainder", "a"), ("remainder", "b")}
    for name, value in wide.items():
        assert torch.equal(combine_master(narrow[name], split["remainder", name]), value)
        assert not torch.equal(narrow[name].float(), value), "an update of 1e-4 needs the remainders"
    for name, moment in state.items():
        assert torch.equal(split[name], moment)
        assert moment.dtype is (torch.float32 if state_dtype == "auto" else torch.bfloat16)


def test_without_remainders_bf16_weights_lose_small_updates():
    """The control: what the test above would see if remainders were dropped."""
    start = {name: value.bfloat16() for name, value in make_gradients(0).items()}
    found, _ = update(AdamWConfig(implementation="single_pass", lr=1e-4), torch.bfloat16)
    assert (found["a"] == start["a"]).float().mean() > 0.5


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"optimizer.store_param_remainders": True}, "training.dtype is float32"),
        (SPLIT | {"optimizer.implementation": "fused"}, "torch's loops keep moments"),
    ],
)
def test_what_cannot_have_remainders_is_refused(changes, wrong, tmp_path):
    with pytest.raises(ConfigError) as error:
        tiny_run(tmp_path, changes)
    assert wrong in str(error.value)


def test_modes_and_a_resume_have_the_same_bits_and_losses_are_those_of_fp32_weights(tmp_path):
    changes = {"training.steps": 6, "checkpoint.interval": 3}
    for mode in ("eager", "graph"):
        train(tiny_run(tmp_path / mode, SPLIT | changes | {"compile.mode": mode}))
    middle = str(tmp_path / "eager" / "checkpoints" / "step-00000003")
    train(tiny_run(tmp_path / "resumed", SPLIT | changes | {"checkpoint.load": middle}))
    train(tiny_run(tmp_path / "wide", WIDE | changes))
    whole = read_step(tmp_path / "eager", 6)
    rests = [value for name, value in whole.items() if name.startswith("optimizer/remainder/")]
    assert rests and all(value.dtype is torch.int16 and value.any() for value in rests)
    assert differing(whole, read_step(tmp_path / "graph", 6)) == []
    assert differing(whole, read_step(tmp_path / "resumed", 6)) == []
    assert read_exact(tmp_path / "resumed") == read_exact(tmp_path / "eager")[3:]
    start = {"checkpoint.load": str(tmp_path / "wide" / "checkpoints" / "step-00000003")}
    with pytest.raises(MonographError, match=r"--training.dtype float32 --optimizer.store_param_remainders false"):
        train(tiny_run(tmp_path / "refused", SPLIT | changes | start))
    losses = [[record["loss"] for record in read_records(tmp_path / name)] for name in ("eager", "wide")]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3), "weights start rounded to bf16, nothing else differs"

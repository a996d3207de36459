"""Speed, MFU and expert load, against numbers counted by hand."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from monograph.compat.cuda_memory import begin_peak, highest_allocated
from monograph.models.attention_core import AttentionCore
from monograph.models.deepseek_v3.sizes import deepseek_v3_671b
from monograph.models.flops import FlopsPerToken
from monograph.models.freeze import freeze
from monograph.models.init import initialize
from monograph.models.llama3.sizes import llama3_1b, llama3_8b
from monograph.models.qwen3.sizes import qwen3_30b_a3b
from monograph.run import find_peak_flops, train
from monograph.train import trainer as trainer_module
from monograph.train.checkpoint.manager import CheckpointManager
from monograph.train.measure import StepMeasurement, StepMeter, describe_load
from monograph.train.profiler import Profiler
from monograph.train.speed import Speed
from monograph.train.summary import summary_rows
from monograph.train.validate import Validator
from tests.kit.runs import read_records, tiny_deepseek_v3, tiny_llama3, tiny_run
from tests.train.clocks import SimulatedDevice

CPU = torch.device("cpu")


def count(model, seq_len):
    with torch.device("meta"):
        return model.build().flops(seq_len)


def test_llama3_8b_costs_six_operations_a_weight_and_twelve_a_channel_and_position():
    per_layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    weights = 32 * per_layer + 128256 * 4096
    flops = count(llama3_8b(), 8192)
    assert flops.matmul == 6 * weights == 6 * 7_504_658_432
    assert flops.attention == 12 * 32 * 4096 * 8192
    assert flops.full_attention == flops.matmul + flops.attention
    assert flops.causal_attention == flops.matmul + flops.attention / 2


def test_a_tied_output_projection_counts_although_it_is_the_embedding():
    per_layer = 2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192
    assert count(llama3_1b(), 1).matmul == 6 * (16 * per_layer + 128256 * 2048)


def test_only_the_experts_a_token_visits_count():
    attention = 2 * 2048 * 32 * 128 + 2 * 2048 * 4 * 128
    moe = 2048 * 128 + 8 * 3 * 2048 * 768
    assert count(qwen3_30b_a3b(), 1).matmul == 6 * (48 * (attention + moe) + 151936 * 2048)


def test_latent_attention_counts_its_own_widths_and_shared_experts_count_whole():
    queries = 7168 * 1536 + 1536 * 128 * 192
    keys_values = 7168 * (512 + 64) + 512 * 128 * (128 + 128)
    attention = queries + keys_values + 128 * 128 * 7168
    dense = 3 * 7168 * 18432
    moe = 7168 * 256 + (8 + 1) * 3 * 7168 * 2048
    flops = count(deepseek_v3_671b(), 4096)
    assert flops.matmul == 6 * (61 * attention + 3 * dense + 58 * moe + 129280 * 7168)
    assert flops.attention == 6 * 4096 * 61 * 128 * (192 + 128)


def attend_in_matmuls(_core, q, k, v, *_rest):
    """Scores of all queries and keys, and values weighted with them."""
    q, k, v = (x.transpose(1, 2).repeat_interleave(q.shape[2] // x.shape[2], dim=1) for x in (q, k, v))
    return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2)


FROZEN = {
    "nothing": (),
    "the embedding": ("embedding.*",),
    "all before the last block": ("embedding.*", "layers.0.*"),
    "all blocks": ("embedding.*", "layers.*"),
    "something in the middle": ("layers.1.attention.*",),
}


@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize("config", [tiny_llama3(), tiny_deepseek_v3()], ids=["llama3", "deepseek_v3"])
def test_the_formula_equals_the_operations_torch_counts(config, frozen, monkeypatch):
    monkeypatch.setattr(AttentionCore, "forward", attend_in_matmuls)  # as are ops that torch's counter knows
    if config.find_moe() is not None:
        config.moe.experts.backend = "loop"  # in ops that torch's counter knows
    model = config.build()
    initialize(model, 1)
    freeze(model, frozen)
    tokens = torch.randint(0, 260, (2, 32))
    with FlopCounterMode(display=False) as counter:
        model(tokens, labels=tokens).loss.backward()
    assert counter.get_total_flops() == tokens.numel() * model.flops(32).full_attention


def measure(step, tokens=1):
    return StepMeasurement(step=step, loss=torch.tensor(1.0), grad_norm=torch.tensor(1.0), tokens=tokens)


def test_mfu_is_operations_done_over_operations_possible():
    flops = FlopsPerToken(matmul=600.0, attention=400.0)
    device = SimulatedDevice(delay=0)
    meter = StepMeter(device=CPU, flops=flops, peak_flops=1e6, world_size=4, clock=device)
    device.launch(2.0)
    (record,) = meter.add(measure(1, tokens=5000))
    assert (record["ms"], record["tokens_per_second"]) == (2000, 2500)
    assert record["mfu"] == pytest.approx(1000 * 2500 / 4e6, rel=1e-12)
    assert record["mfu_causal"] == pytest.approx(800 * 2500 / 4e6, rel=1e-12)


def test_a_run_reports_mfu_once_the_peak_is_given_and_none_for_an_unknown_device(tmp_path):
    train(tiny_run(tmp_path / "known", {"metrics.peak_flops": 1e12}))
    train(tiny_run(tmp_path / "unknown"))
    per_token = count(tiny_llama3(), 32).full_attention
    for record in read_records(tmp_path / "known"):
        assert record["mfu"] == pytest.approx(per_token * record["tokens_per_second"] / 1e12, rel=1e-9)
        assert record["mfu_formula"] == FlopsPerToken.FORMULA
    assert {record["mfu"] for record in read_records(tmp_path / "unknown")} == {None}


def test_a_run_reports_mfu_by_the_machine_that_was_named_and_its_peak_for_the_compute_dtype(tmp_path):
    train(tiny_run(tmp_path, {"machine": "a100", "training.compute_dtype": "float32"}))
    per_token = count(tiny_llama3(), 32).full_attention
    for record in read_records(tmp_path):
        assert record["mfu"] == pytest.approx(per_token * record["tokens_per_second"] / 19.5e12, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H200", "bfloat16", 989e12),
        ("NVIDIA H200", "float32", 67e12),
        ("NVIDIA GB200", "bfloat16", 2500e12),
        ("Some Card", "bfloat16", 0.0),
    ],
)
def test_the_device_of_a_run_decides_its_peak(monkeypatch, tmp_path, name, dtype, peak):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    groups = SimpleNamespace(device=torch.device("cuda"), broadcast_object=lambda value: value)
    assert find_peak_flops(tiny_run(tmp_path, {"training.compute_dtype": dtype}), groups) == peak


def test_expert_load_of_a_hand_made_count():
    load = torch.tensor([[4, 4, 4, 4], [16, 0, 0, 0], [8, 4, 4, 0], [0, 0, 0, 0]])
    described = describe_load(load)
    assert described["max_over_mean"] == [1.0, 4.0, 2.0, 0.0]
    assert described["entropy"] == pytest.approx([1.0, 0.0, 0.75, 0.0], abs=1e-15)


def test_a_single_expert_is_evenly_loaded():
    assert describe_load(torch.tensor([[5]])) == {"max_over_mean": [1.0], "entropy": [1.0]}


def test_a_run_reports_the_load_of_every_layer_with_experts(tmp_path):
    train(tiny_run(tmp_path, model="deepseek_v3"))
    for record in read_records(tmp_path):
        ratios, entropies = record["expert_load"]["max_over_mean"], record["expert_load"]["entropy"]
        assert len(ratios) == len(entropies) == 2
        routed = 2 * 32 * 2  # tokens of the update, twice each
        assert all((ratio * routed / 4) == pytest.approx(round(ratio * routed / 4), abs=1e-9) for ratio in ratios)
        assert all(1 <= ratio <= 2 for ratio in ratios), "top 2 of 4: an expert gets at most every token once"
        assert all(0.5 <= entropy <= 1 for entropy in entropies)


def test_dense_models_report_no_load(tmp_path):
    train(tiny_run(tmp_path, {"training.steps": 1}))
    assert "expert_load" not in read_records(tmp_path)[0]


def test_the_mean_speed_leaves_the_first_step_out():
    speed = Speed()
    assert (speed.first, speed.last, speed.report(100, seconds=0.0).tokens_per_second) == ({}, {}, 0.0)
    for step, ms in ((1, 9000.0), (2, 500.0), (3, 1500.0)):
        speed.add({"step": step, "ms": ms, "tokens_per_second": 100 / ms * 1000})
    report = speed.report(100, seconds=30.0)
    assert report.tokens_per_second == pytest.approx(2 * 100 / 2.0)
    assert report.overall_tokens_per_second == pytest.approx(3 * 100 / 30.0) and report.mfu is None
    assert (speed.first["step"], speed.last["step"]) == (1, 3)


def test_on_a_gpu_a_result_is_read_one_step_later_and_none_is_lost():
    meter = StepMeter(device=CPU, flops=FlopsPerToken(1.0, 1.0), clock=SimulatedDevice())
    seen = [[record["step"] for record in meter.add(measure(step))] for step in (1, 2, 3)]
    assert seen == [[], [1], [2]]
    assert [record["step"] for record in meter.flush()] == [3]
    assert meter.flush() == []


def run_simulated(*, steps=6, pauses=()):
    """Steps of 250 ms on a device that the host launches in 3 ms; `pauses` are steps followed by 5 s of other work."""
    device = SimulatedDevice()
    flops = FlopsPerToken(matmul=1e6, attention=0.0)
    meter = StepMeter(device=CPU, flops=flops, peak_flops=8e6, clock=device)
    meter.start()
    records = []
    for step in range(1, steps + 1):
        device.launch(0.250)
        device.host += 0.003
        records += meter.add(measure(step))
        if step in pauses:
            records += meter.flush()
            device.launch(5.0)
            device.wait()
            meter.start()
    return records + meter.flush()


def test_every_step_of_a_gpu_takes_the_time_the_device_took_the_last_one_too():
    records = run_simulated()
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["ms"] for record in records] == pytest.approx([250] * 6)
    assert [record["mfu"] for record in records] == pytest.approx([0.5] * 6)


def test_work_between_two_steps_is_part_of_neither():
    assert [record["ms"] for record in run_simulated(pauses=(2, 5))] == pytest.approx([250] * 6)


def test_the_speed_of_a_run_is_its_tokens_over_the_time_of_its_steps():
    speed = Speed()
    for record in run_simulated(pauses=(3,)):
        speed.add(record)
    report = speed.report(1, seconds=11.5)
    assert report.tokens_per_second == pytest.approx(4.0) and report.mfu == pytest.approx(0.5)
    assert report.overall_tokens_per_second == pytest.approx(6 / 11.5)


def test_a_window_has_the_mean_speed_of_its_steps():
    speed = Speed(window=2)
    found = [
        speed.add({"step": step, "ms": ms, "tokens_per_second": 1e5 / ms, "mfu": 50 / ms})
        for step, ms in ((1, 900.0), (2, 100.0), (3, 300.0))
    ]
    assert found[0]["window_tokens_per_second"] == pytest.approx(1e5 / 900)
    assert found[2]["window_tokens_per_second"] == pytest.approx(200 / 0.4)
    assert found[2]["window_mfu"] == pytest.approx(50 / 200)


def test_no_window_is_faster_than_the_device():
    assert Speed().add({"step": 1, "ms": 1.0, "tokens_per_second": 5.0, "mfu": None})["window_mfu"] is None


def test_the_time_of_an_update_is_that_after_its_gradients_on_the_device():
    device = SimulatedDevice()
    meter = StepMeter(device=CPU, flops=FlopsPerToken(matmul=1e6, attention=0.0), clock=device)
    meter.start()
    records = []
    for step in (1, 2, 3):
        device.launch(0.200)
        device.host += 0.001
        meter.mark_update()
        device.launch(0.050)
        records += meter.add(measure(step))
    records += meter.flush()
    assert [record["ms"] for record in records] == pytest.approx([250] * 3)
    assert [record["update_ms"] for record in records] == pytest.approx([50] * 3)


def test_a_run_says_where_its_time_went_by_phase(tmp_path):
    settings = {"training.steps": 4, "validator.interval": 2, "validator.samples": 1, "checkpoint.interval": 2}
    config = tiny_run(tmp_path, settings)
    summary = train(config)
    records = [record for record in read_records(tmp_path) if "loss" in record]
    assert all(0 < record["update_ms"] < record["ms"] and record["window_tokens_per_second"] > 0 for record in records)
    rows = dict(summary_rows(summary, config))
    names = ("gradients", "updates", "waiting for data", "validation", "checkpoints")
    assert all(re.search(rf"{name} \d+\.\d s", rows["time"]) for name in names)
    assert 0 < summary.speed.update_share < 1
    assert 0 < summary.speed.overall_tokens_per_second < summary.speed.tokens_per_second


def test_an_mfu_above_the_peak_is_not_reported_as_one(caplog):
    device = SimulatedDevice(delay=0)
    meter = StepMeter(device=CPU, flops=FlopsPerToken(matmul=600.0, attention=800.0), peak_flops=1000.0, clock=device)
    for step in (1, 2):
        device.launch(1.0)
        (record,) = meter.add(measure(step))
        assert (record["mfu"], record["mfu_causal"]) == (None, 1.0), "by one formula it is possible, by the other not"
        assert record["over_peak"] == {"mfu": pytest.approx(1.4)}
    (warning,) = [each.message for each in caplog.records]
    assert "step 1 would have an MFU of 140 %" in warning and "metrics.peak_flops" in warning


def test_validation_checkpoints_and_traces_are_not_part_of_a_steps_time(tmp_path, monkeypatch):
    """Each of them takes 5 s here, by the clock that steps are timed with."""
    device = SimulatedDevice(delay=0)
    monkeypatch.setattr("monograph.train.measure.find_clock", lambda _: device)
    settings = {"training.steps": 6, "validator.interval": 2, "checkpoint.interval": 3}
    settings |= {"profiler.start": 5, "profiler.steps": 1}

    def spend(seconds, work):
        def slow(*args, **kwargs):
            device.launch(seconds)
            return work(*args, **kwargs)

        return slow

    slow = (
        (Validator, "run"),
        (CheckpointManager, "save"),
        (Profiler, "write_trace"),
        (torch.profiler.profile, "start"),
    )
    for kind, name in slow:
        monkeypatch.setattr(kind, name, spend(5.0, getattr(kind, name)))
    monkeypatch.setattr(trainer_module, "apply_update", spend(0.25, trainer_module.apply_update))
    train(tiny_run(tmp_path, settings))
    steps = [record for record in read_records(tmp_path) if "loss" in record]
    assert [record["ms"] for record in steps] == pytest.approx([250] * 6)


@pytest.mark.gpu
def test_on_a_gpu_no_step_is_faster_than_the_device():
    """Large matmuls that the host launches at once: each step's time is what the device needs, the last one too."""
    device = torch.device("cuda")
    weight = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    flops = FlopsPerToken(matmul=20 * 2 * 8192**3, attention=0.0)
    meter = StepMeter(device=device, flops=flops)
    records = []
    for step in range(1, 9):
        if step == 3:  # two steps warm up
            meter.start()
        value = weight
        for _ in range(20):
            value = weight @ value
        zero = value.float().mean() * 0
        records += meter.add(StepMeasurement(step=step, loss=zero, grad_norm=zero, tokens=1))
    records += meter.flush()
    assert [record["step"] for record in records] == list(range(1, 9))
    steady = records[2:]
    times = [record["ms"] for record in steady]
    assert max(times) < 1.5 * min(times), "every steady step does the same work"
    assert not any("over_peak" in record for record in steady)


def test_the_peak_of_a_run_survives_that_a_later_phase_measures_its_own(monkeypatch):
    gpu, memory = torch.device("cuda", 5), {"now": 10, "peak": 60}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: memory["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: memory.update(peak=memory["now"]))
    begin_peak(gpu)
    memory["peak"] = 25
    begin_peak(gpu)
    assert memory["peak"] == 10 and highest_allocated(gpu) == 60

"""`monograph machine`: tables for people, measured files that estimates read back."""

import pytest
import torch

from monograph import cli
from monograph.machine import measure
from monograph.machine.choose import find_machine
from monograph.machine.table import MACHINES


def test_every_machine_is_listed_and_one_is_shown_field_by_field(capsys):
    assert cli.main(["machine", "show"]) == 0
    listed = capsys.readouterr().out
    rows = {words[0]: words[1:] for line in listed.splitlines() if (words := line.split())}
    assert all(f"  {name} " in listed for name in MACHINES)
    assert rows["H100"] == ["49.6", "732", "1267", "80", "3015", "450", "x", "8", "50", "64"]
    assert rows["A100"][:4] == ["14.4", "231", "-", "80"], "an A100 has no float8"
    assert max(len(line) for line in listed.splitlines()) <= 80
    assert cli.main(["machine", "show", "b200"]) == 0
    shown = capsys.readouterr().out
    assert "bfloat16_tflops" in shown and "2250" in shown and "devices_per_node" in shown


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["show", "h10"], "did you mean H100?"),
        (["show", "h100", "h200"], "unexpected argument 'h200'"),
        (["measure"], "--out is missing"),
        (["measure", "--out", "rates.txt"], "a .json file"),
        (["measure", "--out", "none/rates.json"], "there is no folder none"),
        (["measure", "--out", "rates.json", "--ranks", "-1"], "--ranks must be >= 0"),
    ],
)
def test_what_cannot_be_shown_or_measured_is_refused(words, reason, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["machine", *words]) == 2
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def hurried(monkeypatch):
    """Few and small measurements."""
    monkeypatch.setattr(measure, "_WIDTHS", {"cpu": (16, 64)})
    monkeypatch.setattr(measure, "_COPIED_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr(measure, "_REPEATS", 2)


def test_a_measured_machine_is_a_file_that_estimates_read(hurried, tmp_path, capsys):
    path = tmp_path / "rates.json"
    assert cli.main(["machine", "measure", "--out", str(path), "--name", "bench", "--device", "cpu"]) == 0
    found = find_machine(str(path))
    assert (found.name, found.device) == ("bench", "cpu")
    assert [size for size, _ in found.matmul_points] == [2 * 16**3 / 1e9, 2 * 64**3 / 1e9]
    assert max(fraction for _, fraction in found.matmul_points) == 1.0
    assert found.memory_gb_per_second > 0 and found.kernel_latency_us > 0 and len(found.attention_points) == 2
    assert found.describe() in capsys.readouterr().out


def test_the_rate_of_a_link_is_what_one_rank_sends_beyond_the_latency(monkeypatch):
    """A network that takes a millisecond and then carries 100 MB/s."""
    clock = [0.0]

    def all_gather(parts, shard, group):
        sent = shard.numel() * 4 * (len(parts) - 1)
        clock[0] += 1e-3 + sent / 1e8

    monkeypatch.setattr(measure.dist, "barrier", lambda group=None: None)
    monkeypatch.setattr(measure.dist, "all_gather", all_gather)
    monkeypatch.setattr(measure.time, "perf_counter", lambda: clock[0])
    latency, rate = measure._time_all_gather(torch.device("cpu"), None, 4)
    assert latency == pytest.approx(1e-3, rel=0.01)
    assert rate == pytest.approx(1e8, rel=0.01)


def measure_links(monkeypatch, *, ranks, in_node, gpus=0):
    """What ranks find whose links carry 300 GB/s in a node and 40 GB/s between nodes."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(in_node))
    monkeypatch.setattr(measure.dist, "new_group", lambda members: members)
    monkeypatch.setattr(measure.torch.cuda, "device_count", lambda: gpus)
    is_local = lambda members: members[-1] - members[0] < in_node  # noqa: E731
    monkeypatch.setattr(
        measure, "_time_all_gather", lambda _, members, __: (1e-5, 300e9 if is_local(members) else 40e9)
    )
    return measure._measure_links(torch.device("cuda" if gpus else "cpu"), ranks)


def test_the_rate_of_a_network_is_what_two_nodes_measured_and_never_that_of_a_link(monkeypatch):
    alone = measure_links(monkeypatch, ranks=8, in_node=8)
    assert alone["link_gb_per_second"] == 300 and "network_gb_per_second" not in alone
    together = measure_links(monkeypatch, ranks=16, in_node=8)
    assert (together["link_gb_per_second"], together["network_gb_per_second"]) == (300, 40)
    apart = measure_links(monkeypatch, ranks=2, in_node=1)
    assert apart["network_gb_per_second"] == 40 and "link_gb_per_second" not in apart


def test_two_ranks_do_not_make_a_node_of_eight_gpus_one_of_two(monkeypatch):
    assert measure_links(monkeypatch, ranks=2, in_node=2, gpus=8)["devices_per_node"] == 8
    assert measure_links(monkeypatch, ranks=4, in_node=4)["devices_per_node"] == 4


@pytest.mark.long
def test_ranks_measure_the_links_between_them(tmp_path):
    path = tmp_path / "rates.json"
    assert cli.main(["machine", "measure", "--out", str(path), "--ranks", "2", "--device", "cpu"]) == 0
    found = find_machine(str(path))
    assert found.devices_per_node == 2
    assert found.link_gb_per_second > 0 and found.collective_latency_us > 0
    assert found.network_gb_per_second == MACHINES["CPU"].network_gb_per_second, "the table's: it was not measured"

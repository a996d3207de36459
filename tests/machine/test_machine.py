"""The table of machines: figures that are in order, names as drivers write them, files that are refused by field."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from monograph.errors import ConfigError, MonographError
from monograph.machine.choose import choose_machine, find_machine
from monograph.machine.device import Machine
from monograph.machine.file import write_machine
from monograph.machine.table import CPU, MACHINES, detect_machine

NUMBERS = [field.name for field in dataclasses.fields(Machine) if field.name != "name"]
OPTIONAL = [field.name for field in dataclasses.fields(Machine) if field.default is not dataclasses.MISSING]
GPUS = [machine for machine in MACHINES.values() if machine is not CPU]


def test_machines_load_without_torch():
    code = "import monograph.machine.choose, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
def test_every_figure_of_the_table_is_positive_and_in_order(machine):
    assert all(getattr(machine, name) > 0 for name in NUMBERS if name not in OPTIONAL)
    assert machine.float32_tflops <= machine.bfloat16_tflops <= machine.float8_tflops
    assert machine.matmul_fraction <= 1 and machine.memory_fraction <= 1
    assert machine.network_gb_per_second <= machine.link_gb_per_second < machine.memory_gb_per_second
    assert machine.name in machine.describe() and machine.name == find_machine(machine.name).name


def test_newer_devices_are_faster_and_a_cpu_is_slower_than_any_gpu():
    for older, newer in (
        ("A100", "H100"),
        ("H100", "B200"),
        ("B200", "GB200"),
        ("L40S", "H100"),
        ("H100-PCIe", "H100"),
    ):
        assert MACHINES[older].bfloat16_tflops < MACHINES[newer].bfloat16_tflops
        assert MACHINES[older].memory_gb_per_second < MACHINES[newer].memory_gb_per_second
    assert MACHINES["H100"].memory_gb < MACHINES["H200"].memory_gb
    assert MACHINES["H100"].peak_flops("bfloat16") == MACHINES["H200"].peak_flops("bfloat16") == 989e12
    assert all(CPU.bfloat16_tflops < gpu.bfloat16_tflops for gpu in GPUS)
    names = {"A100", "H100", "H200", "B200", "GB200", "MI300X", "L40S", "CPU"}
    assert names <= MACHINES.keys()


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("A100-PCIE-40GB", "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 80GB HBM2e", "H100-PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200-NVL"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA GB200", "GB200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD Instinct MI300X OAM", "MI300X"),
        ("NVIDIA L40S", "L40S"),
        ("cpu", "CPU"),
    ],
)
def test_a_device_is_detected_by_the_name_that_its_driver_gives_it(device, name):
    assert detect_machine(device) is MACHINES[name]


@pytest.mark.parametrize(
    "device",
    ["NVIDIA L40", "NVIDIA H20", "NVIDIA GH200 480GB", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A100-SXM-64GB", ""],
)
def test_a_device_that_is_not_in_the_table_is_not_taken_for_one_that_is(device):
    assert detect_machine(device) is None
    choice = choose_machine("auto", device)
    assert choice.machine is MACHINES["H100"], "estimates need some machine"
    assert choice.peak_flops("bfloat16") == 0, "MFU would be wrong"
    assert repr(device) in choice.note and "--machine" in choice.note


def test_mfu_is_measured_against_the_peak_of_the_compute_dtype():
    choice = choose_machine("auto", "NVIDIA H100 80GB HBM3")
    assert (choice.peak_flops("bfloat16"), choice.peak_flops("float32")) == (989e12, 67e12)
    assert choose_machine("b200", "cpu").peak_flops("bfloat16") == 2250e12, "as named"
    assert (
        choose_machine("auto", "cpu").peak_flops("float32") == 0 == choose_machine("cpu", "cpu").peak_flops("float32")
    )
    assert [MACHINES["MI300X"].peak_flops(dtype) for dtype in ("float16", "float8_e4m3fn", "float64")] == [
        1307.4e12,
        2614.9e12,
        163.4e12,
    ]


def test_times_follow_from_the_figures():
    h200 = MACHINES["H200"]
    assert h200.matmul_seconds(731.86e12, "bfloat16") == pytest.approx(1.0, rel=1e-4)
    assert h200.matmul_seconds(593.4e12, "bfloat16", is_grouped=True) == pytest.approx(1.0, rel=1e-4)
    assert h200.matmul_seconds(0.64 * 1979e12, "float8_e4m3fn") == pytest.approx(1.0, rel=1e-4)
    assert "49.58 / 731.9 / 1267 TFLOP/s" in h200.describe()
    assert h200.attention_seconds(0.33 * 989e12, "bfloat16", 64) == pytest.approx(1.0, rel=1e-4)
    assert h200.memory_seconds(4.3e12) == pytest.approx(1.0, rel=1e-3)
    assert h200.collective_seconds(450e9, span=8) == pytest.approx(1.00001), "within a node"
    assert h200.collective_seconds(50e9, span=9) == pytest.approx(1.00002), "over the network"
    assert h200.collective_seconds(400e9, span=16, ranks=16) == pytest.approx(1.00002), "a ring for each adapter"
    assert h200.collective_seconds(50e9, span=57, ranks=8) == pytest.approx(1.00004), "one rank a node, one adapter"
    spread = h200.collective_seconds(50e9, span=16, ranks=16, is_all_to_all=True)
    assert spread == pytest.approx(8 / 15 + 2e-5), "what stays in the node does not use the adapter"
    ring = h200.collective_seconds(400e9, span=256, ranks=256, is_ring=True) - 1
    assert ring == pytest.approx(6 * 10e-6 + 224 * 3.4e-6 + 31 * 9.6e-6), "a step for every rank of a ring"
    assert h200.collective_seconds(0, span=9) == 0
    assert h200.host_copy_seconds(64e9) == pytest.approx(1.0)


def test_measured_points_are_interpolated_by_the_logarithm_and_constant_beyond_them():
    points = ((1.0, 0.2), (100.0, 0.6))
    mine = dataclasses.replace(MACHINES["H100"], bfloat16_tflops=1.0, matmul_points=points)
    for gflop, fraction in ((0.5, 0.2), (1.0, 0.2), (10.0, 0.4), (100.0, 0.6), (900.0, 0.6)):
        assert mine.matmul_seconds(gflop * 1e9, "bfloat16") == pytest.approx(gflop / 1000 / fraction)


@pytest.mark.parametrize("name", ["h100", "H100", "Gb200", "h100-pcie"])
def test_names_are_found_in_upper_and_lower_case(name):
    assert find_machine(name).name.lower() == name.lower()


@pytest.mark.parametrize(
    ("name", "do"),
    [
        ("h10", "did you mean H100?"),
        ("MI300", "did you mean MI300X?"),
        ("x", "write one of them, auto, or the path of a .json file"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one_and_the_list(name, do):
    with pytest.raises(ConfigError) as error:
        find_machine(name)
    assert error.value.what == f"machine is {name!r}"
    assert ", ".join(MACHINES) in error.value.why
    assert error.value.do == do


def test_a_file_describes_a_machine_of_its_own(tmp_path):
    mine = dataclasses.replace(MACHINES["H100"], name="mine", bfloat16_tflops=123.5, collective_latency_us=0)
    path = tmp_path / "mine.json"
    write_machine(mine, path)
    assert find_machine(str(path)) == mine
    assert choose_machine(str(path), "cpu").peak_flops("bfloat16") == 123.5e12


def edited(name, value):
    return lambda content: content | {name: value}


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (edited("bfloat_tflops", 1.0), "'bfloat_tflops'"),
        (lambda content: {name: value for name, value in content.items() if name != "memory_gb"}, "lacks memory_gb"),
        (edited("memory_gb", -1), "memory_gb is -1"),
        (edited("memory_gb", 0), "memory_gb is 0"),
        (edited("memory_gb", True), "memory_gb is True"),
        (edited("memory_gb", "80"), "memory_gb is '80'"),
        (edited("memory_gb", None), "memory_gb is None"),
        (edited("matmul_fraction", 1.5), "matmul_fraction is 1.5"),
        (edited("devices_per_node", 0.5), "devices_per_node is 0.5"),
        (edited("collective_latency_us", -1), "collective_latency_us is -1"),
        (edited("name", ""), "name is ''"),
        (lambda content: [content], "machine is"),
    ],
)
def test_a_file_is_refused_by_the_field_that_is_wrong(tmp_path, edit, named):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(edit(dataclasses.asdict(MACHINES["H100"]))))
    with pytest.raises(ConfigError) as error:
        find_machine(str(path))
    assert named in error.value.what and str(path) in error.value.what


@pytest.mark.parametrize(
    ("word", "shown"), [("NaN", "nan"), ("Infinity", "inf"), ("-Infinity", "-inf"), ("1e999", "inf")]
)
def test_a_file_with_a_number_that_is_not_finite_is_refused_by_its_field(tmp_path, word, shown):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(dataclasses.asdict(MACHINES["H100"])).replace("3350", word))
    with pytest.raises(ConfigError, match=f"memory_gb_per_second is {shown}"):
        find_machine(str(path))


def test_a_file_that_is_missing_or_no_json_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        find_machine(str(tmp_path / "none.json"))
    (tmp_path / "odd.json").write_text("{")
    with pytest.raises(ConfigError, match="it is not JSON"):
        find_machine(str(tmp_path / "odd.json"))


def test_hostile_files_are_refused_in_words(tmp_path):
    path = tmp_path / "odd.json"
    whole = json.dumps(dataclasses.asdict(MACHINES["H100"]))
    for text, expected in [
        ("[" * 100_000, "nests more than"),
        (whole.replace("3350", "1" + "0" * 400), "memory_gb_per_second is 1000"),
        (whole.replace('"memory_gb_per_second"', '"%s"' % ("m" * 500_000)), "has the field"),
        (" " * (2 << 20), "larger than 1 MiB"),
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=expected) as refused:
            find_machine(str(path))
        assert len(str(refused.value)) < 1000
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        find_machine(str(path))


def test_a_machine_is_not_written_in_place_of_a_link(tmp_path):
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "out.json").symlink_to("notes")
    with pytest.raises(MonographError, match="it is a link to notes"):
        write_machine(MACHINES["H100"], tmp_path / "out.json")
    assert (tmp_path / "notes").read_text() == "mine" and (tmp_path / "out.json").is_symlink()

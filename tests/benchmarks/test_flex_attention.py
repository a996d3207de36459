"""benchmarks/flex_attention.py: tries itself on a CPU."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import flex_attention
from monograph.kernels.flex_on_gpu import CompiledFlex


def test_the_table_names_every_part_and_problems_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    op = {"shape": "s", "row": "causal", "error": 0.5, "flex_ms": 1.0, "tables_ms": 1.0, "compilations": [1, 2]}
    bits = {"run": "graph against eager", "is_equal": False, "losses": {}}
    found = {"torch": torch.__version__, "device": "cpu", "ops": [op], "steps": [], "bits": [bits]}
    flex_attention.show(found)
    assert "compiled 1+2" in capsys.readouterr().out
    assert len(flex_attention.find_problems(found)) == 3


def test_every_shape_compiles_its_kinds_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where code is compiled for one shape of a kind: a second shape of the same kind is refused."""
    seen: list[int] = []

    def measure(shape: flex_attention.Shape, row: flex_attention.Row, *_: object) -> dict[str, object]:
        spec = flex_attention.FlexSpec(row.kind, shape.heads, None, row.score_mod, bool(row.document))
        compiled: CompiledFlex = flex_attention.load_flex(spec).compiled
        form = (((shape.batch, shape.heads, shape.length, shape.channels), (), torch.bfloat16),)
        compiled.check_form(form, 1)
        compiled.codes[form] = lambda *_: ()  # type: ignore[assignment, return-value]
        seen.append(shape.length)
        return {"shape": shape.name, "row": row.name, "error": None, "compilations": [1, 1]} | {
            "flex_ms": 1.0, "tables_ms": 1.0
        }  # fmt: skip

    shapes = (flex_attention.Shape(1, 256, 4, 2, 16, 16), flex_attention.Shape(1, 512, 4, 2, 16, 16))
    monkeypatch.setattr(flex_attention, "TINY", shapes)
    monkeypatch.setattr(flex_attention, "measure_op", measure)
    monkeypatch.setattr(sys, "argv", ["flex_attention.py", "--tiny", "--only", "ops"])
    assert flex_attention.main() == 0
    assert set(seen) == {256, 512}
    flex_attention.load_flex.cache_clear()


@pytest.mark.long
def test_all_parts_run_on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "flex.json"
    monkeypatch.setattr(sys, "argv", ["flex_attention.py", "--tiny", "--steps", "2", "--out", str(out)])
    assert flex_attention.main() == 0
    found = json.loads(out.read_text())
    assert found["bits"][0]["is_equal"] and [each["run"] for each in found["steps"]] == [
        "our op, exact", "flex, exact", "our op, fast", "flex, fast"
    ]  # fmt: skip

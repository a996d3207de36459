"""The words of the project: the field's terms, one meaning each (docs/glossary.md)."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = sorted((ROOT / "monograph").rglob("*.py"))
TEXTS = [
    path
    for folder in ("monograph", "docs", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".html", ".sh")
] + [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
OLD_NAMES = ROOT / "monograph" / "renamed.py"
"""The table that errors about old files and flags read."""

RETIRED = {
    "pretended": "fake",
    "twin": "chunk node, or a kernel's reference",
    "twins": "chunk nodes",
    "travelled": "dispatched",
    "is_speaker": "is_rank_zero",
    "join_products": "merge_matmuls",
    "fuse_products": "fuse_swiglu_epilogue",
    "gated_product": "matmul_swiglu",
    "keep_weights": "cache_cast_weights",
    "KeptWeights": "CastWeightCache",
    "share_gathers": "dedupe_all_gathers",
    "offload_saved": "offload_activations",
    "own_kernels": "custom_kernels",
    "sliced_loss": "chunked_cross_entropy",
    "computed again": "recomputed",
    "matrix product": "matmul",
    "matrix products": "matmuls",
    "grouped product": "grouped matmul",
    "transfer": "collective, or copy",
    "talks over": "communicates over",
    "let go of": "release",
    "Let go of": "Release",
    "exchange of rows": "all_to_all of rows",
    "sizes that data decide": "unbacked SymInts",
    "make_pure": "functionalize",
    "Taker": "OutputHook",
    "Trouble": "WriteFailures",
    "Shelf": "BoundedQueue",
    "look_at": "take_snapshot",
    "grouped_reference": "grouped_loop",
}
"""Word -> the field's word. A word that is retired does not come back."""


def test_a_public_class_name_means_one_class():
    found = defaultdict(list)
    for path in PACKAGE:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_retired_words_do_not_come_back():
    pattern = re.compile(rf"(?<!\w)({'|'.join(map(re.escape, sorted(RETIRED, key=len, reverse=True)))})(?!\w)")
    said = [
        f"{path.relative_to(ROOT)}:{number}: {match[1]!r}, better: {RETIRED[match[1]]}"
        for path in TEXTS
        if path != OLD_NAMES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in pattern.finditer(line)
    ]
    assert said == []

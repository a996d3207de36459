"""The graph of a step after its capture and after every pass, as the pages show it: equal parts are stored once."""

from collections import Counter
from typing import Any

from monograph.graph.sources import read_excerpts, source_of
from monograph.graph.tags import Tag, find_tag
from monograph.graph.text import TextPart

NO_SOURCE = "-"
CAPTURE = "capture"
"""What made the nodes that no pass made."""


class GraphTexts:
    """Collects versions of a graph; `to_json` is what the page reads."""

    def __init__(self) -> None:
        self._bodies: dict[str, int] = {}
        self._body_sources: list[str] = []
        self._body_modules: list[list[str]] = []
        self._sources: dict[str, int] = {}
        self._versions: list[dict[str, Any]] = []

    def add(self, name: str, parts: list[TextPart], inner: list[str]) -> None:
        """One more version, by the name of what made it."""
        found = [{"name": part.name, "outside": part.outside, "body": self._add_part(part)} for part in parts]
        for text in inner:
            head, _, body = text.rstrip("\n").partition(":\n")
            lines = [line.removeprefix("  ") for line in body.split("\n")]
            found.append({"name": head, "outside": "", "body": self._add_body(lines, [NO_SOURCE] * len(lines), [])})
        self._versions.append({"name": name, "parts": found})

    def _add_part(self, part: TextPart) -> int:
        known = self._bodies.get("\n".join(part.lines))
        if known is not None:
            return known
        sources = [self._name_source(source_of(node)) for node in part.nodes]
        return self._add_body(part.lines, sources, list_modules(part))

    def _add_body(self, lines: list[str], sources: list[str], modules: list[str]) -> int:
        text = "\n".join(lines)
        if text not in self._bodies:
            self._bodies[text] = len(self._bodies)
            self._body_sources.append(" ".join(sources))
            self._body_modules.append(modules)
        return self._bodies[text]

    def _name_source(self, source: str) -> str:
        return str(self._sources.setdefault(source, len(self._sources))) if source else NO_SOURCE

    def to_json(self) -> dict[str, Any]:
        """`versions` list parts, which name one of `bodies` by number: its lines, for each line the number of one of
        `sources` or `-`, and the modules that made them."""
        rows = zip(self._bodies, self._body_sources, self._body_modules, strict=True)
        bodies = [{"text": text, "sources": sources, "modules": modules} for text, sources, modules in rows]
        return {"versions": self._versions, "bodies": bodies, "sources": list(self._sources)}

    def list_sources(self) -> list[str]:
        """All lines of code that nodes come from."""
        return list(self._sources)


def list_modules(part: TextPart) -> list[str]:
    """The modules of a part's nodes, those with most nodes first: children of its block (`attention`), or of the model.

    Nodes of the block itself go by what they are for (`param_all_gather`), or by the pass that made them.
    """
    counts: Counter[str] = Counter()
    for node in part.nodes:
        tag = find_tag(node) or Tag()
        path = f"{tag.path or tag.slot}."
        inside = f"{tag.unit}." if part.block is not None and tag.block == part.block else ""
        role = tag.role.value if tag.role else ""
        made_by = tag.made_by if tag.made_by != CAPTURE else ""
        counts[path.removeprefix(inside).split(".")[0] or role or made_by] += 1
    return [name for name, _ in counts.most_common() if name]


def collect_excerpts(*groups: list[str]) -> dict[str, Any]:
    """The code around the lines that the report names, by file."""
    found = read_excerpts({source for group in groups for source in group if source})
    return {path: [[number, text] for number, text in lines] for path, lines in found.items()}

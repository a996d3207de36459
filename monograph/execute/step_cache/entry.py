"""An entry of the cache: one graph after its passes, with what it was made for and what the passes did, sealed."""

import json
from collections.abc import Sequence
from typing import Any

from monograph.execute.artifact.describe import describe_records
from monograph.execute.artifact.fields import is_step
from monograph.execute.artifact.open import WantedGraph
from monograph.execute.step_cache.key import StepKey
from monograph.graph.encode import GraphFileError
from monograph.graph.file import find_parts, graph_from_data, graph_to_data
from monograph.graph.refuse import GraphError
from monograph.graph.verify_read import check_read_graph, check_schema
from monograph.manifest.sealed import ManifestError, open_sealed, parse_sealed, seal
from monograph.passes.runner import OptimizedGraph, PassRecord

SCHEMA = 1


class UnusableEntry(ValueError):
    """An entry that is not what it should be; the text says why."""


def render_entry(key: StepKey, wanted: WantedGraph, captured: OptimizedGraph) -> bytes | None:
    """The file's bytes; None for a graph that cannot be kept: one with compiled code, or with ops of no list.

    It is read back before anyone relies on it.
    """
    if find_parts(captured.graph):
        return None
    try:
        graph = graph_to_data(captured.graph)
        content = {
            "schema": SCHEMA,
            "key": key.data,
            "digest": captured.graph.digest(),
            "passes": describe_records(captured.records),
            "graph": graph,
        }
        lines = [f"{json.dumps(name)}:{_dump(value)}" for name, value in content.items()]
        data = seal((",\n".join(lines) + "\n}\n").encode())
        parse_entry(data, key, wanted)
    except (GraphFileError, UnusableEntry):
        return None
    return data


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def parse_entry(data: bytes, key: StepKey, wanted: WantedGraph) -> OptimizedGraph:
    """The graph, once the hash is right, the key is this run's, and it is a graph that a run may use."""
    try:
        open_sealed(data)
        content = parse_sealed(data, schema=SCHEMA)
        if content["key"] != key.data:
            raise UnusableEntry("it was made for another step")
        graph = graph_from_data(content["graph"], {})
        check_schema(graph, wanted.inputs.specs())
        check_read_graph(graph, wanted.facts, is_forward=not is_step(wanted.name), runs_ops=False)
        if graph.digest() != content["digest"]:
            raise UnusableEntry("its graph reads back as another one")
        return OptimizedGraph(graph, _read_records(content["passes"]))
    except GraphError as error:
        raise UnusableEntry(f"{error.what}; {error.why}") from None
    except (ManifestError, GraphFileError, UnusableEntry) as error:
        raise UnusableEntry(str(error)) from None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UnusableEntry(f"{type(error).__name__}: {str(error)[:200]}") from None


def _read_records(passes: Sequence[dict[str, Any]]) -> list[PassRecord]:
    """What the passes did when the step was captured; how long they took and what it cost was not kept."""
    return [PassRecord(**each, seconds=0.0, before=None, after=None) for each in passes]

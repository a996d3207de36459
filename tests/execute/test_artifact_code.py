"""Compiled parts in an artifact: made once, loaded without a compiler, the same numbers."""

import pytest
import torch

from monograph.compat.compiler import compiler_folder
from monograph.execute.artifact.folder import write_artifact
from monograph.execute.artifact.make import make_files
from monograph.execute.artifact.manifest import ArtifactError
from monograph.graph.file import find_parts
from monograph.graph.tags import Tag
from monograph.passes.compile.regions import compile_region, find_region, replace_with_compiled
from monograph.passes.runner import OptimizedGraph
from tests.execute.artifacts import make_sections, nothing_made, open_folder
from tests.graph.captures import capture_chunk_nodes


def compile_sum(graph):
    """Hand a sum to the compiler, as the pass for regions does; inputs of the form it was compiled for."""
    sums = [node for node in graph.nodes if node.target is torch.ops.aten.add.Tensor]
    region = find_region(sums[:1])
    replace_with_compiled(
        graph, region, "compiled_0", compile_region(graph, region, for_artifact=True), Tag(made_by="compile_regions")
    )
    graph.compiled = 1
    values = [node.meta["val"] for node in region.inputs]
    return [
        torch.ones(tuple(value.shape), dtype=value.dtype).as_strided(value.shape, value.stride()) for value in values
    ]


@pytest.fixture
def processor_is_known():
    """Inductor asks the processor what it can do by compiling ten little programs, which takes longer than the test."""
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True}):
        yield


@pytest.mark.slow
def test_code_travels_with_its_kernels_and_is_loaded_without_a_compiler(tmp_path, processor_is_known):
    graph, facts = capture_chunk_nodes()
    (tmp_path / "compiler").mkdir()
    with compiler_folder(tmp_path / "compiler"):
        inputs = compile_sum(graph)
        wanted = find_parts(graph)["compiled_0"](*inputs)
        files = make_files({"step": OptimizedGraph(graph, ())}, facts, tmp_path / "compiler")
    sections = make_sections(["compiled_0"])
    assert "regions/step-compiled_0.bin" in files
    write_artifact(tmp_path / "artifact", sections, files)
    artifact = open_folder(tmp_path / "artifact")
    with nothing_made():
        loaded = artifact.graph("step", facts)
    found = find_parts(loaded)["compiled_0"](*inputs)
    assert loaded.digest() == graph.digest() and loaded.compiled == 1
    assert all(torch.equal(one, other) for one, other in zip(wanted, found, strict=True))
    kernels = artifact.unpack_kernels()
    artifact.close()
    assert not kernels.exists()

    without = {name: content for name, content in files.items() if not name.startswith("kernels/")}
    write_artifact(tmp_path / "less", sections, without)
    with pytest.raises(ArtifactError, match="needs a kernel"):
        open_folder(tmp_path / "less").graph("step", facts)

"""compile_regions: equal blocks share one compiled code, and results stay within rounding of the plain graph's."""

import pytest
import torch

from monograph.execute.program import lower
from monograph.graph.tags import tag_of
from monograph.graph.verify import check_graph
from monograph.parallel.mesh import Mesh
from monograph.passes.compile.mark_regions_options import MarkRegionsConfig
from monograph.passes.compile.regions import find_region, group_consecutive, make_region_key
from monograph.passes.config import PassesConfig
from tests.kit.pipelines import capture_small, make_pass

BLOCKS = PassesConfig(mark_regions=MarkRegionsConfig(regions=("blocks",)))


def marked(model, layers):
    graph, facts = capture_small(model, Mesh(), **{"model.n_layers": layers})
    for name in ("remove_no_ops", "remove_dead_code", "elide_trivial_collectives", "mark_regions"):
        make_pass(name, BLOCKS).run(graph, facts)
    return graph, facts


def count_kinds(graph):
    runs = group_consecutive(graph.nodes, lambda node: tag_of(node).compile or None)
    return len({make_region_key(find_region(run)) for run in runs})


@pytest.mark.parametrize("model", ["llama3", pytest.param("deepseek_v3", marks=pytest.mark.long)])
def test_the_kinds_of_parts_do_not_grow_with_the_number_of_blocks(model):
    few, many = (count_kinds(marked(model, layers)[0]) for layers in (3, 4))
    assert few == many


def run_graph(graph, seed=0):
    """Every output by name, for inputs drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for spec in graph.inputs:
        if spec.dtype.is_floating_point:
            values.append(torch.randn(spec.shape, generator=generator, dtype=spec.dtype) * 0.1)
        else:
            values.append(torch.full(spec.shape, 3, dtype=spec.dtype))
    found = {}
    with torch.no_grad():
        lower(graph, lambda spec, value: found.update({(spec.kind, spec.name): value.clone()}))(*values)
    return found


@pytest.mark.long
@pytest.mark.slow
def test_blocks_are_compiled_once_per_kind_and_compute_the_same_within_rounding():
    plain, _ = marked("llama3", 3)
    graph, facts = marked("llama3", 3)
    said = make_pass("compile_regions").run(graph, facts)
    check_graph(graph, facts)
    assert said == "6 parts, 2 compilations" and graph.compiled == 2
    assert graph.text().count("compiled_0(") == 1, "equal blocks are printed once"
    wanted, found = run_graph(plain), run_graph(graph)
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-6 + 1e-5 * value.abs().max().item()), name

"""A capture of three blocks that are identical, unfolded, is the capture of all of them: the same text and promises."""

import pytest
import torch

from monograph.capture.block_repeats import BlockRepeat, find_block_repeats
from monograph.capture.replicate import BlockView, describe
from monograph.capture.symbols import SymbolMap
from monograph.compat.ops import ATEN
from monograph.graph.layouts import find_symbols
from monograph.graph.query import value_of
from monograph.graph.tags import Tag, set_tag, tag_of
from monograph.graph.verify import check_graph
from monograph.models.feed_forward import FeedForward
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.shard import FsdpUnitRunner
from tests.execute.updates import CPU, small
from tests.kit.capture import prepare

GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph"}
GROUPED = {"experts": "grouped"}


ALONE = Mesh()


def build(model, folder, mesh=ALONE, layers=6, changes=None, **how):
    """A step that was not captured yet."""
    degrees = {name: getattr(mesh, name) for name in ("tp", "ep", "etp") if getattr(mesh, name) > 1}
    config = small(model, folder, {**GRAPH, "model.n_layers": layers, **(changes or {})}, **how, **degrees)
    groups = fake_groups(mesh, 0, CPU)
    return config, groups


def trace_both(model, folder, *, change=None, parts=("step",), **how):
    """Unfolded and whole, with the evaluation if asked for; and the runs of blocks that were left out."""
    config, fake = build(model, folder, **how)
    with fake as groups:
        prepared = prepare(config, groups)
        if change is not None:
            change(prepared.source.model)
        repeats = find_block_repeats(prepared.source.model, prepared.source.table)
        unfolded = [prepared.capture(part) for part in parts]
        whole = [prepared.capture(part, repeats=[]) for part in parts]
    return unfolded, whole, repeats


def check_same(unfolded, whole):
    for one, other in zip(unfolded, whole, strict=True):
        assert one.text(folded=False) == other.text(folded=False)
        assert one.properties == other.properties
        assert one.outputs == other.outputs


@pytest.mark.parametrize(
    ("model", "how", "run"),
    [
        (
            "llama3",
            {"mesh": Mesh(dp_shard=2, tp=2), "changes": {"model.mask": "document"}, "layers": 5},
            BlockRepeat(0, 4),
        ),
        pytest.param("qwen3_moe", GROUPED, BlockRepeat(0, 5), marks=pytest.mark.long),
        pytest.param("deepseek_v3", GROUPED, BlockRepeat(1, 5), marks=pytest.mark.long),
        pytest.param("llama3", {"layers": 12}, BlockRepeat(0, 11), marks=pytest.mark.long),
        pytest.param(
            "qwen3_moe", {"mesh": Mesh(dp_shard=2, tp=2, ep=2, etp=2)}, BlockRepeat(0, 5), marks=pytest.mark.long
        ),
        pytest.param("deepseek_v3", {"layers": 9}, BlockRepeat(1, 8), marks=pytest.mark.long),
        pytest.param(
            "qwen3_moe", {**GROUPED, "mesh": Mesh(dp_shard=2, tp=2)}, BlockRepeat(0, 5), marks=pytest.mark.long
        ),
        pytest.param(
            "deepseek_v3",
            {**GROUPED, "mesh": Mesh(dp_replicate=2, dp_shard=2)},
            BlockRepeat(1, 5),
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_unfolded_capture_is_the_capture_of_all_blocks(model, how, run, tmp_path):
    unfolded, whole, runs = trace_both(model, tmp_path, parts=("step", "forward"), **how)
    assert runs == [run], "something was left out"
    check_same(unfolded, whole)


@pytest.fixture(scope="module")
def exchanging(tmp_path_factory):
    """Both captures of a model whose blocks exchange rows."""
    return trace_both("deepseek_v3", tmp_path_factory.mktemp("runs"), mesh=Mesh(dp_shard=2, ep=2), layers=5)


@pytest.mark.long
def test_blocks_that_exchange_rows_are_unfolded_too(exchanging):
    unfolded, whole, runs = exchanging
    assert runs == [BlockRepeat(1, 4)]
    check_same(unfolded, whole)


@pytest.mark.long
def test_every_block_has_names_of_its_own_for_sizes_that_depend_on_data(exchanging):
    unfolded, whole, _ = exchanging
    counts: list = []
    facts: list = []
    for graph in (unfolded[0], whole[0]):
        made: dict[int, set] = {}
        for node in graph.nodes:
            made.setdefault(tag_of(node).block, set()).update(find_symbols(value_of(node)))
        names = [symbol for block, symbols in made.items() if block is not None for symbol in symbols]
        assert len(names) == len(set(names)), "no block uses another one's sizes"
        counts.append({block: len(symbols) for block, symbols in made.items()})
        for node in graph.nodes:
            assert set(node.meta.get("unbacked_bindings") or ()) <= find_symbols(value_of(node)), node.name
        known = value_of(graph.nodes[0]).fake_mode.shape_env
        facts.append(
            {
                block: (
                    sum(len(known.deferred_runtime_asserts.get(symbol, [])) for symbol in symbols),
                    sum(not symbols.isdisjoint(each.free_symbols) for each in known.axioms),
                    sorted(str(known.var_to_range[symbol]) for symbol in symbols),
                )
                for block, symbols in made.items()
            }
        )
    assert facts[0] == facts[1], "what is known of sizes in a whole capture is known of the copies"
    assert counts[0] == counts[1]


@pytest.mark.long
def test_an_unfolded_step_with_sizes_from_data_passes_every_check(tmp_path):
    config, fake = build("deepseek_v3", tmp_path, mesh=Mesh(dp_shard=2, ep=2), layers=5)
    with fake as groups:
        prepared = prepare(config, groups)
        check_graph(prepared.capture_and_pass().graph, prepared.facts)


def change_setting(model):
    model.layers[3].attention_norm.eps = 0.5


def add_hook(model):
    model.layers[3].register_forward_hook(lambda _module, _args, result: (result[0] * 2, result[1]))


def replace_forward(model):
    block = model.layers[3]
    honest = block.compute
    block.compute = lambda *args: (honest(*args)[0] + 1, None)


@pytest.mark.parametrize(
    "change", [pytest.param(each, marks=pytest.mark.long) for each in (add_hook, change_setting, replace_forward)]
)
def test_a_block_that_differs_in_anything_is_captured_itself(change, tmp_path):
    unfolded, whole, runs = trace_both("llama3", tmp_path, change=change, layers=8)
    assert runs == [BlockRepeat(4, 7)], "blocks 0 to 2 are too few to leave one out, block 3 is unlike them"
    check_same(unfolded, whole)


@pytest.mark.long
def test_captured_blocks_that_turn_out_to_differ_lead_to_a_whole_capture(tmp_path, monkeypatch):
    """What modules do not show: something that depends on how often it was called."""
    calls = []
    honest = FeedForward.forward

    def forward(self, x):
        calls.append(x)
        return honest(self, x).neg() if len(calls) == 3 else honest(self, x)

    monkeypatch.setattr(FeedForward, "forward", forward)
    config, fake = build("llama3", tmp_path)
    with fake as groups:
        prepared = prepare(config, groups)
        assert find_block_repeats(prepared.source.model, prepared.source.table) == [BlockRepeat(0, 5)]
        graph = prepared.capture()
    assert len(calls) == 9, "three blocks, of which the last did something else; then all six"
    assert len({tag_of(node).block for node in graph.nodes} - {None}) == 6


@pytest.fixture
def with_number():
    """An op that yields a number beside its tensor, as attention does on a GPU."""
    library = torch.library.Library("monograph_test", "FRAGMENT")
    library.define("with_number(Tensor x) -> (Tensor, SymInt)")
    name = "monograph_test::with_number"
    torch.library.impl(name, "default", lambda x: (x.sin(), 7), lib=library)
    torch.library.register_fake(name, lambda x: (torch.empty_like(x), 7), lib=library)
    torch.library.register_autograd(
        name,
        lambda ctx, grad, _: grad * ctx.saved_tensors[0].cos(),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        lib=library,
    )
    yield torch.ops.monograph_test.with_number.default
    library._destroy()


@pytest.mark.long
def test_ops_that_yield_numbers_as_well_are_copied(with_number, tmp_path, monkeypatch):
    honest = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: with_number(honest(self, x))[0])
    unfolded, whole, runs = trace_both("llama3", tmp_path)
    assert runs == [BlockRepeat(0, 5)]
    assert sum(node.target is with_number for node in unfolded[0].nodes) == 6
    check_same(unfolded, whole)


@pytest.mark.parametrize("odd", [3, *(pytest.param(odd, marks=pytest.mark.long) for odd in (0, 5))])
def test_a_block_that_is_called_differently_leads_to_a_whole_capture(odd, tmp_path, monkeypatch):
    """Blocks 0 and 5 are captured, block 3 is left out: one of them gets another table of cosines than the others."""
    honest = FsdpUnitRunner.__call__

    def call(self, unit, *args):
        number = next((n for n, block in enumerate(unit_owner[0].layers) if block is unit), None)
        if number == odd:
            h, cos, *rest = args
            args = (h, cos * 2, *rest)
        return honest(self, unit, *args)

    unit_owner = []
    monkeypatch.setattr(FsdpUnitRunner, "__call__", call)
    unfolded, whole, runs = trace_both("llama3", tmp_path, change=unit_owner.append, parts=("forward",))
    assert runs == [BlockRepeat(0, 5)], "their modules are identical"
    check_same(unfolded, whole)
    doubled = [node for node in unfolded[0].nodes if node.target is ATEN.mul.Tensor and node.args[1] == 2]
    assert len(doubled) == 1


def test_runs_of_three_have_nothing_to_leave_out(tmp_path):
    config, fake = build("llama3", tmp_path, layers=3)
    with fake as groups:
        source = prepare(config, groups).source
        assert find_block_repeats(source.model, source.table) == []


def test_an_argument_that_is_read_twice_counts_twice():
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    one, other = (graph.call_function(ATEN.addcmul.default, args) for args in ((a, b, a), (a, b, b)))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(2, device="meta")
        set_tag(node, Tag())
    view = BlockView(lambda node: node.name, SymbolMap([]))
    assert describe(one, view) != describe(other, view)

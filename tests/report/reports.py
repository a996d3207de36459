"""Reports of steps and pipelines that are made in no time: from graphs written by hand and schedules on paper."""

from monograph.annotate import Direction, Role
from monograph.compat.ops import ALL_GATHER, ATEN, WAIT_TENSOR
from monograph.graph.cost import measure
from monograph.graph.diff import diff_texts
from monograph.graph.facts import Facts
from monograph.parallel.pipeline.build import build_schedule
from monograph.parallel.pipeline.simulate import StageCost, simulate
from monograph.parallel.pipeline.stages import StagePlan
from monograph.passes.runner import PassRecord
from monograph.report.collect import collect_graph, collect_pass
from monograph.report.collect_pipeline import collect_pipeline
from monograph.report.graph_texts import GraphTexts, collect_excerpts
from tests.kit.by_hand import ByHand
from tests.kit.machines import SLOW

FACTS = Facts(machine=SLOW, group_sizes={"g": 2})
SOURCE = 'File "monograph/graph/sources.py", line {line}, in f'
MESH = {"pp": 1, "dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 1, "ep": 1, "etp": 1}


def make_graph(blocks=3, *, is_changed=False):
    """Each block gathers its parameter and multiplies; backward reads the gathered values and the matmuls. Nodes come
    from lines of a file that exists."""
    hand = ByHand()
    x = hand.input("x", 4, 4)
    weights = [hand.input(f"layers.{block}.w", 2, 4) for block in range(blocks)]
    kept = []
    for block, weight in enumerate(weights):
        names = {"path": f"layers.{block}.work"}
        launch = hand.call(ALL_GATHER, weight, 2, "g", role=Role.PARAM_ALL_GATHER, slot=f"layers.{block}.w", **names)
        full = hand.call(WAIT_TENSOR, launch, **names)
        x = hand.call(ATEN.mm.default, x, full, **names)
        x.stack_trace = SOURCE.format(line=20)
        if is_changed:
            x = hand.call(ATEN.relu.default, x, **names)
        kept.append((full, x))
    gradient = x
    back = {"direction": Direction.BACKWARD}
    for block, (full, matmul) in reversed(list(enumerate(kept))):
        path = f"layers.{block}.work"
        gradient = hand.call(ATEN.mm.default, gradient, full, path=path, **back)
        gradient = hand.call(ATEN.mul.Tensor, gradient, matmul, path=path, **back)
    return hand.done(gradient)


def make_step_report(recipe="hand_made", *, blocks=3, is_changed=True):
    """As `monograph inspect` writes it: one pass ran and one had nothing to do."""
    graphs = [make_graph(blocks), make_graph(blocks, is_changed=is_changed)]
    texts = GraphTexts()
    for name, graph in zip(("captured", "add_relu"), graphs, strict=True):
        texts.add(name, graph.text_parts(), graph.inner_texts())
    costs = [measure(graph, FACTS) for graph in graphs]
    diff = diff_texts(*(graph.text(folded=False) for graph in graphs))
    told = {"options": {}, "seconds": 0.25, "removed": 0, "moved": 0}
    ran = PassRecord(name="add_relu", status="ran", note="3 relus", added=3, before=costs[0], after=costs[1], **told)
    idle = PassRecord(name="idle", status="skipped", note="nothing", added=0, before=costs[1], after=costs[1], **told)
    run = {"recipe": recipe, "command": f"monograph inspect {recipe}", "ranks": 2, "mesh": MESH, "local_batch_size": 1}
    run |= {"seq_len": 64, "compute_dtype": "bfloat16", "torch": "2.13", "target": "cuda", "numerics": "exact"}
    run |= {"machine": "SLOW: 1 TFLOP/s, for tests", "notes": ["Times are estimates."], "capture_seconds": 0.1}
    return {
        "run": run,
        "captured": collect_graph(graphs[0], FACTS, ideal_seconds=10.0),
        "passes": [collect_pass(ran, diff=diff, files=("1.txt", "1.diff")), collect_pass(idle, diff="", files=())],
        "final": collect_graph(graphs[1], FACTS, ideal_seconds=10.0),
        "graphs": texts.to_json(),
        "code": collect_excerpts(texts.list_sources()),
    }


def make_simulation(name="zbv", *, ranks=4, micro_batches=8):
    schedule = build_schedule(name, ranks=ranks, virtual_stages=0, micro_batches=micro_batches)
    times = {"forward_seconds": 0.010, "input_grad_seconds": 0.011, "weight_grad_seconds": 0.009}
    sizes = {"fixed_bytes": 4 << 30, "saved_bytes": 1 << 30, "saved_for_weights_bytes": 1 << 29, "work_bytes": 1 << 28}
    costs = [StageCost(**times, **sizes) for _ in range(schedule.stages)]
    return schedule, costs, simulate(schedule, costs)


def make_pipeline_report(name="zbv", **sizes):
    """As `monograph inspect` of a pipeline writes it."""
    schedule, costs, simulation = make_simulation(name, **sizes)
    plan = StagePlan(tuple((f"layers.{number}",) for number in range(schedule.stages)))
    texts = GraphTexts()
    graph = make_graph()
    texts.add("stage 0", graph.text_parts(), [])
    run = {"recipe": "hand_made", "command": "monograph inspect hand_made", "ranks": schedule.ranks, "machine": "SLOW"}
    run |= {"schedule": name, "micro_batches": schedule.micro_batches, "notes": ["Times are estimates."]}
    report = collect_pipeline(plan, schedule, costs, [{} for _ in costs], simulation)
    return report | {"run": run, "graphs": texts.to_json(), "code": collect_excerpts(texts.list_sources())}

"""The difference between two graphs: only what changed, and what changed in many blocks once."""

from monograph.annotate import Direction
from monograph.compat.ops import ATEN
from monograph.graph.diff import LEGEND, diff_texts
from monograph.graph.edit import call_before, erase, redirect
from monograph.graph.tags import tag_of
from tests.kit.by_hand import ByHand

NEG, EXP, ADD = ATEN.neg.default, ATEN.exp.default, ATEN.add.Tensor


def make_graph(blocks=4):
    """Each block: y = exp(-x) + x."""
    hand = ByHand()
    x = hand.input("x", 4)
    calls = []
    for block in range(blocks):
        path = f"layers.{block}.work"
        minus = hand.call(NEG, x, path=path)
        power = hand.call(EXP, minus, path=path)
        x = hand.call(ADD, power, x, path=path)
        calls.append((minus, power, x))
    return hand.done(hand.call(NEG, x, path="head")), calls


def diff_of(change):
    graph, calls = make_graph()
    before = graph.text(folded=False)
    change(graph, calls)
    return diff_texts(before, graph.text(folded=False)).splitlines()


def test_equal_graphs_have_no_difference():
    assert diff_of(lambda graph, calls: None) == ["nothing changed"]


def test_blocks_that_changed_equally_are_shown_once_and_renumbered_lines_are_unchanged():
    def skip_the_minus(_graph, calls):
        for minus, power, _ in calls[1:]:
            redirect(minus, minus.args[0], users=[power])
            erase([minus])

    assert diff_of(skip_the_minus) == [
        LEGEND,
        "",
        "forward blocks 1..3:",
        "  - 0: float32[4] = neg(in(f-1.2))  # layers.*.work",
        "  - 1: float32[4] = exp(f.0)  # layers.*.work",
        "  + 0: float32[4] = exp(in(f-1.2))  # layers.*.work",
        "    ... 1 unchanged",
        "unchanged: forward block 0, forward, backward",
    ]


def test_a_line_that_reads_something_else_has_changed():
    lines = diff_of(lambda _graph, calls: calls[2][2].update_arg(1, calls[0][2]))
    assert lines[2:6] == [
        "forward block 2:",
        "    ... 2 unchanged",
        "  - 2: float32[4] = add.Tensor(f.1, in(f-1.2))  # layers.*.work",
        "  + 2: float32[4] = add.Tensor(f.1, in(f-2.2))  # layers.*.work",
    ]


def test_a_new_node_is_added_and_its_neighbours_are_not():
    def negate_once_more(graph, calls):
        for minus, power, _ in calls:
            again = call_before(graph.module.graph, power, NEG, (minus,), tag_of(minus))
            redirect(minus, again, users=[power])

    assert diff_of(negate_once_more)[2:] == [
        "forward blocks 0..3:",
        "    ... 1 unchanged",
        "  + 1: float32[4] = neg(f.0)  # layers.*.work",
        "  - 1: float32[4] = exp(f.0)  # layers.*.work",
        "  + 2: float32[4] = exp(f.1)  # layers.*.work",
        "    ... 1 unchanged",
        "unchanged: forward, backward",
    ]


def test_a_node_that_starts_in_another_block_shows_where():
    def start_early(graph, calls):
        power, anchor = calls[3][1], calls[2][0]
        power.replace_input_with(calls[3][0], graph.placeholders[0])
        anchor.append(power)

    lines = diff_of(start_early)
    assert "  + (forward block +1 runs here)" in lines[: lines.index("forward block 3:")]
    assert "  + 0: float32[4] = exp(%x)  # layers.*.work" in lines


def test_a_moved_node_is_not_one_removed_and_one_added():
    hand = ByHand()
    x = hand.input("x", 4)
    first, second = (hand.call(op, x, path="layers.0.work") for op in (NEG, EXP))
    third = hand.call(ATEN.sin.default, x, path="layers.0.work")
    graph = hand.done(hand.call(ATEN.cat.default, [first, second, third]))
    before = graph.text(folded=False)
    third.append(first)
    lines = diff_texts(before, graph.text(folded=False)).splitlines()
    assert lines[2:] == [
        "forward block 0:",
        "  < 0: float32[4] = neg(%x)  # layers.*.work",
        "    ... 2 unchanged",
        "  > 2: float32[4] = neg(%x)  # layers.*.work",
        "unchanged: forward, backward",
    ]


def test_what_a_step_returns_stands_with_the_last_lines_outside_of_blocks():
    """As in a step that was compiled whole: two parts of one name beside each other could not be told apart."""
    hand = ByHand()
    x = hand.input("x", 4)
    loss = hand.call(NEG, x)
    graph = hand.done(loss, x=hand.call(EXP, x, direction=Direction.BACKWARD))
    text = graph.text(folded=False)
    assert text.count("backward:") == 1
    assert diff_texts(text, text) == diff_texts("", "") == "nothing changed\n"

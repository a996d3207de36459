"""The graph on the page: every version whole, equal parts once, and lines that lead to code."""

from monograph.annotate import Role
from monograph.compat.ops import ATEN
from monograph.graph.sources import read_excerpts
from monograph.report.compare import unfold
from monograph.report.graph_texts import GraphTexts, collect_excerpts
from tests.kit.by_hand import ByHand
from tests.report.reports import make_graph


def collect(*graphs):
    texts = GraphTexts()
    for number, graph in enumerate(graphs):
        texts.add(f"version {number}", graph.text_parts(), graph.inner_texts())
    return texts.to_json()


def test_every_version_can_be_unfolded_into_its_text():
    graphs = [make_graph(), make_graph(is_changed=True)]
    found = collect(*graphs)
    assert [each["name"] for each in found["versions"]] == ["version 0", "version 1"]
    for number, graph in enumerate(graphs):
        assert unfold(found, number) == graph.text(folded=False)


def test_parts_with_the_same_lines_are_stored_once():
    few, many = collect(make_graph(4)), collect(make_graph(40), make_graph(40))
    assert len(few["bodies"]) == len(many["bodies"]) == 5
    assert len(many["versions"][0]["parts"]) == 2 * 40 + 1


def test_inner_graphs_are_parts_that_are_stored_once_as_well():
    texts = GraphTexts()
    for name in ("captured", "after"):
        texts.add(name, [], ["graph score(x):\n  0: value = relu(%x)\n  1: return f.0\n"])
    found = texts.to_json()
    assert found["bodies"] == [{"text": "0: value = relu(%x)\n1: return f.0", "sources": "- -", "modules": []}]
    assert [version["parts"][0]["name"] for version in found["versions"]] == ["graph score(x)"] * 2


def test_lines_name_the_code_they_come_from():
    found = collect(make_graph())
    assert found["sources"] == ["monograph/graph/sources.py:20"]
    first = found["bodies"][found["versions"][0]["parts"][0]["body"]]
    assert [line.split("= ")[1].split("(")[0] for line in first["text"].split("\n")][2] == "mm"
    assert first["sources"] == "- - 0"


def test_excerpts_count_lines_of_code_as_python_does(tmp_path):
    (tmp_path / "old.py").write_text("a = 1\n\x0c\nb = '\u2028'\nc = 3\n")
    path = str(tmp_path / "old.py")
    assert read_excerpts([f"{path}:4"], around=0) == {path: [(4, "c = 3")]}


def test_parts_name_the_modules_of_their_nodes_those_with_most_nodes_first():
    hand = ByHand()
    weight = hand.input("layers.0.w", 4, 4)
    x = hand.call(ATEN.relu.default, weight, path="embedding.rows")
    full = hand.call(ATEN.relu.default, weight, path="layers.0", role=Role.PARAM_ALL_GATHER)
    x = hand.call(ATEN.mm.default, x, full, path="layers.0.attention.wq")
    x = hand.call(ATEN.mm.default, x, full, path="layers.0.attention.wo")
    x = hand.call(ATEN.add.Tensor, x, full, path="layers.0")
    found = collect(hand.done(x))
    parts = found["versions"][0]["parts"]
    assert [(part["name"], found["bodies"][part["body"]]["modules"]) for part in parts[:2]] == [
        ("forward", ["embedding"]),
        ("forward block 0", ["attention", "param_all_gather"]),
    ]


def test_excerpts_have_the_lines_around_and_leave_out_what_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("".join(f"line {number}\n" for number in range(1, 21)))
    monkeypatch.chdir(tmp_path)
    found = read_excerpts(["mine.py:2", "mine.py:15", f"{tmp_path}/mine.py:9", "none.py:3"], around=2)
    assert [number for number, _ in found["mine.py"]] == [1, 2, 3, 4, 13, 14, 15, 16, 17]
    assert found["mine.py"][0] == (1, "line 1")
    assert [number for number, _ in found[f"{tmp_path}/mine.py"]] == [7, 8, 9, 10, 11]
    assert "none.py" not in found
    assert collect_excerpts(["mine.py:2", ""], ["mine.py:2"]) == {"mine.py": [[n, f"line {n}"] for n in range(1, 7)]}

"""Changes to the data of a graph file, as somebody makes them who wants a step to do something else. Drawn by seed."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from monograph.compat.ops import find_op
from monograph.graph.allowed_ops import EXTRA, FUNCTIONS, GENERATED
from monograph.graph.encode import decode_meta, encode_meta
from monograph.graph.formulas import Numbers
from monograph.graph.tensor_meta import TensorMeta, meta_of
from monograph.graph.verify_meta import FormChecker

Data = dict[str, Any]
ALLOWED = sorted(GENERATED | EXTRA.keys())
NAMES = sorted(
    name.replace("::", ".") if "." in name else f"{name.replace('::', '.')}.default"
    for name in torch._C._dispatch_get_all_op_names()
)
"""Every operator that this torch has registered."""
ODD_TARGETS = (
    *("os.system.default", "builtins.eval.default", "higher_order.cond", "higher_order.while_loop", "cond", "exec"),
    *("aten.mm.__class__", "aten.mm", "prim.Print.default", "torch.load.default", "getattr", "mul", "pow", "call"),
)
ODD_NUMBERS = (
    0,
    -1,
    1,
    2,
    7,
    255,
    2**31,
    2**40,
    2**62,
    2**63,
    10**12,
    10**30,
    -(10**12),
    0.5,
    -1e30,
    True,
    False,
    None,
)
ODD_VALUES: tuple[Any, ...] = (
    *({"f": "nan"}, {"f": "inf"}, {"d": "float64"}, {"d": "complex64"}, {"d": "qint8"}, {"device": "cuda"}),
    *({"device": "meta"}, {"layout": "sparse_coo"}, {"format": "channels_last"}, {"t": []}, [], [[[[[[1]]]]]]),
    *({"v": -1}, {"v": 10**6}, {"class": "os:system"}, {}, {"v": 0, "t": []}, [None, {"v": 0}], {"t": [{"v": 0}]}),
)
ODD_SIZES = (
    "u0",
    "u0 + u1",
    "u999",
    "10**12",
    "Max(1, u0)",
    "__import__('os')",
    "u0*u1",
    "",
    "(" * 60 + "u0" + ")" * 60,
)
ODD_KEYS = {"name": "x", "meta": {}, "graph": {"nodes": []}, "kwargs": {"out": {"v": 0}}, "users": [1]}


class Mutator:
    """Changes one graph's data, as a seed says."""

    def __init__(self, data: Data, seed: int, paths: Sequence[str]) -> None:
        self.data, self.pick, self.paths = data, random.Random(seed), paths
        self.done: list[str] = []

    def mutate(self) -> list[str]:
        """Make one to three changes; what was done."""
        for _ in range(self.pick.choice((1, 1, 1, 2, 3))):
            change = self.pick.choice(CHANGES)
            try:
                change(self)
            except (IndexError, KeyError, TypeError, ValueError, AttributeError):
                continue  # a change before it left nothing that it could change
            self.done.append(change.__name__)
        if self.pick.random() < 0.6 and isinstance(self.data.get("nodes"), list):
            self.repair()
        return self.done

    @property
    def nodes(self) -> list[Data]:
        """The nodes of the graph."""
        nodes: list[Data] = self.data["nodes"]
        return nodes

    def draw_call(self) -> Data:
        """A node that calls an operator."""
        return self.pick.choice([node for node in self.nodes if node.get("op") == "call_function"])

    def draw_value(self, before: int | None = None) -> Data:
        """The value of some node, of one before a place where that is known."""
        return {"v": self.pick.randrange(before if before else len(self.nodes) - 1)}

    def draw_anything(self) -> Any:
        """An argument of any kind."""
        kind = self.pick.randrange(5)
        if kind == 0:
            return self.pick.choice(self.paths)
        if kind == 1:
            return self.draw_value()
        return self.pick.choice(ODD_NUMBERS if kind < 4 else ODD_VALUES)

    def insert(self, place: int, node: Data) -> None:
        """Put a node at a place; whoever refers to a later one is led to it again."""
        self.data["nodes"] = [shift(each, place, 1) for each in self.nodes]
        self.nodes.insert(place, node)

    def add_value(self, form: Any) -> int:
        """A new entry of the values."""
        self.data["values"].append(form)
        return len(self.data["values"]) - 1

    def repair(self) -> None:
        """Let values say what operators yield, where these accept their arguments: a lie would be found at once."""
        forms: list[Any] = []
        checker = FormChecker(Numbers([], first=16, step=3))
        for node in self.nodes:
            form: Any = None
            try:
                form = decode_meta(self.data["values"][node["value"]])
                if node["op"] == "call_function" and not has_symbols(form):
                    form = meta_of(run_on_meta(node, forms, checker))
                    node["value"] = self.add_value(encode_meta(on_cpu(form)))
            except Exception:
                forms.append(form)
                continue
            forms.append(form)


def has_symbols(form: Any) -> bool:
    """Whether a size of a value is known only when the step runs."""
    forms = form if isinstance(form, list) else [form]
    return any(not isinstance(each, TensorMeta) or any(isinstance(size, str) for size in each.shape) for each in forms)


def on_cpu(form: Any) -> Any:
    """The form on the device that a run has."""
    if isinstance(form, list):
        return [on_cpu(each) for each in form]
    return (
        TensorMeta(form.dtype, form.shape, form.strides, torch.device("cpu")) if isinstance(form, TensorMeta) else form
    )


def run_on_meta(node: Data, forms: list[Any], checker: FormChecker) -> Any:
    """What an operator yields for arguments of these forms, computed without memory."""
    target = FUNCTIONS.get(node["target"]) or find_op(node["target"])
    assert node["target"] in ALLOWED, "only these are known to do nothing else"

    def value(data: Any) -> Any:
        if isinstance(data, list):
            return [value(each) for each in data]
        if isinstance(data, dict) and "v" in data:
            return checker.make(forms[data["v"]])
        if isinstance(data, dict) and "d" in data:
            return getattr(torch, data["d"])
        return torch.device("meta") if isinstance(data, dict) and "device" in data else data

    kwargs = {name: value(each) for name, each in node.get("kwargs", {}).items()}
    return checker.yields(target, tuple(value(each) for each in node.get("args", ())), kwargs)


def shift(data: Any, place: int, by: int) -> Any:
    """The same data with references to nodes from a place on moved."""
    if isinstance(data, list):
        return [shift(each, place, by) for each in data]
    if isinstance(data, dict):
        if type(data.get("v")) is int and len(data) == 1 and data["v"] >= place:
            return {"v": data["v"] + by}
        return {
            name: shift(each, place, by) if name in ("args", "kwargs", "t") else each for name, each in data.items()
        }
    return data


def swap_for_any_op(mutator: Mutator) -> None:
    mutator.draw_call()["target"] = mutator.pick.choice(NAMES)


def swap_for_allowed_op(mutator: Mutator) -> None:
    mutator.draw_call()["target"] = mutator.pick.choice(ALLOWED)


def swap_for_odd_target(mutator: Mutator) -> None:
    mutator.draw_call()["target"] = mutator.pick.choice(ODD_TARGETS)


def swap_with_like(mutator: Mutator) -> None:
    """Another operator that occurs in the graph, with its own arguments."""
    one, other = mutator.draw_call(), mutator.draw_call()
    one["target"], one["kwargs"] = other["target"], dict(other.get("kwargs", {}))


def change_text(mutator: Mutator) -> None:
    """A path in place of a text, or of any argument."""
    node = mutator.draw_call()
    indices = [place for place, value in enumerate(node["args"]) if isinstance(value, str)]
    place = mutator.pick.choice(indices or range(len(node["args"])))
    texts = (*mutator.paths, "sum", "max", "avg", "tp", "world", "0", "default_pg", "cuda:0", "tanh", "")
    node["args"][place] = mutator.pick.choice(texts)


def change_argument(mutator: Mutator) -> None:
    args = mutator.draw_call()["args"]
    args[mutator.pick.randrange(len(args))] = mutator.draw_anything()


def change_number(mutator: Mutator) -> None:
    """Another number where there was one, also inside of a list of sizes."""
    node = mutator.draw_call()
    lists = [node["args"], *(value for value in node["args"] if isinstance(value, list))]
    found = [(each, place) for each in lists for place, value in enumerate(each) if isinstance(value, int | float)]
    each, place = mutator.pick.choice(found)
    each[place] = mutator.pick.choice(ODD_NUMBERS)


def change_keyword(mutator: Mutator) -> None:
    node = mutator.draw_call()
    known = list(node.get("kwargs", {})) or ["dtype", "device", "layout", "pin_memory", "out", "memory_format", "x=1,"]
    node.setdefault("kwargs", {})[mutator.pick.choice(known)] = mutator.draw_anything()


def rewire(mutator: Mutator) -> None:
    """Read another value than before."""
    place = mutator.pick.randrange(1, len(mutator.nodes))
    args = mutator.nodes[place]["args"]
    found = [index for index, value in enumerate(args) if isinstance(value, dict) and "v" in value]
    args[mutator.pick.choice(found)] = mutator.draw_value(place)


def rewire_to_same_form(mutator: Mutator) -> None:
    """Read another value of the same form: nothing but the numbers is different."""
    place = mutator.pick.randrange(1, len(mutator.nodes))
    args = mutator.nodes[place]["args"]
    index = mutator.pick.choice([i for i, value in enumerate(args) if isinstance(value, dict) and "v" in value])
    wanted = mutator.nodes[args[index]["v"]]["value"]
    args[index] = {"v": mutator.pick.choice([i for i in range(place) if mutator.nodes[i]["value"] == wanted])}


def add_call(mutator: Mutator) -> None:
    """A new node with arguments as the operator's schema wants them, read by a later one."""
    name = mutator.pick.choice(ALLOWED if mutator.pick.random() < 0.5 else NAMES)
    op = find_op(name)
    place = mutator.pick.randrange(len(mutator.nodes) // 3, len(mutator.nodes))
    arguments = op._schema.arguments if op is not None else ()
    args = [draw_for(mutator, str(each.type), place) for each in arguments if not each.kwarg_only]
    like = mutator.nodes[mutator.pick.randrange(place)]
    tag = mutator.nodes[place].get("tag", like.get("tag", 0))
    form = mutator.add_value(mutator.data["values"][like["value"]])
    mutator.insert(place, {"op": "call_function", "target": name, "args": args, "value": form, "tag": tag})
    later = mutator.nodes[mutator.pick.randrange(place + 1, len(mutator.nodes))]
    found = [index for index, value in enumerate(later["args"]) if isinstance(value, dict) and "v" in value]
    if found and mutator.pick.random() < 0.7:
        later["args"][mutator.pick.choice(found)] = {"v": place}


def draw_for(mutator: Mutator, kind: str, place: int) -> Any:
    """An argument of the type that a schema names."""
    pick = mutator.pick
    if "Tensor" in kind:
        return [mutator.draw_value(place)] if "List" in kind else mutator.draw_value(place)
    if "str" in kind:
        return pick.choice(mutator.paths)
    if "List" in kind:
        return [pick.choice((0, 1, 2, 4, 64)) for _ in range(pick.randrange(4))]
    if "bool" in kind:
        return pick.random() < 0.5
    if "int" in kind or "number" in kind or "Sym" in kind:
        return pick.choice((0, 1, -1, 2, 8, 10**12))
    if "float" in kind:
        return pick.choice((0.0, 0.5, -1.0))
    return None


def add_bomb(mutator: Mutator) -> None:
    """A value that is larger than any memory, whatever the file says of it."""
    place, tag = len(mutator.nodes) - 1, mutator.nodes[-2].get("tag", 0)
    size = mutator.pick.choice(([10**12], [2**31, 2**31], [1 << 40, 1], [10**6, 10**6]))
    said = mutator.pick.choice((size, [4]))
    form = mutator.add_value(["float32", said, [1] * len(said), "cpu"])
    target = mutator.pick.choice(("aten.zeros.default", "aten.ones.default", "aten.empty.memory_format"))
    mutator.insert(place, {"op": "call_function", "target": target, "args": [size], "value": form, "tag": tag})


def delete_node(mutator: Mutator) -> None:
    place = mutator.pick.randrange(len(mutator.nodes))
    mutator.data["nodes"] = [shift(node, place + 1, -1) for at, node in enumerate(mutator.nodes) if at != place]


def swap_nodes(mutator: Mutator) -> None:
    one, other = (mutator.pick.randrange(len(mutator.nodes)) for _ in range(2))
    nodes = mutator.nodes
    nodes[one], nodes[other] = nodes[other], nodes[one]


def add_inner_graph(mutator: Mutator) -> None:
    """A node that reads or calls a graph inside of the graph."""
    inner = {"nodes": [{"op": "call_function", "target": "aten.from_file.default", "args": [mutator.paths[0]]}]}
    entry = mutator.pick.choice(
        (
            {"op": "get_attr", "target": "true_graph_0"},
            {"op": "call_module", "target": "compiled_0", "args": [{"v": 0}]},
            {"op": "call_method", "target": "backward", "args": [{"v": 0}]},
            {"op": "call_function", "target": "higher_order.cond", "args": [{"v": 0}, inner, inner, []]},
        )
    )
    mutator.insert(len(mutator.nodes) - 1, {**entry, "value": 0, "tag": 0})
    mutator.data["graphs"] = {"true_graph_0": inner}


def change_form(mutator: Mutator) -> None:
    """Say something else of what a node yields."""
    form = mutator.pick.choice([each for each in mutator.data["values"] if isinstance(each, list)])
    kind = mutator.pick.randrange(4)
    if kind == 0:
        form[0] = mutator.pick.choice(("float64", "int64", "bool", "complex64", "load"))
    elif kind == 1:
        form[1][mutator.pick.randrange(len(form[1]))] = mutator.pick.choice((*ODD_NUMBERS, *ODD_SIZES))
    elif kind == 2:
        form[2] = [mutator.pick.choice((0, 1, 2**62, -1, "u0")) for _ in form[2]]
    else:
        form[3] = mutator.pick.choice(("cuda", "meta", "mtia", "cpu:1"))


def change_tag(mutator: Mutator) -> None:
    tag = mutator.pick.choice(mutator.data["tags"])
    name = mutator.pick.choice(("path", "direction", "role", "slot", "once", "chunk", "compile", "made_by", "keep"))
    tag[name] = mutator.pick.choice((True, 3, "backward", "forward", "", None, [], mutator.paths[0], {"a": 1}))


def change_signature(mutator: Mutator) -> None:
    """Other inputs or outputs."""
    kind = mutator.pick.choice(("inputs", "outputs"))
    entry = mutator.pick.choice(mutator.data[kind])
    place = mutator.pick.randrange(len(entry))
    entry[place] = mutator.pick.choice(("state", "loss", "a", "", [4, 4], "cuda", "float64", None, 7, mutator.paths[0]))


def add_key(mutator: Mutator) -> None:
    name = mutator.pick.choice(list(ODD_KEYS))
    mutator.pick.choice((mutator.data, mutator.draw_call()))[name] = ODD_KEYS[name]


def drop_key(mutator: Mutator) -> None:
    owner = mutator.pick.choice((mutator.data, mutator.draw_call()))
    del owner[mutator.pick.choice(list(owner))]


CHANGES: tuple[Callable[[Mutator], None], ...] = (
    *(swap_for_any_op,) * 4,
    *(swap_for_allowed_op,) * 4,
    swap_for_odd_target,
    *(swap_with_like,) * 2,
    *(change_text,) * 3,
    *(change_argument,) * 2,
    *(change_number,) * 4,
    *(change_keyword,) * 2,
    *(rewire,) * 2,
    *(rewire_to_same_form,) * 3,
    *(add_call,) * 5,
    add_bomb,
    delete_node,
    swap_nodes,
    add_inner_graph,
    change_form,
    change_tag,
    change_signature,
    add_key,
    drop_key,
)
"""Those that get furthest are drawn most often."""

"""Which matmuls of a graph can be one: those that share an operand, those that are added up.

Values are told apart by what they are, not by their node: the same view taken twice is one value.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from monograph.compat.ops import ATEN, UNSAFE_VIEW
from monograph.graph.edit import can_refresh
from monograph.graph.query import has_symbols, value_of
from monograph.graph.tags import tag_of

_VIEWS = (ATEN.view.default, UNSAFE_VIEW)
Key = Any


@dataclass(frozen=True)
class MatmulGroup:
    """Matmuls with a common operand; the others are transposed matrices that can stand side by side."""

    matmuls: list[Node]
    shared: Node
    parts: list[Node]
    """What is transposed, one for each matmul."""
    part_keys: list[Key]
    is_left_shared: bool
    anchor: Node
    """The joined matmul comes right before it."""


@dataclass(frozen=True)
class MatmulSum:
    """Matmuls that are added up, perhaps with something else."""

    root: Node
    matmuls: list[Node]
    others: list[Node]
    lefts: list[Node]
    left_keys: list[Key]
    rights: list[Node]
    right_keys: list[Key]


def key_of(node: Node) -> Key:
    """Equal for nodes that are the same view of the same value."""
    source = node.args[0] if node.args else None
    if node.target in _VIEWS and isinstance(source, Node):
        return "view", key_of(source), tuple(map(str, value_of(node).shape))
    if node.target is ATEN.t.default and isinstance(source, Node):
        return "t", key_of(source)
    return node


def plan_sums(nodes: Sequence[Node], max_columns: int) -> list[MatmulSum]:
    """Every sum in which two or more addends are matmuls without other readers, one of them narrow inside."""
    found = []
    for node in nodes:
        if not _is_sum(node) or any(_is_sum(user) and _is_partial(node, user) for user in node.users):
            continue
        matmuls: list[Node] = []
        others: list[Node] = []
        for addend in find_addends(node):
            matmul = find_matmul(addend)
            if matmul is not None and _place(matmul) == _place(node) and value_of(addend).dtype == _dtype(node):
                matmuls.append(matmul)
            else:
                others.append(addend)
        if len(matmuls) < 2 or len({tuple(value_of(each).shape) for each in matmuls}) > 1:
            continue
        matmuls.sort(key=lambda each: _place_of_weight(_operand(each, 1)))
        lefts, rights = ([_operand(each, index) for each in matmuls] for index in (0, 1))
        if min(value_of(left).shape[1] for left in lefts) > max_columns:
            continue
        found.append(MatmulSum(node, matmuls, others, lefts, [*map(key_of, lefts)], rights, [*map(key_of, rights)]))
    return found


def find_addends(root: Node) -> list[Node]:
    """What a tree of additions adds up, where partial sums have no other readers."""
    found: list[Node] = []
    for each in root.args:
        assert isinstance(each, Node)
        found += find_addends(each) if _is_partial(each, root) else [each]
    return found


def find_matmul(node: Node) -> Node | None:
    """The matmul that a value is a view of, if it has no other reader."""
    while node.target in _VIEWS and len(node.users) == 1:
        node = node.args[0]  # type: ignore[assignment]
    is_matmul = node.target is ATEN.mm.default and len(node.users) == 1
    return node if is_matmul and not has_symbols(value_of(node)) else None


def plan_groups(nodes: Sequence[Node], ranks: Mapping[Key, int], max_columns: int) -> list[MatmulGroup]:
    """Every set of matmuls in one block that share an operand and of which one is narrow.

    `ranks` says how parts were put side by side before.
    """
    sharing: dict[Any, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.target is not ATEN.mm.default or has_symbols(value_of(node)):
            continue
        for is_left in (True, False):
            other = _operand(node, int(is_left))
            if other.target is ATEN.t.default:
                sharing[is_left, key_of(_operand(node, int(not is_left))), _place(node)].append(node)
    found = []
    for (is_left, *_), matmuls in sharing.items():
        narrow = min(value_of(matmul).shape[int(is_left)] for matmul in matmuls)
        if len(matmuls) > 1 and narrow <= max_columns:
            group = _make_group(matmuls, is_left, ranks)
            found += [group] if group else []
    return found


def _make_group(matmuls: list[Node], is_left: bool, ranks: Mapping[Key, int]) -> MatmulGroup | None:
    """The group, if there is a place where all operands are known and no result is needed yet."""
    parts = {matmul: _operand(_operand(matmul, int(is_left)), 0) for matmul in matmuls}
    keys = {matmul: key_of(part) for matmul, part in parts.items()}
    if len(set(keys.values())) < len(matmuls):
        return None
    first, last = matmuls[0], matmuls[-1]
    if all(part < first for part in parts.values()):
        anchor = first
    elif all(last < user for matmul in matmuls for user in matmul.users):
        anchor = last
    else:
        return None
    shared = _operand(first if anchor is first else last, int(not is_left))
    if all(key in ranks for key in keys.values()):
        matmuls = sorted(matmuls, key=lambda each: ranks[keys[each]])
    if not all(can_refresh(matmul, _part_value(matmul, matmuls, is_left)) for matmul in matmuls):
        return None
    return MatmulGroup(matmuls, shared, [parts[p] for p in matmuls], [keys[p] for p in matmuls], is_left, anchor)


def _part_value(matmul: Node, matmuls: list[Node], is_left: bool) -> Any:
    """What a matmul's value will be: a part of a larger one."""
    value = value_of(matmul)
    rows, columns = value.shape
    width = sum(value_of(each).shape[1] for each in matmuls) if is_left else columns
    return value.new_empty_strided((rows, columns), (width, 1))


def _operand(node: Node, index: int) -> Node:
    found = node.args[index]
    assert isinstance(found, Node)
    return found


def _place_of_weight(node: Node) -> tuple[Node, Node]:
    """Weights come in the order of the inputs they are copies of; parts of one gather in the order they are taken."""
    return _origin(node), node


def _origin(node: Node) -> Node:
    """The input that a value is a copy or a view of; itself when there is none."""
    while node.op == "call_function" and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node


def _place(node: Node) -> tuple[object, ...]:
    tag = tag_of(node)
    return tag.unit, tag.direction, tag.chunk, tag.region


def _dtype(node: Node) -> Any:
    return value_of(node).dtype


def _is_partial(node: Node, total: Node) -> bool:
    """Whether a value is a sum that only this larger sum reads."""
    if not _is_sum(node) or len(node.users) > 1:
        return False
    return value_of(node).shape == value_of(total).shape and _dtype(node) == _dtype(total)


def _is_sum(node: Node) -> bool:
    """Whether a node adds two tensors."""
    return node.target is ATEN.add.Tensor and not node.kwargs and all(isinstance(each, Node) for each in node.args)

"""Collectives are well-formed: waited for once, over groups that exist, with sizes that fit on every rank."""

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from monograph.annotate import Role
from monograph.axes import POINT_TO_POINT as SEND_GROUPS
from monograph.compat.capture import is_op
from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, READ_SIZE, REDUCE_SCATTER, WAIT_TENSOR
from monograph.errors import did_you_mean
from monograph.graph.facts import Facts
from monograph.graph.query import (
    LAUNCHES,
    POINT_TO_POINT,
    group_of,
    group_size_of,
    is_launch,
    is_size,
    is_wait,
    value_of,
)
from monograph.graph.refuse import broken
from monograph.graph.signature import PARAMETERS
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.graph.tensor_meta import SymIntMeta
from monograph.plurals import counted

_PIPELINE_GROUPS = tuple(group.value for group in SEND_GROUPS)
_TRANSFER_OPS = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem")


def check_collectives(graph: StepGraph, nodes: Sequence[Node], facts: Facts) -> None:
    """Every launch and every wait, one by one."""
    slots = {spec.name for spec in graph.inputs if spec.kind in PARAMETERS}
    for node in nodes:
        if node.op == "get_attr":
            _check_branch(node, graph.module)
        elif node.op != "call_function":
            continue
        elif node.target in LAUNCHES:
            _check_waited(node)
            _check_group(node, facts)
            _check_slot(node, slots)
            if node.target is ALL_TO_ALL:
                _check_splits(node)
            elif node.target in POINT_TO_POINT:
                _check_point_to_point(node, facts)
        elif node.target is WAIT_TENSOR:
            source = node.args[0]
            if not isinstance(source, Node) or not is_launch(source):
                raise broken(
                    node, "a wait for something that is not a collective", why="each launch is waited for once"
                )
        elif is_op(node.target) and node.target.namespace in _TRANSFER_OPS:  # type: ignore[union-attr]
            raise broken(node, "a collective of an unknown kind", why=f"graphs use {', '.join(map(str, LAUNCHES))}")


def _check_waited(launch: Node) -> None:
    waits = [user for user in launch.users if is_wait(user)]
    if len(waits) != 1:
        raise broken(
            launch,
            f"a collective is waited for {counted(len(waits), 'time')}",
            why="without a wait its result is read too early or its memory is never freed; a second one has no meaning",
        )
    for user in launch.users:
        if not is_wait(user) and (user.target is READ_SIZE or not is_size(user)):
            raise broken(
                user,
                f"the result of %{launch.name} is read without waiting for it",
                why="until the wait, its memory is still being written",
                do=f"read %{waits[0].name} instead",
            )


def _check_group(launch: Node, facts: Facts) -> None:
    if launch.kwargs:
        raise broken(launch, "a collective has named arguments", why="its group is found at the end of the others")
    group, size = group_of(launch), group_size_of(launch)
    if group not in facts.group_sizes:
        raise broken(
            launch,
            f"there is no group '{group}'",
            why="only logical names are the same on every rank",
            do=did_you_mean(group, facts.group_sizes),
        )
    wanted = facts.group_sizes[group]
    if size is not None and size != wanted:
        kind = "split sizes" if launch.target is ALL_TO_ALL else "ranks"
        raise broken(launch, f"a collective over {group} has {size} {kind}", why=f"{group} has {wanted} ranks")
    rows = value_of(launch.args[0]).shape[0] if launch.target is REDUCE_SCATTER else wanted  # type: ignore[arg-type]
    if isinstance(rows, int) and rows % wanted:
        raise broken(launch, f"{rows} rows are scattered over {wanted} ranks", why="each rank gets the same number")


def _check_point_to_point(launch: Node, facts: Facts) -> None:
    """A send or receive names another pipeline rank that exists, over a group that is for nothing else."""
    peer, tag, group = launch.args[-3:]
    if group not in _PIPELINE_GROUPS:
        raise broken(
            launch,
            f"a send or receive over '{group}'",
            why=f"collectives of that group could overtake it; {' and '.join(_PIPELINE_GROUPS)} are for sending alone",
        )
    ranks = facts.group_sizes[str(group)]
    if not isinstance(peer, int) or not 0 <= peer < ranks:
        raise broken(launch, f"there is no pipeline rank {peer}", why=f"there are {ranks}, counted from 0")
    if not isinstance(tag, int) or tag < 0:
        raise broken(launch, f"the tag of a send or receive is {tag}", why="both ends count their values from 0")


def _check_slot(launch: Node, slots: set[str]) -> None:
    tag = tag_of(launch)
    if tag.role is Role.PARAM_AMAX and (launch.target is not ALL_REDUCE or launch.args[1] != "max"):
        raise broken(
            launch, "largest magnitudes of shards are combined by another collective", why="the whole has their maximum"
        )
    if tag.role not in (Role.PARAM_ALL_GATHER, Role.GRAD_REDUCE_SCATTER):
        return
    if not tag.slot and tag.made_by == "capture":
        raise broken(launch, f"a {tag.role.value} does not say of which parameter", why="buckets are made by slot")
    if tag.slot and tag.slot not in slots:
        raise broken(launch, f"there is no parameter '{tag.slot}'", why="slots are the names of the state inputs")
    if tag.role is Role.PARAM_ALL_GATHER and launch.target is not ALL_GATHER:
        raise broken(launch, "a parameter gather is another collective", why="its role says what passes may do to it")
    if tag.role is Role.GRAD_REDUCE_SCATTER and (launch.target in (ALL_GATHER, ALL_TO_ALL) or launch.args[1] != "sum"):
        raise broken(launch, "a gradient is combined by something else than a sum", why="gradients add up over ranks")


def _check_splits(launch: Node) -> None:
    """All ranks run this text, so what rank i sends to j by it must be what j expects from i by it."""
    received: Any = launch.args[1]
    sent: Any = launch.args[2]
    if len(received) != len(sent):
        raise broken(
            launch,
            f"an all_to_all has {counted(len(received), 'output split')} and {counted(len(sent), 'input split')}",
            why="it needs one of each for every rank of its group",
        )
    for splits in (received, sent):
        constants = {size for size in splits if isinstance(size, int)}
        if constants and (len(constants) > 1 or any(isinstance(size, Node) for size in splits)):
            raise broken(
                launch,
                f"an exchange has the fixed sizes {sorted(constants)}",
                why="every rank sends by the same list: fixed sizes fit on both ends only when all are equal",
            )
        indices = [index for size in splits if (index := _find_list_index(size)) is not None]
        if len(indices) == len(splits) and any(
            one[0] is not other[0] or one[1] + 1 != other[1] for one, other in itertools.pairwise(indices)
        ):
            raise broken(launch, "an exchange's sizes are not in the order of its peers", why="rows go to a wrong rank")
    source: Any = launch.args[0]
    rows = value_of(source).shape[0]
    sizes = [value_of(size) if isinstance(size, Node) else size for size in sent]
    if any(isinstance(size, SymIntMeta) for size in sizes):
        return  # of a graph that was read from a file: `verify_forms` adds them up
    total = sum(sizes)
    is_wrong = isinstance(rows, int) and isinstance(total, int) and rows != total
    if isinstance(rows, torch.SymInt) and isinstance(total, torch.SymInt):
        is_wrong = rows.node.expr != total.node.expr
    if is_wrong:
        raise broken(launch, f"an exchange of {rows} rows sends {total}", why="every row goes to one rank")


def _find_list_index(size: Any) -> tuple[Node, int] | None:
    """The list in which a size came to the host and its index there, where it was read from one."""
    source = size.args[0] if isinstance(size, Node) and size.target is READ_SIZE else None
    if not isinstance(source, Node) or source.target is not operator.getitem:
        return None
    return source.args[0], source.args[1]  # type: ignore[return-value]


def _check_branch(node: Node, module: GraphModule) -> None:
    """A collective inside of a branch or loop would run on the ranks whose data say so, and hang the others."""
    held: Any = module
    for part in str(node.target).split("."):
        held = getattr(held, part, None)
    if isinstance(held, torch.Tensor):
        raise broken(
            node,
            "the graph holds a tensor's numbers",
            why="the text does not show them, so ranks could differ without anyone noticing",
            do="make it a buffer of the model, which is an input",
        )
    if isinstance(held, GraphModule):
        launch = next((each for each in held.graph.nodes if is_launch(each)), None)
        if launch is not None:
            raise broken(node, f"%{launch.name} is a collective inside of a branch", why="not every rank may get there")

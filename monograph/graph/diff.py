"""What changed between two graphs, as text: only the nodes that changed, and blocks that changed equally once.

    forward blocks 1..60:
      - removed  + added  < moved from here  > moved to here
        ... 31 unchanged

Works on two unfolded texts (`StepGraph.text(folded=False)`), of one step before and after a pass or of two runs. A
node that only got another number has not changed: it has when it does something else or reads something else.
"""

import difflib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from monograph.graph.parse import Line, LineName, Part, parse_text

LEGEND = "- removed  + added  < moved from here  > moved to here"

Parts = dict[tuple[str, int | None], Part]
Numbers = dict[LineName, LineName]
"""Where a node of the first graph is in the second."""


@dataclass
class Pair:
    """One part of the step in both graphs, and which lines belong together."""

    before: Part
    after: Part
    same: list[tuple[int, int]] = field(default_factory=list)
    """Places of lines that stayed, in order."""
    moved: list[tuple[int, int]] = field(default_factory=list)


def diff_texts(before: str, after: str) -> str:
    """The changes from one text to another; one line when there are none."""
    pairs = pair_parts(parse_text(before), parse_text(after))
    numbers: Numbers = {}
    aligned: dict[tuple[str, str], Pair] = {}
    for pair in pairs:
        known = aligned.setdefault((pair.before.body, pair.after.body), pair)
        if known is pair:
            align(pair)
        pair.same, pair.moved = known.same, known.moved
        numbers |= find_numbers(pair)
    shown: dict[str, list[Part]] = defaultdict(list)
    texts: dict[tuple[str, str], str] = {}
    for pair in pairs:
        key = (pair.before.body, pair.after.body)
        if key not in texts:
            texts[key] = "\n".join(render_pair(pair, numbers))
        shown[texts[key]].append(pair.after)
    unchanged = shown.pop("", [])
    if not shown:
        return "nothing changed\n"
    parts = [f"{name_parts(parts)}:\n{body}" for body, parts in shown.items()]
    rest = [f"unchanged: {name_parts(unchanged)}"] if unchanged else []
    return "\n".join([LEGEND, "", *parts, *rest]) + "\n"


def pair_parts(before: Parts, after: Parts) -> list[Pair]:
    """The parts of both graphs by direction and block; one that is missing somewhere is empty there."""
    keys = {**before, **after}
    return [Pair(before.get(key, Part(*key, (), "")), after.get(key, Part(*key, (), ""))) for key in keys]


def align(pair: Pair) -> None:
    """Find the lines that are the same apart from numbers.

    First those that also read from lines that look the same (many lines of a part look alike), then, in between, those
    that look the same by themselves, and last those that do so in another place.
    """
    left, right = ([line.key for line in part.lines] for part in (pair.before, pair.after))
    old = new = 0
    for old_stop, new_stop in [
        *_match(find_deep_keys(pair.before), find_deep_keys(pair.after)),
        (len(left), len(right)),
    ]:
        inner = _match(left[old:old_stop], right[new:new_stop])
        pair.same += [(old + a, new + b) for a, b in inner]
        if old_stop < len(left):
            pair.same.append((old_stop, new_stop))
        old, new = old_stop + 1, new_stop + 1
    taken_left, taken_right = ({each[side] for each in pair.same} for side in (0, 1))
    waiting: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(left):
        if index not in taken_left:
            waiting[key].append(index)
    for index, key in enumerate(right):
        if index not in taken_right and waiting[key]:
            pair.moved.append((waiting[key].pop(0), index))


def _match(left: list[str], right: list[str]) -> list[tuple[int, int]]:
    if not left or not right:
        return []
    blocks = difflib.SequenceMatcher(None, left, right, autojunk=False).get_matching_blocks()
    return [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]


def find_deep_keys(part: Part) -> list[str]:
    """Each line's key with the keys of the lines it reads in the same part."""
    keys = {
        LineName(part.direction, part.block, line.number): line.key for line in part.lines if line.number is not None
    }
    return ["\n".join([line.key, *(keys.get(read, "") for read in line.reads)]) for line in part.lines]


def find_numbers(pair: Pair) -> Numbers:
    """Where the lines of a part are now."""
    both = [(pair.before.lines[old], pair.after.lines[new]) for old, new in (*pair.same, *pair.moved)]
    name = (pair.after.direction, pair.after.block)
    return {
        LineName(*name, old.number): LineName(*name, new.number)
        for old, new in both
        if old.number is not None and new.number is not None
    }


def reads_the_same(old: Line, new: Line, numbers: Numbers) -> bool:
    """Whether two lines read the same values, wherever these are numbered now."""
    return [numbers.get(each) for each in old.reads] == new.reads


def render_pair(pair: Pair, numbers: Numbers) -> list[str]:
    """The changed lines of one part in order, with a count of the others."""
    old_lines, new_lines = pair.before.lines, pair.after.lines
    left_moved, right_moved = {old for old, _ in pair.moved}, {new for _, new in pair.moved}
    found: list[str] = []
    old = new = 0
    for old_stop, new_stop in [*pair.same, (len(old_lines), len(new_lines))]:
        found += [f"  {'<' if n in left_moved else '-'} {old_lines[n]}" for n in range(old, old_stop)]
        found += [f"  {'>' if n in right_moved else '+'} {new_lines[n]}" for n in range(new, new_stop)]
        old, new = old_stop + 1, new_stop + 1
        if old_stop == len(old_lines):
            break  # the end of both
        if reads_the_same(old_lines[old_stop], new_lines[new_stop], numbers):
            found.append("")
        else:
            found += [f"  - {old_lines[old_stop]}", f"  + {new_lines[new_stop]}"]
    return list(_count_unchanged(found)) if any(found) else []


def _count_unchanged(lines: list[str]) -> Iterator[str]:
    for is_empty, run in itertools.groupby(lines, key=lambda line: not line):
        if is_empty:
            yield f"    ... {len(list(run))} unchanged"
        else:
            yield from run


def name_parts(parts: list[Part]) -> str:
    """`forward, forward blocks 1..60, backward blocks 60..1`."""
    runs: list[list[Part]] = []
    for part in parts:
        if runs and is_next(runs[-1], part):
            runs[-1].append(part)
        else:
            runs.append([part])
    return ", ".join(name_run(run) for run in runs)


def is_next(run: list[Part], part: Part) -> bool:
    """Whether a part continues a run of neighbouring blocks, upwards or downwards."""
    numbers = [each.block for each in (*run[-2:], part)]
    steps = {b - a for a, b in itertools.pairwise(numbers) if a is not None and b is not None}
    return None not in numbers and run[-1].direction == part.direction and steps in ({1}, {-1})


def name_run(run: list[Part]) -> str:
    """`backward blocks 60..1`."""
    first, last = run[0], run[-1]
    if first.block is None:
        return first.direction
    blocks = f"block {first.block}" if first is last else f"blocks {first.block}..{last.block}"
    return f"{first.direction} {blocks}"

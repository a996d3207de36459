"""Random stage maps and schedules, most of them nearly right; and two ways to run one that share no code with ours.

`find_cycle` builds one graph of all actions (order of each list, data, order of each link) and looks for a cycle.
`run_on_threads` runs every rank as a thread over a fabric of queues, where a receive blocks until its send was made.
"""

import queue
import random
import re
import threading

from monograph.parallel.pipeline.actions import Action, ActionKind, backward, forward, input_grad, merge, weight_grad
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.transfers import with_transfers


def draw(seed: int) -> Schedule:
    """A random schedule: a feasible one with a few random mistakes, or none."""
    rng = random.Random(seed)
    ranks = rng.randint(1, 4)
    stages = rng.randint(ranks, ranks * 3)
    placed = [*range(ranks), *(rng.randrange(ranks) for _ in range(stages - ranks))]
    rng.shuffle(placed)
    micro_batches = rng.randint(1, 4)
    rows = _draw_rows(rng, placed, ranks, micro_batches)
    schedule = Schedule(f"random-{seed}", tuple(placed), micro_batches, tuple(map(tuple, rows)))
    before = rng.random() < 0.5
    if before:
        schedule = _spoil(rng, schedule)
    schedule = with_transfers(schedule, ahead=rng.randint(0, 2))
    return schedule if before and rng.random() < 0.5 else _spoil(rng, schedule)


def _draw_rows(rng, placed, ranks, micro_batches):
    """A random order in which everything can be computed, cut into one list for every rank."""
    split = rng.random() < 0.5
    todo = {
        make(stage, number)
        for stage in range(len(placed))
        for number in range(micro_batches)
        for make in ((forward, input_grad, weight_grad) if split else (forward, backward))
    }
    done, rows = set(), [[] for _ in range(ranks)]
    while todo:
        ready = sorted(action for action in todo if all(need in done for need in _needs(action, len(placed), split)))
        action = rng.choice(ready)
        todo.remove(action)
        done.add(action)
        row = rows[placed[action.stage]]
        if row and action.kind is ActionKind.BACKWARD and row[-1].kind is ActionKind.FORWARD and rng.random() < 0.2:
            row[-1] = merge(row[-1], action)
        else:
            row.append(action)
    return rows


def _needs(action, stages, split):
    gradient = input_grad if split else backward
    stage, number = action.stage, action.micro_batch
    if action.kind is ActionKind.FORWARD:
        return [forward(stage - 1, number)] if stage else []
    if action.kind is ActionKind.WEIGHT_GRAD:
        return [input_grad(stage, number)]
    return [forward(stage, number), *([gradient(stage + 1, number)] if stage + 1 < stages else [])]


def _spoil(rng, schedule):
    """Up to three random changes of the lists."""
    rows = [list(row) for row in schedule.actions]
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        row = rng.choice(rows)
        if not row:
            continue
        kind, place = rng.random(), rng.randrange(len(row))
        if kind < 0.5:
            row.insert(rng.randrange(len(row)), row.pop(place))
        elif kind < 0.75 and place + 1 < len(row):
            row[place], row[place + 1] = row[place + 1], row[place]
        elif kind < 0.85:
            row.pop(place)
        elif kind < 0.95:
            row.insert(rng.randrange(len(row) + 1), row[place])
        else:
            rng.choice(rows).append(row.pop(place))
    return Schedule(schedule.name, schedule.stage_ranks, schedule.micro_batches, tuple(map(tuple, rows)))


# --- Two independent judges; they read actions as text. ---

_TEXT = re.compile(r"(\d+)([A-Z_]+)(\d+)")


def _read(action: Action):
    return [(int(s), kind, int(m)) for s, kind, m in _TEXT.findall(str(action))]


def find_fault(schedule: Schedule) -> str:
    """Why a schedule is wrong; empty when it runs to its end and computes everything once."""
    placed, last = schedule.stage_ranks, len(schedule.stage_ranks) - 1
    where = {}
    for rank, row in enumerate(schedule.actions):
        for place, action in enumerate(row):
            for part in _read(action):
                if part in where:
                    return f"{part} twice"
                if part[0] > last or placed[part[0]] != rank or part[2] >= schedule.micro_batches:
                    return f"{part} is out of place"
                where[part] = (rank, place)
    edges = {
        (rank, place): [(rank, place + 1)] for rank, row in enumerate(schedule.actions) for place in range(len(row))
    }
    fault = _add_data(schedule, where, edges)
    return fault or find_cycle(schedule, edges)


def _add_data(schedule, where, edges):
    placed, last = schedule.stage_ranks, len(schedule.stage_ranks) - 1
    every = [(stage, number) for stage in range(last + 1) for number in range(schedule.micro_batches)]
    for stage, number in every:
        has = [(stage, kind, number) in where for kind in "FBIW"]
        if has not in ([True, True, False, False], [True, False, True, True]):
            return f"stage {stage}, micro-batch {number} is not complete"
    for stage in range(last + 1):
        for number in range(schedule.micro_batches):
            halves = [(stage, kind, number) in where for kind in "IW"]
            maker = "I" if halves[0] else "B"
            wanted = [((stage, "F", number), (stage, maker, number))]
            wanted += [((stage, "I", number), (stage, "W", number))] if halves[0] else []
            for from_, to, letters, steps in ((stage, stage + 1, "F", 1), (stage, stage - 1, maker, -1)):
                if not 0 <= to <= last:
                    continue
                to_letters = letters if steps == 1 else ("I" if (to, "I", number) in where else "B")
                name = "F" if steps == 1 else "B"
                ends = (from_, f"SEND_{name}", number), (to, f"RECV_{name}", number)
                if placed[from_] == placed[to]:
                    wanted.append(((from_, letters, number), (to, to_letters, number)))
                    if ends[0] in where or ends[1] in where:
                        return "a transfer within a rank"
                else:
                    if ends[0] not in where or ends[1] not in where:
                        return f"{ends} are not both there"
                    before = where[ends[1]][1] < where[to, to_letters, number][1]
                    if not before or where[ends[0]][1] < where[from_, letters, number][1]:
                        return f"{ends} are posted at the wrong place"
                    wanted.append((ends[0], (to, to_letters, number)))
            for one, other in wanted:
                if one not in where or other not in where:
                    return f"{one} or {other} is missing"
                if where[one] == where[other]:
                    inside = _read(schedule.actions[where[one][0]][where[one][1]])
                    if inside.index(one) > inside.index(other):
                        return f"{other} needs {one} in one action"
                    continue
                edges[where[one]].append(where[other])
    return _check_transfers(schedule, where)


def _check_transfers(schedule, where):
    """Every transfer belongs to a value, and links deliver in order."""
    placed = schedule.stage_ranks
    orders = {}
    for (stage, kind, number), (rank, _) in sorted(where.items(), key=lambda entry: entry[1]):
        if "_" not in kind:
            continue
        up = kind in ("SEND_F", "RECV_B")
        other = stage + (1 if up else -1)
        if not 0 <= other < len(placed):
            return f"{(stage, kind, number)} goes nowhere"
        link = (rank, placed[other]) if kind.startswith("SEND") else (placed[other], rank)
        value = (min(stage, other), kind[-1], number)
        orders.setdefault((link, kind.startswith("SEND")), []).append(value)
    for (link, is_send), values in orders.items():
        if orders.get((link, not is_send), []) != values:
            return f"link {link} is out of order"
    return ""


def find_cycle(schedule: Schedule, edges) -> str:
    """Depth-first search over all actions."""
    colours = {}
    for root in list(edges):
        stack = [(root, iter(edges.get(root, ())))]
        if colours.get(root):
            continue
        colours[root] = 1
        while stack:
            node, rest = stack[-1]
            for each in rest:
                if each not in edges:
                    continue
                if colours.get(each) == 1:
                    return f"a cycle through {schedule.actions[each[0]][each[1]]}"
                if not colours.get(each):
                    colours[each] = 1
                    stack.append((each, iter(edges.get(each, ()))))
                    break
            else:
                colours[node] = 2
                stack.pop()
    return ""


def run_on_threads(schedule: Schedule, timeout_seconds: float = 5.0) -> None:
    """Run every rank in a thread; values are tuples of the stages they went through. Raises when anything is wrong."""
    links = {}
    for rank in range(schedule.ranks):
        for other in range(schedule.ranks):
            links[rank, other] = queue.Queue()
    failures = []
    threads = [
        threading.Thread(target=_run_rank, args=(schedule, rank, links, failures, timeout_seconds), daemon=True)
        for rank in range(schedule.ranks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_seconds * 2)
        assert not thread.is_alive(), "a rank hangs"
    assert not failures, failures[0]


def _run_rank(schedule, rank, links, failures, limit):
    try:
        placed, last = schedule.stage_ranks, len(schedule.stage_ranks) - 1
        values, expected, finished = {}, {}, set()
        for action in schedule.actions[rank]:
            for stage, kind, number in _read(action):
                other = stage + (1 if kind in ("SEND_F", "RECV_B") else -1)
                if kind.startswith("SEND"):
                    links[rank, placed[other]].put((kind[-1], other, number, values.pop((kind[-1], other, number))))
                elif kind.startswith("RECV"):
                    expected.setdefault(placed[other], []).append((kind[-1], stage, number))
                elif kind == "F":
                    found = _take("F", stage, number, stage > 0, rank, placed, links, expected, values, limit)
                    assert found == tuple(range(stage)), found
                    values["saved", stage, number] = True
                    if stage < last:
                        values["F", stage + 1, number] = (*found, stage)
                elif kind in "BI":
                    assert values.pop(("saved", stage, number))
                    found = _take("B", stage, number, stage < last, rank, placed, links, expected, values, limit)
                    assert found == tuple(range(last, stage, -1)), found
                    if stage:
                        values["B", stage - 1, number] = (*found, stage)
                    finished.add((stage, number, kind))
                else:
                    assert (stage, number, "I") in finished
                    finished.add((stage, number, kind))
        assert not values, values
    except BaseException as error:
        failures.append(f"rank {rank}: {error!r}")


def _take(letter, stage, number, has_input, rank, placed, links, expected, values, timeout_seconds):
    """An action's input: made on this rank, or received; a link hands values over in their order."""
    if not has_input:
        return ()
    key = (letter, stage, number)
    source = placed[stage + (-1 if letter == "F" else 1)]
    while key not in values:
        wanted = expected[source].pop(0)
        *found, value = links[source, rank].get(timeout=timeout_seconds)
        assert tuple(found) == wanted, f"{wanted} was posted and {found} arrived"
        values[wanted] = value
    return values.pop(key)

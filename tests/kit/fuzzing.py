"""What all fuzzers share: seeds in a row until the time or the count is up, counts of what was drawn, one seed again.

    if __name__ == "__main__":
        run_fuzzer("tests.steps.graph_fuzz", check_seed)

`check_seed(seed, folder)` raises on a failure (`Failed` says what differs) and returns what it counted: labels, one of
which may be `REFUSED`. A failure prints its seed and the command that repeats it.
"""

import argparse
import itertools
import multiprocessing
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

REFUSED = "refused"
MOST_REFUSED = 0.1
"""The largest share of draws that may be refused: a fuzzer that draws nonsense checks nothing."""
FEW = 50
"""Below so many seeds, shares mean nothing."""
Check = Callable[[int, Path], Iterable[str]]


class Failed(Exception):
    """A check that did not hold, with what repeats it."""


def run_fuzzer(module: str, check: Check, **modes: Check) -> None:
    """The command line of a fuzzer; ends with exit code 1 after the first failure, or after all with --go-on.

    Each of `modes` is a flag, and what is checked in place of `check` with it.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--seconds", type=float, default=600, help="how long to go on")
    parser.add_argument("--count", type=int, default=0, help="how many seeds, whatever time they take")
    parser.add_argument("--first", type=int, default=int(time.time()) % 1_000_000, help="the seed to begin with")
    parser.add_argument("--seed", type=int, help="check this seed only")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure")
    parser.add_argument("--processes", type=int, default=1, help="so many seeds at a time")
    for name in modes:
        parser.add_argument(f"--{name}", action="store_true", help=f"{modes[name].__doc__}")
    options = parser.parse_args()
    for name in modes:
        if getattr(options, name):
            module, check = f"{module} --{name}", modes[name]
    only = options.seed is not None
    first, count = (options.seed, 1) if only else (options.first, options.count)
    end = time.monotonic() + (float("inf") if count else options.seconds)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    counts: Counter[str] = Counter()
    done, failed = 0, []
    seeds = itertools.takewhile(
        lambda _: time.monotonic() < end, range(first, first + count) if count else itertools.count(first)
    )
    with _checked(partial(_check, check, folder, module), seeds, options.processes) as results:
        for seed, labels, said in results:
            print(said, flush=True)
            done += 1
            counts.update(labels or ())
            if labels is None:
                failed.append(seed)
                if not options.go_on:
                    break
    report(module, first, done, failed, counts)


@contextmanager
def _checked(check: Callable[[int], "Result"], seeds: Iterable[int], processes: int) -> Iterator[Iterable["Result"]]:
    """The results of all seeds; the first is checked alone, so that what all share is made once."""
    seeds = iter(seeds)
    if processes == 1:
        yield map(check, seeds)
        return
    first = [check(next(seeds))]
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield itertools.chain(first, pool.imap_unordered(check, seeds))


Result = tuple[int, list[str] | None, str]
"""A seed, its labels (None if it failed), and what to print."""


def _check(check: Check, folder: Path, module: str, seed: int) -> Result:
    start, busy = time.monotonic(), time.process_time()
    try:
        labels = list(check(seed, folder))
    except Exception:
        return seed, None, f"seed {seed} FAILED\n{traceback.format_exc()}\nrepeat: python -m {module} --seed {seed}"
    seconds = f"{time.monotonic() - start:.0f} s, {time.process_time() - busy:.1f} s of processor time"
    return seed, labels, f"seed {seed}: {', '.join(labels)} ({seconds})"


def report(module: str, first: int, done: int, failed: list[int], counts: Counter[str]) -> None:
    """How often each label came, and the verdict."""
    for label, times in sorted(counts.items()):
        print(f"  {times:6d}  {label}")
    print(f"{module}: {done - len(failed)} of {done} seeds held (from {first})")
    if failed:
        raise SystemExit(f"failed: {failed}")
    if done >= FEW and counts[REFUSED] > MOST_REFUSED * done:
        raise SystemExit(f"{counts[REFUSED]} of {done} draws were refused")

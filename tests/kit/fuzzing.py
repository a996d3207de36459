"""What all fuzzers share: seeds in a row until the time or the count is up, counts of what was drawn, one seed again.

    if __name__ == "__main__":
        run_fuzzer("tests.steps.graph_fuzz", check_seed)

`check_seed(seed, folder)` raises on a failure (`Failed` says what differs) and returns what it counted: labels, one of
which may be `REFUSED`. A failure prints its seed and the command that repeats it.
"""

import argparse
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

REFUSED = "refused"
MOST_REFUSED = 0.1
"""The largest share of draws that may be refused: a fuzzer that draws nonsense checks nothing."""
FEW = 50
"""Below so many seeds, shares mean nothing."""
Check = Callable[[int, Path], Iterable[str]]


class Failed(Exception):
    """A check that did not hold, with what repeats it."""


def run_fuzzer(module: str, check: Check) -> None:
    """The command line of a fuzzer; ends with exit code 1 after the first failure, or after all with --go-on."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--seconds", type=float, default=600, help="how long to go on")
    parser.add_argument("--count", type=int, default=0, help="how many seeds, whatever time they take")
    parser.add_argument("--first", type=int, default=int(time.time()) % 1_000_000, help="the seed to begin with")
    parser.add_argument("--seed", type=int, help="check this seed only")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure")
    options = parser.parse_args()
    only = options.seed is not None
    first, count = (options.seed, 1) if only else (options.first, options.count)
    end = time.monotonic() + (float("inf") if count else options.seconds)
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    counts: Counter[str] = Counter()
    seed, failed = first, []
    while time.monotonic() < end and (not count or seed < first + count):
        start, this, seed = time.monotonic(), seed, seed + 1
        try:
            labels = list(check(this, folder))
            print(f"seed {this}: {', '.join(labels)} ({time.monotonic() - start:.0f} s)", flush=True)
            counts.update(labels)
        except Exception:
            failed.append(this)
            print(f"seed {this} FAILED\n{traceback.format_exc()}\nrepeat: python -m {module} --seed {this}", flush=True)
            if not options.go_on:
                break
    report(module, first, seed - first, failed, counts)


def report(module: str, first: int, done: int, failed: list[int], counts: Counter[str]) -> None:
    """How often each label came, and the verdict."""
    for label, times in sorted(counts.items()):
        print(f"  {times:6d}  {label}")
    print(f"{module}: {done - len(failed)} of {done} seeds held (from {first})")
    if failed:
        raise SystemExit(f"failed: {failed}")
    if done >= FEW and counts[REFUSED] > MOST_REFUSED * done:
        raise SystemExit(f"{counts[REFUSED]} of {done} draws were refused")

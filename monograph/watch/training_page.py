"""The page of a run while it trains, for `--metrics.page true`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from monograph.log import get_log
from monograph.report.page import make_run_page
from monograph.watch.runs import collect_runs, make_readers
from monograph.watch.server import RunServer
from monograph.whole_file import write_whole

log = get_log("page")
FILE = "page.html"


@contextmanager
def training_page(folder: Path) -> Iterator[None]:
    """Serve the page of the run in this folder as long as the block runs; then leave it there as a file.

    The folder is read only when a browser asks.
    """
    with RunServer([folder]) as server:
        thread = threading.Thread(target=server.serve_forever, name="page", daemon=True)
        thread.start()
        log.info("page: %s (on this machine only; the address is the key)", server.address)
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
            write_page(folder)


def write_page(folder: Path) -> None:
    """The page as a file, once training is over; a run that failed before its first step leaves none."""
    if not (folder / "metrics.jsonl").exists():
        return
    try:
        write_whole(folder / FILE, make_run_page(collect_runs(make_readers([folder]), is_live=False, is_over=True)))
    except OSError as error:
        log.warning("%s cannot be written (%s)", folder / FILE, error.strerror)

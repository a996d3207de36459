"""How large the page of a report is, and how soon a browser shows it.

    python -m benchmarks.pages                    # inspects deepseek_v3_671b on 256 ranks first, which takes minutes
    python -m benchmarks.pages inspected other    # folders that `monograph inspect` wrote

Needs Chromium. First paint and load are measured by the browser itself, from the start of the navigation; the best of
three, each in a new page. The limits are those of a page that opens at once: 2 s and 30 MB.
"""

import argparse
import platform
import sys
import tempfile
from pathlib import Path

from monograph import cli
from tests.kit.browser import BROWSER, Browser

MESH = "--ranks 256 --parallelism.expert_parallel_degree 32 --machine h100"
TIMES = 3
MOST_SECONDS, MOST_BYTES = 2.0, 30e6
PAINTED = "new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"
"""Milliseconds until the page, which is drawn while it loads, has been painted."""
SEARCH = """(() => {
  const start = performance.now(), search = document.querySelector("#search");
  search.value = "all_gather";
  search.dispatchEvent(new Event("input"));
  return performance.now() - start;
})()"""


def measure(browser: Browser, page: Path) -> dict[str, float]:
    """Seconds until it is painted and until a search is answered; bytes and elements."""
    painted, searched = [], []
    for _ in range(TIMES):
        browser.open(page.as_uri())
        assert not browser.errors, browser.errors
        painted.append(browser.run(PAINTED) / 1000)
        searched.append(browser.run(SEARCH) / 1000)
    elements = browser.count("*")
    return {"bytes": page.stat().st_size, "painted": min(painted), "search": min(searched), "elements": elements}


def main() -> int:
    """Print a table; 1 when a page is over the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    folders = parser.parse_args().folders
    if BROWSER is None:
        print("no Chromium here; apt-get install chromium", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as home:
        if not folders:
            folders = [Path(home) / "deepseek_v3_671b"]
            cli.main(["inspect", "deepseek_v3_671b", *MESH.split(), "--out", str(folders[0])])
        browser = Browser(Path(home) / "profile")
        print(f"\n{platform.machine()}, {Path(BROWSER).name}\n")
        print("| report | MB | painted s | search s | elements |\n|---|---|---|---|---|")
        is_good = True
        for folder in folders:
            found = measure(browser, folder / "index.html")
            is_good &= found["bytes"] <= MOST_BYTES and found["painted"] <= MOST_SECONDS
            print(
                f"| {folder.name} | {found['bytes'] / 1e6:.1f} | {found['painted']:.2f} | {found['search']:.2f} "
                f"| {found['elements']:,} |"
            )
        browser.close()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())

"""Runs as folders, and pages in a real browser."""

import json
import math
import os
import re
import shutil
import subprocess

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here; apt-get install chromium")


def make_run(folder, *, steps=40, wanted=40, layers=3, is_torn=False):
    """What a run leaves behind; a killed one may leave half a line."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"training": {"steps": wanted}}))
    lines = []
    for step in range(1, steps + 1):
        record = {"step": step, "loss": 6.0 / math.sqrt(step), "grad_norm": 1.0 + 1 / step, "lr": 1e-3 * step / wanted}
        record |= {"ms": 100.0 + step % 3, "tokens_per_second": 1e4 + step, "peak_memory_gib": 2.0, "mfu": 0.4}
        record |= {
            "expert_load": {"max_over_mean": [1.0 + layer + step / 40 for layer in range(layers)], "entropy": []}
        }
        record |= {"pipeline_bubble": [0.25, 0.125]}
        record |= {"goodput": {"start_up": 4.0, "steps": 0.1 * step, "data": 0.01}}
        lines.append(json.dumps(record))
        if step % 20 == 0:
            lines.append(json.dumps({"step": step, "validation_loss": 6.5 / math.sqrt(step)}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + ('\n{"step": 99, "lo' if is_torn else "\n"))
    (folder / "checkpoints" / "step-00000020").mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.log").write_text("10:00:00 I fine\n10:00:01 W the load of layer 1 stays uneven\n")
    return folder


def run_browser(*flags, home):
    """Headless Chromium, with a profile of its own."""
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={home}", *flags]
    environment = {**os.environ, "HOME": str(home)}
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True, env=environment)


def dump_dom(address, home, *flags):
    """The page's elements after its script has run."""
    return run_browser("--dump-dom", "--virtual-time-budget=4000", *flags, address, home=home).stdout


def find_texts(dom):
    return re.sub(r"<[^>]+>", " ", dom.split("<script>")[0])

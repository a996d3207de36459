"""Folders as runs leave them behind."""

import json
import math


def make_record(step, wanted=40, layers=3, scale=1.0):
    """One step's line of metrics.jsonl, a tenth of a second after the line before."""
    record = {
        "step": step,
        "loss": scale * 6.0 / math.sqrt(step),
        "grad_norm": scale + 1 / step,
        "lr": 1e-3 * step / wanted,
    }
    record |= {"ms": 100.0 + step % 3, "tokens_per_second": 1e4 + step, "peak_memory_gib": 2.0, "mfu": 0.4}
    record |= {"expert_load": {"max_over_mean": [1.0 + layer + step / 40 for layer in range(layers)], "entropy": []}}
    record |= {"pipeline_bubble": [0.25, 0.125], "time": 1000.0 + 0.1 * step}
    return record | {"goodput": {"start_up": 4.0, "steps": 0.1 * step, "data": 0.01}}


def make_run(folder, *, steps=40, wanted=40, scale=1.0, is_torn=False):
    """A run; a killed one may leave half a line."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"training": {"steps": wanted}}))
    lines = []
    for step in range(1, steps + 1):
        lines.append(json.dumps(make_record(step, wanted, scale=scale)))
        if step % 20 == 0:
            lines.append(json.dumps({"step": step, "validation_loss": scale * 6.5 / math.sqrt(step)}))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + ('\n{"step": 99, "lo' if is_torn else "\n"))
    (folder / "checkpoints" / "step-00000020").mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / "logs" / "rank-0.log").write_text("10:00:00 I fine\n10:00:01 W the load of layer 1 stays uneven\n")
    return folder


def add_restart(folder, *, step=20, lost_steps=3):
    """Note that a second process took over after a step, on fewer ranks."""
    spent = {"start_up": 4.0, "compile": 1.0, "steps": 2.3, "data": 0.1}
    events = [
        {"event": "start", "time": 995.0, "step": 0, "ranks": 4},
        {"event": "end", "time": 1002.3, "step": 23, "seconds": spent, "lost_steps": lost_steps, "lost_seconds": 0.3},
        {"event": "start", "time": 1002.35, "step": step, "ranks": 2},
    ]
    (folder / "goodput.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder

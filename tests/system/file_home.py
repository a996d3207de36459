"""The home folder of the file fuzzer: a run, packed shards, texts, a Hugging Face model, an artifact and more."""

import gzip
import json
import os
import shlex
import sys
from pathlib import Path

from monograph.cli import main
from monograph.execute.trace_marks import STEP_MARK
from monograph.machine.file import write_machine
from monograph.machine.table import MACHINES
from monograph.parallel.pipeline.build import build_schedule
from tests.kit.data import make_texts, write_texts
from tests.kit.pretrained import write_pretrained

OUT, NEW = "out", "new"
"""Folders that commands write to."""
SMALL = (
    "--model.n_layers 2 --model.dim 32 --model.attention.n_heads 2 --model.attention.n_kv_heads 2 "
    "--model.feed_forward.hidden_dim 32 --training.seq_len 32 --training.local_batch_size 2 --validator.interval 0 "
    "--metrics.progress off --debug.device cpu --lr_scheduler.warmup_steps 0 --debug.log_level warning"
)
TRAIN = f"train llama3_debugmodel {SMALL} --compile.mode eager"
"""Without a dataset and a number of steps."""
TEXTS = "--training.steps 1 --dataloader.dataset texts"
HERE = f"{TRAIN} --job.dump_folder {NEW} --checkpoint.enabled false"
GRAPH = f"llama3_debugmodel {SMALL} --compile.mode graph {TEXTS}"
EXTENDED = "--lr_scheduler.on_extend hold"
GO_ON = f"{TRAIN} --dataloader.dataset texts --training.steps 3 --job.dump_folder run {EXTENDED} --checkpoint.load"


def write_home(home: Path) -> None:
    """Write everything, with the commands that users have for it."""
    before = os.getcwd()
    os.chdir(home)
    try:
        _write_files(home)
        steps = "--training.steps 2 --checkpoint.interval 1 --checkpoint.keep_last 0"
        _run(f"{TRAIN} {steps} --dataloader.dataset texts --job.dump_folder run")
        _run("data pack texts packed")
        _run(f"precompile {GRAPH} --out artifact")
        _run(f"inspect llama3_debugmodel {SMALL} --out report")
        write_machine(MACHINES["H200"], home / "machine.json")
        step = [{"ph": "X", "name": STEP_MARK, "cat": "user_annotation", "ts": 5, "dur": 90, "pid": 1, "tid": 1}]
        step += [
            {"ph": "X", "name": f"op {at}", "ts": at, "dur": 7, "pid": 1, "tid": 1, "args": {"n": [at]}}
            for at in (9, 20)
        ]
        for name in ("trace.json", "measured_trace.json"):
            (home / name).write_text(json.dumps({"traceEvents": step, "displayTimeUnit": "ms"}))
        rows = build_schedule("1f1b", ranks=2, virtual_stages=1, micro_batches=4).actions
        (home / "schedule.csv").write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
        for name in (OUT, NEW):
            (home / name).mkdir(exist_ok=True)
    finally:
        os.chdir(before)


def _write_files(home: Path) -> None:
    (home / "precious" / "more").mkdir(parents=True)
    for name in ("precious.txt", "precious/a.txt", "precious/more/b.txt"):
        (home / name).write_text(f"{name}, which nobody may change\n" * 20)
    (home / "texts" / "inner").mkdir(parents=True)
    texts = make_texts(40)
    write_texts(home / "texts" / "a.jsonl", texts)
    (home / "texts" / "inner" / "b.txt").write_text("\n".join(texts[:20]))
    (home / "texts" / "c.txt.gz").write_bytes(gzip.compress(" ".join(texts[10:30]).encode()))
    (home / "prompts.txt").write_text("ab\ncd\n")
    write_pretrained(home / "hf")


def _run(line: str) -> None:
    if main(shlex.split(line)) != 0:
        raise RuntimeError(f"monograph {line}")


if __name__ == "__main__":
    write_home(Path(sys.argv[1]))

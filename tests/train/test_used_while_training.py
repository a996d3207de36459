"""A run that trains and deletes old checkpoints can be used by every command that reads runs."""

import shlex

import pytest

from monograph.cli import main
from tests.kit.pretrained import write_texts
from tests.train.processes import kill, start_command, wait_until

TRAIN = shlex.split("""
    train llama3_debugmodel --training.steps 1000000 --compile.mode eager --debug.device cpu --training.seq_len 32
    --training.local_batch_size 2 --validator.interval 0 --metrics.progress off --model.n_layers 1
    --checkpoint.interval 2 --checkpoint.keep_last 1 --job.dump_folder run --dataloader.dataset texts
""")
ROUNDS, OTHERS_EVERY = 25, 5
"""Texts are generated in every round, the other commands run in some."""
COMMANDS = {
    "generate": "generate run --prompt Once --max_new_tokens 2 --device cpu",
    "generate of checkpoints": "generate run/checkpoints --prompt Once --max_new_tokens 2 --device cpu",
    "evaluate": "evaluate run --data texts --limit 1 --device cpu",
    "export": "hf export run exported-{round}",
    "watch": "watch run --out page.html",
    "goodput": "goodput run",
    "train from it": "train --model.from run --training.steps 1 --compile.mode eager --debug.device cpu "
    "--training.seq_len 32 --training.local_batch_size 2 --validator.interval 0 --metrics.progress off "
    "--checkpoint.enabled false --job.dump_folder other-{round} --dataloader.dataset texts",
}


@pytest.mark.long
def test_every_command_that_reads_a_run_works_while_it_trains(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts")
    training = start_command(*TRAIN)
    try:
        wait_until(lambda: any((tmp_path / "run" / "checkpoints").glob("step-*")), training)
        steps, failed = set(), {}
        for number in range(ROUNDS):
            due = COMMANDS if number % OTHERS_EVERY == 0 else {"generate": COMMANDS["generate"]}
            for name, words in due.items():
                code = main(shlex.split(words.format(round=number)))
                out, err = capfd.readouterr()
                if code != 0 or "Traceback" in err:
                    failed[f"{name}, round {number}"] = (code, out[-500:], err[-2000:])
            steps |= {path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")}
        assert not failed
        assert training.is_alive() and len(steps) > ROUNDS // 2  # it went on training, and deleted what was read
    finally:
        kill(training)

"""How monograph works: a tour that runs. Read it from top to bottom, or run it and read what it prints.

    .venv/bin/python docs/how_it_works.py

It follows one tiny run through the program, in the order in which `monograph/run.py` does:

    config -> model -> step -> trainer -> checkpoint, and the step once more as a graph

Each arrow is a return value, so each chapter below is a function that takes what the chapter before it returned.
"""

import json
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from monograph.config.configurable import check_config
from monograph.config.json_form import from_json, to_json
from monograph.errors import ConfigError
from monograph.execute.graph_step import GraphStep
from monograph.models.decoder import Decoder
from monograph.models.init import initialize
from monograph.parallel.groups import joined_groups
from monograph.recipes.catalog import load_recipe
from monograph.run import build_step, train
from monograph.train.config import TrainerConfig
from monograph.train.data.cursor import Cursor
from monograph.train.layout import plan_run_mesh


def chapter_1_config(folder: Path) -> TrainerConfig:
    """A run is described by one value, and a recipe is a plain function that returns it."""
    config = load_recipe("deepseek_v3_debugmodel")

    # Every section is a dataclass with names users know: training, optimizer, checkpoint, model, ... A new experiment
    # takes a recipe and changes fields. On the command line the same change is written `--training.steps 8`. The
    # default mode, one graph, is the last chapter.
    config.training.steps = 8
    config.training.seq_len = 64
    config.training.local_batch_size = 2
    config.training.global_batch_size = 4  # two micro-batches an update
    config.model.n_layers = 3
    config.compile.mode = "eager"  # op by op, like any PyTorch program
    config.checkpoint.interval = 4
    config.validator.interval = 8
    config.metrics.progress = "off"
    config.debug.log_level = "warning"
    config.debug.device = "cpu"
    config.job.dump_folder = str(folder)

    # Nothing is built yet, and torch was not needed so far: that is why wrong input is refused within a blink, with
    # what was written, why it cannot work and what to write instead.
    check_config(config)
    try:
        check_config(config.replace(training=config.training.replace(seq_len=4096)))
    except ConfigError as error:
        print(f"1. a sequence longer than the model's positions is refused:\n     {error.what}\n     do: {error.do}")

    # A config goes to JSON and back without loss. Every run keeps its own beside its results.
    assert from_json(json.loads(json.dumps(to_json(config)))) == config
    return config


def chapter_2_model(config: TrainerConfig) -> Decoder:
    """A config builds its component. The models are plain nn.Modules that know nothing of processes or devices."""
    # On the meta device a model has shapes and no memory, so any size can be counted and planned on a laptop.
    with torch.device("meta"):
        large = load_recipe("deepseek_v3_671b").model.build()
    print(f"2. deepseek_v3_671b has {sum(p.numel() for p in large.parameters()) / 1e9:.2f} billion parameters")

    # Each first value is computed from the seed, the parameter's name and its place in it. So the values depend neither
    # on the device nor on how the model will later be divided.
    model = config.model.build()
    initialize(model, seed=config.debug.seed)

    # One forward gives the loss, already divided by the number of tokens that count. The experts' load comes back as a
    # result instead of being counted inside, so evaluation and recomputation cannot count twice.
    tokens = torch.randint(0, 256, (1, 32), generator=torch.Generator().manual_seed(1))
    output = model(tokens, labels=tokens)
    print(f"   an untrained {type(model).__name__} guesses: loss {output.loss:.2f} (ln of the vocabulary is 6.24)")
    print(f"   tokens per expert, layer by layer: {output.metrics['expert_load'].tolist()}")
    flops = model.flops(config.training.seq_len)
    print(f"   one token costs {flops.full_attention / 1e6:.1f} MFLOP, forward and backward together")
    return model


def chapter_3_step(config: TrainerConfig) -> None:
    """The step: forward, loss and backward of one micro-batch. It is all the trainer ever sees of a model."""
    # Data is tokenized once, shuffled by the seed and cut into sequences. A position in it is one cursor (epoch,
    # sample), the same for any number of devices, and the trainer owns it.
    data = config.dataloader.build(
        tokenizer=config.tokenizer.build(),
        seq_len=config.training.seq_len,
        vocab_size=config.model.vocab_size,
        seed=config.debug.seed,
        split="train",
    )
    print(f"3. the data: {data.samples.description}")
    with data.batches(Cursor(epoch=0, sample=0), local_batch_size=2, global_batch_size=4) as batches:
        halves = [next(batches), next(batches)]

    # One process is a mesh of one: there is no second path through the program for a single device.
    with joined_groups(plan_run_mesh(config, 1), torch.device("cpu")) as groups:
        step = build_step(config, groups)

        # Losses are divided by the tokens of the WHOLE update, so micro-batches add up to the mean over all tokens,
        # however unevenly the valid ones are spread.
        scalars = step.compute_scalars([half.tensors for half in halves])
        shares = [step(half.tensors, scalars) for half in halves]
        norm = step.grad_norm()
    print(f"   the halves of an update add {shares[0]:.3f} and {shares[1]:.3f} to its loss; gradient norm {norm:.2f}")


def chapter_4_trainer(config: TrainerConfig) -> Path:
    """The trainer: read, step, clip, balance experts, update, measure, save."""
    # This is what `monograph train` calls. It returns what happened; everything else is in the run's folder.
    summary = train(config)
    folder = Path(config.job.dump_folder)
    print(f"4. trained {summary.steps} steps: loss {summary.first['loss']:.2f} -> {summary.last['loss']:.2f}")
    left = ", ".join(sorted(path.name for path in folder.iterdir()))
    print(f"   {summary.validation.describe()}; the run's folder holds {left}")

    # metrics.jsonl has one line a step. A loss is written as the exact float32 that was computed, so two runs can be
    # compared bit for bit from their files.
    record = json.loads(summary.metrics.read_text().splitlines()[0])
    assert torch.tensor(record["loss"], dtype=torch.float32).item() == record["loss"]
    print(f"   a record says: {', '.join(record)}")
    return folder


def chapter_5_checkpoint(config: TrainerConfig, folder: Path, scratch: Path) -> None:
    """A checkpoint is whole or does not exist, and continuing from it gives the same bits as never having stopped."""
    # It is written under another name, made durable, and appears by one rename. Tensors are safetensors, everything
    # else is JSON with the hash of every file: nothing that is loaded can run code, and damage is found before use.
    steps = sorted((folder / "checkpoints").glob("step-*"))
    print(f"5. checkpoints: {[path.name for path in steps]}, each with {sorted(p.name for p in steps[0].iterdir())}")

    # Continue the second half of the run from its middle, in another folder...
    resumed = config.replace(
        job=config.job.replace(dump_folder=str(scratch)), checkpoint=config.checkpoint.replace(load=str(steps[0]))
    )
    train(resumed)

    # ... and compare every weight, both moments of the optimizer and the random state with those of the whole run.
    whole, halves = (load_tensors(where / "checkpoints" / steps[-1].name) for where in (folder, scratch))
    assert whole.keys() == halves.keys()
    assert all(torch.equal(whole[name], halves[name]) for name in whole)
    print(f"   resumed after step 4: all {len(whole)} tensors equal those of the unbroken run bit for bit")


def load_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Everything a checkpoint holds. Any program that reads safetensors can."""
    return {name: value for file in sorted(path.glob("*.safetensors")) for name, value in load_file(file).items()}


def chapter_6_graph(config: TrainerConfig) -> None:
    """The same step as one graph: captured once on shapes alone, improved by passes, and run with the same bits."""
    # Graph mode is the default of every recipe. It gathers parameters by explicit ops, so that a capture sees them.
    eager = config.replace(parallelism=config.parallelism.replace(fsdp="graph"))
    graph = eager.replace(compile=config.compile.replace(mode="graph"))
    tokens = torch.randint(0, 256, (2, config.training.seq_len), generator=torch.Generator().manual_seed(6))
    batch = {"tokens": tokens, "labels": tokens.roll(-1, 1)}
    with joined_groups(plan_run_mesh(config, 1), torch.device("cpu")) as groups:
        op_by_op, captured = build_step(eager, groups), build_step(graph, groups)
        assert isinstance(captured, GraphStep)
        losses = [step(batch, step.compute_scalars([batch])) for step in (op_by_op, captured)]
    assert torch.equal(*losses)

    # A graph is a text that people can read; equal blocks are printed once.
    assert captured.graph is not None
    lines = captured.graph.text().splitlines()
    print(f"6. the step as a graph: {len(captured.graph.nodes)} nodes, {len(lines)} lines of text, such as")
    print(f"   {next(line for line in lines if ' mm(' in line).strip()}")

    # Every pass leaves a record, also when it had nothing to do. `monograph passes` lists them.
    for record in captured.records:
        print(f"   {record.name:<26} {record.status:<8} {record.note}")


def main() -> None:
    """The whole tour, in a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory() as index:
        config = chapter_1_config(Path(index) / "run")
        chapter_2_model(config)
        chapter_3_step(config)
        folder = chapter_4_trainer(config)
        chapter_5_checkpoint(config, folder, Path(index) / "resumed")
        chapter_6_graph(config)


if __name__ == "__main__":
    main()

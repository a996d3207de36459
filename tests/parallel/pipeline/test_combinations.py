"""A pipeline with everything else a run can ask for: the bits of the same run without stages."""

import pytest

from tests.kit.ranks import pool
from tests.kit.runs import read_records, tiny_run, write_texts
from tests.parallel.pipeline.pipeline_work import train_once
from tests.parallel.pipeline.test_training import VALIDATED, compare

FAST = ("compile.numerics", "fast")
FLEX = ("model.attention.kernel", "flex")
DOCUMENTS = ("model.mask", "document")
BF16 = ("training.compute_dtype", "bfloat16")
CASES = {
    "ep2, tied": ("qwen3_moe", {"shard": 2, "ep": 2}, ()),
    "etp2, tied": ("qwen3_moe", {"tp": 2, "etp": 2}, ()),
    "cp2, keys gathered": ("llama3", {"cp": 2}, ()),
    "cp2, heads exchanged": ("llama3", {"cp": 2}, (("parallelism.context_parallel_method", "ulysses"),)),
    "documents": ("llama3", {}, (DOCUMENTS,)),
    "min_cut": ("llama3", {}, (("activation_checkpoint.mode", "min_cut"),)),
    "full": ("llama3", {}, (("activation_checkpoint.mode", "full"),)),
    "selective": ("deepseek_v3", {}, (("activation_checkpoint.mode", "selective"),)),
    "offload": (
        "llama3",
        {},
        (("passes.offload_activations.budget_gib", 1e-3), ("passes.offload_activations.min_bytes", 64)),
    ),
    "fast, tied": ("qwen3_moe", {}, (FAST,)),
    "fast, biases": ("gpt_oss", {}, (FAST,)),
    "fast in bf16": ("llama3", {}, (FAST, BF16)),
    "float8": ("llama3", {}, (("compile.numerics", "float8"), BF16)),
    "bf16 moments": ("llama3", {}, (("optimizer.state_dtype", "bfloat16"),)),
    "flex": ("llama3", {}, (FLEX,)),
    "flex, documents": ("llama3", {}, (FLEX, DOCUMENTS)),
    "dropout": ("llama3", {}, (("model.dropout", 0.1),)),
    "frozen": ("llama3", {}, (("training.freeze", ("embedding.*", "layers.0.*")),)),
}


@pytest.mark.long
@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
@pytest.mark.parametrize("name", CASES)
def test_stages_have_the_bits_of_the_same_run_without_them(name, schedule):
    model, degrees, changes = CASES[name]
    changes = (("model.n_layers", 4), *VALIDATED, *changes)
    compare(model, 4, 2, changes, pp=2, schedule=schedule, is_tied="tied" in name, **degrees)


@pytest.mark.long
def test_stages_train_on_a_mixture_resume_and_say_the_loss_of_each_source_as_one_device_does(tmp_path):
    sources = {"web": 0.5, "code": 0.3, "books": 0.2}
    for name in sources:
        write_texts(tmp_path / f"{name}.jsonl", [f"{name} {number} " * 30 for number in range(30)])
    settings = {
        "dataloader.mixture": tuple(f"{name}={weight}:{tmp_path / name}.jsonl" for name, weight in sources.items()),
        "dataloader.source_loss_interval": 2,
        "compile.mode": "graph",
        "training.local_batch_size": 1,
        "training.global_batch_size": 4,
        "lr_scheduler.total_steps": 4,
        "checkpoint.interval": 2,
    }

    def run(folder, steps, ranks, **more):
        stages = {"parallelism.pipeline_parallel_degree": ranks, "training.steps": steps}
        pool.run(ranks, train_once, tiny_run(tmp_path / folder, {**settings, **stages, **more}))
        named = ("step", "loss", "grad_norm", "source_loss")
        return [[record.get(name) for name in named] for record in read_records(tmp_path / folder)]

    wanted = run("one", 4, 1)
    assert {"web", "code"} <= wanted[1][3].keys()
    assert run("two", 4, 2) == wanted
    run("resumed", 2, 2)
    assert run("resumed", 4, 2, **{"checkpoint.load": "latest"}) == wanted

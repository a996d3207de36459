"""Inputs that newcomers get wrong, and the files that they need.

A case is (kind, command, pattern that a clear answer contains); SMALL stands for flags of a tiny run.
"""

import json
import sys
from pathlib import Path

OWN_MODEL = """
import monograph as mg


class NotAModel:
    pass


class Fails(mg.Model):
    pass
"""
OWN_PASS = '''
from monograph import Pass


class Breaks(Pass):
    """Raise while the pass runs.

    Before:  a
    After:   b
    Why:     a planted mistake.
    """

    def run(self, graph, facts):
        return graph.nodes[0].no_such_attribute


class Undocumented(Pass):
    def run(self, graph, facts):
        return ""
'''
OWN_RECIPE = """
from monograph.recipes.llama3 import llama3_debugmodel


def mine():
    return llama3_debugmodel()


def number():
    return 3


def fails():
    raise KeyError("what is this")


value = 3
"""


def write_files(folder: Path) -> None:
    """Write texts, models and code that have something wrong with them."""
    folder.mkdir()
    rows = [{"text": f"a document, number {number}, " + "word " * 40} for number in range(200)]
    (folder / "good.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "body.jsonl").write_text("".join(json.dumps({"body": row["text"]}) + "\n" for row in rows))
    chat = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
    (folder / "chat.jsonl").write_text((json.dumps(chat) + "\n") * 200)
    (folder / "empty.txt").write_text("")
    (folder / "empty.jsonl").write_text("")
    (folder / "short.txt").write_text("too short")
    (folder / "list.jsonl").write_text('["a", "b"]\n' * 20)
    (folder / "number.jsonl").write_text('{"text": 3}\n' * 20)
    (folder / "cut.jsonl").write_text('{"text": "a document"}\n{"text": "cut o')
    (folder / "array.json").write_text(json.dumps(rows))
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 40)
    (folder / "utf16.txt").write_text("some words of a text\n" * 200, encoding="utf-16")
    (folder / "latin1.txt").write_text("d\u00e9j\u00e0 vu\n" * 200, encoding="latin-1")
    (folder / "words.csv").write_text("text\nhello\n")
    (folder / "words.parquet").write_bytes(b"PAR1 this is not parquet")
    (folder / "words.txt.gz").write_bytes(b"not gzip")
    (folder / "empty_folder").mkdir()
    (folder / "dangling").symlink_to("nowhere")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "not_json.json").write_text("{")
    (folder / "machine.json").write_text('{"name": "mine"}')
    (folder / "schedule.csv").write_text("0F0,0B0\n")
    (folder / "own_model.py").write_text(OWN_MODEL)
    (folder / "own_pass.py").write_text(OWN_PASS)
    (folder / "own_recipe.py").write_text(OWN_RECIPE)
    (folder / "broken.py").write_text("def mine(:\n")
    (folder / "artifact.key").write_text("short")
    write_models(folder)
    if sys.platform.startswith("linux"):
        (folder / "fifo").unlink(missing_ok=True)


def write_models(folder: Path) -> None:
    """Write folders that look like models of Hugging Face."""
    configs = {
        "bert": {"model_type": "bert", "architectures": ["BertForMaskedLM"]},
        "untyped": {"hidden_size": 64},
        "halved": {"model_type": "llama"},
        "odd": {"model_type": "llama", "hidden_size": "many"},
    }
    for name, config in configs.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    (folder / "no_config").mkdir()
    (folder / "broken_config").mkdir()
    (folder / "broken_config" / "config.json").write_text("{ model")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text("{}")
    (folder / "pickled").mkdir()
    (folder / "pickled" / "config.json").write_text(json.dumps(configs["halved"]))
    (folder / "pickled" / "pytorch_model.bin").write_bytes(b"pickle")


RUN = "train llama3_debugmodel SMALL"
COMMANDS = [
    ("command", "trian llama3_debugmodel", "train"),
    ("command", "llama3_debugmodel", "command"),
    ("command", "--steps 3", "COMMAND"),
    ("command", "train", "recipe"),
    ("command", "train llama3_debug", "llama3_debugmodel"),
    ("command", "train meta-llama/Llama-3.2-1B", "model.from|recipe"),
    ("command", "train no_config", "no_config"),
    ("command", "train config.yaml", "config.yaml"),
    ("command", "train own_recipe.py", "own_recipe"),
    ("command", "train own_recipe:mien", "mine"),
    ("command", "train own_recipe:number", "Trainer.Config"),
    ("command", "train own_recipe:fails", "what is this"),
    ("command", "train own_recipe:value", "function"),
    ("command", "train broken:mine", "broken"),
    ("command", "train no_module:mine", "no_module"),
    ("command", "train llama3_debugmodel extra", "extra"),
    ("command", "compare llama3_debugmodel", "two runs"),
    ("command", "compare", "two runs"),
    ("command", "compare 'llama3_debugmodel' 'llama3_debugmodel --training.stepz 3'", "training.steps"),
    ("command", "compare 'llama3_debugmodel' \"llama3_debugmodel 'x\"", "parse"),
    ("command", "bisect 'llama3_debugmodel --compile.mode eager'", "eager"),
    ("command", "bisect 'llama3_debugmodel' 'qwen3_debugmodel'", "model"),
    ("command", "hf", "import|export"),
    ("command", "hf convert a b", "import|export"),
    ("command", "artifact", "show"),
    ("command", "passes extra", "extra"),
    ("command", "recipes llama3", "llama3"),
]
FLAGS = [
    ("flags", f"{RUN} --learning_rate 3e-4", "--optimizer.lr 3e-4"),
    ("flags", f"{RUN} --per_device_train_batch_size 4", "local_batch_size"),
    ("flags", f"{RUN} --num_train_epochs 3", "training.steps"),
    ("flags", f"{RUN} --gradient_accumulation_steps 4", "global_batch_size"),
    ("flags", f"{RUN} --training.stepz 3", "training.steps"),
    ("flags", f"{RUN} --training.steps many", "training.steps"),
    ("flags", f"{RUN} --training.steps 1.5", "training.steps"),
    ("flags", f"{RUN} --training.steps", "training.steps"),
    ("flags", "train llama3_debugmodel --training.steps 0", "steps"),
    ("flags", "train llama3_debugmodel --training.steps -5", "steps"),
    ("flags", f"{RUN} --optimizer.lr nan", "optimizer.lr"),
    ("flags", f"{RUN} --optimizer.lr -1", "lr"),
    ("flags", f"{RUN} --optimizer.lr 1e-3 --optimizer.lr 1e-4", "twice"),
    ("flags", f"{RUN} --optimizer sgd", "AdamW"),
    ("flags", f"{RUN} --optimizer os:path", "os:path is a module"),
    ("flags", f"{RUN} --optimizer.beta2 1.5", "beta2"),
    ("flags", f"{RUN} --training.dtype fp16", "dtype"),
    ("flags", f"{RUN} --compile.mode fast", "compile.mode"),
    ("flags", f"{RUN} --compile.numerics fp8", "numerics"),
    ("flags", f"{RUN} --debug.device gpu", "cuda"),
    ("flags", f"{RUN} --debug.device cuda", "no CUDA device|nvidia"),
    ("flags", f"{RUN} --model.n_layers 0", "n_layers"),
    ("flags", "train llama3_debugmodel --model.dim 65", "dim"),
    ("flags", "train llama3_debugmodel --model.attention.n_heads 3", "n_heads"),
    ("flags", f"{RUN} --model.vocab_size 100", "vocab_size"),
    ("flags", f"{RUN} --model.moe.n_experts 8", "moe"),
    ("flags", f"{RUN} --model.rope.factor 8", "rope.scaling"),
    ("flags", "train llama3_debugmodel --training.seq_len 100000", "max_seq_len"),
    ("flags", f"{RUN} --lr_scheduler.warmup_steps 50", "warmup_steps"),
    ("flags", "train llama3_debugmodel --validator.samples 0", "samples"),
    ("flags", f"{RUN} --metrics.wandb true", "pip install"),
    ("flags", f"{RUN} --metrics.tensorboard true", "pip install"),
    ("flags", f"{RUN} --fault_tolerance.replicas 2 --training.global_batch_size 32", "pip install|lighthouse"),
    ("flags", f"{RUN} --activation_checkpoint.mode budget", "budget_gib"),
    ("flags", f"{RUN} steps=3", "steps=3"),
    ("flags", f"{RUN} -lr 3", "-lr"),
    ("flags", f"{RUN} --training '{{\"steps\": 3}}'", "training|imported"),
    ("flags", f"{RUN} --passes.off buckets", "bucket_collectives"),
    ("flags", f"{RUN} --passes.on merge", "no pass of that name"),
]
DATA = [
    ("data", f"{RUN} --dataloader.dataset nowhere.txt", "nowhere.txt"),
    ("data", f"{RUN} --dataloader.dataset body.jsonl", "--dataloader.text_field body"),
    ("data", f"{RUN} --dataloader.dataset chat.jsonl", "own_data|messages"),
    ("data", f"{RUN} --dataloader.dataset empty.txt", "empty"),
    ("data", f"{RUN} --dataloader.dataset empty.jsonl", "empty"),
    ("data", f"{RUN} --dataloader.dataset short.txt", "short"),
    ("data", f"{RUN} --dataloader.dataset list.jsonl", "list.jsonl"),
    ("data", f"{RUN} --dataloader.dataset number.jsonl", "number.jsonl"),
    ("data", f"{RUN} --dataloader.dataset cut.jsonl", "cut.jsonl"),
    ("data", f"{RUN} --dataloader.dataset array.json", "jsonl"),
    ("data", f"{RUN} --dataloader.dataset binary.txt", "binary"),
    ("data", f"{RUN} --dataloader.dataset utf16.txt", "UTF-?16"),
    ("data", f"{RUN} --dataloader.dataset latin1.txt", "LATIN1"),
    ("data", f"{RUN} --dataloader.dataset words.csv", "words.csv"),
    ("data", f"{RUN} --dataloader.dataset words.parquet", "pyarrow|parquet"),
    ("data", f"{RUN} --dataloader.dataset words.txt.gz", "words.txt.gz"),
    ("data", f"{RUN} --dataloader.dataset empty_folder", "empty_folder"),
    ("data", f"{RUN} --dataloader.dataset dangling", "link"),
    ("data", f"{RUN} --dataloader.dataset hf:", "hf:"),
    ("data", f"{RUN} --dataloader.dataset hf:some/dataset", "pip install|look up"),
    ("data", f"{RUN} --dataloader.dataset good.jsonl --dataloader.text_field body", "text_field text"),
    ("data", f"{RUN} --dataloader.mixture a=good.jsonl", "WEIGHT"),
    ("data", f"{RUN} --dataloader.mixture a=0:good.jsonl", "weight"),
    ("data", f"{RUN} --dataloader.mixture a=1:good.jsonl b=1:nowhere.txt", "nowhere.txt"),
    ("data", f"{RUN} --dataloader.held_out_fraction 2", "held_out_fraction"),
    ("data", f"{RUN} --tokenizer.path nowhere.json", "nowhere.json"),
    ("data", f"{RUN} --tokenizer.path not_json.json", "not_json.json"),
    ("data", f"{RUN} --tokenizer.path tokenizer.json", "tokenizer.json"),
    ("data", f"{RUN} --tokenizer.eos_token '</s>'", "tokenizer.path"),
    ("data", "data pack nowhere.txt packed", "nowhere.txt"),
    ("data", "data pack empty.txt packed", "empty"),
    ("data", "data pack good.jsonl", "OUT|folder to write"),
    ("data", "data pack good.jsonl empty_folder", "empty_folder"),
]
FOLDERS = [
    ("folders", f"{RUN} --job.dump_folder ''", "dump_folder"),
    ("folders", f"{RUN} --job.dump_folder /proc/q", "/proc/q"),
    ("folders", f"{RUN} --job.dump_folder good.jsonl", "good.jsonl"),
    ("folders", f"{RUN} --checkpoint.load nowhere", "nowhere"),
    ("folders", f"{RUN} --checkpoint.load latest", "checkpoint"),
    ("folders", f"{RUN} --checkpoint.load 7", "step 7"),
    ("folders", f"{RUN} --checkpoint.initial_load_path nowhere", "nowhere"),
    ("folders", f"{RUN} --checkpoint.load_model_only true", "load"),
    ("folders", "watch nowhere", "nowhere"),
    ("folders", "watch empty_folder", "empty_folder"),
    ("folders", "watch good.jsonl", "good.jsonl"),
    ("folders", "goodput nowhere", "nowhere"),
    ("folders", "goodput empty_folder", "empty_folder"),
    ("folders", "inspect llama3_debugmodel --out /proc/q", "/proc/q"),
    ("folders", "inspect llama3_debugmodel", "--out"),
    ("folders", "inspect llama3_debugmodel --out good.jsonl", "good.jsonl"),
    ("folders", "precompile llama3_debugmodel --out /proc/q", "/proc/q"),
    ("folders", "artifact show nowhere", "nowhere"),
    ("folders", "artifact show empty_folder", "empty_folder"),
    ("folders", "artifact check nowhere llama3_debugmodel", "nowhere"),
    ("folders", "artifact sign nowhere --key_file artifact.key", "key"),
    ("folders", "artifact verify nowhere", "key"),
    ("folders", f"{RUN} --compile.artifact nowhere", "nowhere"),
    ("folders", "report compare nowhere empty_folder --out page.html", "nowhere"),
    ("folders", "trace join nowhere.json not_json.json --out both.json", "nowhere.json"),
]
MESHES = [
    ("meshes", f"{RUN} --ranks 100000", "--ranks"),
    ("meshes", f"{RUN} --ranks -1", "--ranks"),
    ("meshes", f"{RUN} --parallelism.tensor_parallel_degree 2", "--ranks 2"),
    ("meshes", f"{RUN} --ranks 2 --parallelism.tensor_parallel_degree 3", "degree"),
    ("meshes", f"{RUN} --ranks 2 --parallelism.tensor_parallel_degree 0", "tensor_parallel_degree"),
    ("meshes", f"{RUN} --ranks 2 --parallelism.expert_parallel_degree 2", "experts"),
    ("meshes", f"{RUN} --ranks 2 --training.global_batch_size 3", "global_batch_size"),
    ("meshes", f"{RUN} --training.global_batch_size 7 --training.local_batch_size 4", "global_batch_size"),
    ("meshes", f"{RUN} --ranks 2 --parallelism.context_parallel_degree 2 --training.seq_len 33", "seq_len|twice"),
    (
        "meshes",
        "train llama3_debugmodel --ranks 2 --parallelism.context_parallel_degree 2 --training.seq_len 33",
        "seq_len",
    ),
    (
        "meshes",
        f"{RUN} --parallelism.pipeline_schedule gpipe2 --parallelism.pipeline_parallel_degree 2 --ranks 2",
        "gpipe",
    ),
    (
        "meshes",
        f"{RUN} --ranks 2 --parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_schedule schedule.csv",
        "schedule",
    ),
    ("meshes", "verify llama3_debugmodel --ranks 2 --parallelism.tensor_parallel_degree 3", "degree"),
    ("meshes", "train own_recipe:mine --ranks 2 --model own_model:Fails", "own_model:Fails|Fails"),
    ("meshes", "train own_recipe:mine --ranks 2 --parallelism.tensor_parallel_degree 4", "degree"),
    ("meshes", "train llama3_debugmodel --training.local_batch_size 0", "local_batch_size"),
]
MODELS = [
    ("models", "train --model.from nowhere", "nowhere"),
    ("models", "train --model.from bert", "bert"),
    ("models", "train --model.from untyped", "model_type"),
    ("models", "train --model.from halved", "config.json"),
    ("models", "train --model.from odd", "hidden_size|config.json"),
    ("models", "train --model.from no_config", "config.json|no_config"),
    ("models", "train --model.from broken_config", "broken_config"),
    ("models", "train --model.from good.jsonl", "good.jsonl"),
    ("models", "train --model.from adapter", "adapter"),
    ("models", "train --model.from pickled", "safetensors|config.json"),
    ("models", "hf import bert out", "bert"),
    ("models", "hf import nowhere out", "nowhere"),
    ("models", "hf import bert", "folder to write|OUT"),
    ("models", "hf export nowhere out", "nowhere"),
    ("models", "hf export empty_folder out", "empty_folder"),
    ("models", "generate nowhere --prompt a", "nowhere"),
    ("models", "generate bert --prompt a", "bert"),
    ("models", "generate bert", "prompt"),
    ("models", "generate bert --prompt a --top_p 0.9", "temperature"),
    ("models", "generate bert --prompt a --temperature -1", "temperature"),
    ("models", "generate bert --prompt_file nowhere.txt", "nowhere.txt"),
    ("models", "evaluate bert", "--data"),
    ("models", "evaluate bert --data missing.txt", "--data missing.txt"),
    ("models", "evaluate bert --tasks hellaswag", "pip install|bert"),
    ("models", "evaluate bert --data good.jsonl --stride 9 --seq_len 4", "stride"),
    ("models", "check-model own_model:NotAModel", "NotAModel"),
    ("models", "check-model own_model:Missing", "Missing"),
    ("models", "check-model no_module:Model", "no_module"),
    ("models", "check-pass own_pass:Undocumented", "docstring"),
    ("models", "check-pass own_pass:Breaks", "Breaks|breaks"),
    ("models", f"{RUN} --passes.extra own_pass:Breaks", "breaks|Breaks"),
    ("models", f"{RUN} --passes.extra own_pass:Missing", "Missing"),
]
PLANS = [
    ("plans", "plan llama3_8b", "--gpus"),
    ("plans", "plan llama3_8b --gpus 0", "--gpus"),
    ("plans", "plan llama3_8b --gpus 8 --machine h1000", "h100"),
    ("plans", "plan llama3_8b --gpus 8 --machine machine.json", "machine.json"),
    ("plans", "plan llama3_8b --gpus 8 --memory 80", "80GiB"),
    ("plans", "plan llama3_8b --gpus 7 --machine h100", "gpus|fits"),
    ("plans", "plan llama3_8b --gpus 8 --top 0", "--top"),
    ("plans", "machine show h1000", "h100"),
    ("plans", "machine measure", "--out"),
    (
        "plans",
        "inspect llama3_debugmodel --out i --machine a100 --compile.numerics float8 --training.compute_dtype bfloat16",
        "float8",
    ),
    ("plans", "launch llama3_8b", "--on"),
    ("plans", "launch llama3_8b --on slrum", "slurm"),
    ("plans", "launch llama3_8b --on slurm --nodes 0", "nodes"),
    ("plans", "launch llama3_8b --on kubernetes --nodes 2", "image"),
    ("plans", "launch llama3_8b --on skypilot --nodes 2", "accelerators"),
    ("plans", "launch llama3_8b --on slurm --nodes 2 --image x", "image"),
    ("plans", "launch llama3_8b --on slurm --nodes 2 --submit", "sbatch"),
    ("plans", "bench llama3_debugmodel --modes turbo", "turbo"),
    ("plans", "bench llama3_debugmodel --steps 0", "--steps"),
    ("plans", "bench llama3_debugmodel --parallelism.tensor_parallel_degree 2", "tensor_parallel_degree"),
    ("plans", "tune llama3_debugmodel --debug.device cpu", "GPU"),
]
CASES = [*COMMANDS, *FLAGS, *DATA, *FOLDERS, *MESHES, *MODELS, *PLANS]

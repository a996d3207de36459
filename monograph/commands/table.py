"""The commands. Each one names the function that does the work, which is imported only when its arguments have been
understood and checked, so that help and wrong input never wait for torch."""

from collections.abc import Callable
from dataclasses import dataclass

from monograph.commands.arguments import (
    ArtifactCheckOptions,
    ArtifactShowArguments,
    ArtifactSignArguments,
    ArtifactVerifyArguments,
    BenchOptions,
    CheckModelArguments,
    CheckPassArguments,
    CompareArguments,
    ConfigOptions,
    DataPackArguments,
    GoodputArguments,
    InspectOptions,
    PassesArguments,
    PrecompileOptions,
    TrainOptions,
    TuneOptions,
    VerifyOptions,
)
from monograph.commands.bisect_lines import check_bisect
from monograph.commands.checks import (
    check_bench,
    check_inspect,
    check_pass_arguments,
    check_plan_options,
    check_precompile,
    check_tune,
)
from monograph.commands.insight_arguments import (
    BisectArguments,
    MachineMeasureArguments,
    MachineShowArguments,
    PlanOptions,
    ReportCompareArguments,
    TraceJoinArguments,
    WatchArguments,
)
from monograph.commands.launch_arguments import LaunchOptions
from monograph.commands.model_arguments import EvaluateArguments, GenerateArguments
from monograph.commands.model_checks import check_evaluate, check_generate, check_import
from monograph.config.configurable import BaseConfig
from monograph.elsewhere.answer import fold_name
from monograph.elsewhere.commands import COMMANDS_ELSEWHERE
from monograph.errors import ConfigError, did_you_mean
from monograph.train.checkpoint.arguments import HfExportArguments, HfImportArguments


@dataclass(frozen=True)
class Command:
    """One entry of the command line."""

    name: str
    """One or two words: `train`, `hf import`."""
    usage: str
    """What follows the name."""
    summary: str
    """One line for the list of commands."""
    function: str
    """"module:function", called with what the arguments say; it returns an exit code or None."""
    check: Callable[..., None] | str | None = None
    """Called with the same arguments before `function` is imported: refuses what can be refused without torch. As
    "module:function" it is imported for this command alone."""
    has_ranks: bool = False
    """Whether `--ranks N` starts N ranks of the same command (LAUNCHER) instead of calling `function`."""
    before_ranks: str = ""
    """Called with the same arguments before ranks are started; what it raises ends the command."""
    takes_recipe: bool = False
    """Whether RECIPE and `--section.field value` come first; the function is then called with the configuration."""
    needs: tuple[str, ...] = ()
    """What the function wants to know besides the configuration: fields of a Request, passed by keyword."""
    uses: tuple[str, ...] = ()
    """Fields that the command reads for itself, also where a run with this configuration would not."""
    leading: tuple[str, ...] = ()
    """Fields of `arguments` that are written without a flag, before the recipe."""
    arguments: type[BaseConfig] | None = None
    """Config class whose fields are the command's own flags: passed by keyword beside a recipe, else as one object."""
    positional: tuple[str, ...] = ()
    """Fields of `arguments` that are written without a flag, in this order; only without a recipe."""
    optional: tuple[str, ...] = ()
    """Those of `positional` that may be left out."""
    takes: str = ""
    """The positional arguments in words, for the error when one is missing."""


LAUNCHER = "monograph.launch.local:launch"
"""Starts the ranks of a command."""
RUN_ROOM, BENCH_ROOM = "monograph.commands.room:check_run_room", "monograph.commands.room:check_bench_room"
"""Estimate whether a run, or the modes of a bench, fit into the memory of a GPU."""

SIMULATE = "monograph.verify.simulate.first:simulate_first"
"""Compares a mesh with one device in this process; imported where that is asked for, because it needs torch."""

COMMANDS = (
    Command(
        name="train",
        usage="[RECIPE] [--model.from FOLDER] [--ranks N] [--quiet] [--section.field value ...]",
        summary="Train a model: a recipe's, or one that a folder holds.",
        function="monograph.commands.on_ranks:train",
        check="monograph.commands.check_train:check_train",
        has_ranks=True,
        takes_recipe=True,
        needs=("words", "origins"),
        arguments=TrainOptions,
    ),
    Command(
        name="verify",
        usage="[RECIPE] [--model.from FOLDER] [--ranks N] [--simulate] [--section.field value ...]",
        summary="Prove that a parallel plan computes what one device computes; on a simulated mesh of any size, too.",
        function="monograph.commands.verify_run:verify",
        check="monograph.commands.check_train:check_verify",
        has_ranks=True,
        before_ranks="monograph.commands.verify_run:simulate_ranks",
        takes_recipe=True,
        needs=("words",),
        arguments=VerifyOptions,
    ),
    Command(
        name="inspect",
        usage="RECIPE --out DIR [--ranks N] [--section.field value ...]",
        summary="Show the step as a graph, pass by pass, with its memory and time lines; needs no GPU and no ranks.",
        function="monograph.commands.inspect:inspect",
        check=check_inspect,
        takes_recipe=True,
        needs=("recipe", "words"),
        arguments=InspectOptions,
    ),
    Command(
        name="bench",
        usage="RECIPE [--modes eager,layer,exact,fast] [--steps 20] [--section.field value ...]",
        summary="Measure how fast a step is, mode by mode, on random tokens in one process.",
        function="monograph.commands.bench:bench",
        check=check_bench,
        takes_recipe=True,
        needs=("words", "origins"),
        arguments=BenchOptions,
    ),
    Command(
        name="tune",
        usage="RECIPE [--ranks N] [--section.field value ...]",
        summary="Time the settings of a step's custom kernels on this GPU, and keep the fastest for later runs.",
        function="monograph.commands.tune:tune",
        check=check_tune,
        takes_recipe=True,
        arguments=TuneOptions,
    ),
    Command(
        name="plan",
        usage="RECIPE --gpus N [--machine h100] [--memory 80GiB] [--explain] [--out PAGE] [--section.field value ...]",
        summary="Rank meshes by estimated speed and memory, from their graphs; needs no GPU.",
        function="monograph.commands.plan:plan",
        check=check_plan_options,
        takes_recipe=True,
        needs=("words", "origins"),
        arguments=PlanOptions,
    ),
    Command(
        name="precompile",
        usage="RECIPE --out DIR [--ranks N] [--section.field value ...]",
        summary="Capture and compile once, in one process, for every rank of a mesh; needs no cluster.",
        function="monograph.commands.precompile:precompile_command",
        check=check_precompile,
        takes_recipe=True,
        uses=("compile.artifact_key_file",),
        needs=("words",),
        arguments=PrecompileOptions,
    ),
    Command(
        name="artifact show",
        usage="DIR [--all]",
        summary="Print what an artifact was compiled for, and its contents.",
        function="monograph.commands.artifact:show_artifact",
        arguments=ArtifactShowArguments,
        positional=("folder",),
        takes="the folder of an artifact",
    ),
    Command(
        name="artifact check",
        usage="DIR RECIPE [--ranks N] [--section.field value ...]",
        summary="Check whether a run can use an artifact, and say why not.",
        function="monograph.commands.artifact:check_artifact",
        takes_recipe=True,
        uses=("compile.artifact_key_file", "compile.artifact_on_mismatch", "compile.artifact_trust_shared_folder"),
        leading=("folder",),
        arguments=ArtifactCheckOptions,
    ),
    Command(
        name="artifact sign",
        usage="DIR [--key_file FILE]",
        summary="Sign an artifact with a key, so that others can load it from a shared folder.",
        function="monograph.commands.artifact_sign:sign_artifact",
        arguments=ArtifactSignArguments,
        positional=("folder",),
        takes="the folder of an artifact",
    ),
    Command(
        name="artifact verify",
        usage="DIR [--key_file FILE]",
        summary="Check that an artifact was signed with a key and is what was signed.",
        function="monograph.commands.artifact_sign:verify_artifact",
        arguments=ArtifactVerifyArguments,
        positional=("folder",),
        takes="the folder of an artifact",
    ),
    Command(
        name="compare",
        usage='"RECIPE flags" "RECIPE flags" [--tolerance 1e-5]',
        summary="Run two configurations and compare loss and gradient norm step by step, bit for bit.",
        function="monograph.commands.compare:compare",
        arguments=CompareArguments,
        positional=("left", "right"),
        takes="two runs",
    ),
    Command(
        name="launch",
        usage="RECIPE --on slurm|kubernetes|skypilot|torchrun --nodes N --gpus-per-node G [--section.field value ...]",
        summary="Print, write or submit the job file that trains on several nodes.",
        function="monograph.commands.launch_job:launch_job",
        takes_recipe=True,
        needs=("recipe", "words"),
        arguments=LaunchOptions,
    ),
    Command(
        name="goodput",
        usage="FOLDER [--json]",
        summary="Print how a run spent its time, over all of its restarts.",
        function="monograph.commands.goodput:show_goodput",
        arguments=GoodputArguments,
        positional=("folder",),
        takes="the folder of a run",
    ),
    Command(
        name="bisect",
        usage='"RECIPE flags" ["RECIPE flags"] [--steps 3] [--tolerance 1e-5]',
        summary="Find the update, the pass and the node that changed a number, between two runs or against eager mode.",
        function="monograph.commands.bisect:bisect_command",
        check=check_bisect,
        arguments=BisectArguments,
        positional=("left", "right"),
        optional=("right",),
        takes="one run, or two",
    ),
    Command(
        name="watch",
        usage="FOLDER [--also FOLDER ...] [--out FILE.html] [--port N]",
        summary="Show runs as a page: loss, speed, memory, expert load; while they train or afterwards.",
        function="monograph.commands.watch:watch",
        check="monograph.commands.watch:check_watch",
        arguments=WatchArguments,
        positional=("folder",),
        takes="the folder of a run",
    ),
    Command(
        name="report compare",
        usage="FOLDER FOLDER --out FILE.html",
        summary="Show two steps that were inspected on one page, with what differs between their graphs and costs.",
        function="monograph.commands.reports:compare_command",
        arguments=ReportCompareArguments,
        positional=("left", "right"),
        takes="two folders of inspect",
    ),
    Command(
        name="trace join",
        usage="PREDICTED.json MEASURED.json --out FILE.json [--names NAMED.json] [--top N]",
        summary="Merge a predicted and a measured step into one trace, side by side, for ui.perfetto.dev.",
        function="monograph.commands.reports:join_command",
        arguments=TraceJoinArguments,
        positional=("predicted", "measured"),
        takes="a predicted and a measured trace",
    ),
    Command(
        name="config",
        usage="RECIPE [--section.field value ...] [--json]",
        summary="Print every value of a configuration and where it comes from.",
        function="monograph.commands.show_config:show_config",
        takes_recipe=True,
        needs=("recipe", "origins"),
        arguments=ConfigOptions,
    ),
    Command(
        name="recipes",
        usage="",
        summary="List the recipes.",
        function="monograph.commands.list_recipes:list_recipes",
    ),
    Command(
        name="passes",
        usage="[--markdown] [--passes.extra package.module:Class]",
        summary="List the passes of graph mode.",
        function="monograph.commands.list_passes:list_passes",
        arguments=PassesArguments,
    ),
    Command(
        name="machine show",
        usage="[NAME or FILE.json]",
        summary="Print the FLOP/s, bandwidths and memory that estimates assume, of all machines or of one.",
        function="monograph.commands.machine:show_machine",
        arguments=MachineShowArguments,
        positional=("machine",),
        optional=("machine",),
    ),
    Command(
        name="machine measure",
        usage="--out FILE.json [--ranks N] [--device cpu]",
        summary="Measure FLOP/s and bandwidths of this machine and write them to a file for --machine.",
        function="monograph.commands.machine:measure_machine",
        arguments=MachineMeasureArguments,
    ),
    Command(
        name="check-model",
        usage="package.module:Class [--ranks 2]",
        summary="Try a model of your own: its description, capture, graph against eager, Hugging Face names, verify.",
        function="monograph.commands.check_model:check_model_command",
        arguments=CheckModelArguments,
        positional=("model",),
        takes="a model class, package.module:Class",
    ),
    Command(
        name="check-pass",
        usage="package.module:Class [--model RECIPE ...]",
        summary="Try a pass of your own on small models: graph rules, two ranks, its numerics.",
        function="monograph.commands.check_pass:check_pass",
        check=check_pass_arguments,
        arguments=CheckPassArguments,
        positional=("reference",),
        takes="a pass class, package.module:Class",
    ),
    Command(
        name="hf import",
        usage="SOURCE OUT [--dtype bfloat16]",
        summary="Turn a Hugging Face model into a checkpoint to train from.",
        function="monograph.train.checkpoint.hf_command:import_command",
        check=check_import,
        arguments=HfImportArguments,
        positional=("source", "out"),
        takes="a Hugging Face model and a folder to write",
    ),
    Command(
        name="hf export",
        usage="RUN_OR_CHECKPOINT OUT [--dtype bfloat16] [--max_file_gb 5] [--tokenizer FOLDER]",
        summary="Turn a run or a checkpoint into a Hugging Face model, tokenizer included.",
        function="monograph.train.checkpoint.hf_command:export_command",
        arguments=HfExportArguments,
        positional=("checkpoint", "out"),
        takes="a run or a checkpoint, and a folder to write",
    ),
    Command(
        name="generate",
        usage='FOLDER --prompt "..." [--max_new_tokens 128] [--temperature 0.8 --top_p 0.95] ...',
        summary="Write text with a trained model: a run, a checkpoint or a Hugging Face folder.",
        function="monograph.commands.generate:generate_command",
        check=check_generate,
        arguments=GenerateArguments,
        positional=("folder",),
        takes="a run, a checkpoint or a Hugging Face folder",
    ),
    Command(
        name="evaluate",
        usage="FOLDER --data NAME=PATH ... [--tasks NAME ...]",
        summary="Measure perplexity on sets of texts, or run tasks of lm-eval.",
        function="monograph.commands.evaluate:evaluate_command",
        check=check_evaluate,
        arguments=EvaluateArguments,
        positional=("folder",),
        takes="a run, a checkpoint or a Hugging Face folder",
    ),
    Command(
        name="data pack",
        usage="DATASET OUT [--tokenizer.path FILE] [--overwrite] ...",
        summary="Tokenize a dataset once into shards that runs open at once.",
        function="monograph.commands.data_pack:data_pack",
        arguments=DataPackArguments,
        positional=("dataset", "out"),
        takes="a dataset and a folder to write",
    ),
)


def find_command(words: list[str]) -> tuple[Command, list[str]]:
    """The command that the first one or two words name, and the words that are left."""
    for command in COMMANDS:
        size = len(command.name.split())
        if words[:size] == command.name.split():
            return command, words[size:]
    names = [command.name for command in COMMANDS]
    group = [name for name in names if name.split()[0] == words[0]]
    if group and len(words) > 1:
        raise ConfigError(f"there is no command '{' '.join(words[:2])}'", do=did_you_mean(" ".join(words[:2]), group))
    if group:
        raise ConfigError(f"'{words[0]}' is not a whole command", do=f"choose one of: {', '.join(group)}")
    do = COMMANDS_ELSEWHERE.get(fold_name(words[0])) or did_you_mean(words[0], names)
    raise ConfigError(f"there is no command '{words[0]}'", do=do)

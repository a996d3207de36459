"""What a folder says about the model in it: its settings, its tokenizer, and where its weights are. Without torch.

Three kinds of folders hold a model: Hugging Face's (config.json with a model_type), a checkpoint or an import
(manifest.json), and the folder of a run (config.json with a "$class", and checkpoints).
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from monograph.config.configurable import check_config
from monograph.config.json_form import from_json
from monograph.errors import CheckpointError, ConfigError
from monograph.models.hf_families import find_family
from monograph.models.model_config import ModelConfig
from monograph.system import foreign_json
from monograph.system.foreign_json import UnusableFile
from monograph.system.foreign_text import show
from monograph.train.checkpoint.hf_assets import ASSETS_FOLDER, CONFIG_NAME, TOKENIZER_NAME, find_assets, read_asset
from monograph.train.checkpoint.hf_source import name_model, resolve_source
from monograph.train.checkpoint.manifest import MANIFEST_NAME, ManifestHead
from monograph.train.checkpoint.manifest_file import read_head
from monograph.train.checkpoint.newest import order_newest_first
from monograph.train.checkpoint.store import Store
from monograph.train.data.tokenizer_config import StandardTokenizerConfig, TokenizerConfig
from monograph.train.data.tokenizer_faults import library_errors
from monograph.train.data.tokenizer_json import parse_tokenizer, read_tokenizer_file

MODEL_VALUE = "model"
"""Key among a checkpoint's values of the model's configuration, as `to_json` writes it."""
SETTINGS_VALUE = "settings"
"""Key among them of the run's other settings, by section."""


@dataclass(frozen=True)
class ModelSource:
    """A model that a run can start from, or that text is generated with."""

    name: str
    """What it is called, for the folder of a run."""
    model: ModelConfig
    tokenizer: TokenizerConfig | None
    """None where the folder has no tokenizer."""
    weights: Path
    """A checkpoint, a folder of checkpoints, or a Hugging Face folder."""
    is_hf: bool
    compute_dtype: str = ""
    """What its run computed in; empty where the weights are no run's."""


def open_source(word: str) -> ModelSource:
    """What the folder that a word means says about its model."""
    path = resolve_source(word)
    if (path / MANIFEST_NAME).is_file():
        return open_checkpoint(path)
    if not (path / CONFIG_NAME).is_file():
        if Store(path).find_all():
            return open_checkpoints(path)
        raise ConfigError(
            f"{path} holds no model",
            why=f"it has no {CONFIG_NAME} and no checkpoint",
            do="give a Hugging Face folder, an import, a checkpoint, or the folder of a run",
        )
    data = read_json(path / CONFIG_NAME)
    if "$class" in data:
        return open_run(path, data)
    model = find_family(data.get("model_type"), path / CONFIG_NAME).from_hf_config(data)
    check_config(model)
    if not any(path.glob("model*.safetensors*")):
        raise ConfigError(
            f"{path} holds no safetensors files",
            why="only these are read: older formats can run code when they are loaded",
            do="convert the model to safetensors, or download a revision that has them",
        )
    return ModelSource(name_model(path), model, find_tokenizer(path), path, is_hf=True)


def open_checkpoint(path: Path, head: ManifestHead | None = None) -> ModelSource:
    """A checkpoint by its manifest; its tokenizer lies in it (imports) or in the folder of its run."""
    values = (head or read_head(path)).values
    model = read_model_value(path, values.get(MODEL_VALUE))
    run = path.absolute().parent.resolve().parent  # the step itself may be a link to where it is archived
    if not (run / CONFIG_NAME).is_file():
        run = path.resolve().parent.parent
    tokenizer = find_tokenizer(path) or find_run_tokenizer(run)
    dtype = find_compute_dtype(run, values.get(SETTINGS_VALUE))
    return ModelSource(path.resolve().name, model, tokenizer, path, is_hf=False, compute_dtype=dtype)


def open_checkpoints(path: Path) -> ModelSource:
    """A folder of checkpoints: that of the run it belongs to; else the settings of its newest step."""
    run = path.resolve().parent
    if (run / CONFIG_NAME).is_file() and "$class" in (data := read_json(run / CONFIG_NAME)):
        source = open_run(run, data)
        return replace(source, weights=path)
    found = order_newest_first(Store(path))
    if not found.heads:
        raise CheckpointError(f"there is no intact checkpoint in {show(path)}", why="; ".join(found.rejected[:5]))
    source = open_checkpoint(*found.heads[0])
    return replace(source, name=path.resolve().name, weights=path)


def open_run(path: Path, data: dict[str, Any]) -> ModelSource:
    """The folder of a run: its config, and where its checkpoints are."""
    config = read_config(path / CONFIG_NAME, data)
    model = getattr(config, "model", config)
    if not isinstance(model, ModelConfig):
        raise ConfigError(f"{path / CONFIG_NAME} does not describe a model", why=f"it holds a {type(config).__name__}")
    check_described(model, path / CONFIG_NAME)
    kept = find_checkpoints(path)
    if not Store(kept).find_all():
        raise ConfigError(
            f"{path} is the folder of a run without a checkpoint",
            why=f"there is none in {kept}",
            do="let the run save one: --checkpoint.enabled true --checkpoint.save_last true",
        )
    dtype = find_compute_dtype(path, None)
    return ModelSource(path.resolve().name, model, find_run_tokenizer(path), kept, is_hf=False, compute_dtype=dtype)


def find_checkpoints(path: Path) -> Path:
    """Where the checkpoints of a run are, if the folder is that of a run; else the folder itself."""
    if (path / MANIFEST_NAME).is_file() or not (path / CONFIG_NAME).is_file():
        return path
    data = read_json(path / CONFIG_NAME)
    if "$class" not in data:
        return path
    return path / str(getattr(getattr(read_config(path / CONFIG_NAME, data), "checkpoint", None), "folder", ""))


def find_run_tokenizer(run: Path) -> TokenizerConfig | None:
    """The tokenizer of a run: as its config says, from the files that the run kept."""
    if not (run / CONFIG_NAME).is_file() or "$class" not in (data := read_json(run / CONFIG_NAME)):
        return None
    tokenizer = getattr(read_config(run / CONFIG_NAME, data), "tokenizer", None)
    kept = run / ASSETS_FOLDER
    if isinstance(tokenizer, StandardTokenizerConfig) and tokenizer.path and (kept / TOKENIZER_NAME).is_file():
        return tokenizer.replace(path=str(kept))
    return tokenizer if isinstance(tokenizer, TokenizerConfig) else None


def find_compute_dtype(run: Path, settings: Any) -> str:
    """What a run computed in: as the settings say that a checkpoint keeps, else as the config of its folder does."""
    if isinstance(settings, dict) and isinstance(settings.get("training"), dict):
        return str(settings["training"].get("compute_dtype", ""))
    if not (run / CONFIG_NAME).is_file() or "$class" not in (data := read_json(run / CONFIG_NAME)):
        return ""
    return str(getattr(getattr(read_config(run / CONFIG_NAME, data), "training", None), "compute_dtype", ""))


def find_tokenizer_assets(config: TokenizerConfig) -> dict[str, bytes]:
    """The files of a tokenizer, and those beside it, by the names they have in a model's folder."""
    if not isinstance(config, StandardTokenizerConfig) or not config.path:
        return {}
    path = Path(config.path)
    path = path / TOKENIZER_NAME if path.is_dir() else path
    if not path.is_file():
        return {}
    return {name: read_asset(each) for name, each in (find_assets(path.parent) | {TOKENIZER_NAME: path}).items()}


def find_tokenizer(folder: Path) -> TokenizerConfig | None:
    """The tokenizer in a model's folder, with bos where the folder's own settings put it before a text."""
    path = folder / TOKENIZER_NAME
    if not path.is_file():
        return None
    return StandardTokenizerConfig(path=str(folder), add_bos=starts_with_special(path))


def starts_with_special(path: Path) -> bool:
    """Whether a tokenizer.json puts a token before every text."""
    tokenizer = parse_tokenizer(read_tokenizer_file(path), path)
    do = "download the folder again, or --tokenizer.path FILE"
    with library_errors(f"{show(path)} cannot be used", do=do, hides_panics=True):
        plain, framed = (tokenizer.encode("a", add_special_tokens=each).ids for each in (False, True))
    return len(framed) > len(plain) and framed[: len(plain)] != plain


def read_model_value(path: Path, value: Any) -> ModelConfig:
    """The model's configuration among a checkpoint's values."""
    try:
        config = from_json(value) if value is not None else None
    except ConfigError as error:
        raise CheckpointError(
            f"{path} holds the configuration of a model that cannot be read: {error.what}",
            why=error.why,
            do=f"{error.do}: give the model's configuration in today's names, in a file, with --config",
        ) from None
    if not isinstance(config, ModelConfig):
        raise CheckpointError(
            f"{path} does not say which model it holds",
            why=f"its values have no '{MODEL_VALUE}'",
            do="give the run's config.json, or one of Hugging Face's, with --config",
        )
    check_described(config, path)
    return config


def check_described(model: ModelConfig, path: Path) -> None:
    """Refuse settings of a model that no run can have had, before anything is built from them."""
    try:
        check_config(model)
    except ConfigError as error:
        raise ConfigError(f"{show(path)} describes no model: {error.what}", why=error.why, do=error.do) from None


def read_config(path: Path, data: dict[str, Any]) -> Any:
    """One of our configurations in a file."""
    try:
        return from_json(data)
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be read: {error.what}", why=error.why, do=error.do) from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object, or an error that names the file."""
    try:
        value: dict[str, Any] = foreign_json.read_json(path)
    except UnusableFile as error:
        raise CheckpointError(error.what, why=error.why) from None
    except OSError as error:
        raise CheckpointError(f"cannot read {show(path)}", why=error.strerror or str(error)) from None
    return value

"""Which folder a word means: a local model folder, one in Hugging Face's cache, or a model on its hub. Without torch.

The cache holds a model as models--ORG--NAME/snapshots/COMMIT, and refs/main names the commit of the main branch.
"""

import os
import re
from pathlib import Path

from monograph.errors import ConfigError, find_nearest
from monograph.system.foreign_json import read_text
from monograph.train.checkpoint.hf_assets import ASSET_NAMES, CONFIG_NAME

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""A model on the hub: organization/name."""
_COMMIT = re.compile(r"[A-Za-z0-9][\w.-]*")
_PATTERNS = ("*.safetensors", "*.safetensors.index.json", CONFIG_NAME, *ASSET_NAMES)


def resolve_source(word: str) -> Path:
    """The folder that a word means; a model on the hub is taken from the cache, or downloaded into it."""
    if (path := find_local(word)) is not None:
        return path
    cached = find_cache() / f"models--{word.replace('/', '--')}"
    if cached.is_dir() and (cached / "refs" / "main").is_file():
        snapshot = find_snapshot(cached)
        if any(snapshot.glob("*.safetensors")):
            return snapshot
    return download(word)


def find_local(word: str) -> Path | None:
    """The local folder that a word means; None for the name of a model on the hub."""
    path = Path(word).expanduser()
    if path.is_dir():
        return find_snapshot(path)
    if path.exists():
        raise ConfigError(f"{word} is a file", why="a model is a folder", do="give the folder that holds config.json")
    if path.parent.is_dir() and path.parent != Path():
        found = sorted(each.name for each in path.parent.iterdir() if each.is_dir() and not each.name.startswith("."))
        near = find_nearest(path.name, found)
        raise ConfigError(
            f"there is no folder {word}",
            why=f"{path.parent} has " + (", ".join(found[:8]) if found else "no folders"),
            do=f"did you mean {path.parent / near}?" if near else "check the path",
        )
    if path.parts[:1] == ("outputs",):
        raise ConfigError(
            f"there is no folder {word}",
            why=f"there are no runs here: {path.parent} is not in {Path.cwd()}",
            do="start this where the run was started, or train one: monograph train RECIPE",
        )
    if not HUB_NAME.fullmatch(word):
        raise ConfigError(
            f"there is no folder {word}",
            why="a model is a local folder, or organization/name for one on Hugging Face's hub",
            do="check the path",
        )
    return None


def find_cache() -> Path:
    """Where Hugging Face's tools keep models."""
    if given := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(given).expanduser()
    home = os.environ.get("HF_HOME")
    base = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    return base.expanduser() / "hub"


def find_snapshot(path: Path) -> Path:
    """The folder itself, or the snapshot that a folder of the cache means."""
    model = path.parent if path.name == "snapshots" else path
    if not (model / "snapshots").is_dir() or (model / CONFIG_NAME).exists():
        return path
    ref = model / "refs" / "main"
    name = read_text(ref, max_bytes=1000).strip() if ref.is_file() else ""
    if _COMMIT.fullmatch(name) and (found := model / "snapshots" / name).is_dir():
        return found
    found_all = sorted(each for each in (model / "snapshots").iterdir() if each.is_dir())
    if len(found_all) == 1:
        return found_all[0]
    names = ", ".join(each.name for each in found_all[:5])
    raise ConfigError(
        f"{path} does not say which of its snapshots is meant",
        why=f"refs/main names none of them; there are: {names}" if names else "it holds none",
        do=f"give one of them: {found_all[0]}" if found_all else f"download it again: hf download {name_model(path)}",
    )


def name_model(path: Path) -> str:
    """What people call the model in a folder: the folder's name, or the model's in a folder of the cache."""
    for each in (path, *path.parents):
        if each.name.startswith("models--"):
            return each.name.rpartition("--")[2]
    return path.resolve().name


def download(name: str) -> Path:
    """A model of the hub in the cache: configs, safetensors and tokenizer files, nothing that could be run."""
    by_hand = f"hf download {name} --local-dir FOLDER on a machine with network, then give FOLDER"
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise ConfigError(
            f"there is no folder {name}, and no such model in {find_cache()}",
            why="downloading it from the hub needs the package huggingface_hub, which is not installed",
            do=f"pip install huggingface_hub; or {by_hand}",
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=list(_PATTERNS)))
    except (OSError, HfHubHTTPError, ValueError) as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise ConfigError(
            f"there is no folder {name}, and it cannot be downloaded from the hub", why=text[0], do=by_hand
        ) from None

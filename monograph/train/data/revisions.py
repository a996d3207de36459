"""Which commit of a dataset on the hub a run reads: looked up once, and kept for all ranks and every restart.

A branch moves. Ranks that follow it each for themselves read other rows, and so does a run that continues next week.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from monograph.errors import DataError
from monograph.train.data.source_configs import DataSourceConfig, HubSourceConfig, MixtureSourceConfig

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class Revisions:
    """The commits of a run's datasets, by name and revision as they were written."""

    saved: Mapping[str, str] = field(default_factory=dict)
    """Those of the run that is continued."""
    look_up: Callable[[str, str], str] | None = None
    """Finds the commit of a name and a revision; None where revisions are left as they are."""
    found: dict[str, str] = field(default_factory=dict)
    """Those that were asked for."""

    def pin(self, source: DataSourceConfig) -> DataSourceConfig:
        """The source with a commit in the place of a branch or a tag."""
        if isinstance(source, MixtureSourceConfig):
            return source.replace(parts=tuple(part.replace(source=self.pin(part.source)) for part in source.parts))
        if not isinstance(source, HubSourceConfig) or self.look_up is None or _COMMIT.fullmatch(source.revision):
            return source
        written = f"{source.name}@{source.revision or 'main'}"
        if written not in self.found:
            self.found[written] = self.saved.get(written) or self.look_up(source.name, source.revision)
        return source.replace(revision=self.found[written])


def find_commit(name: str, revision: str) -> str:
    """The commit that a revision of a dataset means now; empty for a local copy, which has none."""
    if Path(name).exists():
        return ""
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(name, revision=revision or None).sha)
    except Exception as error:  # the library raises its own, its HTTP client's and plain ones
        raise DataError(
            f"cannot look up 'hf:{name}'",
            why=f"{type(error).__name__}: {error}",
            do="check --dataloader.dataset, hf_revision and the network; a commit as hf_revision needs no look-up",
        ) from None

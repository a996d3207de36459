"""The folder that `monograph inspect` writes: report.json lists its files from the first one on. Loads without torch.

A folder that holds other files is not taken for an earlier report because their names look alike: only what is listed
is deleted, and nothing that is not is replaced.
"""

import re
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.errors import ConfigError
from monograph.system.foreign_json import UnusableFile, read_json
from monograph.system.foreign_text import show
from monograph.whole_file import write_whole

REPORT, PAGE, CAPTURED, SCHEDULE = "report.json", "index.html", "00-captured.txt", "schedule.csv"
PREDICTED = "predicted.trace.json"
MAX_REPORT_BYTES = 4 << 30
_FIXED = "|".join(map(re.escape, (SCHEDULE, PREDICTED, PAGE)))
_OURS = re.compile(rf"\d\d+-[\w.-]+\.(txt|diff)|stage-\d\d+\.txt|{_FIXED}", re.ASCII)
_UNFINISHED = "unfinished"


class ReportFolder:
    """Writes the files of one report."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: list[str] = []

    def begin(self) -> None:
        """Make the folder; delete the files of an earlier report, and no others."""
        listed = find_listed(self.path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._list()
        for name in listed:
            (self.path / name).unlink(missing_ok=True)

    def write(self, name: str, content: str) -> None:
        """Write a file and list it."""
        self._files.append(name)
        self._list()
        write_whole(self.path / name, content)

    def finish(self, report: dict[str, Any]) -> None:
        """Write the report itself, with the list."""
        write_whole(self.path / REPORT, strict_json.dump(report | {"files": self._files}, indent=1) + "\n")

    def _list(self) -> None:
        write_whole(self.path / REPORT, strict_json.dump({_UNFINISHED: True, "files": self._files}) + "\n")


def check_folder(out: str) -> None:
    """Refuse a folder with files that a report would replace."""
    try:
        find_listed(Path(out))
    except OSError as error:
        why = f"it cannot be written: {error.strerror or error}"
        raise ConfigError(f"--out {out}", why=why, do="choose another folder") from None


def find_listed(folder: Path) -> list[str]:
    """The files of an earlier report; ConfigError when others have names that a report needs."""
    path = folder / REPORT
    if not path.exists() and not path.is_symlink():
        names = sorted(each.name for each in folder.iterdir()) if folder.exists() else []
        if alike := [name for name in names if _OURS.fullmatch(name)]:
            more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
            raise _refuse(folder, f"it holds {alike[0]}{more}, and no {REPORT} says that they are of an earlier report")
        return []
    try:
        report = read_json(path, max_bytes=MAX_REPORT_BYTES)
    except UnusableFile as error:
        raise _refuse(folder, f"{error.what}: {error.why}") from None
    if not _is_report(report):
        raise _refuse(folder, f"its {REPORT} was not written by monograph inspect")
    listed = report.get("files", _list_older(report))
    names = [name for name in listed if isinstance(name, str) and _OURS.fullmatch(name)]
    return [name for name in names if (folder / name).is_file() and not (folder / name).is_symlink()]


def _is_report(report: dict[str, Any]) -> bool:
    run = report.get("run")
    command = run.get("command") if isinstance(run, dict) else None
    is_finished = isinstance(command, str) and command.startswith("monograph inspect")
    return (is_finished or report.get(_UNFINISHED) is True) and isinstance(report.get("files", []), list)


def _list_older(report: dict[str, Any]) -> list[Any]:
    """The files of a report that does not list them yet."""
    passes, stages = report.get("passes"), report.get("stages")
    records = [each for each in passes if isinstance(each, dict)] if isinstance(passes, list) else []
    files = [name for record in records if isinstance(record.get("files"), list) for name in record["files"]]
    count = len(stages) if isinstance(stages, list) else 0
    return [CAPTURED, SCHEDULE, *files, *(f"stage-{number:02d}.txt" for number in range(count))]


def _refuse(folder: Path, why: str) -> ConfigError:
    return ConfigError(f"--out {folder}", why=show(why), do="choose another folder; nothing was replaced")

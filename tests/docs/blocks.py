"""The fenced blocks of a page, and what is to be done with each.

    ```console              `$ ` begins a command; other lines must be printed (`...` stands for any lines)
    ```bash                 commands without output, left to `make test-long`
    ```python               a program; with title="name.py" a file that later blocks use; if its lines are those of a
                            file in examples/, in order, an excerpt of that tested program, which is not run again
    ```LANG title="name"    a file
    ```text, json, diff     shown only

A comment before a block changes that: `<!-- long -->` leaves it to `make test-long`, `<!-- exit code: 2 -->` expects a
refusal, `<!-- not run: reason -->` only shows it.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

RUN = {"console", "bash", "python"}
SHOWN = {"text", "json", "diff"}
MIN_EXCERPT_LINES = 3
"""Fewer lines could be in any program by chance."""
_FENCE = re.compile(r"^```(\w*)(?: +title=\"([^\"]+)\")? *$")
_COMMENT = re.compile(r"^<!-- *(long|not run: *(.+?)|exit code: *(\d+)) *-->$")


@dataclass(frozen=True)
class Command:
    """One command of a console block, with the output that the page shows."""

    text: str
    output: tuple[str, ...]


@dataclass
class Block:
    """One fenced block of a page."""

    language: str
    title: str
    line: int
    text: str = ""
    is_long: bool = False
    not_run: str = ""
    exit_code: int = 0
    lines: list[str] = field(default_factory=list)

    def find_commands(self) -> list[Command]:
        """The commands of a console or bash block; a backslash at the end of a line continues it."""
        commands: list[Command] = []
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        if self.language == "bash":
            return [Command(line.split(" #")[0].strip(), ()) for line in lines if line.strip() and line[0] != "#"]
        for line in lines:
            if line.startswith("$ "):
                commands.append(Command(line[2:].strip(), ()))
            elif commands:
                last = commands.pop()
                commands.append(Command(last.text, (*last.output, line)))
            elif line.strip():
                raise ValueError(f"line {self.line}: output before any command")
        return commands


def read_blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    blocks: list[Block] = []
    current: Block | None = None
    comments: list[re.Match[str]] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if current is not None:
            if line.startswith("```"):
                current.text = "\n".join(current.lines) + "\n"
                blocks.append(current)
                current = None
            else:
                current.lines.append(line)
        elif match := _FENCE.match(line):
            current = Block(match[1], match[2] or "", number, is_long=match[1] == "bash")
            apply_comments(current, comments)
            comments = []
        elif match := _COMMENT.match(line.strip()):
            comments.append(match)
        elif line.lstrip().startswith("```"):
            raise ValueError(f"{page.name}:{number}: a fence that is indented or has other attributes")
        elif line.strip() and comments:
            raise ValueError(f"{page.name}:{number}: no block follows {comments[-1][0]}")
    if current is not None:
        raise ValueError(f"{page.name}:{current.line}: the block does not end")
    return blocks


def apply_comments(block: Block, comments: list[re.Match[str]]) -> None:
    """What the comments before a block say about it."""
    for match in comments:
        if match[1] == "long":
            block.is_long = True
        elif match[2]:
            block.not_run = match[2]
        else:
            block.exit_code = int(match[3])


def find_fault(block: Block) -> str:
    """Why a block is neither run, nor a file, nor only shown; empty when it is one of them."""
    if block.not_run or block.title or block.language in RUN | SHOWN:
        return ""
    return f"line {block.line}: a block of {block.language or 'no language'} that is neither run nor says why not"


def is_excerpt(block: Block, text: str) -> bool:
    """Whether the lines of a python block are lines of a program, in order; `...` stands for any lines."""
    lines = [line.strip() for line in block.text.splitlines() if line.strip() not in ("", "...")]
    left = iter([line.strip() for line in text.splitlines()])
    return block.language == "python" and len(lines) >= MIN_EXCERPT_LINES and all(line in left for line in lines)


def normalize(line: str) -> str:
    """A line of output without what differs from run to run: numbers, hashes, widths."""
    line = re.sub(r"\b(?=\w*\d)[0-9a-f]{8,}\b", "#", line)
    line = re.sub(r"[╭╮╰╯│─]+", " ", line)
    line = re.sub(r"\d[\d.,:]*(e[-+]?\d+)?", "0", line)
    return " ".join(line.split())


def find_missing_output(shown: tuple[str, ...], printed: str) -> str:
    """The first shown line that was not printed, in order; empty when all were. `...` stands for any lines."""
    left = iter([normalize(line) for line in printed.splitlines()])
    for line in shown:
        wanted = normalize(line)
        if wanted and wanted != "..." and not any(wanted == each for each in left):
            return line
    return ""

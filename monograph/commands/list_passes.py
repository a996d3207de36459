"""`monograph passes`: what graph mode does to the step, from the passes themselves; docs/passes.md is printed here."""

import dataclasses
import inspect
from collections.abc import Iterator

from monograph.commands.arguments import PassesArguments
from monograph.commands.terminal import print_rows, print_title
from monograph.config.docs import find_field_docs, find_summary
from monograph.config.text import format_value
from monograph.passes.base import Pass
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes
from monograph.system.console import print_plain


def list_passes(arguments: PassesArguments) -> int:
    """The passes in the order they run."""
    config = arguments.passes
    passes = build_passes(config)
    if arguments.markdown:
        print_plain(make_markdown(passes, config).rstrip())
        return 0
    print_title("Passes", "in the order they run, with their numerics and options")
    rows = [row for each in passes for row in make_rows(each, config)]
    print_rows(rows, ("bold cyan", "green", "none"))
    print_plain("\nLeave some out: monograph train RECIPE --passes.off bucket_collectives")
    print_plain("Add others:     monograph train RECIPE --passes.on merge_matmuls")
    print_plain("Your own:       monograph train RECIPE --passes.extra package.module:Class")
    print_plain("See their work: monograph inspect RECIPE --out DIR")
    return 0


def name_numerics(each: Pass) -> str:
    """What a pass promises about the numerics of the step."""
    if each.is_low_precision:
        return "low precision"
    return "bitwise" if each.bitwise else "within rounding"


def make_rows(each: Pass, config: PassesConfig) -> Iterator[tuple[str, str, str]]:
    """What a pass does, what it requires of earlier ones and provides for later ones, and its options."""
    yield each.name(), name_numerics(each), find_summary(type(each))
    if config.order[each.name()].loaded:
        yield "", "extra", config.order[each.name()].reference
    if when := describe_default(each.name(), config):
        yield "", "off by default", when
    for word, which in (("requires", each.requires), ("provides", each.provides)):
        if which:
            yield "", word, ", ".join(has.value for has in which)
    docs = find_field_docs(each.Config)
    for field in dataclasses.fields(each.Config):
        yield "", f"{field.name} = {format_value(getattr(each.Config(), field.name))}", docs[field.name]


def describe_default(name: str, config: PassesConfig) -> str:
    """What makes a pass run that does not run by default; empty for the others."""
    switches = {
        "fast": f"runs with --compile.numerics fast, or {config.explain_on(name)}",
        "float8": f"runs with --compile.numerics float8, or {config.explain_on(name)}",
        "off": config.explain_on(name),
    }
    return switches.get(config.order[name].default, "")


def make_markdown(passes: list[Pass], config: PassesConfig) -> str:
    """The page on the passes: a table of all, then each in its own words."""
    return "\n".join(_make_lines(passes, config)) + "\n"


def _make_lines(passes: list[Pass], config: PassesConfig) -> Iterator[str]:
    yield "# Passes"
    yield ""
    yield "What graph mode does to the captured step, in this order; printed by `monograph passes --markdown`."
    yield "A bitwise pass leaves every loss and gradient bitwise identical to eager mode."
    yield ""
    yield "| pass | numerics | runs | requires | provides | |"
    yield "|---|---|---|---|---|---|"
    for each in passes:
        requires, provides = (", ".join(has.value for has in which) for which in (each.requires, each.provides))
        link, summary = f"[{each.name()}](#{each.name()})", find_summary(type(each))
        default = config.order[each.name()].default
        runs = {"on": "", "off": "when asked for"}.get(default, f"with numerics {default}")
        yield f"| {link} | {name_numerics(each)} | {runs} | {requires} | {provides} | {summary} |"
    yield ""
    yield "Any of them can be left out: `--passes.off bucket_collectives prefetch_all_gathers`. One that is off by"
    yield "default is switched on by name, `--passes.on merge_matmuls`, or by the option that says what it should do."
    yield "Lists take spaces or commas."
    for each in passes:
        yield from _describe(each, config)


def _describe(each: Pass, config: PassesConfig) -> Iterator[str]:
    yield from ("", f"## {each.name()}", "")
    lines = inspect.cleandoc(type(each).__doc__ or "").splitlines()
    yield lines[0]
    if lines[2:]:
        yield from ("", "```", *lines[2:], "```")
    if when := describe_default(each.name(), config):
        yield from ("", f"Off by default: {when}.")
    docs = find_field_docs(each.Config)
    if docs:
        yield from ("", "| option | default | |", "|---|---|---|")
        for field in dataclasses.fields(each.Config):
            value = format_value(getattr(each.Config(), field.name))
            yield f"| `--passes.{each.name()}.{field.name}` | `{value}` | {docs[field.name]} |"

"""`monograph report compare` and `monograph trace join`: two files as one. Load without torch."""

from collections.abc import Sequence
from pathlib import Path

from monograph import strict_json
from monograph.commands.insight_arguments import ReportCompareArguments, TraceJoinArguments
from monograph.commands.terminal import print_rows
from monograph.execute.trace_marks import ELSEWHERE
from monograph.plurals import counted
from monograph.report.compare import compare_reports, read_report
from monograph.report.join_traces import JoinedTraces, join_traces, read_trace
from monograph.report.module_times import ModuleTimes
from monograph.report.units import format_seconds
from monograph.system.console import print_plain
from monograph.whole_file import write_output

HEADS = ("module", "direction", "predicted", "measured", "difference", "predicted / measured")
_STYLES = ("bold", "none", "none", "none", "yellow", "none")


def compare_command(arguments: ReportCompareArguments) -> int:
    """Write the page of two reports."""
    write_output(Path(arguments.out), compare_reports(read_report(arguments.left), read_report(arguments.right)))
    print_plain(f"page: {arguments.out}")
    return 0


def join_command(arguments: TraceJoinArguments) -> int:
    """Write the trace of both steps, and print the modules whose times differ most."""
    predicted, measured = read_trace(arguments.predicted), read_trace(arguments.measured)
    named = read_trace(arguments.names) if arguments.names else None
    joined = join_traces(predicted, measured, name=arguments.measured, named=named)
    write_output(Path(arguments.out), strict_json.dump(joined.trace, is_compact=True) + "\n")
    if any(row.measured for row in joined.rows):
        print_rows([HEADS, *make_module_rows(joined.rows[: arguments.top])], _STYLES)
        print_plain(summarize_modules(joined))
    else:
        print_plain("no kernel has a module: give a trace of bench --profile of the same step as --names")
    print_plain(f"trace: {arguments.out} (ui.perfetto.dev)")
    return 0


def make_module_rows(rows: Sequence[ModuleTimes]) -> list[tuple[str, ...]]:
    """One row for each module and direction."""
    return [
        (
            row.module.path or ELSEWHERE,
            row.module.direction,
            format_seconds(row.predicted),
            format_seconds(row.measured),
            f"{1e3 * (row.measured - row.predicted):+.3g} ms",
            f"{row.predicted / row.measured:.2f}" if row.measured else "not measured",
        )
        for row in rows
    ]


def summarize_modules(joined: JoinedTraces) -> str:
    """The sums of all modules, and what belongs to none."""
    predicted, measured = (sum(getattr(row, side) for row in joined.rows) for side in ("predicted", "measured"))
    return (
        f"all {counted(len(joined.rows), 'module')}, without collectives: predicted "
        f"{format_seconds(predicted)}, measured "
        f"{format_seconds(measured)}; {format_seconds(joined.unknown_seconds)} measured outside of them, such as the "
        "optimizer"
    )

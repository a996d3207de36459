"""`monograph report compare` and `monograph trace join`: two files as one. Load without torch."""

from pathlib import Path

from monograph import strict_json
from monograph.commands.insight_arguments import ReportCompareArguments, TraceJoinArguments
from monograph.report.compare import compare_reports, read_report
from monograph.report.join_traces import join_traces, read_trace
from monograph.system.console import print_plain
from monograph.whole_file import write_output


def compare_command(arguments: ReportCompareArguments) -> int:
    """Write the page of two reports."""
    write_output(Path(arguments.out), compare_reports(read_report(arguments.left), read_report(arguments.right)))
    print_plain(f"page: {arguments.out}")
    return 0


def join_command(arguments: TraceJoinArguments) -> int:
    """Write the trace of both steps."""
    predicted, measured = read_trace(arguments.predicted), read_trace(arguments.measured)
    joined = join_traces(predicted, measured, name=arguments.measured)
    write_output(Path(arguments.out), strict_json.dump(joined, is_compact=True) + "\n")
    print_plain(f"trace: {arguments.out} (ui.perfetto.dev)")
    return 0

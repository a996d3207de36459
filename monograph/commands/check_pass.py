"""`monograph check-pass`: does a pass of your own keep the promises that every pass makes?"""

from collections.abc import Sequence

from monograph.checks.captured_model import DEBUG_MODELS, capture_models
from monograph.checks.pass_checks import NUMERICS, CheckRow, check_kind
from monograph.commands.arguments import CheckPassArguments
from monograph.commands.terminal import print_rows, print_title
from monograph.config.references import import_reference
from monograph.errors import EXIT_FAILED, ConfigError
from monograph.passes.config import PassesConfig
from monograph.system.console import print_plain


def check_pass(arguments: CheckPassArguments) -> int:
    """Try the pass on every model, print what was found, and return 0 when it keeps its promises."""
    kind = import_reference(arguments.reference)
    try:
        PassesConfig(extra=(kind,))
    except ConfigError as error:
        rows = [CheckRow("", "declaration", "refused", f"{error.what}: {error.why}")]
    else:
        rows = [CheckRow("", "declaration", "ok", f"name, docstring, options and place of {kind.name()}")]
        rows += check_kind(kind, capture_models(arguments.model or DEBUG_MODELS))
    print_report(arguments.reference, rows)
    return EXIT_FAILED if any(row.status == "refused" for row in rows) else 0


def print_report(reference: str, rows: Sequence[CheckRow]) -> None:
    """One line for each check, and the verdict."""
    print_title(reference, "check by check")
    print_rows([(row.status, row.check, row.model, row.note) for row in rows], ("bold cyan", "none", "green", "none"))
    refused = [row for row in rows if row.status == "refused"]
    is_tested = any(row.status == "ok" and row.check in NUMERICS for row in rows)
    if refused:
        print_plain(f"\nfailed: {refused[0].note}")
        return
    print_plain(f"\nall checks passed; use it: monograph train RECIPE --passes.extra {reference}")
    if not is_tested:
        print_plain(f"numerics were not tested: monograph verify RECIPE --ranks 4 --passes.extra {reference}")

"""`monograph watch`: runs as a page, while they train or afterwards. Loads without torch."""

from collections.abc import Sequence
from pathlib import Path

from monograph.commands.insight_arguments import WatchArguments
from monograph.errors import ConfigError
from monograph.report.page import make_run_page
from monograph.system.console import print_plain
from monograph.watch.find_runs import choose_runs, name_runs
from monograph.watch.runs import collect_runs, make_readers
from monograph.watch.server import RunServer
from monograph.whole_file import write_output


def check_watch(arguments: WatchArguments) -> None:
    """There are runs in these folders."""
    for name in (arguments.folder, *arguments.also):
        choose_runs(name)


def open_server(folders: Sequence[Path], port: int) -> RunServer:
    """The server, listening; ConfigError when another program has the port."""
    try:
        return RunServer(folders, port)
    except OSError as error:
        raise ConfigError(f"--port {port}", why=str(error.strerror), do="leave it out for a free port") from None


def watch(arguments: WatchArguments) -> int:
    """Write the page, or serve it until interrupted."""
    folders: list[Path] = []
    for name in (arguments.folder, *arguments.also):
        runs, note = choose_runs(name)
        folders += [run for run in runs if run not in folders]
        if len(runs) > 1:
            print_plain(note or f"runs in {name}: {name_runs(runs)}")
    if arguments.out:
        write_output(Path(arguments.out), make_run_page(collect_runs(make_readers(folders), is_live=False)))
        print_plain(f"page: {arguments.out}")
        return 0
    with open_server(folders, arguments.port) as server:
        print_plain(f"{server.address}\n(on this machine only; the address is the key; Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0

"""`strata restore`, as options."""

from typing import Annotated

import typer

from .. import options as o
from ..names import check_name
from ..reception import Wish
from ..snapshot_command import restore as restore_archive
from .app import Run, app

EXIT_RESTORE = (
    "Exit status: 0 done, 1 failed, 2 usage, 10 no such file, 11 held by another process, 12 bad, 13 refused,"
    " 14 no model, 15 no room, 130 interrupted, 143 ended."
)


@app.command(epilog=EXIT_RESTORE)
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A strata file, or a slot file of llama-server.")],
    as_name: Annotated[str | None, typer.Option("--as", metavar="NAME", help="Under another name.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Onto an existing one, which stays as an alternative branch.")
    ] = False,
    trust: Annotated[bool, typer.Option("--trust", help="Take its state for as good as made here.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would happen; change nothing.")] = False,
    wait: o.Wait = 60.0,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Verify a file and add its conversation to the session directory.

    Example: ssh far strata save notes -o - | strata restore -
    """
    command = Run("restore", as_json=as_json, quiet=quiet, verbose=verbose)
    if as_name is not None:
        check_name(as_name)
    return restore_archive(file, Wish(as_name, replace, trust, plan, wait), command.store(), command.out, command.stop)

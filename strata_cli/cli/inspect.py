"""`strata inspect`, as options."""

from typing import Annotated

import typer

from .. import options as o
from ..inspect_command import inspect_directory
from .app import Run, app

EXIT_INSPECT = "Exit status: 0 done, 1 failed, 2 usage, 10 no such conversation, 12 something is bad."


@app.command(epilog=EXIT_INSPECT)
def inspect(
    show_all: Annotated[bool, typer.Option("--all", help="Every conversation, not the newest 20.")] = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Show what the session directory holds.

    Example: strata inspect --all
    """
    command = Run("inspect", as_json=as_json, quiet=quiet, verbose=verbose)
    store = command.store()
    return inspect_directory(store, command.config, command.out, show_all=show_all)

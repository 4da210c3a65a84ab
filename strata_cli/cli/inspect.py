"""`strata inspect`, as options."""

from typing import Annotated

import typer

from .. import options as o
from ..inspect_command import inspect_directory
from ..inspect_conversation_command import inspect_conversation, verify_directory
from .app import Run, app

EXIT_INSPECT = "Exit status: 0 done, 1 failed, 2 usage, 10 no such conversation, 12 something is bad."


@app.command(epilog=EXIT_INSPECT)
def inspect(
    wanted: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A conversation or prefix.")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Every conversation, not the newest 20.")] = False,
    transcript: Annotated[bool, typer.Option("--transcript", help="What was said, too.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte; change nothing.")] = False,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Show what the session directory holds, or one conversation; --verify checks every byte.

    Example: strata inspect notes --verify
    """
    command = Run("inspect", as_json=as_json, quiet=quiet, verbose=verbose)
    store = command.store()
    if wanted is not None:
        return inspect_conversation(wanted, store, command.config, command.out, transcript=transcript, check=verify)
    if verify:
        return verify_directory(store, command.config, command.out)
    return inspect_directory(store, command.config, command.out, show_all=show_all)

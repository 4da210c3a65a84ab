"""`strata save`, as options."""

from typing import Annotated

import typer

from .. import options as o
from ..snapshot_command import SaveRequest, check
from ..snapshot_command import save as save_request
from .app import Run, app

EXIT_SAVE = (
    "Exit status: 0 done, 1 failed, 2 usage, 10 no such conversation or file, 11 held by another process, 12 bad,"
    " 13 refused, 14 no model, 15 no room, 130 interrupted, 143 ended."
)


@app.command(epilog=EXIT_SAVE)
def save(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Default: the last conversation.")] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE|-", help="Write one file; `-`: standard output.")
    ] = None,
    file_format: Annotated[
        str, typer.Option("--format", metavar="strata|llama", help="llama: the file that llama-server restores.")
    ] = "strata",
    as_name: Annotated[str | None, typer.Option("--as", metavar="NEW", help="A named copy in the directory.")] = None,
    messages: Annotated[
        str | None, typer.Option(metavar="FILE", help="Read a JSON list of messages and keep them as NAME.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="BASE", help="Leave out the segments that this strata file has.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="With the alternative branches.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace NEW; it stays as an alternative branch.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be written.")] = False,
    wait: o.Wait = 60.0,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Write a conversation to one file, or keep a copy of it.

    Example: strata save notes -o notes.strata
    """
    command = Run("save", as_json=as_json, quiet=quiet, verbose=verbose)
    request = SaveRequest(
        name, output, as_name, messages, file_format, since, everything, replace=replace, plan=plan, wait_s=wait
    )
    check(request, command.out)
    return save_request(request, command.store(), command.out, command.stop)

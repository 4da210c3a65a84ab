"""`strata inspect`, as options."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from .. import options as o
from .app import Run, app

if TYPE_CHECKING:
    from ..store import Store

EXIT_INSPECT = "Exit status: 0 done, 1 failed, 2 usage, 10 no such conversation, 12 something is bad."


@app.command(epilog=EXIT_INSPECT)
def inspect(
    wanted: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE]", help="A conversation, a prefix or a file.")
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Every conversation, not the newest 20.")] = False,
    transcript: Annotated[bool, typer.Option("--transcript", help="What was said, too.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every byte; change nothing.")] = False,
    why: Annotated[
        str | None, typer.Option(metavar="FILE|-", help="Where the prompt in FILE leaves the conversation.")
    ] = None,
    model: o.Model = None,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Show the directory or one conversation; --verify checks all.

    Example: strata inspect notes --verify
    """
    command = Run("inspect", as_json=as_json, quiet=quiet, verbose=verbose)
    store = command.store()
    if why is not None:
        from ..errors import UsageProblem
        from ..run_command import message_text
        from ..why_command import why as tell_why

        if wanted is None:
            raise UsageProblem("--why needs the name of a conversation", hint="strata inspect NAME --why FILE")
        return tell_why(wanted, message_text(why), model, store, command.config, command.out)
    if wanted is not None and is_file(wanted, store):
        from ..inspect_file_command import inspect_file

        return inspect_file(wanted, command.out, transcript=transcript)
    if wanted is not None or verify:
        from ..inspect_conversation_command import inspect_conversation, verify_directory

        if wanted is None:
            return verify_directory(store, command.config, command.out)
        return inspect_conversation(wanted, store, command.config, command.out, transcript=transcript, check=verify)
    from ..inspect_command import inspect_directory

    return inspect_directory(store, command.config, command.out, show_all=show_all)


def is_file(wanted: str, store: "Store") -> bool:
    """Whether WANTED is a file: standard input, or a path that exists and is no conversation's name."""
    return wanted == "-" or (wanted not in store.names() and os.path.exists(wanted))

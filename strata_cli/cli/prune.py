"""`strata prune`, as options."""

import time
from typing import Annotated

import typer

from .. import options as o
from .app import Run, app

EXIT_PRUNE = (
    "Exit status: 0 done, 1 failed, 2 usage or not confirmed, 3 done in part or not enough may go, 10 no such"
    " conversation, 11 held by another process, 130 interrupted, 143 ended."
)
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Delete these, text and all.")]
State = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Drop its state alone; repeatable.")]
Alternatives = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Drop its abandoned branches.")]
Keep = Annotated[int | None, typer.Option(min=0, metavar="N", help="Automatic conversations that keep their state.")]
MaxAge = Annotated[str | None, typer.Option(metavar="AGE", help="Such as 30d: state that was not used for so long.")]
MaxSize = Annotated[str | None, typer.Option(metavar="SIZE", help="Such as 100GB: oldest first until it fits.")]
Named = Annotated[bool, typer.Option("--named", help="Also the state of named conversations.")]
Transcripts = Annotated[
    bool, typer.Option("--transcripts", help="Also the text of automatic ones beyond --keep or --max-age.")
]
Unusable = Annotated[bool, typer.Option("--unusable", help="Also state that nothing here can use.")]
DryRun = Annotated[bool, typer.Option("--dry-run", "-n", help="Show what would go; change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command(epilog=EXIT_PRUNE)
def prune(
    names: Names = None,
    state: State = None,
    alternatives: Alternatives = None,
    keep: Keep = None,
    max_age: MaxAge = None,
    max_size: MaxSize = None,
    named: Named = False,
    transcripts: Transcripts = False,
    unusable: Unusable = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: o.Wait = 60.0,
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Keep the session directory in order, or delete what is named.

    By itself it removes only what can be read again, never text.

    Example: strata prune --max-size 50GB -n
    """
    from ..prune_command import PruneRequest, check
    from ..prune_command import prune as prune_directory
    from ..sizes import parse_age, parse_size

    request = PruneRequest(
        names=tuple(names or ()),
        state=tuple(state or ()),
        alternatives=tuple(alternatives or ()),
        keep=keep,
        max_age_s=None if max_age is None else parse_age(max_age),
        max_bytes=None if max_size is None else parse_size(max_size),
        named=named,
        transcripts=transcripts,
        unusable=unusable,
        dry_run=dry_run,
        yes=yes,
        wait_s=wait,
    )
    command = Run("prune", as_json=as_json, quiet=quiet, verbose=verbose)
    check(request)
    store = command.store()
    return prune_directory(request, store, command.config, command.out, command.stop, time.time)

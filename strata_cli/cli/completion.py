"""`strata completion`, as options."""

from typing import Annotated

import typer

from .. import options as o
from .app import Run, app


@app.command(epilog="Exit status: 0 done, 2 usage.")
def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="For which shell.")],
    as_json: o.Json = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = 0,
) -> int:
    """Print a completion script.

    Example: strata completion zsh > ~/.zfunc/_strata
    """
    from ..errors import UsageProblem
    from .shell_scripts import SHELLS
    from .tree import command_tree

    run = Run("completion", as_json=as_json, quiet=quiet, verbose=verbose)
    if shell not in SHELLS:
        raise UsageProblem(f"{shell}: no script for that shell", hint="bash, zsh or fish")
    script = SHELLS[shell](command_tree())
    run.out.show(script.rstrip("\n"))
    run.out.ids(script.rstrip("\n").split("\n"))
    return run.out.finish({"shell": shell, "script": script})

"""The command line: parse, call, render.

Owns the one place where every failure becomes an exit status. Each command is a file of its own, which makes plain
values of its options and hands them on. What is run every minute is loaded without what chats.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..errors import StrataError, UsageProblem
from ..output import Mode, Output, prepare_streams
from .app import app

COMMANDS = ("bench", "completion", "config", "inspect", "prefix", "prune", "restore", "run", "save", "serve")
ALONE = ("inspect", "prune")


def load_commands(arguments: Sequence[str] = ()) -> None:
    """Make the commands known that these words may mean: all of them, but for those that can be loaded alone."""
    first = arguments[0] if arguments else ""
    for name in (first,) if first in ALONE else COMMANDS:
        import_module(f".{name}", __package__)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: run a command and leave with its exit status."""
    prepare_streams()
    sys.exit(status(list(sys.argv[1:] if arguments is None else arguments)))


def status(arguments: list[str]) -> int:
    """Run a command; every failure is one message, or the envelope, and the documented exit status."""
    out = Output(
        next((word for word in arguments if not word.startswith("-")), "strata"),
        Mode.JSON if "--json" in arguments else Mode.HUMAN,
    )
    try:
        load_commands(arguments)
        result: Any = app(arguments, prog_name="strata", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except StrataError as error:
        return out.fail(error)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        return out.fail(problem_of(error))


def problem_of(error: Exception) -> StrataError:
    """A usage error of the command line as ours; anything else is a fault of strata, told in one line."""
    tell = getattr(error, "format_message", None)
    if callable(tell):
        return UsageProblem(str(tell()).strip() or "usage", hint="strata --help")
    if os.environ.get("STRATA_DEBUG"):
        raise error
    return StrataError(
        f"a fault in strata: {type(error).__name__}: {error}", hint="STRATA_DEBUG=1 shows where; please report it"
    )

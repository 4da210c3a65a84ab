"""The command line: parse, call, render.

Owns the one place where every failure becomes an exit status. Each command is a file of its own, which makes plain
values of its options and hands them on.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from ..errors import StrataError, UsageProblem
from ..output import Mode, Output, prepare_streams
from . import bench as bench
from . import config as config
from . import inspect as inspect
from . import prefix as prefix
from . import prune as prune
from . import restore as restore
from . import run as run
from . import save as save
from .app import app


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

"""The command line: parse, call, render.

Owns the one place where every failure becomes an exit status. Each command is a file of its own, which makes plain
values of its options and hands them on. What is run every minute is loaded without what chats.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from ..errors import StrataError, Told, UsageProblem
from ..output import Mode, Output, prepare_streams
from .app import app

# The first line of each command's help, in the order in which they are explained: the list of commands is shown
# without loading any of them. A test compares.
SUMMARIES = {
    "run": "Chat: one turn with PROMPT, or the interactive prompt.",
    "save": "Write a conversation to one file, or keep a copy of it.",
    "restore": "Verify a file and take its conversation into the directory.",
    "inspect": "Show the directory or one conversation; --verify checks all.",
    "prune": "Keep the session directory in order, or delete what is named.",
    "prefix": "Openings that conversations start from: read once, kept.",
    "serve": "Serve OpenAI's clients; their conversations survive restarts.",
    "bench": "Measure saving and restoring here, against what people use.",
    "config": "The settings: their values, and where each comes from.",
    "completion": "Print a completion script.",
}


def load_all() -> None:
    """Make every command known."""
    for name in SUMMARIES:
        import_module(f".{name}", __package__)


def load_commands(arguments: Sequence[str]) -> None:
    """Make known what these words need: their command, or of all of them no more than `--help` shows."""
    first = next((word for word in arguments if word != "--"), "")
    if first in SUMMARIES:
        import_module(f".{first}", __package__)
        return
    for name, summary in SUMMARIES.items():
        if f"{__package__}.{name}" not in sys.modules:
            app.command(name, help=summary)(_nothing)


def _nothing() -> None:
    """What stands for a command in the list of all. Raises UsageProblem: to be run it would have been loaded."""
    raise UsageProblem("that is no command", hint="strata --help")


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
    wanted = next((word for word in arguments if word in SUMMARIES), "")
    try:
        load_commands(arguments)
        result: Any = app(arguments, prog_name="strata", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except Told as error:
        return out.fail(error)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError" and out.mode is not Mode.JSON:
            # A command that needs more words shows its help as it stands, and is a usage error all the same.
            print(getattr(error, "message", error), file=sys.stderr)
            return UsageProblem.exit_code
        return out.fail(problem_of(error, wanted))


def problem_of(error: Exception, command: str = "") -> StrataError:
    """A usage error of the command line as ours; anything else is a fault of strata, told in one line."""
    tell = getattr(error, "format_message", None)
    if callable(tell):
        return UsageProblem(_plainly(str(tell())) or "usage", hint=f"strata {command} --help".replace("  ", " "))
    if os.environ.get("STRATA_DEBUG"):
        raise error
    return StrataError(
        f"a fault in strata: {type(error).__name__}: {error}", hint="STRATA_DEBUG=1 shows where; please report it"
    )


def _plainly(text: str) -> str:
    """The command line's message without the names that its library has for types."""
    for theirs, ours in {"int": "whole number", "integer": "whole number", "float": "number"}.items():
        for kind in (f"{theirs} range", theirs):
            text = text.replace(f"is not a valid {kind}.", f"is not a {ours}.")
    return text.strip()

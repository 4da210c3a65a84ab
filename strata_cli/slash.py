"""The slash commands of the loop: one table for help, completion and dispatch.

Owns how a line becomes a command: whole words only, `//` for a slash of one's own. What a command does is in `repl`.
"""

import difflib
from dataclasses import dataclass

from .errors import UsageProblem


@dataclass(frozen=True)
class Slash:
    """One command: its word, what it takes, one line of help."""

    word: str
    takes: str
    help: str
    aliases: tuple[str, ...] = ()


COMMANDS = (
    Slash("/help", "", "this list", ("/?",)),
    Slash("/exit", "", "park what is held and leave (Ctrl-D)", ("/quit", "/bye")),
    Slash("/new", "[NAME]", "begin another conversation; this one stays"),
    Slash("/switch", "NAME", "continue another conversation"),
    Slash("/list", "[--all]", "the conversations, newest first"),
    Slash("/retry", "", "another reply to the last line"),
    Slash("/undo", "[N]", "give up the last turn, or the last N"),
    Slash("/edit", "[TEXT]", "say the last line differently; without TEXT: in $VISUAL or $EDITOR"),
    Slash("/fork", "[NAME]", "go on in a copy; this one stays as it is"),
    Slash("/save", "[NAME] [-o FILE]", "give it a name, or write it to one file; it is kept in any case"),
    Slash("/restore", "FILE", "take in a strata file and continue its conversation"),
    Slash("/read", "FILE", "put a file's text before your next prompt"),
    Slash("/system", "[TEXT]", "the system prompt from now on; without TEXT: what it is"),
    Slash("/set", "[KEY VALUE]", "how replies are made: temp, top-k, seed, ...; without: all of them"),
    Slash("/history", "[N]", "what was said, or the last N turns of it"),
    Slash("/prefix", "[NAME]", "begin another conversation at a prefix; without NAME: which there are"),
    Slash("/pin", "", "keep what was said so far for others to start from"),
    Slash("/tokens", "", "what the context holds, and what the last turn reused"),
)


@dataclass(frozen=True)
class Said:
    """A line for the model."""

    text: str


@dataclass(frozen=True)
class Command:
    """A line for strata: the canonical word, and the rest of the line as one string and as words."""

    word: str
    rest: str = ""
    args: tuple[str, ...] = ()


def find(word: str) -> Slash:
    """The command of that name. Raises UsageProblem with the nearest one."""
    for command in COMMANDS:
        if word == command.word or word in command.aliases:
            return command
    known = [name for command in COMMANDS for name in (command.word, *command.aliases)]
    close = difflib.get_close_matches(word, known, 1)
    raise UsageProblem(f"there is no command {word}", hint=f"did you mean {close[0]}?" if close else "/help lists them")


def read_line(line: str) -> Said | Command:
    """A typed line. Only a one-line text can be a command; `//x` says `/x`. Raises UsageProblem for an unknown word."""
    stripped = line.strip()
    if stripped.startswith("//"):
        return Said(line.replace("//", "/", 1))
    if not stripped.startswith("/") or "\n" in stripped:
        return Said(line)
    word, _, rest = stripped.partition(" ")
    return Command(find(word).word, rest.strip(), tuple(rest.split()))

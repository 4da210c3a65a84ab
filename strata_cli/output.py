"""The only printer. Answers, tables and JSON go to stdout, all else to stderr, each asked for its own tty.

    human   the answer, tables, notes and warnings as they come
    json    one object, the envelope, on failure too; warnings are in it, and stderr stays empty
    quiet   ids, or the answer alone; warnings and errors still on stderr

Foreign text is made harmless (safe_text.py) and is never markup. What is printed is decided by callers.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any, TextIO

from .errors import StorageFailed, Told, UsageProblem
from .safe_text import SafeStream, one_line, safe_text

if TYPE_CHECKING:
    from .markdown import Blocks
    from .progress import Bar

GAP = "  "
PROGRESS_AFTER_S = 0.5


class Mode(Enum):
    """How to print."""

    HUMAN = "human"
    JSON = "json"
    QUIET = "quiet"


def prepare_streams() -> None:
    """UTF-8 on stdout and stderr whatever the locale says; what is no text at all is shown as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


class _Sink:
    """One stream that may be closed, or end at a reader that left: writing then does nothing."""

    def __init__(self, stream: TextIO | None, *, must_arrive: bool) -> None:
        self.stream = stream
        self.closed = stream is None
        self._must_arrive = must_arrive

    @property
    def is_tty(self) -> bool:
        return not self.closed and self.stream is not None and self.stream.isatty()

    def write(self, text: str) -> None:
        if self.closed or self.stream is None:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except BrokenPipeError:
            self._give_up()
        except OSError as error:
            self._give_up()
            if self._must_arrive:
                raise StdoutFailed(f"cannot write to standard output: {error.strerror}") from error

    def _give_up(self) -> None:
        self.closed = True
        # What is still buffered must go somewhere when Python flushes at exit.
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self.stream.fileno())  # type: ignore[union-attr]
            os.close(nowhere)


class StdoutFailed(StorageFailed):
    """Standard output takes nothing: what is to be told goes to stderr, in JSON mode too."""


class Output:
    """What one command prints. Safe to call from several threads."""

    def __init__(
        self,
        command: str,
        mode: Mode = Mode.HUMAN,
        *,
        verbose: bool = False,
        very_verbose: bool = False,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        environ: Mapping[str, str] = os.environ,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.command = command
        self.mode = mode
        self.verbose = verbose or very_verbose
        self.very_verbose = very_verbose
        self._stdin = stdin or sys.stdin
        self._out = _Sink(stdout or sys.stdout, must_arrive=True)
        self._err = _Sink(stderr or sys.stderr, must_arrive=False)
        self.cursor_moves = environ.get("TERM", "") not in ("dumb", "")
        self._colour = self.cursor_moves and not environ.get("NO_COLOR")
        self._monotonic = monotonic
        self.streams_tokens = True
        self.tells_events = False  # in JSON, notes and warnings as events, for what runs without an end
        self._warnings: list[str] = []
        self._answer = SafeStream()
        self._blocks: Blocks | None = None
        self._line_open = False
        self._lock = threading.RLock()

    @property
    def reader_left(self) -> bool:
        """Whether nobody reads stdout any more, so that generating on is of no use."""
        return self._out.closed

    @property
    def is_tty(self) -> bool:
        """Whether stdout is a terminal."""
        return self._out.is_tty

    @property
    def can_ask(self) -> bool:
        """Whether a question can be asked and answered."""
        return self._stdin is not None and self._stdin.isatty() and self._err.is_tty

    # The answer, and JSON

    def answer(self, piece: str) -> None:
        """The next piece of a reply, as it comes; in JSON an event `token` with the exact text."""
        if self.mode is Mode.JSON:
            if self.streams_tokens:
                self.event("token", text=piece)
            return
        with self._lock:
            self._write_answer(self._formatted(self._answer.feed(piece)))

    def end_answer(self) -> None:
        """The reply is whole: what follows begins on a line of its own."""
        with self._lock:
            self._write_answer(self._formatted(self._answer.end(), ends=True))
            if self._line_open:
                self._write_answer("\n")

    def format_answers(self) -> None:
        """Show replies as Markdown from now on, where stdout is a terminal that people look at."""
        if self.mode is Mode.HUMAN and self.is_tty and self.cursor_moves:
            from .markdown import Blocks

            self._blocks = Blocks()

    def _formatted(self, text: str, *, ends: bool = False) -> str:
        if self._blocks is None:
            return text
        from .markdown import rendered

        blocks = self._blocks.feed(text)
        if ends and (rest := self._blocks.end()).strip():
            blocks.append(rest)
        return "".join(rendered(block, self._out.stream, colour=self._colour) for block in blocks)

    def _write_answer(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._line_open = not text.endswith("\n")

    def event(self, name: str, **fields: Any) -> None:
        """One line of JSON; nothing in the other modes."""
        if self.mode is Mode.JSON:
            self._json({"event": name, **fields})

    def finish(self, data: Mapping[str, Any], *, exit_code: int = 0, command: str = "") -> int:
        """The end of a command that did what it was asked: the envelope in JSON. Returns the exit status."""
        self.end_answer()
        self._envelope(command, exit_code, data, None)
        return exit_code

    def fail(self, error: Told, data: Mapping[str, Any] | None = None, *, command: str = "") -> int:
        """The end of a command that failed: one message, or the envelope. Returns the exit status."""
        self.end_answer()
        if self.mode is Mode.JSON and not isinstance(error, StdoutFailed):
            told = {"code": error.code, "message": error.message, "hint": error.hint}
            self._envelope(command, error.exit_code, data or {}, told)
        else:
            hint = f" ({one_line(error.hint)})" if error.hint else ""
            self._err.write(f"strata: {one_line(error.message)}{hint}\n")
        return error.exit_code

    def _envelope(self, command: str, exit_code: int, data: Mapping[str, Any], error: Mapping[str, str] | None) -> None:
        if self.mode is not Mode.JSON:
            return
        with self._lock:
            warnings, self._warnings = self._warnings, []
            self._json(
                {
                    "strata": 1,
                    "command": command or self.command,
                    "ok": exit_code == 0,
                    "exit_code": exit_code,
                    "data": data,
                    "error": error,
                    "warnings": warnings,
                }
            )

    def _json(self, value: Mapping[str, Any]) -> None:
        # All ASCII: any locale can print it, and no control character of a foreign text survives.
        line = json.dumps(value, ensure_ascii=True, allow_nan=False, check_circular=False)
        with self._lock:
            self._out.write(line + "\n")

    # For people

    def show(self, text: str) -> None:
        """Lines on stdout, for people only; made harmless."""
        if self.mode is Mode.HUMAN:
            with self._lock:
                self.end_answer()
                self._out.write(safe_text(text) + "\n")

    def ids(self, names: Sequence[str]) -> None:
        """One name a line on stdout, in quiet mode only."""
        if self.mode is Mode.QUIET and names:
            with self._lock:
                self.end_answer()
                self._out.write("".join(f"{one_line(name)}\n" for name in names))

    def table(
        self,
        titles: Sequence[str],
        rows: Sequence[Sequence[str]],
        right: Collection[int] = (),
        spare: Sequence[int] = (),
    ) -> None:
        """Rows under titles, for people only; the columns numbered in `right` are flush right.

        On a terminal long cells are folded, and where it is narrow the columns of `spare` are left out, in that order,
        and the last one is cut. Elsewhere cells are whole and a row is a line.
        """
        if self.mode is not Mode.HUMAN:
            return
        safe = [[one_line(cell) for cell in row] for row in (titles, *rows)]
        with self._lock:
            self.end_answer()
            if self._out.is_tty and self.cursor_moves:
                from .table import drawn

                stream = self._out.stream
                self._out.write(drawn(safe[0], safe[1:], stream, colour=self._colour, right=right, spare=spare))
            else:
                self._out.write(_plain_table(safe, right))

    # Talk, on stderr

    def note(self, text: str) -> None:
        """One line about what was done, for people only."""
        if self.mode is Mode.HUMAN:
            self._tell(text)
        elif self.tells_events:
            self.event("note", text=text)

    def aside(self, text: str) -> None:
        """Lines of foreign text on stderr, for somebody at a terminal only; made harmless."""
        if self.mode is Mode.HUMAN and self._err.is_tty:
            with self._lock:
                self.end_answer()
                self._err.write(safe_text(text) + "\n")

    def detail(self, text: str) -> None:
        """One line about why, with -v."""
        if self.verbose:
            self._tell(text)

    def warning(self, text: str) -> None:
        """One line about what went wrong without stopping the command; collected for the envelope in JSON."""
        with self._lock:
            if self.mode is Mode.JSON and self.tells_events:
                self.event("warning", text=text)
            elif self.mode is Mode.JSON:
                self._warnings.append(text)
            else:
                self._tell(text)

    def _tell(self, text: str) -> None:
        with self._lock:
            if self._line_open and self._out.is_tty:
                self._write_answer("\n")
            self._err.write(f"[strata] {one_line(text)}\n")

    def confirm(self, question: str, *, yes: bool = False) -> bool:
        """Ask on stderr; only `y` and `yes` are yes. Raises UsageProblem where there is no terminal."""
        if yes:
            return True
        if not self.can_ask:
            raise UsageProblem(
                f"{question} There is no terminal to confirm this on",
                hint="pass --yes to do it, or --dry-run to see what would be done",
            )
        self._err.write(f"{one_line(question)} [y/N] ")
        return self._stdin.readline().strip().lower() in ("y", "yes")

    @contextmanager
    def progress(self, label: str, total: int, unit: str) -> Iterator["Progress"]:
        """A bar on stderr, in "tokens" or "bytes", if it takes over half a second: call it with what is done.

        Only on a terminal that can move its cursor, for people; it is gone when it ends.
        """
        shown = self.mode is Mode.HUMAN and self._err.is_tty and self.cursor_moves
        progress = Progress(self._bar if shown else None, label, total, unit, self._monotonic)
        try:
            yield progress
        finally:
            progress.close()

    def _bar(self, label: str, total: int, unit: str) -> "Bar":
        from .progress import Bar

        return Bar(self._err.stream, one_line(label), total, unit, colour=self._colour)


class Progress:
    """What is done so far, told by calling it. The bar appears late and leaves no trace after `close`."""

    def __init__(
        self,
        make: Callable[[str, int, str], "Bar"] | None,
        label: str,
        total: int,
        unit: str,
        monotonic: Callable[[], float],
    ) -> None:
        self._make, self._what, self._monotonic = make, (label, total, unit), monotonic
        self._begun = monotonic()
        self._bar: Bar | None = None

    def __call__(self, done: int, total: int | None = None) -> None:
        """`done` of the total, which may become known late."""
        if self._make is None or self._monotonic() - self._begun < PROGRESS_AFTER_S:
            return
        if self._bar is None:
            label, first_total, unit = self._what
            self._bar = self._make(label, total or first_total, unit)
        self._bar.show(done)

    def close(self) -> None:
        """Remove the bar, for good."""
        self._make = None
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _plain_table(rows: Sequence[Sequence[str]], right: Collection[int]) -> str:
    sizes = [list(map(_cells, row)) for row in rows]
    widths = [max(column) for column in zip(*sizes, strict=True)]

    def line(row: Sequence[str], taken: Sequence[int]) -> str:
        cells = []
        for number, cell in enumerate(row):
            blank = " " * (widths[number] - taken[number])
            cells.append(blank + cell if number in right else cell + blank)
        return GAP.join(cells).rstrip() + "\n"

    return "".join(map(line, rows, sizes))


def _cells(text: str) -> int:
    """How many columns of a terminal it takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def bar(used: int, total: int, width: int = 30) -> str:
    """`[#####-------]  42 %`: a share, in characters that every terminal has; over 100 % the bar is full."""
    share = used / total if total else float(used > 0)
    full = min(width, round(share * width))
    return f"[{'#' * full}{'-' * (width - full)}] {share:4.0%}".replace("%", " %")

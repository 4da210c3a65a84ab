"""Lines typed at a terminal: editing, history, completion, several lines, pastes, Ctrl-C and Ctrl-D.

Owns the prompt_toolkit session. What a line does is `repl`; what a history is on disk, `typed_history`.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import get_typeahead, store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import ColorDepth, create_output
from prompt_toolkit.output import Output as TerminalOutput
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.utils import get_cwidth, get_term_environment_variable

from .errors import Interrupted, StrataError
from .loop_words import SETTABLE
from .output import Output
from .safe_text import one_line
from .session import Session
from .signals import TWICE_S, Stop
from .slash import COMMANDS, Command, Said, read_line
from .typed_history import TypedHistory

HINT = "Ctrl-C again, Ctrl-D or /exit leaves; everything said is kept"
FILES = ("/restore", "/read")


@dataclass(frozen=True)
class Desk:
    """What typing needs from the loop.

    `names` gives conversations or prefixes, `status` the line at the bottom; `before` runs when a prompt is due.
    """

    out: Output
    stop: Stop
    names: Callable[[str], Iterable[str]]
    status: Callable[[], str]
    history: TypedHistory | None = None
    monotonic: Callable[[], float] = time.monotonic
    before: Callable[[], None] = lambda: None


def desk_of(
    session: Session, status: Callable[[], str], history: TypedHistory | None, before: Callable[[], None]
) -> Desk:
    return Desk(session.out, session.stop, session.store.names, status, history, before=before)


def typed(
    desk: Desk, *, source: Input | None = None, target: TerminalOutput | None = None
) -> Iterator[Said | Command | StrataError]:
    """What the user types, until end of input. Raises Interrupted for Ctrl-C twice within two seconds."""
    line = Line(desk)
    prompt: PromptSession[str] = PromptSession(
        FormattedText([("", "> ")]),
        multiline=True,
        prompt_continuation="  ",  # blank, so that what is copied from the screen has no marks in it
        history=PrivateHistory(desk.history) if desk.history is not None else InMemoryHistory(),
        completer=Words(desk.names),
        complete_while_typing=False,
        key_bindings=line.keys(),
        bottom_toolbar=lambda: below(desk.status(), get_app().output.get_size().columns),
        enable_suspend=True,
        enable_open_in_editor=True,
        tempfile_suffix=".txt",
        reserve_space_for_menu=6,
        input=source,
        output=target or drawn_on(screen()),
    )
    ahead = Ahead(prompt.app.input)
    desk.out.note("/help lists the commands, Alt+Enter begins a new line, Ctrl-D leaves")
    while True:
        line.pasted = False
        desk.before()
        ahead.offer()
        try:
            text = asked(prompt, desk.stop)
        except KeyboardInterrupt:
            line.interrupted()
            continue
        except (EOFError, OSError):  # Ctrl-D, the terminal is gone, or SIGTERM
            return
        if desk.history is not None and desk.history.trouble:
            desk.out.warning(f"no history is kept: {desk.history.trouble}")
            desk.history.trouble = ""
        if text.strip():
            desk.stop.interrupted_at = float("-inf")  # Ctrl-C is about this line from now on
            yield line.read(text)


def asked(prompt: PromptSession[str], stop: Stop) -> str:
    """One prompt. Raises KeyboardInterrupt for Ctrl-C, EOFError for the end of input or a signal that ends all.

    A signal must not raise while prompt_toolkit builds its event loop or takes it down: that leaves half a loop
    behind. It is a flag until the prompt runs, which is asked to end then. A terminal that is gone is the end of input:
    prompt_toolkit's own way with errors, to show one and wait for Enter, would wait for ever.
    """

    def end(*, gone: bool = False) -> None:
        if prompt.app.is_running and not prompt.app.is_done:
            prompt.app.exit(exception=EOFError if gone or stop.ending else KeyboardInterrupt)

    def fault(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), OSError):
            end(gone=True)
        else:
            loop.default_exception_handler(context)

    def begun() -> None:
        loops.append(asyncio.get_running_loop())
        loops[-1].set_exception_handler(fault)
        if stop.cancelled():
            end()

    def wake() -> None:
        for loop in loops:
            with suppress(RuntimeError):  # it is closed by now
                loop.call_soon_threadsafe(end)

    loops: list[asyncio.AbstractEventLoop] = []
    with stop.deferring(), stop.waking(wake):
        try:
            text = prompt.prompt(pre_run=begun, set_exception_handler=False)
        except OSError:
            raise EOFError from None  # the prompt could not even be taken down
    return text


class Ahead:
    """What was typed before its prompt was there. Each Enter in it sends a line of its own, one a prompt."""

    def __init__(self, source: Input) -> None:
        self._source = source
        self._rest: list[KeyPress] = []

    def offer(self) -> None:
        """Let the next prompt begin with the first line of it, and keep what follows."""
        keys = [*self._rest, *get_typeahead(self._source)]
        while pressed := self._source.read_keys():
            keys += (press for press in pressed if press.key != Keys.CPRResponse)  # an answer to the last prompt
        end = first_line_end(keys)
        self._rest = keys[end:]
        store_typeahead(self._source, keys[:end])


def first_line_end(keys: Sequence[KeyPress]) -> int:
    """Behind the first Enter, Alt+Enter being none; all of them where there is none."""
    for number, press in enumerate(keys):
        if press.key == Keys.Enter and (not number or keys[number - 1].key != Keys.Escape):
            return number + 1
    return len(keys)


class MarksPastes(Vt100_Output):
    """Pastes are marked between two prompts as well, so that one that comes during an answer is one message."""

    def disable_bracketed_paste(self) -> None:
        if not get_app().is_done:  # an editor was called, or Ctrl-Z
            super().disable_bracketed_paste()


def drawn_on(stream: TextIO) -> TerminalOutput:
    if not stream.isatty():
        return create_output(stdout=stream)
    term, depth = get_term_environment_variable(), ColorDepth.from_env()
    return MarksPastes.from_pty(stream, term=term, default_color_depth=depth)


def typed_plainly(desk: Desk) -> Iterator[Said | Command | StrataError]:
    """The same on a terminal that cannot move its cursor: whole lines, no editing but the terminal's own."""
    line = Line(desk)
    desk.out.note("/help lists the commands, Ctrl-D leaves")
    while True:
        desk.before()
        try:
            with desk.stop.raising():
                screen().write("> ")
                screen().flush()
                text = sys.stdin.readline()
        except Interrupted:
            if desk.stop.twice:
                raise
            desk.stop.begin()
            desk.out.note(HINT)
            continue
        except OSError:
            return
        if not text:
            return
        if text.strip():
            desk.stop.interrupted_at = float("-inf")
            yield line.read(text.rstrip("\r\n"))


def below(status: str, columns: int) -> FormattedText:
    """The line below the prompt: text, never markup, and one line."""
    text = one_line(status)
    if get_cwidth(text) > columns:
        while text and get_cwidth(text) >= columns:
            text = text[:-1]
        text += "\u2026"
    return FormattedText([("", text)])


def screen() -> TextIO:
    """Where the prompt is drawn: stderr, or stdout where that alone is a terminal."""
    return sys.stderr if sys.stderr.isatty() or not sys.stdout.isatty() else sys.stdout


class Line:
    """One prompt's keys. `pasted`: what stands there began as a paste, so that it is no command."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.pasted = False

    def read(self, text: str) -> Said | Command | StrataError:
        if self.pasted:
            return Said(text)
        try:
            return read_line(text)
        except StrataError as error:
            return error

    def interrupted(self) -> None:
        """Ctrl-C with nothing typed: a hint, and the way out the second time."""
        now, stop = self._desk.monotonic(), self._desk.stop
        as_signal = stop.requested > 0  # it came just before the prompt was there, and has been timed
        if stop.twice or (not as_signal and now - stop.interrupted_at < TWICE_S):
            raise Interrupted("interrupted")
        stop.begin()
        stop.interrupted_at = stop.interrupted_at if as_signal else now
        self._desk.out.note(HINT)

    def keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            # More keys in the same breath are a paste on a terminal that does not mark pastes.
            waiting = [press for press in event.key_processor.input_queue if press.key != Keys.CPRResponse]
            if waiting:
                self._note_paste(event)
                event.current_buffer.insert_text("\n")
            else:
                event.current_buffer.validate_and_handle()

        @keys.add("escape", "enter")
        @keys.add("c-j")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            self._note_paste(event)
            event.current_buffer.insert_text(event.data.replace("\r\n", "\n").replace("\r", "\n"))

        @keys.add("c-c")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.text:
                buffer.append_to_history()  # the Up key brings it back
                buffer.reset()
                self.pasted = False
            else:
                event.app.exit(exception=KeyboardInterrupt)

        return keys

    def _note_paste(self, event: KeyPressEvent) -> None:
        self.pasted = self.pasted or not event.current_buffer.text.strip()


class PrivateHistory(History):
    """A TypedHistory as prompt_toolkit wants it: newest first."""

    def __init__(self, typed: TypedHistory) -> None:
        super().__init__()
        self._typed = typed

    def load_history_strings(self) -> Iterable[str]:
        return reversed(self._typed.entries())

    def store_string(self, string: str) -> None:
        self._typed.add(string)


class Words(Completer):
    """Commands, and what they take: names, files, keys. Never text of a conversation."""

    def __init__(self, names: Callable[[str], Iterable[str]]) -> None:
        self._names = names
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or text.startswith("//") or "\n" in document.text:
            return
        word, blank, rest = text.partition(" ")
        if not blank:
            for command in COMMANDS:
                if command.word.startswith(word):
                    yield Completion(command.word, -len(word), display_meta=command.help)
        elif word in FILES or (word == "/save" and "-o " in rest):
            path = rest.rpartition("-o ")[2] if word == "/save" else rest
            yield from self._paths.get_completions(Document(path), complete_event)
        else:
            for candidate in self._candidates(word):
                if candidate.startswith(rest):
                    yield Completion(candidate, -len(rest))

    def _candidates(self, word: str) -> Iterable[str]:
        try:
            if word == "/switch":
                return self._names("conversations")
            if word == "/prefix":
                return self._names("prefixes")
        except StrataError:
            return ()
        return SETTABLE if word == "/set" else ()

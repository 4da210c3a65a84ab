"""A conversation that this process has open: its lock, its text, its head.

Owns the lines that are still to be written when the disk refused one, so that no word is lost while the process
lives. What the lines mean for the engine is `conversation`.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from .errors import Locked, NotFound, StrataError, UsageProblem
from .head import Head, title_of
from .locks import FileLock
from .log import Line, Log
from .names import automatic_name, check_name, is_automatic, key_of, same_but_for_case
from .prompt import content_text
from .store import Store

GIVEN = "given"  # the mark of a message that came as history (`--messages`): nobody waits for its reply


@dataclass
class Opened:
    """`name` is None, and nothing is written, where nothing is to be kept."""

    store: Store
    name: str | None
    lock: FileLock | None = None
    log: Log = field(default_factory=Log)
    head: Head | None = None
    head_fault: str = ""
    unwritten: list[Line] = field(default_factory=list)
    wanted: bool = True
    _mutex: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def lost_lines(self) -> int:
        """How many lines at the end of the text the head has seen and the log has lost."""
        return max(0, self.head.lines - self.log.next_id + 1 - len(self.log.bad)) if self.head else 0

    @property
    def keeps(self) -> bool:
        return self.name is not None and self.lock is not None

    @property
    def setup(self) -> Mapping[str, Any]:
        return self.log.setup()

    @property
    def system(self) -> str | None:
        return self.setup.get("system")

    @property
    def tools(self) -> Sequence[Any] | None:
        return self.setup.get("tools")

    @property
    def dropped(self) -> int | None:
        """The last line that is left out of prompts, since they would not fit the context."""
        found = self.setup.get("dropped")
        return found if isinstance(found, int) else None

    @property
    def day(self) -> date | None:
        """The day that the template's date is pinned to."""
        return day_of(self.setup)

    @property
    def branch(self) -> tuple[Line, ...]:
        return self.log.branch()

    @property
    def unanswered(self) -> Line | None:
        """A user's line at the end that never got its reply."""
        branch = self.branch
        waits = branch and role(branch[-1]) != "assistant" and GIVEN not in branch[-1].marks
        return branch[-1] if waits else None

    @property
    def answered(self) -> tuple[Line, ...]:
        """The messages up to the last reply."""
        branch = self.branch
        return branch[:-1] if self.unanswered is not None else branch

    def append(self, **values: Any) -> int:
        """Add a line to the text, durably. Returns the bytes written. Raises StorageFailed; the line is kept."""
        line = Line(id=self.log.next_id, time=self.store.clock(), **values)
        self.log = Log((*self.log.lines, line), self.log.bad)
        self.unwritten.append(line)
        return self.write_lines()

    def take(self, lines: Sequence[Line]) -> int:
        """Add lines that came whole, with ids of this log. Returns the bytes written. Raises StorageFailed."""
        self.log = Log((*self.log.lines, *lines), self.log.bad)
        self.unwritten.extend(lines)
        return self.write_lines()

    def write_lines(self) -> int:
        """Write what is still unwritten. Raises StorageFailed."""
        if not self.keeps or not self.unwritten:
            return 0
        assert self.name is not None
        written = self.store.append_log(self.name, self.unwritten)
        self.unwritten.clear()
        return written

    def update_head(self, change: Callable[[Head], Head]) -> int:
        """Apply a change to the head as it is now, and replace its file where that says something new.

        Returns the bytes written. Raises StorageFailed. Safe from the writer's thread.
        """
        with self._mutex:
            before = self.head or self.blank_head(self.store.clock())
            after = change(before)
            if after == self.head or not self.keeps:
                return 0
            written = self.store.write_head(after)
            self.head = after
            return written

    def blank_head(self, created: str) -> Head:
        """The head of a conversation that has none: what its text tells."""
        first = next((content_text(line.message or {}) for line in self.branch if role(line) == "user"), "")
        name = self.name or "unnamed"
        kind = "auto" if is_automatic(name) else "named"
        return Head(name=name, kind=kind, key=key_of(first), title=title_of(first), created=created)

    def leave(self) -> None:
        """Write what is left of the text; `release` may then give the lock back. Raises StorageFailed."""
        self.wanted = False
        self.write_lines()

    def take_back(self) -> bool:
        """Continue a conversation that was left and whose lock is still held; False where it is gone."""
        with self._mutex:
            self.wanted = self.lock is not None
            return self.wanted

    def release(self) -> None:
        """Give the lock back unless the conversation is wanted again. Safe from the writer's thread."""
        with self._mutex:
            if not self.wanted and self.lock is not None:
                self.lock.release()
                self.lock = None


def day_of(settings: Mapping[str, Any]) -> date | None:
    """The day in a conversation's settings; None where there is none."""
    try:
        return date.fromisoformat(str(settings.get("date")))
    except ValueError:
        return None


def role(line: Line) -> str:
    return str((line.message or {}).get("role", ""))


def open_named(store: Store, name: str, *, create: bool, keep: bool) -> Opened:
    """A conversation by its full name. Raises NotFound unless `create`, Locked, UsageProblem for a bad name.

    With `keep` false it is only read, and needs no lock.
    """
    check_name(name)
    names = store.names()
    if name not in names:
        if not create:
            raise NotFound(f"there is no conversation {name}", hint="strata inspect lists them")
        if twin := same_but_for_case(name, names):
            raise UsageProblem(f"{name}: there is {twin} already, and names differ by more than case")
    if not keep:
        return _read(Opened(store, name))
    lock = store.hold(name)
    try:
        return _read(Opened(store, name, lock))
    except BaseException:
        lock.release()
        raise


def _read(opened: Opened) -> Opened:
    assert opened.name is not None
    opened.log = opened.store.read_log(opened.name)
    try:
        opened.head = opened.store.read_head(opened.name)
    except StrataError as error:
        # Losing a head costs reading time; one that was never written is nobody's loss.
        opened.head = None
        opened.head_fault = error.message if not isinstance(error, NotFound) else ""
    return opened


def open_automatic(store: Store, first_user_text: str) -> Opened:
    """The next free automatic name for a conversation that begins with this text, held."""
    key, number = key_of(first_user_text), 1
    taken = set(store.names())
    while True:
        name = automatic_name(key, number)
        number += 1
        if name in taken:
            continue
        try:
            lock = store.hold(name)
        except Locked:
            continue
        opened = _read(Opened(store, name, lock))
        if not opened.log.lines and opened.head is None:
            return opened
        lock.release()

"""Which conversation is open on an engine: beginning, continuing, leaving.

Owns the open conversation and those that were left while their state is still being written. What is said in it is
`conversation`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from .engine import Engine
from .errors import NoRoom, StorageFailed
from .graft import graft
from .head import StateRef
from .keeper import Keeper
from .log import Log
from .opened import Opened, day_of, open_automatic, open_named, role
from .prompt import Prompter, content_text
from .said_lines import Said, user
from .store import Store
from .too_long import check_length
from .turn import Notice, Policy


class Current:
    """One engine, one session directory, and the conversation that is open on them."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        policy: Policy,
        *,
        day: date,
        say: Callable[[Notice], None],
        remembered_model: Mapping[str, Any],
        remembered_options: Mapping[str, Any],
    ) -> None:
        self.engine, self.store, self.policy, self.say = engine, store, policy, say
        self.remembered_model, self.remembered_options = remembered_model, remembered_options
        self.today = self._day = day
        self.root_tokens = 0  # the root of the open conversation's last prompt; 0 where it is too short to keep
        self.prompter = Prompter(engine.vocabulary, engine.template)
        self.keeper = Keeper(engine, store, policy, say, model=remembered_model, options=remembered_options)
        self.opened: Opened | None = None
        self._left: dict[str, Opened] = {}
        self._warned: Opened | None = None  # whose state would be lost, and that was said
        # What was captured before a prompt that was cancelled while it was read; None where none was.
        self._before_cancelled: frozenset[Path] | None = None
        self._system: str | None = None
        self._tools: Sequence[Any] | None = None
        self._dropped: int | None = None  # the last line that is left out of a prompt that would not fit

    # -- which conversation

    @property
    def name(self) -> str | None:
        return self.opened.name if self.opened else None

    @property
    def system(self) -> str | None:
        return self._system

    @property
    def tools(self) -> Sequence[Any] | None:
        return self._tools

    def start(self, name: str | None = None) -> None:
        """A new conversation; nothing is on disk before its first message. Raises Locked where NAME is held."""
        opened = open_named(self.store, name, create=True, keep=self.policy.save) if name is not None else None
        self.leave_conversation()
        self.opened = opened
        self._system = self._tools = self._dropped = None
        self._day = self.today

    def begin(self, settings: Mapping[str, Any], source: Log) -> None:
        """Go on from where a prefix ends: its system prompt, tools and date, and what was said in it.

        Call `start` first. Raises StorageFailed.
        """
        self._system, self._tools = settings.get("system"), settings.get("tools")
        self._day = day_of(settings) or self.today
        if source.branch():
            opened = self.open_for(next((line.message or {} for line in source.branch() if role(line) == "user"), ""))
            opened.take(graft(opened.log, source, self.store.clock()))

    def open(self, name: str) -> None:
        """Continue a conversation. Raises NotFound, Locked, Bad. What is open stays open if that fails."""
        left = self._left.pop(name, None)
        if left is None or not left.take_back():
            left = open_named(self.store, name, create=False, keep=self.policy.save)
        self.adopt_conversation(left)
        if left.head_fault:
            self.say(Notice("head", f"{left.head_fault}; it is written anew", warning=True))
        if left.lost_lines:
            self.say(Notice("log", f"{name}: the last {left.lost_lines} lines of the text are gone", warning=True))
        for bad in left.log.bad:
            self.say(Notice("log", f"{name}: line {bad.number} of the text cannot be used: {bad.why}", warning=True))

    def adopt_conversation(self, opened: Opened) -> None:
        """Go on in a conversation that is held already."""
        self.leave_conversation()
        self.opened = opened
        self._system, self._tools, self._dropped = opened.system, opened.tools, opened.dropped

    def set_system(self, text: str | None, tools: Sequence[Any] | None = None) -> None:
        """System prompt and tools of the turns to come. Equal ones have no effect."""
        self._system, self._tools = text, tools

    def leave_nothing_out(self) -> None:
        """What a full context once left out is read again: the client says itself what the prompt is."""
        self._dropped = None

    @property
    def day(self) -> date:
        """The day that templates are told."""
        return (self.opened.day if self.opened else None) or self._day

    @property
    def has_state(self) -> bool:
        """Whether the open conversation's head names state already."""
        return self.opened is not None and self.opened.head is not None and bool(self.opened.head.states)

    def stored(self, position: int) -> StateRef | None:
        """The files that hold the first `position` tokens; None where that place is no boundary on the disk."""
        return self.keeper.stored(position) if self.opened is not None and self.opened.keeps else None

    def check_leave(self) -> None:
        """Raises NoRoom, once, where what is held can be kept neither in memory nor on disk (A5)."""
        opened = self.opened
        self._forget_cancelled()
        if opened is None or self._warned is opened or not self.keeper.is_stuck(opened):
            return
        self._warned = opened
        raise NoRoom(
            f"the state of {opened.name} fits neither memory nor disk: leaving it means to read it again",
            hint="repeat this to leave all the same; its text is kept in any case",
        )

    def leave_conversation(self, *, release: bool = True) -> None:
        """Let go of what is open once all of it is written. Raises StorageFailed where text cannot be written."""
        opened, self.opened = self.opened, None
        self._forget_cancelled()
        if opened is None:
            return
        if self._warned is opened:
            self.keeper.abandon(opened)
            self._warned = None
        # Those whose lock is given back can't be taken back: a process that runs for weeks must not keep their text.
        self._left = {name: left for name, left in self._left.items() if left.lock is not None}
        if opened.name is not None:
            self._left[opened.name] = opened
        opened.leave()
        if release:
            self.keeper.when_written(opened.release)

    def _forget_cancelled(self) -> None:
        """What a cancelled prompt left captured belongs to no turn: nobody writes it, and nobody may wait for it."""
        before, self._before_cancelled = self._before_cancelled, None
        if before is not None:
            self.keeper.take_back(before)

    def finish(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Leave: text first, then what is still only in memory, as long as the policy waits."""
        try:
            # Held until what failed or waited is written, too: only its holder may replace a head.
            self.leave_conversation(release=False)
        finally:
            self.keeper.finish(hurried)
            for left in self._left.values():
                self._release(left)

    def _release(self, left: Opened) -> None:
        """Give a lock back, after a last try at text that the disk refused before."""
        try:
            left.write_lines()
        except StorageFailed as error:
            self.say(Notice("text", f"{left.name}: {error.message}", warning=True))
        left.release()

    def close(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Leave, and free the engine."""
        try:
            self.finish(hurried)
        finally:
            self.engine.close()

    def check_length(self, texts: Iterable[str], *, room_tokens: int = 0, least_bytes: int = 0) -> None:
        """Raises ContextFull for texts that fit no context of this size (default: the present one), untokenised."""
        check_length(self.engine.vocabulary, room_tokens or self.engine.context_tokens, texts, least_bytes=least_bytes)

    def open_for(self, text: Said) -> Opened:
        """The open conversation; a new one gets its name from its first message."""
        if self.opened is None:
            keeps = self.policy.save and self.policy.automatic
            self.opened = open_automatic(self.store, content_text(user(text))) if keeps else Opened(self.store, None)
        return self.opened

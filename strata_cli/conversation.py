"""The live chat: one engine, one session directory, and the conversation that is open.

Owns the order of things in a turn: text first, then the plan, the restore, the reading, the reply, the park. It never
prints: what a user should know goes to `say`. How to restore is `restore`, how state is kept is `keeper`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from .branches import copy_lines, give_up_reply, give_up_turns, lines_to, with_turns
from .engine import Cancelled, Engine
from .errors import Bad, NoRoom, Refused, StorageFailed, StrataError, UsageProblem
from .foreign import foreign_of
from .graft import graft
from .head import StateRef
from .history import entries, known_tokens
from .keeper import Keeper
from .log import Log
from .match import boundaries
from .opened import Opened, day_of, open_automatic, open_named, role
from .prompt import Entry, Prompt, Prompter, common, content_text
from .reply import Reply, ReplyOptions, write_reply
from .restore import CannotApply, Live, Restored, RestorePlan, execute, plan_restore
from .reuse import why_not_reused
from .said_lines import Said, user, write_reply_line, write_setup, write_user_line
from .store import Store
from .turn import Notice, NotReused, Policy, TurnResult, UnderWay, Watch
from .worthwhile import Limits, worthwhile

STRICT_CODES = {"bad", "identity", "foreign", "io", "permission", "no_room", "window"}


class Chat:
    """A conversation on an engine. One turn at a time."""

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
        self._today = self._day = day
        self.root_tokens = 0  # the root of the open conversation's last prompt; 0 where it is too short to keep
        self.prompter = Prompter(engine.vocabulary, engine.template)
        self.keeper = Keeper(engine, store, policy, say, model=remembered_model, options=remembered_options)
        self.opened: Opened | None = None
        self._left: dict[str, Opened] = {}
        self._system: str | None = None
        self._tools: Sequence[Any] | None = None

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
        self._system = self._tools = None
        self._day = self._today

    def begin(self, settings: Mapping[str, Any], source: Log) -> None:
        """Go on from where a prefix ends: its system prompt, tools and date, and what was said in it.

        Call `start` first. Raises StorageFailed.
        """
        self._system, self._tools = settings.get("system"), settings.get("tools")
        self._day = day_of(settings) or self._today
        if source.branch():
            opened = self.open_for(next((line.message or {} for line in source.branch() if role(line) == "user"), ""))
            opened.take(graft(opened.log, source, self.store.clock()))

    def open(self, name: str) -> None:
        """Continue a conversation. Raises NotFound, Locked, Bad. What is open stays open if that fails."""
        left = self._left.pop(name, None)
        if left is None or not left.take_back():
            left = open_named(self.store, name, create=False, keep=self.policy.save)
        self.leave_conversation()
        self.opened = left
        self._system, self._tools = left.system, left.tools
        if left.head_fault:
            self.say(Notice("head", f"{left.head_fault}; it is written anew", warning=True))
        if left.lost_lines:
            self.say(Notice("log", f"{name}: the last {left.lost_lines} lines of the text are gone", warning=True))
        for bad in left.log.bad:
            self.say(Notice("log", f"{name}: line {bad.number} of the text cannot be used: {bad.why}", warning=True))

    def set_system(self, text: str | None, tools: Sequence[Any] | None = None) -> None:
        """System prompt and tools of the turns to come. Equal ones have no effect."""
        self._system, self._tools = text, tools

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

    def leave_conversation(self) -> None:
        """Let go of what is open once all of it is written. Raises StorageFailed where text cannot be written."""
        opened, self.opened = self.opened, None
        if opened is None:
            return
        if opened.name is not None:
            self._left[opened.name] = opened
        opened.leave()
        self.keeper.when_written(opened.release)

    def finish(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Leave: text first, then what is still only in memory, as long as the policy waits."""
        try:
            self.leave_conversation()
        finally:
            self.keeper.finish(hurried)
            for left in self._left.values():
                left.release()

    def close(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Leave, and free the engine."""
        try:
            self.finish(hurried)
        finally:
            self.engine.close()

    # -- going back

    def retry_text(self) -> str:
        """Give up the last reply; returns the user's text that waits for another one. Raises UsageProblem."""
        return give_up_reply(with_turns(self.opened, "retry"))

    def undo(self, turns: int) -> tuple[int, str]:
        """Give up the last user turns; returns how many are left and what the first said. Raises UsageProblem."""
        return give_up_turns(with_turns(self.opened, "undo"), turns)

    def fork(self, name: str | None, turn: int | None = None) -> str:
        """Go on in a new conversation that shares all up to a turn (default: all); returns its name.

        Turns are counted from 1, 0 is the root. What is left stays as it is. Raises UsageProblem, Locked.
        """
        opened = with_turns(self.opened, "fork")
        lines = lines_to(opened.answered, turn)
        if name is None:
            first = next(line for line in opened.branch if role(line) == "user")
            forked = open_automatic(self.store, content_text(first.message or {}))
        elif name in self.store.names():
            raise UsageProblem(f"{name} exists already", hint="choose another name for the fork")
        else:
            forked = open_named(self.store, name, create=True, keep=True)
        try:
            copy_lines(forked, lines, opened.setup)
            self.keeper.share_state(opened, forked)
        except BaseException:
            forked.wanted = False
            forked.release()
            raise
        self.leave_conversation()
        self.opened = forked
        assert forked.name is not None
        return forked.name

    # -- a turn

    def prompt_for(self, text: Said) -> Prompt:
        """The prompt of the next turn. Raises Refused where the template cannot say it."""
        past = entries(self.opened, self._system, self.engine.vocabulary)
        return self.prompter.build([*past, Entry(user(text))], tools=self._tools, day=self.day)

    def prompt_as_it_stands(self) -> Prompt:
        """What was said so far, without asking for anything. Raises Refused."""
        past = entries(self.opened, self._system, self.engine.vocabulary)
        whole = self.prompter.build(past, tools=self._tools, day=self.day)
        return replace(whole, tokens=whole.tokens[: whole.boundary], root=min(whole.root, whole.boundary))

    def plan(self, text: Said) -> tuple[Prompt, RestorePlan]:
        """What a turn would keep, apply and read. Touches nothing."""
        prompt = self.prompt_for(text)
        with self.store.shared():
            return prompt, self._plan(prompt, exclude=frozenset())

    def turn(self, text: Said, options: ReplyOptions, watch: Watch, *, strict: bool = False) -> TurnResult:
        """Say `text`, or a message of another role, and get the reply.

        Raises NoRoom before anything is written where it does not fit.
        """
        prompt = self.prompt_for(text)
        self.check_fits(prompt)
        self.root_tokens = self.root_of(prompt)
        way = UnderWay(prompt, tuple(known_tokens(self.opened, self.engine.vocabulary)))
        opened = self.open_for(text)
        if prompt.notes and not opened.branch:
            self.say(Notice("template", "; ".join(prompt.notes)))
        self.write_setup(opened, way)
        self._count(way, lambda: write_user_line(opened, self.engine, text, prompt))
        begun = time.perf_counter()
        plan, restored, not_reused = self.restore(opened, way, watch, strict=strict)
        reply = Reply("", (), "interrupted")
        try:
            self.read_prompt(opened, way, plan.position, watch)
            prompt_ms = (time.perf_counter() - begun) * 1000
            reply = write_reply(self.engine, options, show=watch.show, cancelled=watch.cancelled)
        except Cancelled:
            prompt_ms = (time.perf_counter() - begun) * 1000
        generate_ms = (time.perf_counter() - begun) * 1000 - prompt_ms
        self._finish(opened, way, reply, watch)
        if reply.failed is not None:
            raise reply.failed
        return TurnResult(
            conversation=self.name,
            reply=reply.text,
            reply_tokens=reply.tokens,
            finish=reply.finish,
            prompt_tokens=len(prompt.tokens),
            reused_tokens=plan.position,
            source=plan.source,
            restored=restored,
            not_reused=not_reused,
            ticket=way.ticket,
            prompt_ms=prompt_ms,
            generate_ms=generate_ms,
        )

    # -- the steps of a turn

    def check_fits(self, prompt: Prompt) -> None:
        size, room = len(prompt.tokens), self.engine.context_tokens
        if size >= room:
            raise NoRoom(
                f"the prompt has {size:,} tokens and the context {room:,}: no room for an answer",
                hint=f"--ctx-size {size + 1024}",
            )

    def open_for(self, text: Said) -> Opened:
        """The open conversation; a new one gets its name from its first message."""
        if self.opened is None:
            keeps = self.policy.save and self.policy.automatic
            self.opened = open_automatic(self.store, content_text(user(text))) if keeps else Opened(self.store, None)
        return self.opened

    def write_setup(self, opened: Opened, way: UnderWay) -> None:
        """The settings of the turns to come, where they are new, durable."""
        self._count(way, lambda: write_setup(opened, self.engine, self.day, self._system, self._tools))

    def _count(self, way: UnderWay, write: Callable[[], int]) -> None:
        """Add what `write` wrote to the turn's account."""
        parked = way.ticket.parked
        way.ticket.parked = replace(parked, bytes_written=parked.bytes_written + write())

    def _plan(self, prompt: Prompt, exclude: frozenset[Path]) -> RestorePlan:
        limit = len(prompt.tokens) - 1
        mine = self.keeper.foreign_for in (None, self.name)
        agrees = min(common(self.engine.tokens, prompt.tokens), limit) if mine else 0
        live = Live(agrees, agrees if self.engine.can_cut(agrees) else 0)
        digest, memory = self.engine.identity.digest, self.engine.memory
        stored = boundaries(self.keeper.shelf, digest, prompt.tokens, memory, limit, exclude=exclude)
        limits = Limits(self.policy.min_tokens, self.policy.n_min_tokens, self.policy.similarity)
        pins = {*(self.opened.head.pins if self.opened and self.opened.head else ()), self.root_of(prompt)}
        return plan_restore(
            prompt.tokens, live, worthwhile(stored, len(prompt.tokens), limits, self.store, pins), memory
        )

    def restore(
        self, opened: Opened, way: UnderWay, watch: Watch, *, strict: bool = False
    ) -> tuple[RestorePlan, Restored, NotReused | None]:
        """Bring the engine as far as what is stored reaches, and let the head name it.

        Nothing is swept meanwhile. Raises Bad or Refused where `strict` and state that is there cannot be used.
        """
        with self.store.shared():
            plan, restored = self._restore(opened, way, watch, strict=strict)
            not_reused = self._why_not_reused(opened, way, plan)
            if strict and not_reused is not None and not_reused.code in STRICT_CODES:
                raise strict_error(not_reused)
            self._tell(plan, restored, not_reused, way)
            self._count(way, lambda: self.keeper.name_state(opened))
        return plan, restored, not_reused

    def _restore(self, opened: Opened, way: UnderWay, watch: Watch, *, strict: bool) -> tuple[RestorePlan, Restored]:
        """Plan and execute; each file that cannot be used is left out of the next plan."""
        exclude: frozenset[Path] = frozenset()
        while True:
            plan = self._plan(way.prompt, exclude)
            watch.planned(plan)
            try:
                restored = execute(plan, self.engine, self.keeper.shelf, foreign_of(opened.head).files, owner=self.name)
            except CannotApply as error:
                exclude |= set(error.paths)
                way.failures.append(NotReused(error.reason, error.message, plan.position))
                self.keeper.set_aside(error)
                if strict and error.reason in STRICT_CODES:
                    raise strict_error(way.failures[-1]) from error
                continue
            self.keeper.stands_on(opened, plan, restored)
            return plan, restored

    def _why_not_reused(self, opened: Opened, way: UnderWay, plan: RestorePlan) -> NotReused | None:
        failures = list(way.failures)
        if (trouble := self.keeper.shelf.trouble) is not None:
            failures.append(NotReused(trouble.reason, trouble.message, plan.position))
        return why_not_reused(
            way.prompt.tokens,
            plan.position,
            way.known,
            failures=failures,
            head=opened.head,
            identity=self.engine.identity,
            memory=self.engine.memory,
            min_tokens=self.policy.min_tokens,
        )

    def _tell(self, plan: RestorePlan, restored: Restored, not_reused: NotReused | None, way: UnderWay) -> None:
        if plan.uses:
            name = self.name if way.known else "what is shared"
            self.say(Notice("restored", f"restored {plan.position:,} tokens from {name} in {restored.ms:.0f} ms"))
        if not_reused is not None:
            text = f"reused {plan.position:,} of {len(way.known):,} tokens, reading the rest: {not_reused.message}"
            self.say(Notice(not_reused.code, text, warning=not_reused.code not in ("below_minimum", "rewritten")))

    def read_prompt(self, opened: Opened, way: UnderWay, position: int, watch: Watch, *, asked: bool = False) -> None:
        """Read the rest of the prompt, stopping at the root and at the prompt's end. Raises Cancelled.

        What was `asked` for is kept whatever its length.
        """
        prompt = way.prompt
        total = len(prompt.tokens)
        stops = [stop for stop in self._stops(prompt) if stop > position]
        for stop in [*stops, total]:

            def progress(done: int, _: int, base: int = position) -> None:
                if watch.progress is not None:
                    watch.progress(base + done, total)

            self.engine.read(prompt.tokens[position:stop], progress=progress, cancelled=watch.cancelled)
            position = stop
            if stop in stops and (asked or total >= self.policy.min_tokens):
                is_root = stop == prompt.root
                reason = "root" if is_root else "prompt"
                self.keeper.capture(opened, way.ticket, reason, rows=is_root, root=self.root_of(prompt), asked=asked)

    def _stops(self, prompt: Prompt) -> list[int]:
        return sorted({self.root_of(prompt), prompt.boundary} - {0})

    def root_of(self, prompt: Prompt) -> int:
        """The root where it is long enough to keep, else 0."""
        return prompt.root if prompt.root >= max(1, self.policy.root_min_tokens) else 0

    def _finish(self, opened: Opened, way: UnderWay, reply: Reply, watch: Watch) -> None:
        """Text first, then the state, then the head. A state that cannot be stored costs reading time later."""
        if not reply.tokens and reply.finish == "interrupted":
            way.ticket.done.set()
            return
        try:
            self._count(way, lambda: write_reply_line(opened, self.engine, way.prompt, reply))
        except StorageFailed as error:
            self.say(Notice("text", f"the reply is not stored yet: {error.message}", warning=True))
        if len(self.engine.tokens) < self.policy.min_tokens:
            way.ticket.parked = replace(way.ticket.parked, skipped="below_minimum")
        elif watch.hurried():
            way.ticket.parked = replace(way.ticket.parked, skipped="failed")
        else:
            root = self.root_of(way.prompt)
            if not self.engine.memory.has_parts:
                self.keeper.capture(opened, way.ticket, "root", end=root)
            self.keeper.capture(opened, way.ticket, "reply", root=root)
        self.keeper.hand_over(opened, way.ticket, root=self.root_of(way.prompt), prompt=way.prompt.boundary)


def strict_error(not_reused: NotReused) -> StrataError:
    """What `--strict` ends with: 12 for what is bad, 13 for what is refused."""
    if not_reused.code == "bad":
        return Bad(not_reused.message, hint="strata inspect --verify")
    return Refused(not_reused.message, reason=not_reused.code, hint="without --strict the turn reads it again")

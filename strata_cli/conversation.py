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
from .history import entries, known_tokens
from .keeper import Keeper
from .match import boundaries
from .opened import Opened, open_automatic, open_named, role
from .prompt import Entry, Prompt, Prompter, common, content_text
from .reply import Reply, ReplyOptions, write_reply
from .restore import CannotApply, Live, Restored, RestorePlan, execute, plan_restore
from .reuse import why_not_reused
from .store import Store
from .turn import Notice, NotReused, Policy, TurnResult, UnderWay, Watch

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
        self._day = day
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
        for bad in left.log.bad:
            self.say(Notice("log", f"{name}: line {bad.number} of the text cannot be used: {bad.why}", warning=True))

    def set_system(self, text: str | None, tools: Sequence[Any] | None = None) -> None:
        """System prompt and tools of the turns to come. Equal ones have no effect."""
        self._system, self._tools = text, tools

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

    def prompt_for(self, text: str) -> Prompt:
        """The prompt of the next turn. Raises Refused where the template cannot say it."""
        past = entries(self.opened, self._system, self.engine.vocabulary)
        return self.prompter.build([*past, Entry(user(text))], tools=self._tools, day=self._conversation_day)

    def plan(self, text: str) -> tuple[Prompt, RestorePlan]:
        """What a turn would keep, apply and read. Touches nothing."""
        prompt = self.prompt_for(text)
        with self.store.shared():
            return prompt, self._plan(prompt, exclude=frozenset())

    def turn(self, text: str, options: ReplyOptions, watch: Watch, *, strict: bool = False) -> TurnResult:
        """Say `text` and get the reply. Raises NoRoom before anything is written where it does not fit."""
        prompt = self.prompt_for(text)
        self._check_fits(prompt)
        way = UnderWay(prompt, tuple(known_tokens(self.opened, self.engine.vocabulary)))
        opened = self._open_for(text)
        self._write_user_line(opened, text, way)
        begun = time.perf_counter()
        with self.store.shared():
            plan, restored, not_reused = self._restore(opened, way, watch, strict=strict)
            self._count(way, lambda: self.keeper.name_state(opened))
        reply = Reply("", (), "interrupted")
        try:
            self._read_prompt(opened, way, plan.position, watch)
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

    @property
    def _conversation_day(self) -> date:
        return (self.opened.day if self.opened else None) or self._day

    def _check_fits(self, prompt: Prompt) -> None:
        size, room = len(prompt.tokens), self.engine.context_tokens
        if size >= room:
            raise NoRoom(
                f"the prompt has {size:,} tokens and the context {room:,}: no room for an answer",
                hint=f"--ctx-size {size + 1024}",
            )

    def _open_for(self, text: str) -> Opened:
        if self.opened is None:
            keeps = self.policy.save and self.policy.automatic
            self.opened = open_automatic(self.store, text) if keeps else Opened(self.store, None)
        return self.opened

    def _write_user_line(self, opened: Opened, text: str, way: UnderWay) -> None:
        """The setup where it changed, and the user's line, durable; a line that already waits is answered instead."""
        setup: dict[str, Any] = {
            "date": self._conversation_day.isoformat(),
            "template": self.engine.template.origin,
        }
        setup |= {"system": self._system} if self._system else {}
        setup |= {"tools": list(self._tools)} if self._tools else {}
        waiting, parent = opened.unanswered, opened.answered[-1].id if opened.answered else None
        if dict(opened.setup) != setup:
            self._count(way, lambda: opened.append(parent=parent, kind="setup", settings=setup))
        same = waiting is not None and content_text(waiting.message or {}) == text
        if same and waiting is not None and opened.log.tokens(waiting.id) == way.prompt.tokens:
            return
        if way.prompt.notes:
            self.say(Notice("template", "; ".join(way.prompt.notes)))
        before = opened.log.tokens(parent) if parent is not None else ()
        start = common(before, way.prompt.tokens)
        line: dict[str, Any] = {"parent": parent, "kind": "message", "message": user(text), "start": start}
        line |= {"tokens": way.prompt.tokens[start:], "tokenizer": self.engine.vocabulary.digest}
        self._count(way, lambda: opened.append(**line))

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
        wanted = [each for each in stored if each.position >= self.policy.min_tokens or self.keeper.asked_for(each)]
        return plan_restore(prompt.tokens, live, wanted, memory)

    def _restore(
        self, opened: Opened, way: UnderWay, watch: Watch, *, strict: bool
    ) -> tuple[RestorePlan, Restored, NotReused | None]:
        """Plan and execute; each file that cannot be used is left out of the next plan."""
        exclude: frozenset[Path] = frozenset()
        while True:
            plan = self._plan(way.prompt, exclude)
            watch.planned(plan)
            if strict and way.failures:
                break
            try:
                restored = execute(plan, self.engine, self.keeper.shelf, foreign_of(opened.head).files, owner=self.name)
            except CannotApply as error:
                exclude |= set(error.paths)
                way.failures.append(NotReused(error.reason, error.message, plan.position))
                self.keeper.set_aside(error)
                continue
            self.keeper.stands_on(opened, plan, restored)
            break
        not_reused = self._why_not_reused(opened, way, plan)
        if strict and not_reused is not None and not_reused.code in STRICT_CODES:
            raise strict_error(not_reused)
        self._tell(plan, restored, not_reused, way)
        return plan, restored, not_reused

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

    def _read_prompt(self, opened: Opened, way: UnderWay, position: int, watch: Watch) -> None:
        """Read the rest of the prompt, stopping at the root and at the prompt's end. Raises Cancelled."""
        prompt = way.prompt
        total = len(prompt.tokens)
        stops = [stop for stop in self._stops(prompt) if stop > position]
        for stop in [*stops, total]:

            def progress(done: int, _: int, base: int = position) -> None:
                if watch.progress is not None:
                    watch.progress(base + done, total)

            self.engine.read(prompt.tokens[position:stop], progress=progress, cancelled=watch.cancelled)
            position = stop
            if stop in stops and total >= self.policy.min_tokens:
                is_root = stop == prompt.root
                reason = "root" if is_root else "prompt"
                self.keeper.capture(opened, way.ticket, reason, rows=is_root, root=self._root(prompt))

    def _stops(self, prompt: Prompt) -> list[int]:
        return sorted({self._root(prompt), prompt.boundary} - {0})

    def _root(self, prompt: Prompt) -> int:
        return prompt.root if prompt.root >= max(1, self.policy.root_min_tokens) else 0

    def _finish(self, opened: Opened, way: UnderWay, reply: Reply, watch: Watch) -> None:
        """Text first, then the state, then the head. A state that cannot be stored costs reading time later."""
        if not reply.tokens and reply.finish == "interrupted":
            way.ticket.done.set()
            return
        line = {
            "parent": opened.branch[-1].id if opened.branch else None,
            "kind": "message",
            "message": {"role": "assistant", "content": reply.text},
            "tokens": reply.tokens,
            "start": len(way.prompt.tokens),
            "tokenizer": self.engine.vocabulary.digest,
            "marks": ("interrupted",) if reply.finish == "interrupted" else (),
        }
        try:
            self._count(way, lambda: opened.append(**line))
        except StorageFailed as error:
            self.say(Notice("text", f"the reply is not stored yet: {error.message}", warning=True))
        if len(self.engine.tokens) < self.policy.min_tokens:
            way.ticket.parked = replace(way.ticket.parked, skipped="below_minimum")
        elif watch.hurried():
            way.ticket.parked = replace(way.ticket.parked, skipped="failed")
        else:
            root = self._root(way.prompt)
            if not self.engine.memory.has_parts:
                self.keeper.capture(opened, way.ticket, "root", end=root)
            self.keeper.capture(opened, way.ticket, "reply", root=root)
        self.keeper.hand_over(opened, way.ticket, root=self._root(way.prompt), prompt=way.prompt.boundary)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def strict_error(not_reused: NotReused) -> StrataError:
    """What `--strict` ends with: 12 for what is bad, 13 for what is refused."""
    if not_reused.code == "bad":
        return Bad(not_reused.message, hint="strata inspect --verify")
    return Refused(not_reused.message, reason=not_reused.code, hint="without --strict the turn reads it again")

"""The live chat: one engine, one session directory, and the conversation that is open.

Owns the order of things in a turn: text first, then the plan, the restore, the reading, the reply, the park. It never
prints: what a user should know goes to `say`. How to restore is `restore`, how state is kept is `keeper`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .current import Current
from .engine import Cancelled
from .errors import Bad, Refused, StorageFailed, StrataError
from .foreign import foreign_of
from .full_context import drop_to_fit, larger_context, nearly_full, no_room, too_long_alone
from .handover import Ticket
from .history import entries, known_tokens
from .match import boundaries
from .opened import Opened
from .prompt import Entry, Prompt, common, content_text
from .reply import Reply, ReplyOptions, write_reply
from .restore import CannotApply, Live, Restored, RestorePlan, execute, plan_restore
from .reuse import why_not_reused
from .said_lines import Said, user, write_reply_line, write_setup, write_user_line
from .turn import Notice, NotReused, TurnResult, UnderWay, Watch
from .worthwhile import Limits, at_the_root, without_stray, worthwhile

LONG_BYTES = 1 << 16  # tokenised in less than a second, whatever it is
ANY_TOKENS = 1 << 30
STRICT_CODES = {"bad", "identity", "foreign", "io", "permission", "no_room", "window"}


class Chat(Current):
    """A conversation on an engine. One turn at a time.

    `restores` false: the turns to come use what the engine holds and nothing that is stored (A5).
    """

    restores = True

    def prompt_for(self, text: Said, room_tokens: int = 0) -> Prompt:
        """The prompt of the next turn. Raises Refused where the template cannot say it, ContextFull for a text that
        cannot fit `room_tokens` (default: the context)."""
        spoken = (self._system or "", content_text(user(text)))
        # Most long texts are found too long when they are tokenised, which says by how much.
        self.check_length(spoken, room_tokens=room_tokens, least_bytes=LONG_BYTES)
        past = entries(self.opened, self._system, self.engine.vocabulary, self._dropped)
        return self.prompter.build([*past, Entry(user(text))], tools=self._tools, day=self.day)

    def prompt_as_it_stands(self) -> Prompt:
        """What was said so far, without asking for anything. Raises Refused."""
        past = entries(self.opened, self._system, self.engine.vocabulary, self._dropped)
        whole = self.prompter.build(past, tools=self._tools, day=self.day)
        return replace(whole, tokens=whole.tokens[: whole.boundary], root=min(whole.root, whole.boundary))

    def plan(self, text: Said) -> tuple[Prompt, RestorePlan]:
        """What a turn would keep, apply and read. Touches nothing."""
        prompt = self.prompt_for(text)
        with self.store.shared():
            return prompt, self._plan(prompt, exclude=frozenset())

    def why_not_reused(self, prompt: Prompt, plan: RestorePlan) -> NotReused | None:
        """What a turn would say of its plan: why it reads more than what is new. None for a new conversation."""
        if self.opened is None:
            return None
        way = UnderWay(prompt, tuple(known_tokens(self.opened, self.engine.vocabulary)))
        return self._why_not_reused(self.opened, way, plan)

    def turn(self, text: Said, options: ReplyOptions, watch: Watch, *, strict: bool = False) -> TurnResult:
        """Say `text`, or a message of another role, and get the reply.

        Raises NoRoom before anything is written where it does not fit.
        """
        prompt = self._fitting(text, options.on_full)
        self.root_tokens = self.root_of(prompt)
        way = UnderWay(prompt, tuple(known_tokens(self.opened, self.engine.vocabulary)))
        opened = self.open_for(text)
        if prompt.notes and not opened.branch:
            self.say(Notice("template", "; ".join(prompt.notes)))
        self.write_setup(opened, way)
        self._count(way, lambda: write_user_line(opened, self.engine, text, prompt))
        begun, before = time.perf_counter(), self.keeper.unwritten()
        plan, restored, not_reused = self.restore(opened, way, watch, strict=strict)
        reply = Reply("", (), "interrupted")
        try:
            self.read_prompt(opened, way, plan.position, watch)
            prompt_ms = (time.perf_counter() - begun) * 1000
            reply = write_reply(
                self.engine,
                options,
                show=watch.show,
                cancelled=watch.cancelled,
                make_room=lambda: self._make_room(options),
            )
        except Cancelled:
            prompt_ms = (time.perf_counter() - begun) * 1000
        generate_ms = (time.perf_counter() - begun) * 1000 - prompt_ms
        self._finish(opened, way, reply, watch, before)
        if nearly_full(len(self.engine.tokens), plan.position, self.engine.context_tokens):
            held, room = len(self.engine.tokens), self.engine.context_tokens
            told = f"{held:,} of {room:,} tokens of the context are used; --on-full says what happens at the end"
            self.say(Notice("context", told, warning=True))
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
        """Raises NoRoom where no token of an answer would fit."""
        if len(prompt.tokens) >= self.engine.context_tokens:
            raise no_room(len(prompt.tokens), self.engine.context_tokens)

    def _fitting(self, text: Said, on_full: str) -> Prompt:
        """The prompt of the next turn, after the context or the prompt was made to fit. Raises NoRoom."""
        room = self.engine.context_tokens
        grown = max(room, self.engine.model.trained_tokens or ANY_TOKENS) if on_full == "grow" else room
        prompt = self.prompt_for(text, grown)
        if len(prompt.tokens) < room or on_full == "stop":
            self.check_fits(prompt)
            return prompt
        if on_full == "grow":
            self.grow(larger_context(len(prompt.tokens), room, self.engine.model.trained_tokens))
            return self.prompt_for(text)
        self._drop_oldest(text)
        shorter = self.prompt_for(text)
        if len(shorter.tokens) >= room:
            raise too_long_alone(len(shorter.tokens), room)
        return shorter

    def _drop_oldest(self, text: Said) -> None:
        """Leave the oldest turns out of what the engine reads; the text keeps them."""
        lines = self.opened.answered if self.opened else ()
        past = entries(self.opened, self._system, self.engine.vocabulary, None)
        first = len(past) - len(lines)

        def size_without(count: int) -> int:
            kept = [*past[:first], *past[first + count :], Entry(user(text))]
            return len(self.prompter.build(kept, tools=self._tools, day=self.day).tokens)

        self._dropped = drop_to_fit(lines, size_without, self.engine.context_tokens)
        if self._dropped is not None:
            gone = sum(1 for line in lines if line.id <= self._dropped)
            told = f"the context is full: the oldest {gone} messages are left out, and the rest is read again"
            self.say(Notice("context", told, warning=True))

    def grow(self, context_tokens: int) -> None:
        """Exchange the context for one of this size; what is held comes back without being read again.

        Raises NoRoom, ModelUnavailable with the old context in place.
        """
        tokens, before = tuple(self.engine.tokens), self.engine.identity
        if self.opened is not None:
            self.keeper.capture(self.opened, Ticket(), "grow", asked=True)
        self.engine.grow(context_tokens)
        self.keeper.context_grew()
        self.say(Notice("context", f"the context has {context_tokens:,} tokens now"))
        if before.digest != self.engine.identity.digest:
            told = "the model's RoPE factors change at this size: what was read before is read again"
            self.say(Notice("identity", told, warning=True))
        if self.opened is not None and tokens:
            self._bring_back(self.opened, tokens)

    def _make_room(self, options: ReplyOptions) -> bool:
        """In the middle of a reply: grow where that was chosen and can be done."""
        if options.on_full != "grow":
            return False
        room = self.engine.context_tokens
        try:
            self.grow(larger_context(room, room, self.engine.model.trained_tokens))
        except StrataError as error:
            self.say(Notice("context", f"the context could not grow: {error.message}", warning=True))
            return False
        return len(self.engine.tokens) == room

    def _bring_back(self, opened: Opened, tokens: Sequence[int]) -> None:
        """Restore exactly these tokens, and read what of them is not stored."""
        whole = UnderWay(Prompt(tuple(tokens), len(tokens), 0, (), None, ()), ())
        with self.store.shared():
            plan, _ = self._restore(opened, whole, Watch(), strict=False, limit=len(tokens))
        self.engine.read(tokens[plan.position :])

    def write_setup(self, opened: Opened, way: UnderWay) -> None:
        """The settings of the turns to come, where they are new, durable."""
        self._count(way, lambda: write_setup(opened, self.engine, self.day, self._system, self._tools, self._dropped))

    def _count(self, way: UnderWay, write: Callable[[], int]) -> None:
        """Add what `write` wrote to the turn's account."""
        parked = way.ticket.parked
        way.ticket.parked = replace(parked, bytes_written=parked.bytes_written + write())

    def _plan(self, prompt: Prompt, exclude: frozenset[Path], limit: int | None = None) -> RestorePlan:
        limit = len(prompt.tokens) - 1 if limit is None else limit
        mine = self.keeper.foreign_for in (None, self.name)
        agrees = min(common(self.engine.tokens, prompt.tokens), limit) if mine else 0
        fresh = limit < len(prompt.tokens) and not (self.opened and self.opened.answered)
        usable = without_stray(agrees, prompt.root) if fresh else agrees
        live = Live(agrees, usable if self.engine.can_cut(usable) else 0)
        digest, memory = self.engine.identity.digest, self.engine.memory
        shelf = self.keeper.shelf
        stored = boundaries(shelf, digest, prompt.tokens, memory, limit, exclude=exclude) if self.restores else []
        stored = at_the_root(stored, prompt.root) if fresh else stored
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

    def _restore(
        self, opened: Opened, way: UnderWay, watch: Watch, *, strict: bool, limit: int | None = None
    ) -> tuple[RestorePlan, Restored]:
        """Plan and execute; each file that cannot be used is left out of the next plan."""
        exclude: frozenset[Path] = frozenset()
        while True:
            plan = self._plan(way.prompt, exclude, limit)
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
            kept = stop in (self.root_of(prompt), prompt.boundary)
            if kept and (asked or total >= self.policy.min_tokens):
                is_root = stop == prompt.root
                reason = "root" if is_root else "prompt"
                self.keeper.capture(opened, way.ticket, reason, rows=is_root, root=self.root_of(prompt), asked=asked)

    def _stops(self, prompt: Prompt) -> list[int]:
        """Where reading pauses: also at a root that is too short to keep, so that equal prompts are read equally."""
        return sorted({prompt.root, prompt.boundary} - {0})

    def root_of(self, prompt: Prompt) -> int:
        """The root where it is long enough to keep, else 0."""
        return prompt.root if prompt.root >= max(1, self.policy.root_min_tokens) else 0

    def _finish(self, opened: Opened, way: UnderWay, reply: Reply, watch: Watch, before: frozenset[Path]) -> None:
        """Text first, then the state, then the head. A state that cannot be stored costs reading time later."""
        if not reply.tokens and reply.finish == "interrupted":
            # Kept while the conversation is open: the same prompt, asked again, goes on from here.
            self._before_cancelled = self._before_cancelled if self._before_cancelled is not None else before
            way.ticket.done.set()
            return
        self._before_cancelled = None
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
            self.keeper.capture(opened, way.ticket, "reply", root=root, behind=True)
        self.keeper.hand_over(opened, way.ticket, root=self.root_of(way.prompt), prompt=way.prompt.boundary)


def strict_error(not_reused: NotReused) -> StrataError:
    """What `--strict` ends with: 12 for what is bad, 13 for what is refused."""
    if not_reused.code == "bad":
        return Bad(not_reused.message, hint="strata inspect --verify")
    return Refused(not_reused.message, reason=not_reused.code, hint="without --strict the turn reads it again")

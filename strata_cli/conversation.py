"""The live chat: one engine, one session directory, and the conversation that is open.

Owns the order of things in a turn: text first, then the plan, the restore, the reading, the reply, the park. It never
prints: what a user should know goes to `say`. How to restore is `restore`, how to store is `park`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from .engine import Buffer, Cancelled, Engine, Rebuild
from .errors import Bad, BelowFloor, NoRoom, Refused, StorageFailed, StrataError, UsageProblem
from .foreign import Foreign, also_foreign, foreign_of, honest, with_foreign
from .graft import graft
from .head import StateRef
from .identity import differences
from .log import Line, Log
from .match import boundaries
from .opened import GIVEN, Opened, day_of, open_automatic, open_named, role
from .park import Chain, Parked, Parker
from .prompt import Entry, Prompt, Prompter, common, content_text
from .reply import Reply, ReplyOptions, write_reply
from .restore import CannotApply, Live, Restored, RestorePlan, execute, plan_restore
from .sizes import format_bytes
from .store import Store
from .worthwhile import Limits, worthwhile

STRICT_CODES = {"bad", "identity", "foreign", "io", "permission", "no_room", "window"}
Said = str | Mapping[str, Any]  # a user's text, or a whole message
NEVER: Callable[[], bool] = lambda: False  # noqa: E731


@dataclass(frozen=True)
class Policy:
    """What is written by itself. `save` false writes nothing at all; `automatic` false only what has a name."""

    save: bool = True
    automatic: bool = True
    min_tokens: int = 512
    root_min_tokens: int = 256
    n_min_tokens: int = 0
    similarity: float = 0.0


@dataclass(frozen=True)
class Notice:
    """Something that a user should know, in one line. `code` is stable, `warning` says whether it is one."""

    code: str
    text: str
    warning: bool = False


@dataclass(frozen=True)
class NotReused:
    """Why less was reused than the conversation had: a code of the contract, a sentence, the first token concerned."""

    code: str
    message: str
    at_token: int


@dataclass(frozen=True)
class TurnResult:
    """One finished turn, as the envelope tells it. Durations are milliseconds."""

    conversation: str | None
    reply: str
    reply_tokens: tuple[int, ...]
    finish: str
    prompt_tokens: int
    reused_tokens: int
    source: str
    restored: Restored
    not_reused: NotReused | None
    parked: Parked
    prompt_ms: float
    generate_ms: float


@dataclass
class Watch:
    """What a turn tells while it runs, and how it is asked to stop."""

    show: Callable[[str], None] = lambda _: None
    progress: Callable[[int, int], None] | None = None
    cancelled: Callable[[], bool] = NEVER
    hurried: Callable[[], bool] = NEVER
    planned: Callable[[RestorePlan], None] = lambda _: None


@dataclass
class Account:
    """What a turn has found out so far about what could not be reused, and what it has written."""

    failures: list[NotReused] = field(default_factory=list)
    bytes_written: int = 0


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
        self.make_room: Callable[[int], bool] = lambda _: False
        self.root_tokens = 0  # the root of the open conversation's last prompt; 0 where it is too short to keep
        self.prompter = Prompter(engine.vocabulary, engine.template)
        self._parker = Parker(engine, store, store.clock)
        self._chain = Chain()
        self._foreign_for: str | None = None  # the conversation for which state from elsewhere is in the engine
        self.opened: Opened | None = None
        self._system: str | None = None
        self._tools: Sequence[Any] | None = None

    # -- which conversation

    @property
    def name(self) -> str | None:
        return self.opened.name if self.opened else None

    def start(self, name: str | None = None) -> None:
        """A new conversation; nothing is on disk before its first message. Raises Locked where NAME is held."""
        self.close_conversation()
        if name is not None:
            self.opened = open_named(self.store, name, create=True, keep=self.policy.save)
        self._system = self._tools = None
        self._day = self._today

    @property
    def day(self) -> date:
        """The day that templates are told."""
        return self._conversation_day

    def begin(self, settings: Mapping[str, Any], source: Log) -> None:
        """Go on from where a prefix ends: its system prompt, tools and date, and what was said in it.

        Call `start` first. Raises StorageFailed.
        """
        self._system, self._tools = settings.get("system"), settings.get("tools")
        self._day = day_of(settings) or self._today
        if not source.branch():
            return
        self._open_for(next((line.message or {} for line in source.branch() if role(line) == "user"), ""))
        assert self.opened is not None
        self.opened.take(graft(self.opened.log, source, self.store.clock()))

    def open(self, name: str) -> None:
        """Continue a conversation. Raises NotFound, Locked, Bad. What is open stays open if that fails."""
        opened = open_named(self.store, name, create=False, keep=self.policy.save)
        self.close_conversation()
        self.opened = opened
        self._system, self._tools = opened.system, opened.tools
        if opened.head_fault:
            self.say(Notice("head", f"{opened.head_fault}; it is written anew", warning=True))
        if opened.lost_lines:
            self.say(Notice("log", f"{name}: the last {opened.lost_lines} lines of the text are gone", warning=True))
        for bad in opened.log.bad:
            self.say(Notice("log", f"{name}: line {bad.number} of the text cannot be used: {bad.why}", warning=True))

    @property
    def system(self) -> str | None:
        return self._system

    @property
    def tools(self) -> Sequence[Any] | None:
        return self._tools

    def set_system(self, text: str | None, tools: Sequence[Any] | None = None) -> None:
        """System prompt and tools of the turns to come. Equal ones have no effect."""
        self._system, self._tools = text, tools

    @property
    def has_state(self) -> bool:
        """Whether the open conversation's head names state already."""
        return self.opened is not None and self.opened.head is not None and bool(self.opened.head.states)

    def stored(self, position: int) -> StateRef | None:
        """The files that hold the first `position` tokens; None where that place is no boundary on the disk."""
        memory, chain = self.engine.memory, self._chain.cut(position)
        whole = (not memory.has_rows or chain.rows_end == position) and (
            not memory.has_parts or chain.parts_end == position
        )
        if not position or not whole or self._foreign_for is not None or not self._stores_state:
            return None
        return StateRef(self.engine.identity.fields(), chain.rows, chain.parts, position)

    def pin(self, watch: Watch) -> tuple[Prompt, StateRef | None]:
        """Make where the conversation stands a boundary that is kept, whatever its length (P3).

        Raises UsageProblem where nothing was said yet, NoRoom, Cancelled, StorageFailed.
        """
        if self.opened is None or not self.opened.answered:
            raise UsageProblem("nothing was said yet that could be pinned")
        policy = self.policy
        try:
            prompt, _, _ = self.absorb(watch)
            position, opened = len(prompt.tokens), self.opened
            if opened.head is not None and position not in opened.head.pins:
                opened.write_head(replace(opened.head, pins=tuple(sorted({*opened.head.pins, position}))))
            return prompt, self.stored(position)
        finally:
            self.policy = policy

    def close_conversation(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None

    def close(self) -> None:
        self.close_conversation()
        self.engine.close()

    # -- a turn

    def prompt_for(self, text: Said) -> Prompt:
        """The prompt of the next turn. Raises Refused where the template cannot say it."""
        return self.prompter.build([*self._entries(), Entry(user(text))], tools=self._tools, day=self._conversation_day)

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
        self._check_fits(prompt)
        self.root_tokens = self._root_of(prompt)
        account = Account()
        known = self._known_tokens()
        self._open_for(text)
        self._write_user_line(text, prompt, account)
        begun = time.perf_counter()
        with self.store.shared():
            plan, restored = self._restore(prompt, watch, account)
            not_reused = self._not_reused(prompt, plan, known, account)
            if strict and not_reused is not None and not_reused.code in STRICT_CODES:
                raise strict_error(not_reused)
            self._tell(plan, restored, not_reused, known)
            self._write_head(account, turn_done=False)
        reply = Reply("", (), "interrupted")
        parked = Parked(skipped="unchanged")
        try:
            parked = self._read_prompt(prompt, plan.position, watch)
        except Cancelled:
            prompt_ms, generate_ms = (time.perf_counter() - begun) * 1000, 0.0
        else:
            prompt_ms = (time.perf_counter() - begun) * 1000
            reply = write_reply(self.engine, options, show=watch.show, cancelled=watch.cancelled)
            generate_ms = (time.perf_counter() - begun) * 1000 - prompt_ms
            parked = self._finish(prompt, reply, parked, watch, account)
        result = TurnResult(
            conversation=self.name,
            reply=reply.text,
            reply_tokens=reply.tokens,
            finish=reply.finish,
            prompt_tokens=len(prompt.tokens),
            reused_tokens=plan.position,
            source=plan.source,
            restored=restored,
            not_reused=not_reused,
            parked=replace(parked, bytes_written=parked.bytes_written + account.bytes_written),
            prompt_ms=prompt_ms,
            generate_ms=generate_ms,
        )
        if reply.failed is not None:
            raise reply.failed
        return result

    # -- messages that come as history

    def give(self, messages: Sequence[Mapping[str, Any]], *, after: int | None = None, back: bool = False) -> None:
        """Take messages as said, without asking for replies. With `back` they follow line `after`, not the last one.

        Raises StorageFailed.
        """
        self._open_for(next((m for m in messages if m.get("role") == "user"), ""))
        opened = self.opened
        assert opened is not None
        if back and opened.log.tip != after:
            opened.append(parent=after, kind="back")
        for message in messages:
            parent = opened.answered[-1].id if opened.answered else None
            opened.append(parent=parent, kind="message", message=dict(message), marks=(GIVEN,))

    def absorb(self, watch: Watch) -> tuple[Prompt, RestorePlan, Parked]:
        """Read the conversation as it stands and park it, whatever its length, without asking for a reply.

        Raises NoRoom, Cancelled, StorageFailed.
        """
        whole = self.prompter.build(self._entries(), tools=self._tools, day=self._conversation_day)
        prompt = replace(whole, tokens=whole.tokens[: whole.boundary], root=min(whole.root, whole.boundary))
        self._check_fits(prompt)
        account, self.policy = Account(), replace(self.policy, min_tokens=0, automatic=True)
        self._write_setup(account)
        with self.store.shared():
            plan, _ = self._restore(prompt, watch, account)
            parked = self._read_prompt(prompt, plan.position, watch).plus(self._park("asked"))
            self._write_head(account, turn_done=True, tokens=len(prompt.tokens))
        return prompt, plan, replace(parked, bytes_written=parked.bytes_written + account.bytes_written)

    def adopt(self, tokens: Sequence[int], state: Buffer, *, own: bool) -> Parked:
        """Put a whole state that was checked into the engine and park it for the open conversation.

        Raises EngineFailed with the engine emptied, StorageFailed.
        """
        self._chain = Chain()
        self.engine.rebuild(Rebuild(tokens, 0, rows=[state]))
        self._foreign_for = None if own else self.name
        self._parker.own = own
        account, self.policy = Account(), replace(self.policy, min_tokens=0, automatic=True)
        parked = self._park("file")
        self._write_head(account, turn_done=True, tokens=len(tokens))
        return replace(parked, bytes_written=parked.bytes_written + account.bytes_written)

    # -- the steps of a turn

    def _entries(self) -> list[Entry]:
        """The messages so far, with the tokens of replies that this tokenizer made."""
        entries = [Entry({"role": "system", "content": self._system})] if self._system else []
        digest = self.engine.vocabulary.digest
        for line in self.opened.answered if self.opened else ():
            sampled = role(line) == "assistant" and line.tokenizer == digest and GIVEN not in line.marks
            entries.append(Entry(line.message or {}, line.tokens if sampled and self._believes(line) else None))
        return entries

    @property
    def _foreign(self) -> Foreign:
        return foreign_of(self.opened.head if self.opened else None)

    def _believes(self, line: Line) -> bool:
        """Token ids that came with a file count only as far as they say the text that came with them (B16)."""
        if not self._foreign.covers(line.id):
            return True
        vocabulary, tokens = self.engine.vocabulary, line.tokens
        if any(token >= len(vocabulary) for token in tokens):
            return False
        specials = [vocabulary.is_special(token) or vocabulary.is_end(token) for token in tokens]
        return honest([vocabulary.piece(token) for token in tokens], specials, content_text(line.message or {}))

    @property
    def _conversation_day(self) -> date:
        return (self.opened.day if self.opened else None) or self._day

    def _known_tokens(self) -> tuple[int, ...]:
        """What the engine had read of this conversation up to its last reply, in this tokenizer's ids."""
        answered = self.opened.answered if self.opened else ()
        if not answered or answered[-1].tokenizer != self.engine.vocabulary.digest:
            return ()
        assert self.opened is not None
        return self.opened.log.tokens(answered[-1].id)

    def _check_fits(self, prompt: Prompt) -> None:
        size, room = len(prompt.tokens), self.engine.context_tokens
        if size >= room:
            raise NoRoom(
                f"the prompt has {size:,} tokens and the context {room:,}: no room for an answer",
                hint=f"--ctx-size {size + 1024}",
            )

    def _open_for(self, text: Said) -> None:
        if self.opened is not None:
            return
        if self.policy.save and self.policy.automatic:
            self.opened = open_automatic(self.store, content_text(user(text)))
        else:
            self.opened = Opened(self.store, None)

    def _write_user_line(self, text: Said, prompt: Prompt, account: Account) -> None:
        opened = self.opened
        assert opened is not None
        parent = self._write_setup(account)
        waiting = opened.unanswered
        same = waiting is not None and dict(waiting.message or {}) == user(text)
        if same and waiting is not None and opened.log.tokens(waiting.id) == prompt.tokens:
            return
        if prompt.notes:
            self.say(Notice("template", "; ".join(prompt.notes)))
        account.bytes_written += opened.append(
            parent=parent,
            kind="message",
            message=user(text),
            **self._token_fields(opened.log.tokens(parent) if parent is not None else (), prompt.tokens),
        )

    def _write_setup(self, account: Account) -> int | None:
        """The settings of the turns to come, where they are new; returns the line that they hang from."""
        opened = self.opened
        assert opened is not None
        setup: dict[str, Any] = {"date": self._conversation_day.isoformat(), "template": self.engine.template.origin}
        setup |= {"system": self._system} if self._system else {}
        setup |= {"tools": self._tools} if self._tools else {}
        parent = opened.answered[-1].id if opened.answered else None
        if dict(opened.setup) != setup:
            account.bytes_written += opened.append(parent=parent, kind="setup", settings=setup)
        return parent

    def _token_fields(self, before: Sequence[int], after: Sequence[int]) -> dict[str, Any]:
        start = common(before, after)
        return {"tokens": tuple(after[start:]), "start": start, "tokenizer": self.engine.vocabulary.digest}

    def _plan(self, prompt: Prompt, exclude: frozenset[Path]) -> RestorePlan:
        limit = len(prompt.tokens) - 1
        mine = self._foreign_for in (None, self.name)
        agrees = min(common(self.engine.tokens, prompt.tokens), limit) if mine else 0
        live = Live(agrees, agrees if self.engine.can_cut(agrees) else 0)
        stored = boundaries(
            self.store, self.engine.identity.digest, prompt.tokens, self.engine.memory, limit, exclude=exclude
        )
        limits = Limits(self.policy.min_tokens, self.policy.n_min_tokens, self.policy.similarity)
        pins = {*(self.opened.head.pins if self.opened and self.opened.head else ()), self._root_of(prompt)}
        wanted = worthwhile(stored, len(prompt.tokens), limits, self.store, pins)
        return plan_restore(prompt.tokens, live, wanted, self.engine.memory)

    def _restore(self, prompt: Prompt, watch: Watch, account: Account) -> tuple[RestorePlan, Restored]:
        """Plan and execute; each file that cannot be used is left out of the next plan."""
        exclude: frozenset[Path] = frozenset()
        while True:
            plan = self._plan(prompt, exclude)
            watch.planned(plan)
            try:
                restored = execute(plan, self.engine, self.store, self._foreign.files)
            except CannotApply as error:
                exclude |= set(error.paths)
                account.failures.append(NotReused(error.reason, error.message, plan.position))
                self._set_aside(error)
                continue
            kept = plan.keep if plan.uses else plan.position
            self._chain = self._chain.standing(self.store)
            self._foreign_for = self.name if restored.foreign else self._foreign_for if kept else None
            self._parker.own = self._foreign_for is None
            self._chain = self._chain.cut(kept)
            self._chain = self._chain.plus(restored.rows, restored.parts)
            return plan, restored

    def _set_aside(self, error: CannotApply) -> None:
        """Quarantine what fails its digest; what is refused stays where it is."""
        if isinstance(error.error, Bad):
            for path in error.paths:
                try:
                    self.store.quarantine(path, error.message)
                except StrataError as failed:
                    self.say(Notice("quarantine", failed.message, warning=True))

    def _not_reused(
        self, prompt: Prompt, plan: RestorePlan, known: Sequence[int], account: Account
    ) -> NotReused | None:
        """Why the turn reads more than what is new; None where it doesn't."""
        stands = common(known, prompt.tokens)
        # The last token of a reply that was cut is chosen and not read, so one token less is all there was.
        if plan.position >= min(stands, len(known) - 1) and stands >= len(known) - 1:
            return None
        if account.failures:
            return replace(account.failures[0], at_token=plan.position)
        missing = f"tokens {plan.position:,} to {len(known):,}"
        if stands >= len(known) - 1 or plan.position < stands:
            if other := self._other_identity(plan.position):
                return NotReused("identity", f"{missing} were stored under another identity: {other}", plan.position)
            if len(known) < self.policy.min_tokens:
                why = f"{missing} are fewer than min_tokens ({self.policy.min_tokens:,}): nothing was stored"
                return NotReused("below_minimum", why, plan.position)
        if stands < len(known) - 1:
            if self.engine.memory.has_parts and plan.position < stands:
                why = f"this memory cannot go back to token {stands:,}; the boundary before it is {plan.position:,}"
                return NotReused("window", why, plan.position)
            return NotReused("rewritten", f"the prompt leaves what was read at token {stands:,}", stands)
        return NotReused("missing", f"{missing} are not stored", plan.position)

    def _other_identity(self, position: int) -> str:
        """How the identity that stored more than `position` differs from this engine's; "" where none did."""
        head, current = self.opened.head if self.opened else None, self.engine.identity
        others = [state for digest, state in (head.states if head else {}).items() if digest != current.digest.hex()]
        saved = max(others, key=lambda state: state.tokens, default=None)
        if saved is None or saved.tokens <= position:
            return ""
        found = differences(saved.identity, current.fields())
        remedies = [each.remedy for each in found if each.remedy]
        back = f" (it would match with: {' '.join(remedies)})" if len(remedies) == len(found) else ""
        return "; ".join(str(each) for each in found) + back

    def _tell(self, plan: RestorePlan, restored: Restored, not_reused: NotReused | None, known: Sequence[int]) -> None:
        if plan.uses:
            name = self.name if known else "what is shared"
            self.say(Notice("restored", f"restored {plan.position:,} tokens from {name} in {restored.ms:.0f} ms"))
        if not_reused is not None:
            text = f"reused {plan.position:,} of {len(known):,} tokens, reading the rest: {not_reused.message}"
            self.say(Notice(not_reused.code, text, warning=not_reused.code not in ("below_minimum", "rewritten")))

    def _read_prompt(self, prompt: Prompt, position: int, watch: Watch) -> Parked:
        """Read the rest of the prompt, stopping at the root and at the prompt's end. Raises Cancelled."""
        parked = Parked(skipped="unchanged")
        stops = [stop for stop in self._stops(prompt) if stop > position]
        for stop in [*stops, len(prompt.tokens)]:
            base = position
            total = len(prompt.tokens)

            def progress(done: int, _: int, base: int = base, total: int = total) -> None:
                if watch.progress is not None:
                    watch.progress(base + done, total)

            self.engine.read(prompt.tokens[position:stop], progress=progress, cancelled=watch.cancelled)
            position = stop
            if stop in stops:
                reason = "root" if stop == prompt.root else "prompt"
                if len(prompt.tokens) >= self.policy.min_tokens:
                    parked = parked.plus(self._park(reason, rows=stop == prompt.root))
        return parked

    def _stops(self, prompt: Prompt) -> list[int]:
        return sorted({self._root_of(prompt), prompt.boundary} - {0})

    def _root_of(self, prompt: Prompt) -> int:
        return prompt.root if prompt.root >= max(1, self.policy.root_min_tokens) else 0

    def _finish(self, prompt: Prompt, reply: Reply, parked: Parked, watch: Watch, account: Account) -> Parked:
        """Text first, then the state, then the head. A state that cannot be stored costs reading time later."""
        opened = self.opened
        assert opened is not None
        if not reply.tokens and reply.finish == "interrupted":
            return parked
        try:
            account.bytes_written += opened.append(
                parent=opened.branch[-1].id if opened.branch else None,
                kind="message",
                message={"role": "assistant", "content": reply.text},
                tokens=reply.tokens,
                start=len(prompt.tokens),
                tokenizer=self.engine.vocabulary.digest,
                marks=("interrupted",) if reply.finish == "interrupted" else (),
            )
        except StorageFailed as error:
            self.say(Notice("text", f"the reply is not stored yet: {error.message}", warning=True))
        parked = parked.plus(Parked(skipped="failed") if watch.hurried() else self._park_reply(prompt))
        self._write_head(account, turn_done=True)
        if parked.segments:
            size = format_bytes(parked.bytes_written)
            text = f"saved {parked.tokens:,} tokens ({size}) to {self.name} in {parked.ms:.0f} ms"
            self.say(Notice("saved", text))
        return parked

    def _park_reply(self, prompt: Prompt) -> Parked:
        if len(self.engine.tokens) < self.policy.min_tokens:
            return Parked(skipped="below_minimum")
        root = self._root_of(prompt)
        first = Parked(skipped="unchanged")
        if not self.engine.memory.has_parts and self._chain.rows_end < root:
            first = self._park("root", end=root)
        return first.plus(self._park("reply"))

    def _park(self, reason: str, *, rows: bool = True, end: int | None = None, again: bool = True) -> Parked:
        """Store what the engine holds beyond the chain. Never fails a turn."""
        if not self._stores_state:
            return Parked(skipped="disabled")
        try:
            with self.store.shared():
                self._chain, parked = self._parker.park(self._chain, reason, rows=rows, end=end)
                if reason != "reply":
                    self._write_head(Account(), turn_done=False)
        except BelowFloor as error:
            if again and self.make_room(error.needed_bytes):
                return self._park(reason, rows=rows, end=end, again=False)
            self.say(Notice("park", f"not saved: {error.message}", warning=True))
            return Parked(skipped="no_room")
        except StrataError as error:
            no_room = isinstance(error, NoRoom)
            self.say(Notice("park", f"not saved: {error.message}", warning=True))
            return Parked(skipped="no_room" if no_room else "failed")
        return parked

    @property
    def _stores_state(self) -> bool:
        return self.policy.save and self.policy.automatic and self.opened is not None and self.opened.keeps

    def _write_head(self, account: Account, *, turn_done: bool, tokens: int = 0) -> None:
        """Name the files that the conversation stands on. A head that cannot be written costs reading time."""
        opened = self.opened
        if opened is None or not opened.keeps:
            return
        head = opened.head or opened.blank_head(self.store.clock())
        branch = opened.branch
        states = dict(head.states)
        if self._chain.rows or self._chain.parts:
            identity = self.engine.identity
            tokens = self._chain.rows_end if self.engine.memory.has_rows else self._chain.parts_end
            states[identity.digest.hex()] = StateRef(identity.fields(), self._chain.rows, self._chain.parts, tokens)
        if self._foreign_for is not None:
            foreign = also_foreign(self._foreign, self.store, (*self._chain.rows, *self._chain.parts))
            head = replace(head, extra=with_foreign(head.extra, foreign))
        head = replace(
            head,
            model=self.remembered_model,
            engine=self.remembered_options,
            turns=sum(1 for line in branch if (line.message or {}).get("role") == "user"),
            tokens=tokens or len(opened.log.tokens()),
            lines=opened.log.next_id - 1 - len(opened.unwritten),
            states=states,
        )
        try:
            if turn_done:
                moment = self.store.next_time()
                head = replace(head, last_turn=moment, updated=moment)
            account.bytes_written += opened.write_head(head)
        except StrataError as error:
            self.say(Notice("head", f"the head is not written: {error.message}", warning=True))


def user(said: Said) -> dict[str, Any]:
    return {"role": "user", "content": said} if isinstance(said, str) else dict(said)


def strict_error(not_reused: NotReused) -> StrataError:
    """What `--strict` ends with: 12 for what is bad, 13 for what is refused."""
    if not_reused.code == "bad":
        return Bad(not_reused.message, hint="strata inspect --verify")
    return Refused(not_reused.message, reason=not_reused.code, hint="without --strict the turn reads it again")

"""What keeps the state of the live chat: the chain that the engine stands on, memory, the writer, the heads.

Owns when what is captured is handed to the disk, and what leaves memory. It is the only one that writes heads of open
conversations. Turns are `conversation`, the writing itself `handover`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .engine import Engine
from .errors import Bad, NoRoom, StrataError
from .handover import Handing, Handover, Ticket
from .head import Head, SegmentRef, StateRef
from .identity import prefix_hashes
from .keeping import kept_positions, parts_to_keep
from .opened import Opened, role
from .park import Chain, Parked, Parker
from .restore import CannotApply, Restored, RestorePlan
from .shelf import Shelf
from .sizes import format_bytes
from .store import Store
from .tier import Tier, available_bytes
from .turn import Notice, Policy
from .writer import Writer

UNWRITTEN_BYTES = 16 << 20  # what a turn may hold beside the arena while memory is over its bounds


class Keeper:
    """State from the engine to memory and disk, for one process."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        policy: Policy,
        say: Callable[[Notice], None],
        *,
        model: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self._engine, self._store, self._policy, self._say = engine, store, policy, say
        self._model, self._options = model, options
        tier = Tier(policy.ram_bytes, policy.ram_conversations, available_bytes, policy.min_free_ram_bytes)
        self.shelf = Shelf(store, tier)
        self._writer = Writer()
        self._handover = Handover(self.shelf, self._writer, prepare=engine.prepare)
        self._handover.told = self._told
        self._handover.make_room = lambda needed_bytes: self.make_room(needed_bytes)
        self.make_room: Callable[[int], bool] = lambda _needed_bytes: False
        self._parker = Parker(engine, self.shelf, store.clock)
        self._waiting: dict[str, Handing] = {}  # captured and not handed to the writer, by conversation
        self._failing: tuple[str, str] | None = None  # why the last write failed, where it did: told once
        self.chain = Chain()
        self._written_for: dict[str, str] = {}  # parts captured by this process, and for which conversation
        self.foreign_for: str | None = None  # the conversation for which state from elsewhere is in the engine
        self.parked: Callable[[Ticket, Opened], None] = lambda _ticket, _opened: None

    # -- what the engine stands on

    def stands_on(self, opened: Opened, plan: RestorePlan, restored: Restored) -> None:
        """The engine was brought to the plan's position: which files hold what it holds now."""
        self._settle()
        before = self.chain.standing(self._is_there)
        rows = before.cut(plan.keep if plan.uses else plan.position).rows
        parts = before.cut(min(plan.live.agrees, plan.position)).parts
        named = self._named_parts(opened, plan.tokens[: plan.position])
        self.chain = Chain(rows, named).plus(restored.rows, (*parts, *restored.parts))
        for ref in (*self.chain.rows, *self.chain.parts):
            self.shelf.look_again(self._store.segment_path(ref.file))
        if restored.foreign:
            self.foreign_for = opened.name
        elif not (plan.keep if plan.uses else plan.position):
            self.foreign_for = None
        self._parker.own = self.foreign_for is None

    def context_grew(self) -> None:
        """The engine holds nothing, in a context of another size, which the conversation remembers."""
        self.chain = Chain()
        self._options = {**self._options, "ctx_size": self._engine.context_tokens}

    def stands_on_nothing(self, *, foreign_for: str | None) -> None:
        """The engine holds a state that no file of the directory has."""
        self.chain, self.foreign_for = Chain(), foreign_for
        self._parker.own = foreign_for is None

    def _is_there(self, ref: SegmentRef) -> bool:
        path = self._store.segment_path(ref.file)
        return self.shelf.held(path) or path.exists()

    def stored(self, position: int) -> StateRef | None:
        """The files that hold the first `position` tokens; None where that place is no boundary on the disk."""
        memory, chain = self._engine.memory, self._handover.durable(self.chain).cut(position)
        rows, parts = chain.rows_end == position, chain.parts_end == position
        if not position or self.foreign_for is not None or not (rows or not memory.has_rows):
            return None
        if memory.has_parts and not parts:
            return None
        return StateRef(self._engine.identity.fields(), chain.rows, chain.parts, position)

    def _named_parts(self, opened: Opened, tokens: Sequence[int]) -> tuple[SegmentRef, ...]:
        """Parts that the head names for these very tokens: boundaries that stay usable though nothing applied them."""
        digest = self._engine.identity.digest
        state = opened.head.states.get(digest.hex()) if opened.head is not None else None
        if state is None:
            return ()
        hashes = prefix_hashes(digest, tokens, [ref.end for ref in state.parts])
        return tuple(
            ref
            for ref in state.parts
            if ref.file.partition("/")[2].startswith(f"{ref.end}-{hashes.get(ref.end)}.")
            and ref.file not in self._handover.given_up
        )

    def name_state(self, opened: Opened) -> int:
        """Let the head name what the conversation stands on now; returns the bytes written, 0 where it says so."""
        if not opened.keeps:
            return 0
        chain, identity, foreign = (
            self._handover.durable(self.chain),
            self._engine.identity,
            self.foreign_for is not None,
        )
        try:
            self._mark_shared(opened, chain)
            return opened.update_head(
                lambda head: self._handover.naming(self._described(head), identity, chain, foreign=foreign)
            )
        except StrataError as error:
            self._say(Notice("head", f"the head is not written: {error.message}", warning=True))
            return 0

    def share_state(self, source: Opened, target: Opened) -> None:
        """Let a fork's head name what the conversation that it comes from stands on. Raises StorageFailed."""
        with self._store.shared():
            head = source.head
            if head is not None:
                for state in head.states.values():
                    for ref in state.parts:
                        self._store.share(ref.file)
            tokens = len(target.log.tokens())
            states = {digest: _up_to(state, tokens) for digest, state in (head.states if head else {}).items()}
            target.update_head(lambda blank: replace(self._described(blank), states=states, tokens=tokens))

    def _mark_shared(self, opened: Opened, chain: Chain) -> None:
        """Parts that this conversation did not write itself may be thinned by the one that did: mark them."""
        named = {ref.file for state in (opened.head.states.values() if opened.head else ()) for ref in state.parts}
        for ref in chain.parts:
            if ref.file not in named and self._written_for.get(ref.file) != opened.name:
                self._store.share(ref.file)

    def _described(self, head: Head) -> Head:
        return replace(head, model=self._model, engine=self._options)

    def set_aside(self, error: CannotApply) -> None:
        """Quarantine what fails its digest; what is refused stays where it is."""
        if not isinstance(error.error, Bad):
            return
        for path in error.paths:
            try:
                self._store.quarantine(path, error.message)
            except StrataError as failed:
                self._say(Notice("quarantine", failed.message, warning=True))

    # -- parking

    def capture(
        self,
        opened: Opened,
        ticket: Ticket,
        reason: str,
        *,
        rows: bool = True,
        end: int | None = None,
        root: int = 0,
        asked: bool = False,
        behind: bool = False,
    ) -> None:
        """Take what lies behind the chain into memory. Never fails a turn.

        `behind`: the copy goes on while the user reads and types; the next turn waits for what is left of it.
        """
        if not (self._policy.save and (self._policy.automatic or asked) and opened.keeps):
            ticket.parked = replace(ticket.parked, skipped="disabled")
            return
        assert opened.name is not None
        self._settle()
        if not any(self._parker.wants(self.chain, rows=rows, end=end)):
            ticket.parked = _sum(ticket.parked, Parked(skipped="unchanged"))
            return
        if not self._make_room():
            ticket.parked = replace(ticket.parked, skipped="no_room")
            return
        self._settle()
        known = {ref.file for ref in (*self.chain.rows, *self.chain.parts)}
        before = self.unwritten()
        try:
            self.chain, parked = self._parker.capture(
                self.chain,
                opened.name,
                reason,
                rows=rows,
                end=end,
                root=root,
                behind=behind,
                between=self._write_through,
            )
        except StrataError as error:
            ticket.parked = replace(ticket.parked, skipped="no_room" if isinstance(error, NoRoom) else "failed")
            self.take_back(before)
            self._tell_failure(error)
            return
        except BaseException:
            self.take_back(before)
            raise
        captured = {ref.file for ref in (*self.chain.rows, *self.chain.parts)} - known
        self._handover.given_up.difference_update(captured)
        self._written_for.update({ref.file: opened.name for ref in self.chain.parts if ref.file in captured})
        ticket.parked = _sum(ticket.parked, parked)

    def _make_room(self) -> bool:
        """Memory that is over its bounds waits for the writer, and only then.

        False where it stays over them because the disk takes nothing: more would grow without bound.
        """
        tier = self.shelf.tier
        over = tier.shrink()
        if over and self._writer.pending:
            self._writer.wait()
            over = tier.shrink()
        return self._failing is None or not over

    def _write_through(self) -> None:
        """Before a chunk is taken: what memory cannot hold, and is more than a little, goes to the disk now."""
        unwritten = self.shelf.tier.unwritten()
        if sum(entry.size_bytes for entry in unwritten) > UNWRITTEN_BYTES and self.shelf.tier.over():
            with self._store.shared():
                self._handover.write_now(unwritten)

    def unwritten(self) -> frozenset[Path]:
        """The files of what was captured and is not on the disk yet."""
        return frozenset(entry.path for entry in self.shelf.tier.unwritten())

    def take_back(self, before: Collection[Path]) -> None:
        """Forget what was captured since then and nobody writes: a capture broke off, or a prompt was cancelled."""
        for entry in self.shelf.tier.unwritten():
            if entry.path not in before:
                self.shelf.tier.drop(entry.path)
                entry.release()

    def hand_over(self, opened: Opened, ticket: Ticket, *, root: int, prompt: int, tokens: int = 0) -> None:
        """The turn is over: write what was captured, then the head that names it, behind the chat's back."""
        if not opened.keeps:
            ticket.done.set()
            return
        self._settle()
        branch = opened.branch
        pins = opened.head.pins if opened.head else ()
        kept = parts_to_keep(self.chain.parts, kept_positions(branch, root, prompt, pins), self._engine.memory)
        dropped = self._forget(tuple(ref for ref in self.chain.parts if ref not in kept))
        turns, tokens = sum(1 for line in branch if role(line) == "user"), tokens or len(opened.log.tokens())
        lines = opened.log.next_id - 1 - len(opened.unwritten)

        def turn_done(head: Head) -> Head:
            moment = self._store.next_time()
            described = self._described(head)
            return replace(described, turns=turns, tokens=tokens, lines=lines, last_turn=moment, updated=moment)

        foreign = self.foreign_for is not None
        handing = Handing(opened, self.chain, self._engine.identity, ticket, turn_done, dropped, foreign=foreign)
        self._submit(handing)

    def _forget(self, dropped: tuple[SegmentRef, ...]) -> tuple[SegmentRef, ...]:
        """Give up parts: those only in memory at once. The others stay in the chain until what replaces them is
        durable (B9): the writer unlinks them then, and `_settle` takes them out. Returns these."""
        stored = tuple(ref for ref in dropped if self.shelf.is_durable(self._store.segment_path(ref.file)))
        unwritten = [ref for ref in dropped if ref not in stored]
        self._handover.give_up(ref.file for ref in unwritten)
        self._settle()
        return stored

    def _settle(self) -> None:
        """Take out of the chain what was given up meanwhile: parts, or all from rows on that were never copied."""
        given_up, chain = self._handover.given_up, self.chain
        lost = [ref.start for ref in chain.rows if ref.file in given_up]
        chain = chain.cut(min(lost)) if lost else chain
        self.chain = Chain(chain.rows, tuple(ref for ref in chain.parts if ref.file not in given_up))

    def _submit(self, handing: Handing) -> None:
        if self._policy.write_early:
            self._handover.submit(handing)
            return
        name = str(handing.opened.name)
        before = self._waiting.get(name)
        if before is not None and self._handover.leaves_out(before, handing):
            # What was undone meanwhile is on the disk with the other policy, too; nobody else would ever write it.
            self._handover.submit(replace(before, ticket=Ticket()))
        self._handover.submit(replace(handing, writes=False))
        self._waiting[name] = handing
        while self.shelf.tier.over() and self._waiting:
            self._handover.submit(self._waiting.pop(next(iter(self._waiting))))

    def is_stuck(self, opened: Opened) -> bool:
        """Whether this conversation's newest state is over what memory may take, and the disk did not take it."""
        tier, name = self.shelf.tier, str(opened.name)
        if not tier.over() or not tier.unwritten(name):
            return False
        self._writer.wait(self._policy.leave_s)
        return tier.shrink() and bool(tier.unwritten(name))

    def abandon(self, opened: Opened) -> None:
        """Give up the state that nobody takes."""
        name = str(opened.name)
        self._handover.abandon(name)
        self.chain = self._handover.durable(self.chain)

    def when_written(self, job: Callable[[], None]) -> None:
        """Run a job behind all that is being written."""
        self._writer.submit(job)

    def wait(self, seconds: float | None = None, hurried: Callable[[], bool] = lambda: False) -> bool:
        """Wait until what was handed over is on disk; False where time ran out."""
        return self._writer.wait(seconds, hurried=hurried)

    def finish(self, hurried: Callable[[], bool]) -> None:
        """Write what is still only in memory, as long as the policy waits."""
        waiting: dict[str | None, Handing] = {
            name: replace(handing, ticket=Ticket()) for name, handing in self._handover.failed.items()
        }
        waiting.update(self._waiting)
        for handing in waiting.values():
            self._handover.submit(handing)
        self._waiting.clear()
        self._writer.submit(self._handover.unlink_given_up)
        if not self._writer.wait(self._policy.leave_s, hurried=hurried):
            left = len(self.shelf.tier.unwritten())
            self._say(Notice("leave", f"left without writing {left} ranges: they will be read again", warning=True))
        self._writer.close()

    def _told(self, ticket: Ticket, opened: Opened) -> None:
        """A park reached the disk, or did not. Runs on the writer's thread."""
        parked = ticket.parked
        if ticket.failure is not None:
            self._tell_failure(ticket.failure)
            self.parked(ticket, opened)
            return
        if parked.segments:
            self._failing = None
            size = format_bytes(parked.state_bytes)
            text = f"saved {parked.tokens:,} tokens ({size}) to {opened.name} in {parked.ms + parked.capture_ms:.0f} ms"
            self._say(Notice("saved", text))
        self.parked(ticket, opened)

    def _tell_failure(self, failure: StrataError) -> None:
        """Once, until a write succeeds again or another reason comes up (B3)."""
        failing = (failure.code, getattr(failure, "reason", ""))
        if failing != self._failing:
            hint = f" ({failure.hint})" if failure.hint else ""
            self._say(Notice("park", f"not saved: {failure.message}{hint}", warning=True))
        self._failing = failing


def _sum(one: Parked, other: Parked) -> Parked:
    """Two captures of one turn as one; what one of them did counts, not that the other had nothing to do."""
    return Parked(
        tokens=one.tokens + other.tokens,
        segments=one.segments + other.segments,
        bytes_written=one.bytes_written + other.bytes_written,
        capture_ms=one.capture_ms + other.capture_ms,
        ms=one.ms + other.ms,
        skipped=None if one.segments or other.segments else other.skipped,
        state_bytes=one.state_bytes + other.state_bytes,
    )


def _up_to(state: StateRef, tokens: int) -> StateRef:
    """What of a state lies before a position."""
    chain = Chain(state.segments, state.parts).cut(tokens)
    return StateRef(state.identity, chain.rows, chain.parts, chain.end)

"""From memory to disk: what was captured is written by a background thread, then named in its conversation's head.

Owns the jobs of the writer: which entries, in which order, what a failure leaves behind, and what becomes of parts
that no boundary needs any more. A head never names a file before it is durable.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from .engine import EngineFailed
from .errors import BelowFloor, NoRoom, StrataError
from .foreign import also_foreign, foreign_of, with_foreign
from .head import Head, SegmentRef, StateRef
from .identity import Identity
from .opened import Opened
from .park import Chain, Parked
from .shelf import Shelf
from .tier import Entry
from .writer import Writer


@dataclass
class Ticket:
    """One turn's park on its way to the disk. `parked` is final once `done` is set."""

    parked: Parked = field(default_factory=lambda: Parked(skipped="unchanged"))
    done: threading.Event = field(default_factory=threading.Event)
    failure: StrataError | None = None


@dataclass(frozen=True)
class Handing:
    """What a job needs: the conversation, what it stands on, and under which identity."""

    opened: Opened
    chain: Chain
    identity: Identity
    ticket: Ticket
    update: Callable[[Head], Head]
    drop: Sequence[SegmentRef] = ()
    writes: bool = True
    foreign: bool = False


class Handover:
    """Writes the memory tier's entries behind the chat's back."""

    def __init__(self, shelf: Shelf, writer: Writer, *, prepare: Callable[[], None]) -> None:
        self._shelf, self._writer, self._prepare = shelf, writer, prepare
        self.given_up: set[str] = set()  # files that no head may name any more, though pending jobs know them
        self._unlinking: set[str] = set()
        self.failed: dict[str | None, Handing] = {}  # what the disk refused last, by conversation: tried again later
        self.make_room: Callable[[int], bool] = lambda _needed_bytes: False
        self.told: Callable[[Ticket, Opened], None] = lambda _ticket, _opened: None

    def submit(self, handing: Handing) -> None:
        """Write what is only in memory of the chain, then the head; in order, in the background."""
        self._writer.submit(lambda: self._run(handing))

    def write_now(self, entries: Sequence[Entry]) -> int:
        """Write entries while the caller waits, where memory cannot take the next. Raises StrataError."""
        lost, _ = self._lose(entries)
        return write_entries(self._shelf, [entry for entry in entries if entry not in lost])

    def _run(self, handing: Handing) -> None:
        begun, ticket = time.perf_counter(), handing.ticket
        written, named = 0, False
        # Before the directory is taken, and also where nothing is to be written yet.
        lost, failure = self._lose(self._waiting(handing.chain))
        ticket.parked, ticket.failure = ticket.parked.without(lost), failure or ticket.failure
        try:
            try:
                written += self._write_chain(handing)
            except BelowFloor as error:
                if not self.make_room(error.needed_bytes):
                    raise
                written += self._write_chain(handing)
            named = True
            self.failed.pop(handing.opened.name, None)
        except StrataError as error:
            ticket.failure, self.failed[handing.opened.name] = error, handing
            with contextlib.suppress(StrataError):
                written += self._name(handing)
                named = True
        if not (named and handing.opened.keeps):
            # The head on disk may still name what was dropped: it stays, for prune to find.
            self._unlinking.difference_update(ref.file for ref in handing.drop)
        skipped = ticket.parked.skipped
        if ticket.failure is not None:
            skipped = "no_room" if isinstance(ticket.failure, NoRoom) else "failed"
        elapsed = (time.perf_counter() - begun) * 1000
        ticket.parked = replace(
            ticket.parked,
            bytes_written=ticket.parked.bytes_written + written,
            ms=ticket.parked.ms + elapsed,
            skipped=skipped,
        )
        ticket.done.set()
        self.told(ticket, handing.opened)
        self.unlink_given_up()
        if not self._shelf.tier.shrink():
            self._prepare()

    def leaves_out(self, before: Handing, after: Handing) -> bool:
        """Whether something of an earlier job is only in memory, and the later one does not name it."""
        named = {ref.file for ref in (*after.chain.rows, *after.chain.parts)}
        return any(entry.draft.relative_path not in named for entry in self._waiting(before.chain))

    def _write_chain(self, handing: Handing) -> int:
        """Everything of the chain that has no file yet, then the head; nothing is swept meanwhile."""
        with self._shelf.store.shared():
            waiting = self._waiting(handing.chain) if handing.writes else []
            written = sum(write_entry(self._shelf, entry) for entry in waiting)
            self._give_up(handing)
            return written + self._name(handing)

    def _give_up(self, handing: Handing) -> None:
        """Let go of parts that no kept boundary needs, once all that is kept is durable (B9)."""
        dropped = {ref.file for ref in handing.drop}
        kept = (*handing.chain.rows, *(ref for ref in handing.chain.parts if ref.file not in dropped))
        if not all(map(self._is_durable, kept)):
            return
        self.give_up(dropped)

    def give_up(self, files: Iterable[str]) -> None:
        """No head names these any more; one that a job is writing at this moment is unlinked behind it."""
        for file in files:
            self.given_up.add(file)
            self._unlinking.add(file)
            self._shelf.tier.drop(self._shelf.store.segment_path(file))

    def _waiting(self, chain: Chain) -> list[Entry]:
        """The chain's entries that have no file yet, parts before the rows that reach beyond them."""
        refs = sorted((*chain.parts, *chain.rows), key=lambda ref: (ref.end, ref.kind))
        entries = (self._shelf.tier.get(self._shelf.store.segment_path(ref.file)) for ref in refs)
        return [entry for entry in entries if entry is not None and not entry.durable]

    def _lose(self, entries: Iterable[Entry]) -> tuple[list[Entry], EngineFailed | None]:
        """Wait until these are copied; give up those that the engine did not give, and say why.

        There is nothing to write of them, now or later: neither a head nor the chain may count on them.
        """
        lost, failure = [], None
        for entry in entries:
            try:
                entry.ready()
            except EngineFailed as error:
                self.given_up.add(entry.draft.relative_path)
                self._shelf.tier.lose(entry)
                lost.append(entry)
                failure = error
        return lost, failure

    def _name(self, handing: Handing) -> int:
        """Put the durable part of the chain into the head. A failing head costs reading time."""

        def update(head: Head) -> Head:
            return self.naming(handing.update(head), handing.identity, handing.chain, foreign=handing.foreign)

        return handing.opened.update_head(update)

    def naming(self, head: Head, identity: Identity, chain: Chain, *, foreign: bool) -> Head:
        """The head with what is durable of a chain; with the mark of what was computed upon state from elsewhere."""
        chain = self.durable(chain)
        if foreign:
            mark = also_foreign(foreign_of(head), self._shelf.store, (*chain.rows, *chain.parts))
            head = replace(head, extra=with_foreign(head.extra, mark))
        return with_state(head, identity, chain)

    def durable(self, chain: Chain) -> Chain:
        """The files that a head may name: rows without a gap, and every part that is complete."""
        rows = []
        for ref in chain.rows:
            if not self._is_durable(ref):
                break
            rows.append(ref)
        return Chain(tuple(rows), tuple(ref for ref in chain.parts if self._is_durable(ref)))

    def abandon(self, name: str) -> None:
        """Give up what a conversation has in memory alone: nobody writes it, and no head may name it."""
        self.failed.pop(name, None)
        for entry in self._shelf.tier.unwritten(name):
            self.given_up.add(entry.draft.relative_path)
            self._shelf.tier.drop(entry.path)

    def _is_durable(self, ref: SegmentRef) -> bool:
        return ref.file not in self.given_up and self._shelf.is_durable(self._shelf.store.segment_path(ref.file))

    def unlink_given_up(self) -> None:
        """Unlink parts that no kept boundary needs, unless somebody else may use them; those who are busy come first.

        What cannot be had now is tried again behind the next turn, and when leaving.
        """
        if not self._unlinking:
            return
        with contextlib.suppress(StrataError), self._shelf.store.exclusive():
            while self._unlinking:
                file = self._unlinking.pop()
                if file in self.given_up:
                    self._shelf.store.drop_part(file)


def with_state(head: Head, identity: Identity, chain: Chain) -> Head:
    """The head with what is stored under an identity replaced; an empty chain changes nothing."""
    if not chain.rows and not chain.parts:
        return head
    state = StateRef(identity.fields(), chain.rows, chain.parts, chain.rows_end or chain.parts_end)
    return replace(head, states={**head.states, identity.digest.hex(): state})


def write_entry(shelf: Shelf, entry: Entry) -> int:
    """Write one entry's file; returns its bytes, 0 where it was there. Raises StorageFailed."""
    _, written = shelf.store.write_segment(entry.draft, [entry.payload], own=entry.own)
    entry.durable = True
    return written


def write_entries(shelf: Shelf, entries: Sequence[Entry]) -> int:
    """Write entries and let go of what memory need not keep. Returns the bytes written. Raises StorageFailed."""
    written = sum(write_entry(shelf, entry) for entry in entries if not entry.durable)
    shelf.tier.shrink()
    return written

"""Restoring a strata file: read as a stream, verified in `tmp/`, and only then part of the directory.

Owns what is taken, what is left, what counts as foreign, and the order in which things become visible: segments, then
text, then the head. Loads no model.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from .archive import Listed, Manifest, Reader
from .arriving import SegmentStream, Staging, passed
from .errors import Bad, NoRoom, NotFound, Refused, UsageProblem
from .foreign import Foreign, strange_setting
from .head import Head, parse_head
from .identity import from_fields
from .log import Log, parse_log
from .names import check_name
from .snapshot import check_replaceable, check_twin, needs_of, place_conversation, text_seal, with_counts
from .store import Store
from .transfer import Row, Transfer, deepest, files_of, why_unusable


@dataclass(frozen=True)
class Wish:
    """What the command line asks: another name, replacing, trust, only a plan, how long to wait for a lock."""

    as_name: str | None = None
    replace: bool = False
    trust: bool = False
    plan: bool = False
    wait_s: float = 60.0


@dataclass
class Reception:
    """One archive being received. `check` is told the bytes read so far and may raise; `shield` holds signals back."""

    store: Store
    reader: Reader
    wish: Wish
    check: Callable[[int], None] = lambda _: None
    shield: Callable[[], AbstractContextManager[object]] = nullcontext
    there: dict[str, int] = field(default_factory=dict)
    foreign_files: dict[str, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    def run(self) -> Transfer:
        """Receive it. Raises Bad, Refused, UsageProblem, NoRoom, StorageFailed, Locked; nothing is changed then."""
        self.manifest = self.reader.manifest()
        self.name = self._name()
        self.head = self._head()
        self.log = self._log()
        self.text_is_own = self.manifest.seal == text_seal(self.store, self._log_data)
        check_twin(self.store, self.name)
        staging = Staging(self.store.directory)
        if not self.wish.plan:
            staging.prepare()
        with self._held(), self.store.shared():
            try:
                self._check_target()
                self._receive(staging)
                self.reader.end()
                with self.shield():
                    written = 0 if self.wish.plan else self._commit(staging)
            finally:
                staging.discard()
            self._see_what_is_there()
        return self._transfer(written)

    def _held(self) -> AbstractContextManager[object]:
        """The lock of a conversation that is there already; a new one's is taken when all of it has arrived."""
        self._holds = not self.wish.plan and self.name in self.store.names()
        return self.store.hold(self.name, self.wish.wait_s) if self._holds else nullcontext()

    def _name(self) -> str:
        if self.wish.as_name is not None:
            return check_name(self.wish.as_name)
        try:
            return check_name(self.manifest.name)
        except UsageProblem as error:
            raise Bad(f"the archive's conversation: {error.message}", hint="--as NAME gives it another") from None

    def _head(self) -> Head:
        head = parse_head(self.reader.head(self.manifest), self.name)
        for digest, state in head.states.items():
            if from_fields(dict(state.identity)).digest.hex() != digest:
                raise Bad("the archive's head names an identity that is not its own")
        states = head.states.values()
        self._refs = {ref.file: ref for state in states for ref in (*state.segments, *state.parts)}
        if any(state.tokens > max((ref.end for ref in (*state.segments, *state.parts)), default=0) for state in states):
            raise Bad("the archive's head counts more tokens than its segments hold")
        self._digests = {file: d for d, state in head.states.items() for file in files_of([state])}
        if not {each.file for each in self.manifest.files}.issubset(self._digests):
            raise Bad("the archive has segments that its head does not name")
        return replace(head, extra={})  # keys that this version does not know are not taken from elsewhere

    def _log(self) -> Log:
        self._log_data = self.reader.log(self.manifest)
        log = parse_log(self._log_data)
        if log.bad:
            raise Bad(f"the archive's text: line {log.bad[0].number}: {log.bad[0].why}")
        if strange := strange_setting(log):
            raise Bad(f"the archive's text: the setting {strange} is of a wrong type")
        return log

    def _check_target(self) -> None:
        exists = self.name in self.store.names()
        if exists:
            before = self.store.read_log(self.name)
            check_replaceable(self.name, before, self.log, exists=True, replace_it=self.wish.replace)

    # -- the segments

    def _receive(self, staging: Staging) -> None:
        taken = {each.file: self._decide(each) for each in self.manifest.files}
        carried = {each.file: each for each in self.manifest.files if each.file in self.manifest.carried}
        wanted_bytes = sum(carried[file].bytes for file, why in taken.items() if not why and file in carried)
        free, floor_bytes = self.store.free_bytes(), self.store.min_free_bytes
        if wanted_bytes and wanted_bytes + floor_bytes > free and not self.wish.plan:
            floor = f", of which {floor_bytes:,} are to stay free" if floor_bytes else ""
            raise NoRoom(
                f"the archive's new segments take {wanted_bytes:,} bytes and {free:,} are free{floor}",
                hint="free some space, `strata prune`, or lower store.min_free_disk_mib",
            )
        self.needed_bytes, self.free_bytes = wanted_bytes, free
        for file in self.manifest.carried:
            self._one(carried[file], taken[file], staging)
        for each in self.manifest.files:
            if each.file not in carried:
                why = taken[each.file] or "neither here nor in the archive: restore its BASE first"
                self._row(each, 0, "here" if taken[each.file] else "nowhere", why)

    def _decide(self, listed: Listed) -> str:
        """Why a file need not be written; empty where it must be."""
        try:
            with self.store.open_segment(self.store.segment_path(listed.file)) as there:
                own, same = there.sealed_by(self.store.key), there.digest().hex() == listed.digest
        except (NotFound, Bad, Refused):
            return ""
        if own:
            return "it is here already"
        if self.wish.trust:
            return ""
        self.foreign_files |= {listed.file: listed.digest} if same else {}
        return "it is here already" if same else "another copy from elsewhere is here: --trust takes this one"

    def _one(self, listed: Listed, why: str, staging: Staging) -> None:
        blocks = self.reader.blocks(listed)
        self.check(self.reader.bytes_read)
        left = why or self.wish.plan
        stream = passed(listed, blocks) if left else staging.take(listed, blocks, self._seal_key)
        if stream.identity != self._digests[listed.file]:
            raise Bad(f"segment {listed.file}: made under another identity than the head says")
        ref = self._refs[listed.file]
        if (ref.start, ref.end, ref.bytes) != (stream.header.start, stream.header.end, listed.bytes):
            raise Bad(f"segment {listed.file}: holds other tokens than the head says")
        if why:
            self._row(listed, 0, "here", why)
        else:
            self._new(listed, stream)

    @property
    def _seal_key(self) -> bytes | None:
        if not self.wish.trust:
            return None
        self.store.directory.prepare_state()  # the key is made with the first folder that needs it
        return self.store.key

    def _new(self, listed: Listed, stream: SegmentStream) -> None:
        own = self.wish.trust or stream.sealed_by(self.store.key)
        if not own:
            self.foreign_files[listed.file] = listed.digest
        self._row(listed, listed.bytes, "archive", "new" if own else "new; foreign: only this conversation uses it")

    def _row(self, listed: Listed, size: int, source: str, why: str) -> None:
        ref = self._refs[listed.file]
        what = "rows" if ref.kind == "seg" else "part"
        self.rows.append(Row(what, ref.end - ref.start, size, source, why, ref.start, ref.end))

    # -- becoming visible

    @property
    def _mark(self) -> Foreign:
        if self.wish.trust:
            return Foreign()
        ids = [line.id for line in self.log.lines]
        lines = () if self.text_is_own or not ids else ((min(ids), max(ids)),)
        return Foreign(lines, self.foreign_files)

    def _commit(self, staging: Staging) -> int:
        written = staging.bytes_written
        self.store.directory.prepare_state()
        staging.move_in()
        head = with_counts(self.head, self.log)
        with nullcontext() if self._holds else self.store.hold(self.name, self.wish.wait_s):
            self.head, text = place_conversation(
                self.store, self.name, head, self.log, self._mark, replace_it=self.wish.replace
            )
        return written + text

    def _see_what_is_there(self) -> None:
        self.there = self.store.segment_sizes()
        if self.wish.plan:
            sizes = {each.file: each.bytes for each in self.manifest.files}
            self.there |= {file: sizes[file] for file in self.manifest.carried}
            self.head = with_counts(self.head, self.log)

    def _transfer(self, written: int) -> Transfer:
        head, manifest = self.head, self.manifest
        why, state = why_unusable(head, self.there), deepest(head)
        text = Row("text", head.tokens, manifest.log_bytes, "archive", f"{head.turns} turns")
        return Transfer(
            name=self.name,
            file=None,
            tokens=head.tokens,
            turns=head.turns,
            segments=len(manifest.files),
            bytes=manifest.total_bytes,
            bytes_written=written,
            identity=state[0][:16] if state else None,
            usable=why is None,
            why=why,
            rows=(text, *self.rows),
            needs=needs_of(head, self.needed_bytes, self.free_bytes),
        )


def receive(
    store: Store,
    reader: Reader,
    wish: Wish,
    check: Callable[[int], None] = lambda _: None,
    shield: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Transfer:
    """Receive one archive; see `Reception.run`."""
    return Reception(store, reader, wish, check, shield).run()


def look(reader: Reader) -> tuple[Manifest, Head, Log]:
    """What an archive holds, with every byte of it checked. Raises Bad, Refused."""
    manifest = reader.manifest()
    head = parse_head(reader.head(manifest), manifest.name)
    log = parse_log(reader.log(manifest))
    by_file = {each.file: each for each in manifest.files}
    for file in manifest.carried:
        passed(by_file[file], reader.blocks(by_file[file]))
    reader.end()
    return manifest, with_counts(head, log), log

"""Checking every byte of a conversation, a prefix or the whole directory.

Owns what is checked and what each finding means for the user. It repairs nothing, moves nothing and loads no model.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .coverage import Turn, deepest, meaning_of, turns_of
from .directory import RECORD_KINDS
from .errors import Bad, NotFound, Refused, StorageFailed, StrataError
from .head import Head, SegmentRef, StateRef
from .identity import digest_of, prefix_hashes
from .log import Log
from .segment import SegmentFile
from .store import Store

Progress = Callable[[int, int], None]
SINGULAR = {"conversations": "conversation", "prefixes": "prefix"}


@dataclass(frozen=True)
class Finding:
    """`file` is relative to the session directory, `what` says what is wrong, `meaning` what it costs the user."""

    file: str
    what: str
    meaning: str

    def as_json(self) -> dict[str, str]:
        return {"file": self.file, "what": self.what, "meaning": self.meaning}


@dataclass(frozen=True)
class Verified:
    """What was checked. `bad` is corrupt, malformed, missing or in quarantine; `notes` is intact or cannot be told."""

    checked_files: int
    checked_bytes: int
    bad: tuple[Finding, ...]
    notes: tuple[Finding, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "checked_files": self.checked_files,
            "checked_bytes": self.checked_bytes,
            "bad": [each.as_json() for each in self.bad],
            "notes": [each.as_json() for each in self.notes],
        }


@dataclass(frozen=True)
class Segment:
    """What one file turned out to be: a fault, or its place, its identity and whose seal it carries."""

    fault: StrataError | None
    start: int = 0
    end: int = 0
    tokens: Sequence[int] = ()
    identity: str = ""
    window_tokens: int = 0
    own: bool = True


def verify(store: Store, only: tuple[str, str] | None, progress: Progress) -> Verified:
    """Check `only`, a (kind, name), or everything. `progress` takes bytes done and in all. Raises StorageFailed."""
    check = Check(store, progress)
    records = [only] if only else [(kind, name) for kind in RECORD_KINDS for name in store.names(kind)]
    check.expect(records, everything=only is None)
    for kind, name in records:
        # Prune sweeps between two conversations and never while one is looked at.
        with store.shared():
            check.record(kind, name)
    if only is None:
        check.rest()
    return check.result()


@dataclass
class Check:
    """One verification on its way. Each file is read once, however many conversations name it."""

    store: Store
    progress: Progress
    total_bytes: int = 0
    done_bytes: int = 0
    done_files: int = 0
    segments: dict[str, Segment] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    set_aside: dict[str, str] = field(default_factory=dict)
    bad: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    foreign: int = 0

    def result(self) -> Verified:
        if self.foreign:
            what = f"{self.foreign:,} segments carry the seal of another directory"
            meaning = "only the conversation that they came with uses them; others read again"
            self.notes.append(Finding("segments", what, meaning))
        return Verified(self.done_files, self.done_bytes, tuple(_unique(self.bad)), tuple(_unique(self.notes)))

    def expect(self, records: Iterable[tuple[str, str]], *, everything: bool) -> None:
        """Sum up what there is to read, for the progress."""
        self.sizes = self.store.segment_sizes()
        self.set_aside = {each.file: each.why for each in self.store.quarantined()}
        wanted = set(self.sizes) if everything else set()
        for kind, name in records:
            sizes = self.store.record_sizes(kind)
            self.total_bytes += sizes.get(f"{name}.json", 0) + sizes.get(f"{name}.jsonl", 0)
            if not everything and isinstance(head := self._head_of(kind, name), Head):
                wanted |= {ref.file for ref in _refs(head)}
        self.total_bytes += sum(self.sizes.get(file, 0) for file in wanted)

    def _head_of(self, kind: str, name: str) -> Head | StrataError:
        try:
            return self.store.read_head(name, kind)
        except StrataError as error:
            return error

    def _count(self, size_bytes: int) -> None:
        self.done_files += 1
        self.done_bytes += size_bytes
        self.progress(self.done_bytes, self.total_bytes)

    # Conversations and prefixes

    def record(self, kind: str, name: str) -> None:
        """Head, text and every segment that the head names."""
        head, sizes = self._head_of(kind, name), self.store.record_sizes(kind)
        log = self._log(kind, name, sizes)
        turns = turns_of(log)
        if f"{name}.json" in sizes:
            self._count(sizes[f"{name}.json"])
        if isinstance(head, Head):
            lost = head.lines - log.next_id + 1 - len(log.bad)
            if lost > 0:
                what = f"its last {lost:,} lines are gone"
                self.bad.append(Finding(f"{kind}/{name}.jsonl", what, _without_line(log)))
            for digest, state in head.states.items():
                self._state(f"{kind}/{name}.json", name, digest, state, turns)
        elif f"{name}.json" in sizes or not isinstance(head, NotFound):
            self._told(f"{kind}/{name}.json", head, _without_head(turns))
        elif f"{name}.jsonl" in sizes:
            self.notes.append(Finding(f"{kind}/{name}.json", "there is no head", _without_head(turns)))

    def _log(self, kind: str, name: str, sizes: dict[str, int]) -> Log:
        file = f"{name}.jsonl"
        try:
            log = self.store.read_log(name, kind)
            if log.bad and self.store.holder(name, kind):
                # The last line may be on its way to the disk.
                log = self.store.read_log(name, kind)
        except StrataError as error:
            self._told(f"{kind}/{file}", error, f"the text of this {SINGULAR[kind]} cannot be read now")
            return Log()
        if file in sizes:
            self._count(sizes[file])
        for line in log.bad:
            self.bad.append(Finding(f"{kind}/{file}", f"line {line.number}: {line.why}", _without_line(log)))
        return log

    def _state(self, file: str, name: str, digest: str, state: StateRef, turns: Sequence[Turn]) -> None:
        """One identity's segments: each file, whether they belong together, and how far they reach."""
        if digest_of(state.identity).hex() != digest:
            self.bad.append(Finding(file, "an identity does not give its own digest", "its state is read again"))
            return
        found = {ref.file: self.segment(ref.file) for ref in (*state.segments, *state.parts)}
        sound = [ref for ref in (*state.segments, *state.parts) if not found[ref.file].fault]
        sequence = _sequence([ref for ref in sound if ref.kind == "seg"], found) or _sequence(sound, found)
        faults = {ref: self._why(ref, digest, found[ref.file], sequence) for ref in (*state.segments, *state.parts)}
        if not any(faults.values()):
            return
        window = max((each.window_tokens for each in found.values()), default=0)
        rows = [ref for ref in state.segments if not faults[ref]]
        parts = [ref for ref in state.parts if not faults[ref]]
        reach = deepest(rows, parts, bool(state.segments), bool(state.parts), window)
        meaning = f"{name}: {meaning_of(turns, reach)}"
        for ref, fault in faults.items():
            if fault:
                self._told(f"segments/{ref.file}", fault, meaning)

    def _why(self, ref: SegmentRef, digest: str, segment: Segment, sequence: Sequence[int]) -> StrataError | None:
        """Why a file is not the state that the head says it is; None where it is."""
        if segment.fault is not None:
            return segment.fault
        if (segment.start, segment.end) != (ref.start, ref.end):
            return Bad("it holds other tokens than the head says")
        if segment.identity != digest:
            return Bad("it holds the state of another model or configuration than the head says")
        if len(sequence) < ref.end:
            return None  # an earlier file is missing, which is told there
        names = prefix_hashes(bytes.fromhex(digest), sequence, (ref.start, ref.end))
        folder, _, rest = ref.file.partition("/")
        if names[ref.start] != folder or not rest.startswith(f"{ref.end}-{names[ref.end]}."):
            return Bad("its tokens are not those of its name")
        return None

    def _told(self, file: str, fault: StrataError, meaning: str) -> None:
        """A fault where it belongs: what is refused or cannot be read now is not bad."""
        if isinstance(fault, Refused | StorageFailed):
            self.notes.append(Finding(file, fault.message, meaning))
        else:
            self.bad.append(Finding(file, fault.message, meaning))

    # Files

    def segment(self, file: str) -> Segment:
        """One file, read whole; what was found is remembered."""
        if file not in self.segments:
            self.segments[file] = self._read(file)
            self._count(self.sizes.get(file, 0))
            self.foreign += not self.segments[file].own
        return self.segments[file]

    def _read(self, file: str) -> Segment:
        try:
            with self.store.open_segment(self.store.segment_path(file)) as opened:
                own = opened.verify(self._key())
                return _facts(opened, own)
        except NotFound:
            aside = self.set_aside.get(file)
            return Segment(Bad(f"in quarantine: {aside}" if aside else "it is missing"))
        except StrataError as error:
            return Segment(error)

    def _key(self) -> bytes:
        try:
            return self.store.key
        except StrataError:
            return bytes(32)  # told by `rest`

    def rest(self) -> None:
        """What no conversation names: other segments, quarantine, the key."""
        for file in self.sizes.keys() - self.segments.keys():
            fault = self.segment(file).fault
            if fault is not None:
                self._told(f"segments/{file}", fault, "no conversation names it: nothing is lost")
        for each in self.store.quarantined():
            needed = each.file in self.segments and self.segments[each.file].fault is not None
            meaning = "what it held is read again" if needed else "nothing needs it any more"
            self.bad.append(Finding(f"quarantine/{each.place}", each.why, f"{meaning}; `strata prune` removes it"))
        try:
            _ = self.store.key
        except StrataError as error:
            self._told_key(error)

    def _told_key(self, error: StrataError) -> None:
        meaning = "all stored state counts as from another directory and is read again"
        self.bad.append(Finding("key", error.message, meaning))


def _facts(opened: SegmentFile, own: bool) -> Segment:
    header, metadata = opened.header, opened.metadata
    window = metadata.get("window_tokens")
    return Segment(
        fault=None,
        start=header.start,
        end=header.end,
        tokens=opened.tokens(),
        identity=str(metadata.get("identity", "")),
        window_tokens=window if isinstance(window, int) else 0,
        own=own,
    )


def _sequence(refs: Iterable[SegmentRef], found: dict[str, Segment]) -> list[int]:
    """The tokens from 0 on that these files hold one after another."""
    tokens: list[int] = []
    for ref in sorted(refs, key=lambda each: each.end):
        segment = found[ref.file]
        if segment.start <= len(tokens) < segment.end:
            tokens.extend(segment.tokens[len(tokens) - segment.start :])
    return tokens


def _refs(head: Head) -> Iterable[SegmentRef]:
    return (ref for state in head.states.values() for ref in (*state.segments, *state.parts))


def _without_head(turns: Sequence[Turn]) -> str:
    many = "turn" if len(turns) == 1 else "turns"
    return f"the text is there ({len(turns):,} {many}); stored state is found by its tokens, and -m names the model"


def _without_line(log: Log) -> str:
    count = len(log.branch())
    return f"what it said is lost; {count:,} other {'message is' if count == 1 else 'messages are'} whole"


def _unique(findings: Iterable[Finding]) -> list[Finding]:
    """One finding a file and fault; what it means for several conversations stands in one."""
    merged: dict[tuple[str, str], Finding] = {}
    for each in findings:
        known = merged.get((each.file, each.what))
        if known is None:
            merged[each.file, each.what] = each
        elif each.meaning not in known.meaning:
            merged[each.file, each.what] = replace(known, meaning=f"{known.meaning}; {each.meaning}")
    return list(merged.values())

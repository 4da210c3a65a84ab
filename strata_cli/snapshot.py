"""Saving a conversation: as a strata file, or as a copy in the directory. A plan, then its execution.

Nothing here loads a model or takes the conversation's lock to read it: what is saved is its last durable turn. The
archive's bytes are in `archive`, what becomes of one that arrives in `reception`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from blake3 import blake3

from .archive import CHUNK_BYTES, Listed, Manifest, Writer, write_archive
from .arriving import checked_blocks
from .errors import Bad, NotFound, Refused, UsageProblem
from .files import Buffer
from .foreign import Foreign, foreign_of, with_foreign
from .graft import branch_lines, graft, same_text
from .head import Head, SegmentRef, StateRef, encode_head, title_of
from .log import Line, Log, append_bytes
from .match import Use, row_chains, walk
from .names import check_name, is_automatic, key_of, same_but_for_case
from .prompt import content_text
from .segment import seal_of
from .shelf import Shelf
from .store import Store
from .tier import available_bytes
from .transfer import Needs, Row, Transfer, deepest, files_of, model_bytes, model_of, state_bytes, why_unusable


def needs_of(head: Head, disk_bytes: int, free_bytes: int) -> Needs:
    """What a conversation needs where it is continued, and `disk_bytes` of the `free_bytes` there are."""
    memory = state_bytes(head) + model_bytes(head)
    return Needs(disk_bytes, free_bytes, head.tokens, memory, available_bytes(), model_of(head))


@dataclass(frozen=True)
class SavePlan:
    """A conversation ready to be written. `lost` are files that its head names and that are gone."""

    manifest: Manifest
    head: Head
    head_data: bytes
    log_data: bytes
    lost: frozenset[str]
    rows: tuple[Row, ...]

    def transfer(self, file: str | None, written_bytes: int, free_bytes: int) -> Transfer:
        """What `save` tells; `free_bytes` is the room where the file goes."""
        head, there = self.head, {each.file for each in self.manifest.files}
        why = why_unusable(head, there)
        state = deepest(head)
        return Transfer(
            name=self.manifest.name,
            file=file,
            tokens=head.tokens,
            turns=head.turns,
            segments=len(self.manifest.carried),
            bytes=self.manifest.total_bytes,
            bytes_written=written_bytes,
            identity=state[0][:16] if state else None,
            usable=why is None,
            why=why,
            rows=self.rows,
            needs=needs_of(head, self.manifest.total_bytes, free_bytes),
        )


def read_conversation(store: Store, name: str) -> tuple[Head, Log]:
    """Head and text as of the last durable turn; a head that is lost is made anew. Raises NotFound, Bad."""
    if name not in store.names():
        raise NotFound(f"there is no conversation {name}", hint="`strata inspect` lists them")
    try:
        head = store.read_head(name)
    except NotFound:
        head = None
    log = store.read_log(name)
    return head if head is not None else head_from_text(name, log, store.clock()), log


def head_from_text(name: str, log: Log, moment: str) -> Head:
    """The head of a conversation of which only the text is there."""
    kind = "auto" if is_automatic(name) else "named"
    return with_counts(Head(name=name, kind=kind, created=moment, updated=moment), log)


def with_counts(head: Head, log: Log) -> Head:
    """The head with what its text tells: key, title, turns, tokens."""
    said = [line.message or {} for line in log.branch()]
    first = next((_text(message) for message in said if message.get("role") == "user"), "")
    turns = sum(message.get("role") == "user" for message in said)
    # Messages that came as history have no token ids: what was read of them is what is stored.
    stored = max((state.tokens for state in head.states.values()), default=0)
    counts = {"turns": turns, "tokens": len(log.tokens()) or stored, "lines": log.next_id - 1}
    return replace(head, key=key_of(first), title=title_of(first), **counts)


def _text(message: Any) -> str:
    try:
        return content_text(message)
    except Refused:
        return ""


def plan_save(store: Store, name: str, *, everything: bool = False, since: Manifest | None = None) -> SavePlan:
    """What an archive of this conversation holds. The caller keeps `store.shared()` until it is written."""
    head, log = read_conversation(store, name)
    lines = log.lines if everything else branch_lines(log)
    if everything:
        head = _with_alternatives(store, head, log)
    head = with_counts(replace(head, extra=with_foreign(head.extra, Foreign())), Log(tuple(lines), ()))
    files, lost = _listed(store, head)
    known = {(each.file, each.digest) for each in since.files} if since else set()
    carried = [each for each in files if (each.file, each.digest) not in known]
    log_data, head_data = append_bytes(lines), encode_head(head)
    manifest = Manifest(
        name=name,
        branches="all" if everything else "current",
        head_bytes=len(head_data),
        log_bytes=len(log_data),
        files=tuple(files),
        carried=tuple(each.file for each in carried),
        since=since.digest if since else "",
        seal=text_seal(store, log_data),
    )
    rows = _rows(head, manifest, lost)
    return SavePlan(manifest, head, head_data, log_data, frozenset(lost), rows)


def text_seal(store: Store, log_data: bytes) -> str:
    """Shows to the directory that made it, and to no other, that a text comes from there (hex)."""
    return seal_of(blake3(log_data).digest(), store.key).hex()


def _with_alternatives(store: Store, head: Head, log: Log) -> Head:
    """The head with the state of abandoned branches, as far as the directory has it."""
    states = {digest: _with_branches(store, digest, state, log) for digest, state in head.states.items()}
    return replace(head, states=states)


def _with_branches(store: Store, digest: str, state: StateRef, log: Log) -> StateRef:
    segments, parts = list(state.segments), list(state.parts)
    for tip in log.alternatives():
        found = walk(Shelf.of_disk(store), bytes.fromhex(digest), log.tokens(tip))
        chains = row_chains(found)
        uses = (*chains[max(chains)], *(use for uses in found.parts.values() for use in uses[:1]))
        for use in uses:
            known = parts if use.child.kind.value == "part" else segments
            ref = reference(use)
            known += [ref] if ref not in known else []
    return replace(state, segments=tuple(segments), parts=tuple(parts))


def reference(use: Use) -> SegmentRef:
    """A file that was found by its tokens, as heads name it."""
    file = f"{use.child.path.parent.name}/{use.child.path.name}"
    return SegmentRef(use.child.kind.value, use.start, use.end, file, use.child.bytes)


def _listed(store: Store, head: Head) -> tuple[list[Listed], set[str]]:
    """The files that the head names, with their digests, and those that are gone or no segments any more."""
    files, lost = [], set()
    for file in files_of(head.states.values()):
        try:
            with store.open_segment(store.segment_path(file)) as segment:
                files.append(Listed(file, segment.file_bytes, segment.digest().hex()))
        except (NotFound, Bad):
            lost.add(file)
    return files, lost


def _rows(head: Head, manifest: Manifest, lost: set[str]) -> tuple[Row, ...]:
    branches = "with its alternatives" if manifest.branches == "all" else "the current branch"
    rows = [
        Row("head", 0, manifest.head_bytes, "directory", "names its segments"),
        Row("text", head.tokens, manifest.log_bytes, "directory", f"{head.turns} turns, {branches}"),
    ]
    sizes, carried = {each.file: each.bytes for each in manifest.files}, set(manifest.carried)
    for state in head.states.values():
        for ref in (*state.segments, *state.parts):
            what = "rows" if ref.kind == "seg" else "part"
            if ref.file in lost:
                rows.append(Row(what, ref.end - ref.start, 0, "nowhere", "gone: it is read again", ref.start, ref.end))
            elif ref.file in carried:
                size = sizes[ref.file]
                rows.append(Row(what, ref.end - ref.start, size, "directory", "stored", ref.start, ref.end))
            else:
                rows.append(Row(what, ref.end - ref.start, 0, "base", "BASE has it", ref.start, ref.end))
    return tuple(rows)


def execute_save(plan: SavePlan, store: Store, write: Callable[[Buffer], None], check: Callable[[int], None]) -> int:
    """Write the archive through `write`; `check` is told the bytes so far and may raise. Returns the bytes written.

    Raises Bad where a segment of the directory fails its digest: the archive then lacks its end.
    """
    chunk, listed = bytearray(CHUNK_BYTES), {each.file: each for each in plan.manifest.files}
    writer = Writer(write)

    def blocks_of(file: str) -> Iterator[memoryview]:
        for block in checked_blocks(store.directory, listed[file], chunk):
            check(writer.bytes_written)
            yield block

    write_archive(writer, plan.manifest, plan.head_data, plan.log_data, blocks_of)
    return writer.bytes_written


def copy_within(store: Store, name: str, target: str, *, replace_it: bool, wait_s: float) -> Transfer:
    """A named copy in the directory: text and head are written, segments are shared.

    Raises UsageProblem where TARGET says something else and is not to be replaced, Locked where it is held.
    """
    check_name(target)
    with store.shared():
        head, log = read_conversation(store, name)
        source = Log(branch_lines(log), ())
        foreign = foreign_of(head)
        head, written = write_conversation(store, target, head, source, foreign, replace_it=replace_it, wait_s=wait_s)
        there = store.segment_sizes()
    why, state = why_unusable(head, there), deepest(head)
    rows = (
        Row("text", head.tokens, written, name, f"{head.turns} turns"),
        *(
            Row("rows" if ref.kind == "seg" else "part", ref.end - ref.start, 0, "shared", "one file for both")
            for each in head.states.values()
            for ref in (*each.segments, *each.parts)
        ),
    )
    return Transfer(
        name=target,
        file=None,
        tokens=head.tokens,
        turns=head.turns,
        segments=len(files_of(head.states.values())),
        bytes=state_bytes(head),
        bytes_written=written,
        identity=state[0][:16] if state else None,
        usable=why is None,
        why=why,
        rows=rows,
    )


def write_conversation(
    store: Store, target: str, head: Head, source: Log, foreign: Foreign, *, replace_it: bool, wait_s: float
) -> tuple[Head, int]:
    """Put a conversation's current branch and head under TARGET; returns the head there and the bytes written.

    What TARGET said before stays as an alternative branch. `foreign.lines` are ids of `source`.
    """
    check_twin(store, target)
    with store.hold(target, wait_s):
        return place_conversation(store, target, head, source, foreign, replace_it=replace_it)


def check_twin(store: Store, target: str) -> None:
    """Raises UsageProblem where another conversation's name differs by case alone."""
    if twin := same_but_for_case(target, store.names()):
        raise UsageProblem(f"{target}: there is {twin} already, and names differ by more than case")


def place_conversation(
    store: Store, target: str, head: Head, source: Log, foreign: Foreign, *, replace_it: bool
) -> tuple[Head, int]:
    """What `write_conversation` does under the lock."""
    before, old = store.read_log(target), _head_or_none(store, target)
    check_replaceable(target, before, source, exists=target in store.names(), replace_it=replace_it)
    lines = graft(before, source, store.clock()) if before.lines else source.lines
    written = store.append_log(target, lines) if lines else 0
    log = Log((*before.lines, *lines), before.bad)
    head = _placed(store, head, old, target, log, _foreign_now(foreign, source, before, lines))
    return head, written + (store.write_head(head) if head != old else 0)


def check_replaceable(target: str, before: Log, source: Log, *, exists: bool, replace_it: bool) -> None:
    """Raises UsageProblem where TARGET says something else and nobody asked to replace it."""
    if exists and not replace_it and not same_text(before, source):
        raise UsageProblem(
            f"{target} exists and says something else",
            hint="--as ANOTHER-NAME, or --replace (what it says now stays as an alternative branch)",
        )


def _head_or_none(store: Store, name: str) -> Head | None:
    try:
        return store.read_head(name)
    except (NotFound, Bad):
        return None


def _foreign_now(foreign: Foreign, source: Log, before: Log, lines: Iterable[Line]) -> Foreign:
    """The mark with line ids as they are in the target's log."""
    if not before.lines or not foreign.lines:
        return foreign
    ids = [line.id for line in lines if line.kind == "message"]
    return replace(foreign, lines=((min(ids), max(ids)),) if ids else ())


def _placed(store: Store, head: Head, old: Head | None, target: str, log: Log, foreign: Foreign) -> Head:
    kept = foreign_of(old)
    both = Foreign(tuple(dict.fromkeys((*kept.lines, *foreign.lines))), {**kept.files, **foreign.files})
    last_turn = min(head.last_turn, store.clock()) if head.last_turn else ""
    placed = replace(
        head,
        name=target,
        kind="auto" if is_automatic(target) else "named",
        created=old.created if old else head.created or store.clock(),
        last_turn=last_turn,
        states={**(old.states if old else {}), **head.states},
        extra=with_foreign({**head.extra, **(old.extra if old else {})}, both),
    )
    return with_counts(placed, log)

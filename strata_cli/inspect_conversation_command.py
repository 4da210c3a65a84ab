"""`strata inspect NAME` and `--verify`: one conversation or prefix, and the check of every byte.

Owns how they are printed. What is checked is `verify`; nothing here loads a model or changes anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .config import Config
from .directory import RECORD_KINDS
from .errors import Bad, NotFound, StrataError
from .head import Head, SegmentRef, StateRef
from .identity import flat_fields
from .inspect_command import directory_data
from .log import Line, Log
from .names import resolve
from .output import Output
from .prompt import content_text
from .report import NO_STATE, DirectoryFacts, scan
from .sizes import format_bytes
from .store import Store
from .verify import Finding, Verified, verify

Row = dict[str, Any]


def inspect_conversation(
    wanted: str, store: Store, config: Config, out: Output, *, transcript: bool, check: bool
) -> int:
    """Segments, boundaries, identity, and what was said. Raises NotFound, UsageProblem for an ambiguous name."""
    kind, name = find(wanted, store)
    head, log = _head(store, kind, name, out), store.read_log(name, kind)
    data = {**_data_of(scan(store, now_iso=store.clock()), kind, name, config), **_details(store, name, head, log)}
    data["messages"] = [_message(line) for line in log.branch()] if transcript else None
    _show(data, head, config, out)
    verified = checked(store, (kind, name), out) if check else None
    return _finish(data, verified, out)


def verify_directory(store: Store, config: Config, out: Output) -> int:
    """Every byte of the directory; exit status 12 where something is bad or in quarantine."""
    data = directory_data(scan(store, now_iso=store.clock()), config.settings.store.max_size_bytes)
    return _finish(data, checked(store, None, out), out)


def find(wanted: str, store: Store) -> tuple[str, str]:
    """Kind and name of a conversation or prefix, by its name or a unique beginning."""
    names = {kind: store.names(kind) for kind in RECORD_KINDS}
    name = resolve(wanted, [each for found in names.values() for each in found])
    return next(kind for kind in RECORD_KINDS if name in names[kind]), name


def checked(store: Store, only: tuple[str, str] | None, out: Output) -> Verified:
    """Verify with a bar, and tell each finding."""
    with out.progress("checking", 0, "bytes") as update:
        verified = verify(store, only, update)
    for finding in verified.bad:
        out.show(f"bad: {_line(finding)}")
    for finding in verified.notes:
        out.show(f"note: {_line(finding)}")
    size = format_bytes(verified.checked_bytes)
    out.show(f"checked {verified.checked_files:,} files, {size}: {len(verified.bad) or 'nothing'} bad")
    return verified


def _line(finding: Finding) -> str:
    return f"{finding.file}: {finding.what}: {finding.meaning}"


def _finish(data: Row, verified: Verified | None, out: Output) -> int:
    if verified is None:
        return out.finish(data)
    data |= verified.as_json()
    if not verified.bad:
        return out.finish(data)
    first = verified.bad[0]
    more = f", and {len(verified.bad) - 1:,} more" if len(verified.bad) > 1 else ""
    hint = "nothing was changed; a bad segment is set aside when it is next needed, and its tokens are read again"
    return out.fail(Bad(f"{first.file}: {first.what}{more}", hint=hint), data)


def _head(store: Store, kind: str, name: str, out: Output) -> Head | None:
    try:
        return store.read_head(name, kind)
    except NotFound:
        out.warning(f"{name} has no head; its text is there")
    except StrataError as error:
        out.warning(error.message)
    return None


def _data_of(facts: DirectoryFacts, kind: str, name: str, config: Config) -> Row:
    data = directory_data(facts, config.settings.store.max_size_bytes)
    for each in RECORD_KINDS:
        data[each] = [found for found in data[each] if kind == each and found["name"] == name]
    return data


def _details(store: Store, name: str, head: Head | None, log: Log) -> Row:
    states = head.states if head else {}
    return {
        "conversation": name,
        "segments": [row for digest, state in states.items() for row in segment_rows(digest, state)],
        "boundaries": [row for digest, state in states.items() for row in _boundaries(store, digest, state)],
        "identities": {digest: flat_fields(state.identity) for digest, state in states.items()},
        "pins": list(head.pins) if head else [],
        "engine": dict(head.engine) if head else {},
        "created": head.created if head else "",
        "text": {"lines": len(log.lines), "bad_lines": len(log.bad), "alternatives": len(log.alternatives())},
    }


def segment_rows(digest: str, state: StateRef) -> list[Row]:
    """A row for each range of tokens; the bytes of what cannot be cut by position stand apart."""
    parts = {ref.end: ref for ref in state.parts}
    rows = [_segment(ref, ref.bytes, parts.pop(ref.end, None), digest) for ref in state.segments]
    rows += [_segment(ref, 0, ref, digest) for ref in parts.values()]
    return sorted(rows, key=lambda row: (row["end"], row["start"]))


def _segment(ref: SegmentRef, rows_bytes: int, part: SegmentRef | None, digest: str) -> Row:
    part_bytes = part.bytes if part else 0
    return {
        "start": ref.start,
        "end": ref.end,
        "bytes": rows_bytes,
        "part_bytes": part_bytes,
        "file": ref.file,
        "identity": digest,
    }


def _boundaries(store: Store, digest: str, state: StateRef) -> list[Row]:
    """Where the engine can go back to, and why there."""
    found = state.parts or state.segments
    return [{"position": ref.end, "reason": _reason(store, ref), "identity": digest} for ref in found]


def _reason(store: Store, ref: SegmentRef) -> str:
    try:
        with store.open_segment(store.segment_path(ref.file)) as segment:
            return str(segment.metadata.get("reason", ""))
    except StrataError as error:
        return f"unknown: {error.message}"


def _message(line: Line) -> Row:
    message: Mapping[str, Any] = line.message or {}
    return {
        "id": line.id,
        "role": message.get("role"),
        "content": content_text(message),
        "message": dict(message),
        "time": line.time,
        "start": line.start,
        "tokens": len(line.tokens),
        "marks": list(line.marks),
    }


def _state_in_words(facts: Row, least_tokens: int) -> str:
    """Whether it can be used; where there is none because the conversation is short, that this is why."""
    if facts.get("usable"):
        return "usable"
    short = facts.get("why") == NO_STATE and facts.get("tokens", 0) < least_tokens
    kept = f" (it is kept from {least_tokens:,} tokens on: auto_sessions.min_tokens)" if short else ""
    return f"{facts.get('why', '')}{kept}"


def _show(data: Row, head: Head | None, config: Config, out: Output) -> None:
    facts: Row = next(iter([*data["conversations"], *data["prefixes"]]), {})
    state = _state_in_words(facts, config.settings.auto_sessions.min_tokens)
    out.show(f"{data['conversation']}: {facts.get('title', '')}")
    out.show(
        f"{facts.get('turns', 0):,} turns, {facts.get('tokens', 0):,} tokens, state: {state},"
        f" model {facts.get('model') or 'unknown'}, last turn {head.last_turn if head else 'unknown'}"
    )
    rows = [
        [f"{r['start']:,}-{r['end']:,}", format_bytes(r["bytes"]), format_bytes(r["part_bytes"]), r["file"]]
        for r in data["segments"]
    ]
    if rows:
        out.table(["tokens", "rows", "part", "file"], rows, right={1, 2})
    if data["boundaries"]:
        out.table(["boundary", "made at"], [[f"{b['position']:,}", b["reason"]] for b in data["boundaries"]], right={0})
    if data["identities"] and (out.verbose or len(data["identities"]) > 1):
        out.table(["identity", *[digest[:16] for digest in data["identities"]]], _identity_rows(data["identities"]))
    for message in data["messages"] or ():
        marks = f" ({', '.join(message['marks'])})" if message["marks"] else ""
        out.show(f"\n{message['role']}{marks}:\n{message['content']}")


def _identity_rows(identities: Mapping[str, Mapping[str, Any]]) -> Sequence[list[str]]:
    names = list(dict.fromkeys(name for fields in identities.values() for name in fields))
    return [[name, *[str(fields.get(name, "")) for fields in identities.values()]] for name in names]

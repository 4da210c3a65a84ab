"""Conversations made through the store from made-up bytes: for tests of files that need no engine."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from strata_cli.files import Files
from strata_cli.head import Head, StateRef
from strata_cli.identity import Identity, prefix_hashes
from strata_cli.log import Line
from strata_cli.names import is_automatic, key_of
from strata_cli.segment import Draft, Kind
from strata_cli.store import Store

IDENTITY = Identity("b3:" + "1" * 64, (), "f16", "f16", False, {"freq_base": 0.0}, 3, {"recipe": 1})


def open_store(root: Path, files: Files | None = None) -> Store:
    return Store.open(root, files or Files(), lambda: datetime.now(UTC))


def tokens_of(turns: int, each: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(random.Random(seed).randrange(30000) for _ in range(turns * each))


def converse(
    store: Store,
    name: str,
    *,
    turns: int = 3,
    each: int = 20,
    payload_bytes: int = 5000,
    parts: bool = False,
    seed: int = 0,
    says: str = "question",
    identity: Identity = IDENTITY,
) -> Head:
    """A conversation of `turns` turns, with one segment (and one part) a turn; grows the one that is there."""
    tokens, before = tokens_of(turns, each, seed), store.read_log(name)
    have = len(before.branch()) // 2
    lines, rows, some_parts = [], [], []
    parent, next_id = before.tip, before.next_id
    hashes = prefix_hashes(identity.digest, tokens, range(0, len(tokens) + 1, each))
    for turn in range(turns):
        start, end = turn * each, (turn + 1) * each
        if turn >= have:
            for role in ("user", "assistant"):
                message = {"role": role, "content": f"{says} {turn} of {seed}: {role}"}
                at = start if role == "user" else end - 2
                ids = tokens[start : end - 2] if role == "user" else tokens[end - 2 : end]
                lines.append(Line(next_id, parent, "message", store.clock(), message, ids, at, "b3:" + "2" * 32))
                parent, next_id = next_id, next_id + 1
        rows.append(write(store, Kind.ROWS, start, end, hashes, tokens, payload_bytes, identity))
        if parts:
            some_parts.append(write(store, Kind.PART, start, end, hashes, tokens, 300, identity))
    store.append_log(name, lines)
    state = StateRef(identity.fields(), tuple(rows), tuple(some_parts), len(tokens))
    first = f"{says} 0 of {seed}: user"
    head = Head(
        name,
        "auto" if is_automatic(name) else "named",
        key_of(first),
        first,
        created=store.clock(),
        updated=store.clock(),
        last_turn=store.next_time(),
        turns=turns,
        tokens=len(tokens),
        states={identity.digest.hex(): state},
    )
    store.write_head(head)
    return head


def write(store, kind, start, end, hashes, tokens: Sequence[int], payload_bytes, identity):  # type: ignore[no-untyped-def]
    payload = random.Random(f"{kind}{end}{hashes[end]}").randbytes(min(payload_bytes, 1 << 20))
    pieces = [memoryview(payload)] * max(1, payload_bytes // len(payload))
    metadata = {"identity": identity.digest.hex(), "fields": identity.fields(), "reason": "reply"}
    draft = Draft(kind, start, end, hashes[start], hashes[end], tokens[start:end], metadata)
    return store.write_segment(draft, pieces)[0]


def said(store: Store, name: str) -> list[str]:
    return [str((line.message or {}).get("content")) for line in store.read_log(name).branch()]


def without_clock(head: Head) -> Head:
    return replace(head, created="", updated="", last_turn="")

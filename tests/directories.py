"""Session directories made without a model: conversations with real segments of a few bytes."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

from strata_cli.files import Files
from strata_cli.head import Head, SegmentRef, StateRef
from strata_cli.identity import Identity, prefix_hashes
from strata_cli.inventory import Inventory, take_inventory
from strata_cli.log import Line
from strata_cli.names import is_automatic, key_of
from strata_cli.segment import Draft, Kind
from strata_cli.store import Store

NOW = datetime(2026, 6, 1, tzinfo=UTC)
IDENTITY = Identity("b3:" + "a" * 64, (), "f16", "f16", False, {"freq_base": 1e4}, 3, {"layers": 2})


def store_in(root: Path, files: Files | None = None, **options: object) -> Store:
    return Store.open(root, files or Files(), lambda: NOW, **options)  # type: ignore[arg-type]


def days_ago(days: float, now: datetime = NOW) -> str:
    return (now - timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def add(
    store: Store,
    name: str,
    *,
    days: float = 0.0,
    turns: int = 2,
    ends: Sequence[int] = (10, 30),
    tokens: Sequence[int] | None = None,
    kind: str = "conversations",
    text: str = "",
    payload_bytes: int = 1000,
    identity: Identity = IDENTITY,
    now: datetime = NOW,
    **head: object,
) -> Head:
    """A conversation whose state is one segment up to each of `ends`, and two lines of text a turn."""
    moment, words = days_ago(days, now), text or f"words of {name}"
    sequence = list(tokens or (ord(char) for char in (name[::-1] * 64)[: max(ends, default=0)]))
    refs = write_segments(store, sequence, ends, payload_bytes, identity)
    states = {identity.digest.hex(): StateRef(identity.fields(), refs, (), ends[-1])} if refs else {}
    made = Head(
        name,
        "auto" if is_automatic(name) else "named",
        key=key_of(words),
        title=words,
        created=moment,
        updated=moment,
        last_turn=moment,
        turns=turns,
        tokens=len(sequence),
        states=states,
    )
    made = replace(made, **head)  # type: ignore[arg-type]
    lines = [
        Line(n, n - 1 or None, "message", moment, {"role": ("assistant", "user")[n % 2], "content": words})
        for n in range(1, 2 * turns + 1)
    ]
    store.append_log(name, lines, kind)
    store.write_head(made, kind)
    return made


def write_segments(
    store: Store, tokens: Sequence[int], ends: Sequence[int], payload_bytes: int = 1000, identity: Identity = IDENTITY
) -> tuple[SegmentRef, ...]:
    """Segments [0, ends[0]), [ends[0], ends[1]), ... of a token sequence."""
    positions = [0, *ends]
    hashes = prefix_hashes(identity.digest, tokens, positions)
    refs = []
    for start, end in pairwise(positions):
        draft = Draft(Kind.ROWS, start, end, hashes[start], hashes[end], list(tokens[start:end]), {})
        refs.append(store.write_segment(draft, [os.urandom(payload_bytes)])[0])
    return tuple(refs)


def disk_bytes(store: Store) -> int:
    """What all files of the directory take, by walking it."""
    roots = {store.root, store.directory.state_root}
    return sum(path.lstat().st_size for root in roots for path in root.rglob("*") if path.is_file())


def dangling(store: Store) -> list[str]:
    """The segments that a head names and that are not there."""
    seen: Inventory = take_inventory(store)
    return [file for record in seen.records for file in record.files if file not in seen.segments]

"""What is in the session directory: facts for `inspect`, and their rows for people.

Owns counting. It reads heads and folder listings, never K/V, and changes nothing.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from .head import Head, StateRef
from .sizes import format_age, format_bytes
from .store import BadEntry, Store


@dataclass(frozen=True)
class ConversationFacts:
    """One conversation or prefix. Sizes in bytes; `why` says why its state is not usable, None when it is."""

    name: str
    title: str
    kind: str
    tokens: int
    turns: int
    own_bytes: int
    shared_bytes: int
    usable: bool
    why: str | None
    model: str
    updated: str

    def as_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


@dataclass(frozen=True)
class DirectoryFacts:
    """The whole directory; `by_kind` adds up to `total_bytes`."""

    conversations: tuple[ConversationFacts, ...]
    prefixes: tuple[ConversationFacts, ...]
    by_kind: dict[str, int]
    now: str

    @property
    def total_bytes(self) -> int:
        return sum(self.by_kind.values())


def scan(store: Store, *, now_iso: str) -> DirectoryFacts:
    """Look at everything once. Newest conversations first."""
    heads = {kind: list(store.heads(kind)) for kind in ("conversations", "prefixes")}
    on_disk = store.segment_sizes()
    users = Counter(ref for found in heads.values() for head in found for ref in _files_of(head))
    facts = {
        kind: tuple(sorted((_facts(h, users, on_disk) for h in found), key=lambda each: each.updated, reverse=True))
        for kind, found in heads.items()
    }
    return DirectoryFacts(facts["conversations"], facts["prefixes"], _by_kind(store, users, on_disk), now_iso)


def _files_of(head: Head | BadEntry) -> Iterator[str]:
    if isinstance(head, Head):
        yield from {ref.file for state in head.states.values() for ref in (*state.segments, *state.parts)}


def _facts(head: Head | BadEntry, users: Counter[str], on_disk: dict[str, int]) -> ConversationFacts:
    if isinstance(head, BadEntry):
        return ConversationFacts(head.name, "", "named", 0, 0, 0, 0, False, head.why, "", "")
    files = set(_files_of(head))
    own = sum(on_disk.get(file, 0) for file in files if users[file] == 1)
    shared = sum(on_disk.get(file, 0) for file in files if users[file] > 1)
    why = _why_not(head, on_disk)
    model = Path(str(head.model.get("path", ""))).name
    return ConversationFacts(
        head.name, head.title, head.kind, head.tokens, head.turns, own, shared, why is None, why, model, head.updated
    )


def _why_not(head: Head, on_disk: dict[str, int]) -> str | None:
    """Why no state of this conversation can be used as it stands: the model decides the rest when it is loaded."""
    if not head.states:
        return "no state is stored"
    if not any(_is_whole(state, on_disk) for state in head.states.values()):
        return "some of its state is gone"
    path = head.model.get("path")
    return f"its model {path} is gone" if path and not Path(str(path)).exists() else None


def _is_whole(state: StateRef, on_disk: dict[str, int]) -> bool:
    return all(ref.file in on_disk for ref in (*state.segments, *state.parts[-1:]))


def _by_kind(store: Store, users: Counter[str], on_disk: dict[str, int]) -> dict[str, int]:
    sizes = {"text": store.text_bytes(), "rows": 0, "parts": 0, "unreferenced": 0}
    for file, size in on_disk.items():
        kind = "unreferenced" if not users[file] else "parts" if file.endswith(".part") else "rows"
        sizes[kind] += size
    return {**sizes, "temporary": store.temporary_bytes(), "quarantine": store.quarantine_bytes()}


def conversation_rows(facts: DirectoryFacts, limit: int | None) -> tuple[list[list[str]], list[str]]:
    """Rows for people, and their titles."""
    titles = ["name", "tokens", "turns", "own", "shared", "age", "state", "model", "title"]
    rows = [
        [
            each.name,
            f"{each.tokens:,}",
            str(each.turns),
            format_bytes(each.own_bytes),
            format_bytes(each.shared_bytes),
            _age(each.updated, facts.now),
            "usable" if each.usable else str(each.why),
            each.model,
            each.title,
        ]
        for each in facts.conversations[:limit]
    ]
    return rows, titles


def _age(then: str, now: str) -> str:
    try:
        seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(then)).total_seconds()
    except ValueError:
        return ""
    return format_age(max(0.0, seconds))

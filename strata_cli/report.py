"""What is in the session directory: facts for `inspect`, and their rows for people.

Owns counting and judging: whose bytes are whose, and whether state can be used here as far as that can be told without
loading a model. It changes nothing.
"""

import os
from collections import Counter
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from .head import Head, states_as_json
from .inventory import Inventory, Record, take_inventory, uncollected
from .prune_plan import is_pinned, users_of
from .sizes import format_age, format_bytes
from .store import Store

NO_STATE = "no state is stored"


@dataclass(frozen=True)
class Here:
    """What this machine has: the state format of the installed engine (None: not known), and models that are gone."""

    state_format: int | None = None
    absent_models: Collection[str] = ()


class ConversationFacts(NamedTuple):
    """One conversation or prefix. Sizes in bytes; `why` says why its state is not usable, None when it is.

    `pinned` is None where there is nothing to pin: in a conversation.
    """

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
    pinned: bool | None = None

    def as_json(self) -> dict[str, Any]:
        facts = self._asdict()
        if self.pinned is None:
            del facts["pinned"]
        return facts


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


@uncollected()
def scan(store: Store, *, now_iso: str, state_format: int | None = None) -> DirectoryFacts:
    """Look at everything once, newest conversations first. Raises StorageFailed."""
    seen = take_inventory(store)
    users = users_of(seen)
    shared = frozenset([file for file, count in users.items() if count > 1])
    here = Here(state_format, absent_models(seen))
    conversations, prefixes = (
        tuple(
            sorted((_facts(each, shared, seen, here) for each in found), key=lambda facts: facts.updated, reverse=True)
        )
        for found in (seen.conversations, seen.prefixes)
    )
    return DirectoryFacts(conversations, prefixes, by_kind(seen, users), now_iso)


def absent_models(seen: Inventory) -> frozenset[str]:
    """The models that heads remember and that are not where they were."""
    paths = {str(record.head.model.get("path") or "") for record in seen.records if record.head is not None}
    return frozenset(path for path in paths if path and not os.path.exists(path))


def _facts(record: Record, shared_files: AbstractSet[str], seen: Inventory, here: Here) -> ConversationFacts:
    head = record.head
    if head is None:
        return ConversationFacts(record.name, "", "named", 0, 0, 0, 0, False, record.why, "", "")
    own = shared = 0
    size_of = seen.segments.get
    for file in record.files:
        if file in shared_files:
            shared += size_of(file, 0)
        else:
            own += size_of(file, 0)
    path = str(head.model.get("path") or "")
    why = why_not(record, head, path, seen.segments, here)
    return ConversationFacts(
        record.name,
        head.title,
        head.kind,
        head.tokens,
        head.turns,
        own,
        shared,
        why is None,
        why,
        path.rpartition("/")[2],
        head.updated,
        is_pinned(head) if record.kind == "prefixes" else None,
    )


def why_not(record: Record, head: Head, model_path: str, on_disk: Collection[str], here: Here) -> str | None:
    """Why no state of this conversation can be used as it stands; None where the model, once loaded, can use it."""
    if not record.files:
        return NO_STATE
    if model_path in here.absent_models:
        return f"its model {model_path} is gone"
    states = states_as_json(head.states).values()
    whole = [state for state in states if (state["segments"] or state["parts"]) and _is_whole(state, on_disk)]
    if not whole:
        return "some of its files are missing"
    formats = {state["identity"].get("state_format") for state in whole}
    if here.state_format is not None and here.state_format not in formats:
        found = ", ".join(sorted(map(str, formats)))
        return f"stored in state format {found}; the installed engine has {here.state_format}"
    return None


def _is_whole(state: Mapping[str, Any], on_disk: Collection[str]) -> bool:
    """Whether all rows and the last part are there: parts before it may have been thinned."""
    rows: list[Any] = [*state["segments"], *state["parts"][-1:]]
    return all([row[2] in on_disk for row in rows])


def by_kind(seen: Inventory, users: Counter[str]) -> dict[str, int]:
    """The directory's bytes by what they are; strangers among the segments count as unreferenced."""
    unnamed = sum([size for file, size in seen.segments.items() if file not in users])
    parts = sum([size for file, size in seen.segments.items() if file[-1] == "t" and file in users])
    sizes = {
        "text": seen.text_bytes,
        "rows": sum(seen.segments.values()) - unnamed - parts,
        "parts": parts,
        "unreferenced": unnamed + seen.stranger_bytes,
    }
    sizes["temporary"] = sum(each.bytes for each in seen.temporaries)
    sizes["quarantine"] = sum(each.bytes for each in seen.quarantine)
    return sizes


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
            _state_in_words(each),
            each.model,
            each.title,
        ]
        for each in facts.conversations[:limit]
    ]
    return rows, titles


# Columns that a narrow terminal does without, the first first: model, shared bytes, turns, own bytes, age.
SPARE_OF_CONVERSATIONS = (7, 4, 2, 3, 5)
SPARE_OF_PREFIXES = (7, 3, 2, 4)


def _state_in_words(facts: ConversationFacts) -> str:
    """Short, for a column: most have state or have none."""
    return "usable" if facts.usable else "text only" if facts.why == NO_STATE else str(facts.why)


def prefix_rows(facts: DirectoryFacts) -> tuple[list[list[str]], list[str]]:
    """The same for prefixes."""
    titles = ["prefix", "tokens", "own", "shared", "used", "pinned", "state", "model", "title"]
    rows = [
        [
            each.name,
            f"{each.tokens:,}",
            format_bytes(each.own_bytes),
            format_bytes(each.shared_bytes),
            _age(each.updated, facts.now),
            "pinned" if each.pinned else "",
            _state_in_words(each),
            each.model,
            each.title,
        ]
        for each in facts.prefixes
    ]
    return rows, titles


def _age(then: str, now: str) -> str:
    try:
        seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(then)).total_seconds()
    except ValueError:
        return ""
    return format_age(max(0.0, seconds))

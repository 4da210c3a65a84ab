"""The values of a plan, and what each of its items frees: shared files count once, with the last who names them.

Owns the account of who names which file. Which items a plan has is decided in `prune`, or by whoever names them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from .head import Head, StateRef, StoredStates, files_of, states_as_json
from .identity import canonical_json
from .inventory import Inventory, Record


class Item(NamedTuple):
    """One thing that goes: what it is, what it frees in bytes, and why it goes.

    For what lies outside the conversations, `place` is its folder; `digests` are the states of a conversation that
    go, none for all of it.
    """

    what: str
    name: str
    bytes: int
    reason: str
    kind: str = "conversations"
    digests: tuple[str, ...] = ()
    place: Path | None = None

    def freeing(self, size_bytes: int) -> "Item":
        """The same item with what it frees."""
        return Item(self.what, self.name, size_bytes, *self[3:])

    @property
    def key(self) -> tuple[str, str, str]:
        return self.what, self.kind, self.name

    def as_json(self) -> dict[str, Any]:
        return {"what": self.what, "name": self.name, "bytes": self.bytes, "reason": self.reason}


class Kept(NamedTuple):
    """One conversation or prefix that stays, with all that it stands on, and why."""

    name: str
    bytes: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "bytes": self.bytes, "reason": self.reason}


@dataclass(frozen=True)
class PrunePlan:
    """What goes, in the order in which it goes, and what stays. `total_bytes` is the directory before it."""

    items: tuple[Item, ...]
    kept: tuple[Kept, ...]
    total_bytes: int
    max_bytes: int | None = None

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    @property
    def over_bytes(self) -> int:
        """By how much the directory stays over its budget."""
        return 0 if self.max_bytes is None else max(0, self.total_bytes - self.bytes - self.max_bytes)

    def only(self, keys: Iterable[tuple[str, str, str]]) -> "PrunePlan":
        """Those items alone that somebody has seen and agreed to."""
        wanted = set(keys)
        return replace(self, items=tuple(item for item in self.items if item.key in wanted))


def stripped(head: Head, digests: Sequence[str]) -> Head:
    """The head without some of its states."""
    left: Mapping[str, StateRef] = {key: head.states[key] for key in head.states if key not in digests}
    return replace(head, states=left)


def is_pinned(head: Head) -> bool:
    """Whether a prefix was pinned by hand."""
    return head.extra.get("pinned") is True


def users_of(inventory: Inventory) -> Counter[str]:
    """How many conversations and prefixes name each file."""
    return Counter(chain.from_iterable(map(set, (record.files for record in inventory.records))))


def possible_users_of(inventory: Inventory) -> Counter[str]:
    """The same, where somebody whose head could not be read may name any of them: then none of them goes."""
    users = users_of(inventory)
    if inventory.hides_names:
        users.update(inventory.segments.keys())
    return users


def let_go(files: Iterable[str], users: Counter[str]) -> list[str]:
    """Strike out one user of each file; returns those that nobody names any more."""
    free = []
    for file in files:
        left = users.pop(file, 0) - 1
        if left > 0:
            users[file] = left
        else:
            free.append(file)
    return free


def files_let_go(item: Item, record: Record) -> list[str]:
    """The files that a conversation or prefix gives up by this item; others may still name them."""
    if item.what != "state" or record.head is None or len(item.digests) == len(states_as_json(record.head.states)):
        return list(dict.fromkeys(record.files))
    stay = set(files_of(stripped(record.head, item.digests)))
    return [file for file in dict.fromkeys(record.files) if file not in stay]


def price(item: Item, record: Record, users: Counter[str], segments: Mapping[str, int]) -> int:
    """What an item frees, in bytes; its files are struck out in `users`."""
    freed = sum([segments.get(file, 0) for file in let_go(files_let_go(item, record), users)])
    if item.what == "state" and record.head is not None:
        return freed + _shorter_by(record.head, item.digests)
    return freed + record.head_bytes + record.log_bytes


def _shorter_by(head: Head, digests: Sequence[str]) -> int:
    """By how many bytes the head's file gets shorter: canonical JSON is made of its parts."""
    if digests and isinstance(head.states, StoredStates) and head.states.text_bytes:
        return head.states.text_bytes
    states = states_as_json(head.states)
    going = sum([_json_bytes(digest, states[digest]) for digest in digests])
    # Between states, and between what goes and what stays, is one comma each.
    return going + len(digests) - (0 < len(digests) == len(states))


def _json_bytes(digest: str, state: Mapping[str, Any]) -> int:
    """What `"digest":{...}` takes, without making it: plans of thousands of conversations ask."""
    fixed = len('"":{"identity":,"parts":,"segments":,"tokens":}') + len(digest) + len(str(state["tokens"]))
    rows = _rows_bytes(state["segments"]) + _rows_bytes(state["parts"])
    return fixed + _identity_bytes(digest, state["identity"]) + rows


def _rows_bytes(rows: Sequence[Any]) -> int:
    # As Python writes a list of rows, but for a blank after each comma.
    return len(repr(rows)) - 3 * len(rows) - max(0, len(rows) - 1)


_known_identities: dict[str, tuple[Mapping[str, Any], int]] = {}


def _identity_bytes(digest: str, identity: Mapping[str, Any]) -> int:
    known = _known_identities.get(digest)
    if known is None or (known[0] is not identity and known[0] != identity):
        known = _known_identities[digest] = (identity, len(canonical_json(identity)))
    return known[1]


EXECUTION_ORDER = ("temporary", "quarantine", "segment", "branch", "conversation", "prefix", "state")
_ORDER = {what: place for place, what in enumerate(EXECUTION_ORDER)}


def priced(items: Iterable[Item], inventory: Inventory, users: Counter[str] | None = None) -> Iterator[Item]:
    """The items in the order in which they are carried out, each with what it frees when those before it are done.

    `users`: what `possible_users_of` says, where the caller has it; it is used up.
    What needs no room to be removed comes first: on a full disk a shorter head has then a place to be written.
    """
    users = possible_users_of(inventory) if users is None else users
    records = {(record.kind, record.name): record for record in inventory.records}
    for item in sorted(items, key=lambda each: _ORDER[each.what]):
        if item.what in ("conversation", "prefix", "state"):
            record = records[item.kind, item.name]
            yield item.freeing(price(item, record, users, inventory.segments))
        else:
            yield item


def plan_removal(
    inventory: Inventory,
    names: Sequence[str],
    *,
    what: str,
    kind: str = "conversations",
    sizes: Mapping[str, int] | None = None,
) -> PrunePlan:
    """What goes when somebody names it: a conversation with its text, its state alone, its branches, a prefix."""
    chosen = []
    for record in (r for r in inventory.records if r.kind == kind and r.name in names):
        if what == "state" and not record.files:
            continue
        digests = tuple(record.head.states) if what == "state" and record.head is not None else ()
        chosen.append(
            Item(what, record.name, (sizes or {}).get(record.name, 0), "named on the command line", kind, digests)
        )
    return PrunePlan(tuple(priced(chosen, inventory)), (), inventory.total_bytes)


def others_with_its_text(inventory: Inventory, name: str) -> list[str]:
    """The conversations and prefixes that begin with the same words, or stand on the same files: they hold its text."""
    record = next((r for r in inventory.conversations if r.name == name), None)
    if record is None:
        return []
    key, files = record.head.key if record.head is not None else "", set(record.files)
    return [
        other.name
        for other in inventory.records
        if other is not record
        and (not files.isdisjoint(other.files) or (key and other.head is not None and other.head.key == key))
    ]

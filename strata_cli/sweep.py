"""Carrying out a plan: the one place that removes what somebody may have wanted.

Owns the run through the items: a conversation that was opened meanwhile stays, a file that another still names stays,
and what fails is told and the rest goes on. Cut short anywhere, a second run finishes the job. The caller holds the
directory's exclusive lock and has taken the inventory under it.
"""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from .errors import Locked, StrataError
from .inventory import Inventory, Record
from .prune_plan import Item, PrunePlan, files_let_go, let_go, possible_users_of, stripped
from .removal import remove_branches, remove_file, remove_record, remove_segments, replace_state
from .store import Store


@dataclass
class Swept:
    """What was done, each item with the bytes that it freed; what was in use, what failed, and what is left to do."""

    items: list[Item] = field(default_factory=list)
    busy: list[Item] = field(default_factory=list)
    failed: list[tuple[Item, StrataError]] = field(default_factory=list)
    left: list[Item] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)

    def plus(self, other: "Swept") -> "Swept":
        return Swept(self.items + other.items, self.busy + other.busy, self.failed + other.failed, other.left)


def sweep(
    store: Store,
    inventory: Inventory,
    plan: PrunePlan,
    *,
    held: Collection[str] = (),
    enough: Callable[[], bool] = lambda: False,
) -> Swept:
    """Remove the plan's items in order, until `enough` says to stop between two. `held`: conversations locked by us."""
    return _Sweep(store, inventory, frozenset(held)).run(plan, enough)


class _Sweep:
    def __init__(self, store: Store, inventory: Inventory, held: frozenset[str]) -> None:
        self.store, self.held = store, held
        self.users: Counter[str] = possible_users_of(inventory)
        self.records = {(record.kind, record.name): record for record in inventory.records}

    def run(self, plan: PrunePlan, enough: Callable[[], bool]) -> Swept:
        swept = Swept()
        for number, item in enumerate(plan.items):
            if enough():
                swept.left = list(plan.items[number:])
                break
            try:
                swept.items.append(item.freeing(self._remove(item)))
            except Locked:
                swept.busy.append(item)
            except StrataError as error:
                swept.failed.append((item, error))
        return swept

    def _remove(self, item: Item) -> int:
        if item.place is not None:
            return remove_file(self.store, item.place / item.name)
        if item.what == "segment":
            return remove_segments(self.store, [item.name])
        record = self.records[item.kind, item.name]
        with self._lock(record):
            if item.what == "branch":
                return remove_branches(self.store, record.name)
            self._check_unchanged(record)
            # A conversation that stays keeps its files, whatever the plan thought: only now are they struck out.
            free = let_go(files_let_go(item, record), self.users)
            if item.what == "state" and record.head is not None:
                return replace_state(self.store, stripped(record.head, item.digests), record.kind, free)
            return remove_record(self.store, record.name, record.kind, free)

    def _lock(self, record: Record) -> AbstractContextManager[object]:
        if record.name in self.held:
            return contextlib.nullcontext()
        return self.store.hold(record.name, kind=record.kind)

    def _check_unchanged(self, record: Record) -> None:
        """Somebody who opened and closed it since the inventory has used it: the next run judges it anew."""
        if record.head is not None and self.store.read_head(record.name, record.kind) != record.head:
            raise Locked(f"{record.name} was in use meanwhile")

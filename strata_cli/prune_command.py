"""`strata prune`: what the options mean, the plan shown, the question asked, the sweep run.

Owns the order of locks: conversations that somebody named first, then the directory, and that for the sweep alone.
What a policy removes is `prune`, how it is removed `sweep`.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .config import Config
from .errors import NotFound, PartlyDone, StorageFailed, Told, UsageProblem
from .installed import installed_state_format
from .inventory import Inventory, take_inventory
from .names import check_name, nearest
from .output import Mode, Output
from .prune import Policy, Unusable, plan_prune
from .prune_plan import Item, PrunePlan, others_with_its_text, plan_removal
from .removal import branch_bytes
from .signals import Stop
from .sizes import format_bytes
from .store import Store
from .sweep import Swept, sweep

SLICE_S = 5.0  # a sweep lets waiting writers through after this long
SHOWN_KEPT = 5


@dataclass(frozen=True)
class PruneRequest:
    """What `strata prune` was asked. Sizes in bytes, ages in seconds, None: as configured."""

    names: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    keep: int | None = None
    max_age_s: int | None = None
    max_bytes: int | None = None
    named: bool = False
    transcripts: bool = False
    unusable: bool = False
    dry_run: bool = False
    yes: bool = False
    wait_s: float = 60.0

    @property
    def all_names(self) -> tuple[str, ...]:
        return (*self.names, *self.state, *self.alternatives, *self.prefixes)

    @property
    def kind(self) -> str:
        return "prefixes" if self.prefixes else "conversations"


def check(request: PruneRequest) -> None:
    """Raises UsageProblem for wishes that exclude each other, before anything is looked at."""
    for name in request.all_names:
        check_name(name)
    if sum(map(bool, (request.names, request.state, request.alternatives))) > 1:
        raise UsageProblem("NAME, --state and --alternatives are different wishes", hint="one after the other")
    limits = (request.keep, request.max_age_s, request.max_bytes)
    if request.all_names and (request.named or request.transcripts or request.unusable or limits != (None,) * 3):
        raise UsageProblem("a NAME and a policy are different wishes", hint="one after the other")
    if request.transcripts and request.keep is None and request.max_age_s is None:
        hint = "for instance: strata prune --transcripts --max-age 90d"
        raise UsageProblem("--transcripts deletes text: say of which conversations, --keep or --max-age", hint=hint)


def prune(
    request: PruneRequest, store: Store, config: Config, out: Output, stop: Stop, now: Callable[[], float]
) -> int:
    """Plan and, unless it is a dry run, do it. Returns the exit status."""
    if not request.dry_run:
        _check_may_write(request, store, out)
    if store.directory.has_state_dir and not store.directory.state_root.is_dir():
        missing = store.directory.state_root
        raise StorageFailed(f"the folder for state {str(missing)!r} is missing", hint="mount its disk, then prune")
    task = _Task(request, store, config, out, stop, now)
    if not store.root.is_dir():
        if request.all_names:
            task.check_names(())
        return task.tell(PrunePlan((), (), 0), Swept())
    with contextlib.ExitStack() as locks:
        if request.all_names:
            task.check_names(store.names(request.kind))
            for name in request.all_names if not request.dry_run else ():
                locks.enter_context(store.hold(name, request.wait_s, request.kind))
        return task.run()


def _check_may_write(request: PruneRequest, store: Store, out: Output) -> None:
    if store.root.is_dir() and not store.writable:
        raise StorageFailed(
            f"{str(store.root)!r} cannot be written by this user", reason="permission", hint="run it as its owner"
        )
    if not request.yes and not out.can_ask:
        raise UsageProblem(
            "prune removes things, and there is no terminal to confirm it on",
            hint="--yes to do it, or --dry-run to see what would go",
        )


@dataclass
class _Task:
    """One prune on its way."""

    request: PruneRequest
    store: Store
    config: Config
    out: Output
    stop: Stop
    now: Callable[[], float]

    def check_names(self, names: Sequence[str]) -> None:
        """All of them before the first is touched: names are full ones here."""
        for name in self.request.all_names:
            if name not in names:
                similar = [other for other in names if other.startswith(name)]
                hint = f"full names only: {', '.join(similar[:8])}" if similar else nearest(name, names)
                what = "prefix" if self.request.prefixes else "conversation"
                raise NotFound(f"there is no {what} {name}", hint=hint)

    def run(self) -> int:
        request, seen = self.request, None
        if request.dry_run or not request.yes:
            inventory = take_inventory(self.store)
            plan = self.plan(inventory)
            self.show(plan)
            self._tell_text(inventory)
            if request.dry_run:
                return self.tell(plan, None)
            seen = {item.key for item in plan.items}
            if not plan.items:
                return self.tell(plan, Swept())
            if not self.out.confirm(f"Remove {len(plan.items)} things, {format_bytes(plan.bytes)}?"):
                self.out.note("nothing was removed")
                return self.tell(PrunePlan((), (), plan.total_bytes), Swept())
        return self.tell(*self.sweep(seen))

    def sweep(self, seen: set[tuple[str, str, str]] | None) -> tuple[PrunePlan, Swept]:
        """Plan anew under the lock and do it, in slices; what nobody has agreed to is left alone."""
        done, first = Swept(), None
        with self.stop.deferring():
            while True:
                with self.store.exclusive(self.request.wait_s):
                    inventory = take_inventory(self.store)
                    plan = self.plan(inventory)
                    if seen is not None:
                        plan = plan.only(seen)
                    if first is None:
                        first = plan
                        self._tell_text(inventory)
                    done = done.plus(self._slice(inventory, plan))
                if not done.left or self.stop.cancelled():
                    return first, done

    def _slice(self, inventory: Inventory, plan: PrunePlan) -> Swept:
        deadline = time.monotonic() + SLICE_S

        def enough() -> bool:
            return self.stop.cancelled() or time.monotonic() > deadline

        return sweep(self.store, inventory, plan, held=self.request.all_names, enough=enough)

    def plan(self, inventory: Inventory) -> PrunePlan:
        request = self.request
        if request.names:
            return plan_removal(inventory, request.names, what="conversation")
        if request.prefixes:
            return plan_removal(inventory, request.prefixes, what="prefix", kind="prefixes")
        if request.state:
            return plan_removal(inventory, request.state, what="state")
        if request.alternatives:
            sizes = {name: branch_bytes(self.store, name) for name in request.alternatives}
            return plan_removal(inventory, request.alternatives, what="branch", sizes=sizes)
        return plan_prune(inventory, self.policy(models_of(inventory)), self.now())

    def policy(self, models: frozenset[str]) -> Policy:
        """What the options and the configuration say. `models`: the files that conversations need."""
        request, auto, limits = self.request, self.config.settings.auto_sessions, self.config.settings.store
        return Policy(
            keep=auto.keep if request.keep is None else request.keep,
            max_age_s=auto.max_age_s if request.max_age_s is None else request.max_age_s,
            max_bytes=limits.max_size_bytes if request.max_bytes is None else request.max_bytes,
            prefix_max_age_s=limits.prefix_max_age_s,
            quarantine_age_s=limits.quarantine_age_s,
            named=request.named,
            text_keep=request.keep if request.transcripts else None,
            text_max_age_s=request.max_age_s if request.transcripts else None,
            unusable=self._unusable(models) if request.unusable else None,
            spare_oversized=request.max_bytes is None,
        )

    def _unusable(self, models: frozenset[str]) -> Unusable:
        absent = frozenset(path for path in models if not os.path.exists(path))
        return Unusable(installed_state_format(self.config.places.cache), absent)

    # -- telling

    def show(self, plan: PrunePlan) -> None:
        """The plan as a table, worded as what will be."""
        if not self.request.all_names:
            self.out.note(f"policy: {self.policy(frozenset()).in_words()}")
        if plan.items and self.out.mode is Mode.HUMAN:
            rows = [[item.what, item.name, format_bytes(item.bytes), item.reason] for item in plan.items]
            self.out.table(["what", "name", "frees", "why"], rows, right={2})

    def _tell_text(self, inventory: Inventory) -> None:
        for name in self.request.names:
            if others := [o for o in others_with_its_text(inventory, name) if o not in self.request.names]:
                self.out.note(f"the text of {name} is also, at least in part, in: {', '.join(others)}")

    def tell(self, plan: PrunePlan, swept: Swept | None) -> int:
        """The end: what was done, or would be, and what stays."""
        items = plan.items if swept is None else swept.items
        freed = sum(item.bytes for item in items)
        over = plan.over_bytes if swept is None else max(0, plan.over_bytes + plan.bytes - freed)
        for item, error in swept.failed if swept else ():
            self.out.warning(f"{item.name} stays: {error.message}")
        for item in swept.busy if swept else ():
            self.out.warning(f"{item.name} stays: it is in use")
        if self.request.dry_run:
            self.out.note(f"would free {format_bytes(freed)}; nothing was changed")
        elif items:
            self.out.note(f"freed {format_bytes(freed)}: {count_of(items)}")
        elif not (swept and (swept.failed or swept.busy)):
            self.out.note("nothing to remove")
        data = self._data(plan, items, freed, over)
        if problem := self._problem(plan, swept, over):
            return self.out.fail(problem, data)
        return self.out.finish(data)

    def _data(self, plan: PrunePlan, items: Sequence[Item], freed: int, over: int) -> dict[str, Any]:
        return {
            "dry_run": self.request.dry_run,
            "items": [item.as_json() for item in items],
            "bytes": freed,
            "kept": [each.as_json() for each in plan.kept],
            "total_bytes": plan.total_bytes - (0 if self.request.dry_run else freed),
            "budget_bytes": plan.max_bytes,
            "over_bytes": over,
        }

    def _problem(self, plan: PrunePlan, swept: Swept | None, over: int) -> Told | None:
        if self.stop.cancelled():
            return self.stop.status
        if swept and (swept.failed or swept.busy):
            what = f"{len(swept.failed) + len(swept.busy)} of {len(plan.items)} things could not be removed"
            return PartlyDone(what, hint="run it again later")
        if not over:
            return None
        largest = max(plan.kept, key=lambda kept: kept.bytes, default=None)
        stays = f"; the largest that stays is {largest.name}, {format_bytes(largest.bytes)}" if largest else ""
        return PartlyDone(
            f"the directory stays {format_bytes(over)} over {format_bytes(plan.max_bytes or 0)}{stays}",
            hint="`strata prune NAME` deletes a conversation, --named extends the policy to the state of named ones",
        )


def count_of(items: Sequence[Item]) -> str:
    """`3 state, 1 segment`."""
    kinds = list(dict.fromkeys(item.what for item in items))
    return ", ".join(f"{sum(1 for item in items if item.what == kind):,} {kind}" for kind in kinds)


def models_of(inventory: Inventory) -> frozenset[str]:
    """The paths of the models that the conversations remember."""
    heads = (record.head for record in inventory.conversations)
    return frozenset(str(head.model["path"]) for head in heads if head is not None and head.model.get("path"))

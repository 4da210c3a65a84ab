"""Which parts of a session directory may go, and why: a plan, made from an inventory and never from the disk.

Owns the policy. Text and state are kept apart: a policy removes state, which can be read again; text goes only where
somebody named it or asked for `--transcripts`. What carries a plan out is `sweep`.

Order among conversations (A9): single-turn ones go before continued ones, older before newer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from .head import states_as_json
from .inventory import Inventory, Record, uncollected
from .prune_plan import Item, Kept, PrunePlan, is_pinned, possible_users_of, price, priced
from .sizes import format_age, format_bytes, format_span

UNUSED_MODEL_S = 30 * 86400  # state of a model that is absent is given up after this long without a use
STALE_WRITER_S = 86400  # no write takes a day: a process of that number is another one by then


@dataclass(frozen=True)
class Unusable:
    """What the machine can use: the state format of the installed engine, None when none is installed."""

    installed_format: int | None
    absent_models: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Policy:
    """What may go by itself. Ages in seconds, None: no such limit. `protected` are conversations in use here.

    `text_keep` and `text_max_age_s` are limits beyond which automatic conversations go with their text.

    `leftovers` false leaves files that nothing names alone while the directory fits. `spare_oversized` keeps the
    newest conversation when it alone is larger than the budget, so that it is not written and deleted in turns.
    The budget takes the oldest first, with `single_turns_first` in the order of `keep`.
    """

    keep: int | None = None
    max_age_s: float | None = None
    max_bytes: int | None = None
    prefix_max_age_s: float | None = None
    quarantine_age_s: float | None = None
    named: bool = False
    text_keep: int | None = None
    text_max_age_s: float | None = None
    unusable: Unusable | None = None
    leftovers: bool = True
    spare_oversized: bool = True
    spare_prefixes: bool = False
    single_turns_first: bool = False
    protected: frozenset[str] = frozenset()

    @property
    def removes_text(self) -> bool:
        return self.text_keep is not None or self.text_max_age_s is not None

    def in_words(self) -> str:
        """The policy as a sentence, with the sizes and ages that were understood."""
        whose = "conversations" if self.named else "automatic conversations"
        parts = []
        if self.keep is not None:
            parts.append(f"keep the state of the {self.keep:,} newest {whose}")
        if self.max_age_s is not None:
            parts.append(f"of none older than {format_span(self.max_age_s)}")
        if self.max_bytes is not None:
            parts.append(f"the directory within {format_bytes(self.max_bytes)} ({self.max_bytes:,} bytes)")
        if self.prefix_max_age_s is not None:
            parts.append(f"unpinned prefixes that were used within {format_span(self.prefix_max_age_s)}")
        text = "; text of what falls out goes too" if self.removes_text else "; no text is removed"
        return ", ".join(parts) + text


@uncollected()
def plan_prune(inventory: Inventory, policy: Policy, now_s: float) -> PrunePlan:
    """What the policy removes from this directory. Reads nothing but its arguments."""
    return _Sheet(inventory, policy, now_s).plan()


def last_use(record: Record) -> str:
    """When it was last used, ISO; "" when nobody knows."""
    head = record.head
    if head is None:
        return ""
    return head.last_turn if head.last_turn >= head.created else head.created


def last_touch(record: Record) -> str:
    """The same of a prefix, whose head is renewed when a conversation starts from it."""
    return max(last_use(record), record.head.updated) if record.head is not None else ""


def age_s(moment: str, now_s: float) -> float:
    """How long ago, in seconds; 0 for what is no time."""
    try:
        return now_s - datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return 0.0


@dataclass
class _Sheet:
    """The account of one plan: what has been chosen, and who still names each file.

    `fixed` says why a record stays, `gone` which are chosen; both know a record by its `id`, as one of the inventory's.
    """

    inventory: Inventory
    policy: Policy
    now_s: float
    chosen: list[Item] = field(default_factory=list)
    freed_bytes: int = 0
    spared: Record | None = None
    gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.users = possible_users_of(self.inventory)
        self.may_be_over = self.is_over
        self.users_before = self.users.copy() if self.may_be_over else self.users
        self.fixed = {id(each): why for each in self.inventory.records if (why := self._why_fixed(each))}

    def plan(self) -> PrunePlan:
        if self.policy.leftovers or self.is_over:
            self._leftovers()
        self._old_prefixes()
        self._by_use()
        self._until_it_fits()
        ordered = tuple(priced(self.chosen, self.inventory, self.users_before))
        return PrunePlan(ordered, tuple(self._kept()), self.inventory.total_bytes, self.policy.max_bytes)

    @property
    def is_over(self) -> bool:
        left = self.inventory.total_bytes - self.freed_bytes
        return self.policy.max_bytes is not None and left > self.policy.max_bytes

    # -- what nobody names

    def _leftovers(self) -> None:
        for loose in self.inventory.temporaries:
            if not loose.writer_lives or self.now_s - loose.since_s > STALE_WRITER_S:
                self._choose(Item("temporary", loose.name, loose.bytes, "its writer is gone", place=loose.folder))
        limit = self.policy.quarantine_age_s
        for loose in self.inventory.quarantine:
            if limit is not None and self.now_s - loose.since_s >= limit:
                why = f"in quarantine since {format_age(self.now_s - loose.since_s)}"
                self._choose(Item("quarantine", loose.name, loose.bytes, why, place=loose.folder))
        if self.inventory.knows_all:
            for file in sorted([file for file in self.inventory.segments if file not in self.users]):
                self._choose(Item("segment", file, self.inventory.segments[file], "nothing names it"))

    # -- prefixes

    def _old_prefixes(self) -> None:
        limit = self.policy.prefix_max_age_s
        for record in self.inventory.prefixes:
            if limit is not None and self._may_go(record) and age_s(last_touch(record), self.now_s) >= limit:
                why = f"nobody used it since {format_age(age_s(last_touch(record), self.now_s))}"
                self._choose(Item("prefix", record.name, 0, why, record.kind), record)

    # -- conversations

    def _by_use(self) -> None:
        candidates = [r for r in self.inventory.conversations if r.head is not None and self._in_scope(r)]
        ranked = sorted(candidates, key=eviction_order, reverse=True)
        policy = self.policy
        automatic = [record for record in ranked if record.head is not None and record.head.kind == "auto"]
        texts = [*self._beyond(automatic, policy.text_keep), *self._too_old(automatic, policy.text_max_age_s)]
        for record, why in texts:
            self._choose(Item("conversation", record.name, 0, why, record.kind), record)
        with_state = [record for record in ranked if record.files]
        for record, why in [*self._beyond(with_state, policy.keep), *self._too_old(with_state, policy.max_age_s)]:
            self._drop_state(record, why)
        self._unusable(with_state)

    def _in_scope(self, record: Record) -> bool:
        return self.policy.named or (record.head is not None and record.head.kind == "auto")

    def _beyond(self, ranked: Sequence[Record], keep: int | None) -> Iterator[tuple[Record, str]]:
        """Those behind the newest `keep`; what is in use counts among the kept wherever it stands."""
        if keep is None:
            return
        fixed = sum(1 for record in ranked if id(record) in self.fixed) if self.fixed else 0
        room = max(0, keep - fixed)
        why = f"not among the {keep:,} newest"
        why_single = f"{why} and has a single turn"
        for record in ranked:
            if not self._may_go(record):
                continue
            if room:
                room -= 1
                continue
            yield record, why_single if record.head is not None and record.head.turns <= 1 else why

    def _too_old(self, ranked: Sequence[Record], limit: float | None) -> Iterator[tuple[Record, str]]:
        for record in ranked if limit is not None else ():
            if self._may_go(record) and (age := age_s(last_use(record), self.now_s)) >= (limit or 0):
                yield record, f"last used {format_age(age)}"

    def _unusable(self, ranked: Sequence[Record]) -> None:
        rule = self.policy.unusable
        if rule is None:
            return
        for record in ranked:
            if record.head is None or record.head.kind == "named" or not self._may_go(record):
                continue
            path = str(record.head.model.get("path", ""))
            unused_s = age_s(last_use(record), self.now_s)
            if path in rule.absent_models and unused_s >= UNUSED_MODEL_S:
                self._drop_state(record, f"its model is absent and it was last used {format_age(unused_s)}")
                continue
            formats = {digest: state.identity.get("state_format") for digest, state in record.head.states.items()}
            others = tuple(d for d, found in formats.items() if found != rule.installed_format)
            if others and rule.installed_format is not None:
                why = f"in state format {formats[others[0]]}; the installed engine has {rule.installed_format}"
                self._drop_state(record, why, others)

    # -- the budget

    def _until_it_fits(self) -> None:
        if not self.may_be_over:
            return
        self.spared = self._spared()
        candidates = [r for r in self.inventory.conversations if self._in_scope(r) and r.files and self._may_go(r)]
        order = eviction_order if self.policy.single_turns_first else last_use
        for record in sorted(candidates, key=order):
            if not self.is_over:
                return
            if record is not self.spared:
                self._drop_state(record, "the directory is over its budget, and this is the oldest")
        for record in sorted((r for r in self.inventory.prefixes if self._may_go(r)), key=last_touch):
            if self.policy.spare_prefixes or not self.is_over:
                return
            why = "the directory is over its budget, and it is not pinned"
            self._choose(Item("prefix", record.name, 0, why, record.kind), record)

    def _spared(self) -> Record | None:
        if not self.policy.spare_oversized or self.policy.max_bytes is None:
            return None
        newest = max((r for r in self.inventory.conversations if r.files), key=last_use, default=None)
        if newest is None or self._bytes_of(newest) <= self.policy.max_bytes:
            return None
        return newest

    # -- the account

    def _may_go(self, record: Record) -> bool:
        return id(record) not in self.gone and id(record) not in self.fixed

    def _why_fixed(self, record: Record) -> str:
        """Why no policy may touch it; "" where it may."""
        if record.head is None:
            return record.why
        if record.kind == "prefixes":
            return "pinned" if is_pinned(record.head) else ""
        if record.name in self.policy.protected:
            return "in use"
        return "in use by another process" if record.held else ""

    def _drop_state(self, record: Record, reason: str, digests: tuple[str, ...] = ()) -> None:
        assert record.head is not None
        wanted = digests or tuple(states_as_json(record.head.states))
        self._choose(Item("state", record.name, 0, reason, record.kind, wanted), record)

    def _choose(self, item: Item, record: Record | None = None) -> None:
        """Add an item, once for each record; what it frees counts against the budget."""
        if record is not None:
            if not self._may_go(record):
                return
            self.gone.add(id(record))
        self.chosen.append(item)
        if self.may_be_over:
            self._account(item, record)

    def _account(self, item: Item, record: Record | None) -> None:
        """Count what an item frees."""
        self.freed_bytes += price(item, record, self.users, self.inventory.segments) if record else item.bytes

    def _bytes_of(self, record: Record) -> int:
        state = sum(self.inventory.segments.get(file, 0) for file in set(record.files))
        return state + record.head_bytes + record.log_bytes

    def _kept(self) -> Iterator[Kept]:
        for record in self.inventory.records:
            if id(record) not in self.gone:
                yield Kept(record.name, self._bytes_of(record), self._why_kept(record))

    def _why_kept(self, record: Record) -> str:
        if fixed := self.fixed.get(id(record)):
            return fixed
        if record is self.spared:
            return "it alone is larger than the budget, and the newest"
        if record.kind == "prefixes":
            return "used, and the directory has room"
        if not record.files:
            return "text alone"
        if not self._in_scope(record):
            return "it has a name"
        return "among the newest" if self.policy.keep is not None else "within the limits"


def eviction_order(record: Record) -> tuple[bool, str]:
    """Sorts what goes first to the front: single turns, then the oldest."""
    return record.head is not None and record.head.turns > 1, last_use(record)

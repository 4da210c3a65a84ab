"""What a session does beside its turns, after each and never at their cost: count, keep roots, stay within the budgets.

Owns when that happens. A failure here is one line and fails no turn (A6). With `auto_sessions.enabled = false` or
`--no-save` nothing of it happens (A12).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from .config import Config
from .conversation import Chat
from .counters import Counts, add_counts, estimated_bytes, measured
from .errors import Locked, StrataError
from .inventory import take_inventory
from .output import Output
from .park import Parked
from .prefix import KIND, Opening, Stored, name_of, note_use, used_prefixes, write_prefix
from .prune import Policy, plan_prune
from .sizes import format_bytes
from .store import Store
from .sweep import Swept, sweep
from .turn import TurnResult

SLICE_S = 2.0
MIB = 1 << 20
REFUSALS = frozenset({"identity", "window", "bad", "io", "permission", "no_room", "foreign"})


@dataclass
class Housekeeper:
    """The chores of one session."""

    store: Store
    config: Config
    out: Output
    now: Callable[[], float] = time.time
    pending: Counts = field(default_factory=Counts)
    with_state: set[str] = field(default_factory=set)
    due: set[str] = field(default_factory=set)  # conversations behind which the budgets were not looked at yet
    told: set[str] = field(default_factory=set)

    def attach(self, chat: Chat) -> None:
        """Let a chat ask for room, and leave the floor free that is configured (B5)."""
        self.store.leave_free(self.config.settings.store.min_free_disk_mib * MIB)
        chat.keeper.make_room = lambda needed_bytes: self.make_room(chat, needed_bytes)

    def after_turn(self, chat: Chat, result: TurnResult, *, had_state: bool) -> int:
        """What follows a turn, but for the budgets. Never raises. Returns the bytes written for others to start from.

        The chat may have gone on to another conversation meanwhile.
        """
        name = result.conversation
        if not chat.policy.save or name is None:
            return 0
        made = 0
        if chat.policy.automatic and chat.name == name:
            made = self._quietly(lambda: self._keep_root(chat, had_state)) or 0
        self._count(result, made)
        if chat.policy.automatic and result.parked.segments:
            self._look_at_budgets(name, had_state)
        return made

    def stay_within(self, chat: Chat) -> None:
        """Prune once behind the turns since the last time (A9): it looks at the whole directory. Never raises."""
        if self.due:
            self._quietly(lambda: self._stay_within(str(chat.name)))

    def count_prefix(self, parked: Parked, written_bytes: int, reused: int, read: int) -> None:
        """Count a prefix that was made by hand."""
        self.pending.add(
            Counts(
                parked=bool(parked.segments),
                prefixes=1,
                tokens_reused=reused,
                tokens_read=read,
                bytes_written=parked.bytes_written + written_bytes,
            )
        )
        if add_counts(self.store, self.pending):
            self.pending = Counts()

    def _quietly(self, chore: Callable[[], int | None]) -> int | None:
        try:
            return chore()
        except StrataError as error:
            self.out.detail(f"left for later: {error.message}")
            return None

    # -- counting

    def _count(self, result: TurnResult, prefix_bytes: int) -> None:
        new, why = self.pending, result.not_reused
        new.parked += bool(result.parked.segments)
        new.restored += bool(result.restored.segments)
        new.prefixes += bool(prefix_bytes)
        new.tokens_reused += result.reused_tokens
        new.tokens_read += result.prompt_tokens - result.reused_tokens
        new.bytes_written += result.parked.bytes_written + prefix_bytes
        if why is not None and why.code in REFUSALS:
            new.refusals += 1
            new.bad_files += why.code == "bad"
            new.last_refusal = {"code": why.code, "message": why.message, "time": self.store.clock()}
        if add_counts(self.store, new):
            self.pending = Counts()

    # -- roots and prefixes

    def _keep_root(self, chat: Chat, had_state: bool) -> int:
        """Name the root of a conversation that has just stored its first state (P1). Returns the bytes written."""
        name = chat.name
        if name is None or had_state or name in self.with_state:
            return 0
        state = chat.stored(chat.root_tokens)
        if state is None:
            return 0
        tokens, identity = chat.engine.tokens[: state.tokens], chat.engine.identity
        for head in used_prefixes(self.store, [ref.file for ref in (*state.segments, *state.parts)]):
            note_use(self.store, head)
        root = name_of("root", identity.digest, tokens)
        if root in self.store.names(KIND):
            return 0
        stored = Stored(identity.digest.hex(), state, chat.remembered_model, chat.remembered_options)
        settings = chat.opened.setup if chat.opened else {}
        return write_prefix(self.store, root, Opening(settings), stored, pinned=False)

    # -- the budgets

    def _look_at_budgets(self, name: str, had_state: bool) -> None:
        """Only where a conversation is new here or the directory may have outgrown its size."""
        new = not had_state and name not in self.with_state
        self.with_state.add(name)
        known_bytes = estimated_bytes(self.store)
        if new or known_bytes is None or known_bytes > self.config.settings.store.max_size_bytes:
            self.due.add(name)

    def _stay_within(self, current: str) -> None:
        auto, limits = self.config.settings.auto_sessions, self.config.settings.store
        policy = Policy(
            keep=auto.keep,
            max_age_s=auto.max_age_s,
            max_bytes=limits.max_size_bytes,
            leftovers=False,
            protected=frozenset({*self.due, current}),
        )
        over_bytes, total_bytes = self._prune(policy)
        self.due.clear()
        measured(self.store, total_bytes)
        if over_bytes and "budget" not in self.told:
            self.told.add("budget")
            limit = format_bytes(limits.max_size_bytes)
            self.out.warning(f"the session directory stays {format_bytes(over_bytes)} over {limit}: no more may go")

    def make_room(self, chat: Chat, needed_bytes: int) -> bool:
        """Let the oldest automatic state go until a write of this size leaves the floor free (B5)."""
        floor_bytes = self.config.settings.store.min_free_disk_mib * MIB
        short_bytes = needed_bytes + floor_bytes - self.store.free_bytes()
        try:
            total_bytes = take_inventory(self.store).total_bytes
            policy = Policy(
                max_bytes=max(0, total_bytes - short_bytes),
                leftovers=False,
                spare_oversized=False,
                spare_prefixes=True,
                single_turns_first=True,
                protected=frozenset({str(chat.name)}),
            )
            self._prune(policy)
        except StrataError as error:
            self.out.detail(f"no room could be made: {error.message}")
        return self.store.free_bytes() - needed_bytes >= floor_bytes

    def _prune(self, policy: Policy) -> tuple[int, int]:
        """What is still over the budget, and the directory's size. The lock is tried once. Raises Locked."""
        deadline = time.monotonic() + SLICE_S
        with self.store.exclusive():
            seen = take_inventory(self.store)
            plan = plan_prune(seen, policy, self.now())
            swept = sweep(self.store, seen, plan, enough=lambda: time.monotonic() > deadline)
        self._tell(swept)
        return plan.over_bytes, seen.total_bytes - swept.bytes

    def _tell(self, swept: Swept) -> None:
        states = [item.name for item in swept.items if item.what == "state"]
        if states:
            self.out.detail(f"let go of the state of {', '.join(states[:5])}: {format_bytes(swept.bytes)}")
        for item, error in swept.failed:
            if not isinstance(error, Locked):
                self.out.detail(f"{item.name} stays: {error.message}")

"""Prefixes: openings that are kept for others to start from (P1 to P5).

Owns what a prefix is on disk: a head that names state up to the end of the shared part, and a log with the settings
and the messages in it. A root is found by itself and may go again; what somebody asked for is pinned. Which prefix a
conversation starts from is never asked here: state is found by its tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from .engine import Engine
from .errors import StrataError
from .handover import write_entries
from .head import Head, StateRef, title_of
from .identity import prefix_hashes
from .log import Line, Log
from .match import boundaries
from .park import Chain, Parked, Parker
from .prompt import content_text
from .prune_plan import is_pinned
from .restore import CannotApply, Live, execute, plan_restore
from .shelf import Shelf
from .store import Store

KIND = "prefixes"
RENEW_S = 86400.0  # a use is noted at most once a day
_LOCK_S = 5.0


@dataclass(frozen=True)
class Opening:
    """What a prefix says: the settings of a conversation, and the messages in it, each with its tokens if any."""

    settings: Mapping[str, Any]
    lines: tuple[Line, ...] = ()

    @property
    def title(self) -> str:
        first = next((content_text(line.message or {}) for line in self.lines), "")
        return title_of(str(self.settings.get("system") or first))


@dataclass(frozen=True)
class Stored:
    """Where an opening's state lies, and which model read it: what its head remembers."""

    digest: str
    state: StateRef
    model: Mapping[str, Any]
    engine: Mapping[str, Any]


def name_of(kind: str, identity_digest: bytes, tokens: Sequence[int]) -> str:
    """The name of a prefix that strata makes itself: the same for the same tokens under the same identity."""
    return f"{kind}-{prefix_hashes(identity_digest, tokens, [len(tokens)])[len(tokens)][:16]}"


def opening_of(store: Store, name: str) -> tuple[Opening, Log]:
    """What a prefix says. Raises NotFound, Bad."""
    store.read_head(name, KIND)
    log = store.read_log(name, KIND)
    return Opening(log.setup(), log.branch()), log


def write_prefix(store: Store, name: str, opening: Opening, stored: Stored, *, pinned: bool) -> int:
    """Write a prefix that is not there yet, text before head. Returns its bytes. Raises Locked, StorageFailed.

    The caller keeps its segments from being swept: it shares the directory, or holds a conversation that names them.
    """
    with store.hold(name, _LOCK_S, KIND):
        if name in store.names(KIND):
            return 0
        moment = store.clock()
        lines = [Line(1, None, "setup", moment, settings=opening.settings)]
        for line in opening.lines:
            lines.append(replace(line, id=len(lines) + 1, parent=len(lines) if len(lines) > 1 else None))
        head = Head(
            name,
            "named" if pinned else "auto",
            title=opening.title,
            model=stored.model,
            engine=stored.engine,
            created=moment,
            updated=moment,
            turns=sum(1 for line in opening.lines if (line.message or {}).get("role") == "user"),
            tokens=stored.state.tokens,
            states={stored.digest: stored.state},
            extra={"pinned": pinned},
        )
        return store.append_log(name, lines, KIND) + store.write_head(head, KIND)


def set_pinned(store: Store, name: str, pinned: bool) -> Head:
    """Pin a prefix, or let it go when nobody uses it. Raises NotFound, Locked, StorageFailed."""
    with store.hold(name, _LOCK_S, KIND):
        head = store.read_head(name, KIND)
        changed = replace(head, extra={**head.extra, "pinned": pinned})
        if is_pinned(head) != pinned:
            store.write_head(changed, KIND)
        return changed


def note_use(store: Store, head: Head) -> None:
    """Remember that a prefix was used today. Raises StorageFailed, Locked."""
    now = store.clock()
    if _seconds_between(head.updated, now) < RENEW_S:
        return
    with store.hold(head.name, _LOCK_S, KIND):
        store.write_head(replace(store.read_head(head.name, KIND), updated=now), KIND)


def used_prefixes(store: Store, files: Sequence[str]) -> list[Head]:
    """The prefixes whose end is among the files that a conversation stands on."""
    mine = set(files)
    return [head for head in store.heads(KIND) if isinstance(head, Head) and not mine.isdisjoint(_ends(head))]


def _ends(head: Head) -> set[str]:
    states = head.states.values()
    return {ref.file for state in states for ref in (*state.segments, *state.parts) if ref.end == state.tokens}


def _seconds_between(then: str, now: str) -> float:
    try:
        return (datetime.fromisoformat(now) - datetime.fromisoformat(then)).total_seconds()
    except ValueError:
        return RENEW_S


def read_opening(
    engine: Engine,
    store: Store,
    tokens: Sequence[int],
    *,
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> tuple[StateRef, Parked, int]:
    """Bring an engine that holds nothing to the end of `tokens` and store that place, whatever its length.

    Returns the files, what was parked, and how many tokens were known. The caller shares the directory until they are
    named. Raises NoRoom, Cancelled, StorageFailed.
    """
    shelf = Shelf.of_disk(store)
    chain, position = _restore(engine, shelf, tokens)
    engine.read(tokens[position:], progress=progress, cancelled=cancelled)
    written: list[int] = []

    def write() -> None:
        written.append(write_entries(shelf, shelf.tier.unwritten()))

    chain, parked = Parker(engine, shelf, store.clock).capture(chain, KIND, "prefix", between=write)
    write()
    parked = replace(parked, bytes_written=sum(written))
    return StateRef(engine.identity.fields(), chain.rows, chain.parts, len(tokens)), parked, position


def _restore(engine: Engine, shelf: Shelf, tokens: Sequence[int]) -> tuple[Chain, int]:
    exclude: frozenset[Path] = frozenset()
    while True:
        found = boundaries(shelf, engine.identity.digest, tokens, engine.memory, len(tokens), exclude=exclude)
        plan = plan_restore(tokens, Live(0, 0), found, engine.memory)
        try:
            restored = execute(plan, engine, shelf)
        except CannotApply as error:
            exclude |= set(error.paths)
            continue
        return Chain().plus(restored.rows, restored.parts), plan.position


def find_prefix(store: Store, name: str) -> Head | None:
    """The head of a prefix, None where there is none that can be read."""
    try:
        return store.read_head(name, KIND)
    except StrataError:
        return None

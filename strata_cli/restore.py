"""Restoring is a plan, then its execution.

`plan_restore` is pure: given how far the live engine agrees with the next prompt and which boundaries the directory
has, it says what to keep, what to apply and what is left to read. `execute` is the one place that does it: every
file is verified before the engine is touched.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .engine import Engine, EngineFailed, Memory, Rebuild
from .errors import Bad, NotFound, Refused, StorageFailed, StrataError
from .head import SegmentRef
from .match import Boundary, Use
from .segment import Kind
from .shelf import Readable, Shelf

NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Live:
    """What the engine holds, seen from the next prompt.

    `agrees`: tokens in common. `usable`: the deepest position at which it can go on without any file.
    """

    agrees: int
    usable: int


@dataclass(frozen=True)
class Step:
    """A row of the plan. `action` is keep, apply or read; `source` is live, memory, disk or prompt."""

    action: str
    start: int
    end: int
    size_bytes: int
    source: str
    reason: str

    @property
    def tokens(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class RestorePlan:
    """How to come from what is live to `position`, from where the rest of `tokens` is read."""

    tokens: Sequence[int]
    live: Live
    position: int
    keep: int
    rows: tuple[Use, ...] = ()
    parts: tuple[Use, ...] = ()

    @property
    def uses(self) -> tuple[Use, ...]:
        return self.rows + self.parts

    @property
    def source(self) -> str:
        """Where the reused tokens come from: the contract's `restore.from`."""
        if self.uses:
            return "memory" if all(use.held for use in self.uses) else "disk"
        return "live" if self.position else "none"

    @property
    def steps(self) -> tuple[Step, ...]:
        steps = []
        if self.keep:
            steps.append(Step("keep", 0, self.keep, 0, "live", "the engine holds it"))
        for use in self.rows:
            end = min(use.end, self.position)
            why = "stored" if end == use.end else f"stored, cut at {end:,}"
            steps.append(Step("apply", use.start, end, use.child.bytes, use.source, why))
        for use in self.parts:
            steps.append(Step("apply", use.start, use.end, use.child.bytes, use.source, "the state that cannot be cut"))
        if self.position < len(self.tokens):
            steps.append(Step("read", self.position, len(self.tokens), 0, "prompt", "new, or not stored"))
        return tuple(steps)


def plan_restore(tokens: Sequence[int], live: Live, boundaries: Sequence[Boundary], memory: Memory) -> RestorePlan:
    """The plan that leaves the fewest tokens to read; among equals the one that moves the fewest bytes."""
    best = RestorePlan(tokens, live, live.usable, live.usable)
    for boundary in boundaries:
        if boundary.position <= best.position:
            break
        return _applying(tokens, live, boundary, memory)
    return best


def _applying(tokens: Sequence[int], live: Live, boundary: Boundary, memory: Memory) -> RestorePlan:
    """What is live already is not applied again: rows stay where both agree."""
    if not memory.has_rows or (memory.recurrent and memory.window_tokens):
        # The one has no rows; of the other, parts cannot be put back one by one over rows that stay.
        return RestorePlan(tokens, live, boundary.position, 0, boundary.rows, boundary.parts)
    if boundary.position <= live.agrees:
        return RestorePlan(tokens, live, boundary.position, boundary.position, (), boundary.parts)
    keep = max((use.end for use in boundary.rows if use.end <= live.agrees), default=0)
    rows = tuple(use for use in boundary.rows if use.end > keep)
    return RestorePlan(tokens, live, boundary.position, keep, rows, boundary.parts)


class CannotApply(StrataError):
    """A file of the plan cannot be used. `reason` is a `not_reused` code; the engine is as it was, or empty."""

    def __init__(self, paths: tuple[Path, ...], reason: str, error: StrataError) -> None:
        super().__init__(error.message, hint=error.hint)
        self.paths, self.reason, self.error = paths, reason, error


@dataclass(frozen=True)
class Restored:
    """What was done, for `restore` in the envelope, and the files that the live state now stands on."""

    segments: int
    size_bytes: int
    ms: float
    rows: tuple[SegmentRef, ...]
    parts: tuple[SegmentRef, ...]
    foreign: bool = False


def execute(
    plan: RestorePlan, engine: Engine, shelf: Shelf, foreign: Mapping[str, str] = NOTHING, *, owner: str | None = None
) -> Restored:
    """Verify every file, then touch the engine. Raises CannotApply.

    `foreign`: files from elsewhere that came with this very conversation, `owner`, and their digests (hex).
    """
    started = time.perf_counter()
    permit = Permit(shelf, foreign, owner)
    with contextlib.ExitStack() as opened:
        rows = [_verified(use, plan, engine, shelf, opened, permit) for use in plan.rows]
        parts = [_verified(use, plan, engine, shelf, opened, permit) for use in plan.parts]
        if plan.uses or plan.position < len(engine.tokens):
            _touch(plan, engine, rows, parts)
        from_elsewhere = any(not file.own for file in (*rows, *parts))
    return Restored(
        segments=len(plan.uses),
        size_bytes=sum(use.child.bytes for use in plan.uses),
        ms=(time.perf_counter() - started) * 1000,
        rows=tuple(_reference(use) for use in plan.rows if use.end <= plan.position),
        parts=tuple(_reference(use) for use in plan.parts),
        foreign=from_elsewhere,
    )


def _touch(
    plan: RestorePlan,
    engine: Engine,
    rows: Sequence[Readable],
    parts: Sequence[Readable],
) -> None:
    if not plan.uses:
        engine.cut(plan.position)
        return
    target = plan.tokens[: plan.position]
    try:
        engine.rebuild(Rebuild(target, plan.keep, [file.payload for file in rows], [file.payload for file in parts]))
    except EngineFailed as error:
        raise CannotApply(tuple(use.child.path for use in plan.uses), "bad", error) from error


@dataclass(frozen=True)
class Permit:
    """Which state without this directory's seal may be used: that which came with the conversation itself."""

    shelf: Shelf
    foreign: Mapping[str, str]
    owner: str | None

    def check(self, use: Use) -> None:
        """Before anything is hashed. Raises Refused."""
        path, named = use.child.path, self.foreign.get(_reference(use).file)
        entry = self.shelf.tier.get(path)
        if entry is not None:
            allowed = entry.own or entry.owner == self.owner
        else:
            with self.shelf.store.open_segment(path) as file:
                allowed = file.sealed_by(self.shelf.store.key) or named == file.digest().hex()
        if not allowed:
            raise Refused(f"{path.name}: comes from another directory", reason="foreign")


def _verified(
    use: Use, plan: RestorePlan, engine: Engine, shelf: Shelf, opened: contextlib.ExitStack, permit: Permit
) -> Readable:
    path = use.child.path
    try:
        permit.check(use)
        file = shelf.verified(path)
        opened.callback(file.close)
        check_meaning(file, use, plan.tokens[: plan.position], engine)
        if not file.own:
            check_structure(file, engine)
    except NotFound as error:
        raise CannotApply((path,), "missing", error) from error
    except Bad as error:
        raise CannotApply((path,), "bad", error) from error
    except (Refused, StorageFailed) as error:
        raise CannotApply((path,), error.reason, error) from error
    return file


def check_meaning(file: Readable, use: Use, tokens: Sequence[int], engine: Engine) -> None:
    """Intact bytes are not enough: they must be these tokens' state, under this identity."""
    if (file.header.start, file.header.end, file.header.kind) != (use.start, use.end, use.child.kind):
        raise Bad(f"{use.child.path.name}: holds other tokens than its place says")
    if file.metadata.get("identity") != engine.identity.digest.hex():
        raise Refused(f"{use.child.path.name}: made by another model or configuration", reason="identity")
    wanted = tokens[use.start : use.end]
    if list(file.tokens()[: len(wanted)]) != list(wanted):
        raise Bad(f"{use.child.path.name}: holds the state of other tokens")


def check_structure(file: Readable, engine: Engine) -> None:
    """A digest proves that bytes are unchanged, not who made them: llama.cpp must not trust their counts."""
    with memoryview(file.payload) as state:
        engine.check_state(state, file.header.start, file.header.end, part=file.header.kind is Kind.PART)


def _reference(use: Use) -> SegmentRef:
    child = use.child
    file = f"{child.path.parent.name}/{child.path.name}"
    return SegmentRef(child.kind.value, use.start, use.end, file, child.bytes)

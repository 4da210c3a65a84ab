"""The workloads, as data: what is measured, against which target, and which trial makes its sides.

Owns names, numbers of tokens and targets. They stand in docs/benchmarks.md in words.
"""

from dataclasses import dataclass

CHAT, FAT, NONE = "chat", "fat", "none"  # which model: the user's (or the demo), our own with large state, or none
DEFAULT_SCALE, QUICK_SCALE = 0.25, 0.04
RUNS, QUICK_RUNS = 5, 3


@dataclass(frozen=True)
class Workload:
    """`better`: whether a higher or a lower ratio is better. `trial`: the function in `trials` that measures it."""

    id: str
    what: str
    better: str
    target: float | None
    model: str
    trial: str
    quick: bool = False


WORKLOADS = (
    Workload("W1", "first token after a restart: cold / restored", "higher", 14.0, CHAT, "restart"),
    Workload("W2", "a turn after a restart / the same without one", "lower", 1.08, CHAT, "restart"),
    Workload("W3", "tokens reused after a restart / what could be", "higher", 0.999, CHAT, "restart", quick=True),
    Workload("W4", "three agents in one slot, prompt time: cold / strata", "higher", 5.0, CHAT, "agents"),
    Workload("W5", "a new conversation on a known root: cold / strata", "higher", 4.0, CHAT, "root"),
    Workload("W6", "bytes written in a turn / its state", "lower", 1.02, FAT, "turns", quick=True),
    Workload(
        "W7", "bytes on disk of conversations with one root / their state", "lower", 1.02, FAT, "shared", quick=True
    ),
    Workload("W8", "wait at a park / copying the same bytes", "lower", 1.25, FAT, "park", quick=True),
    Workload("W9", "first restore, verified / copying the state", "lower", 3.2, FAT, "restore", quick=True),
    Workload("W9b", "restore again in the process / copying the state", "lower", 1.5, FAT, "restore", quick=True),
    Workload("W10", "peak memory above the idle engine / (arena + 32 MiB)", "lower", 1.0, FAT, "memory", quick=True),
    Workload("W11", "last reply again after a restart: reused / possible", "higher", 0.99, CHAT, "again"),
    Workload("W12", "bytes of a saved conversation / its state", "lower", 1.01, FAT, "file"),
    Workload("W13", "greedy replies equal to the uninterrupted ones", "higher", 1.0, CHAT, "equal"),
    Workload("W14", "first byte of a warm request over HTTP / the loop's", "lower", 1.1, CHAT, "serving"),
    Workload("D", "looking at 1,000 conversations / parsing their heads", "lower", None, NONE, "crowd"),
    Workload("D10", "looking at 10,000 conversations / parsing their heads", "lower", None, NONE, "crowd10"),
)


def chosen(only: tuple[str, ...], *, quick: bool) -> tuple[Workload, ...]:
    """The workloads of `--only` (W9 means both of W9, D both of D), of `--quick`, or all but D.

    Raises KeyError with the first name that is none.
    """
    known = {workload.id.lower() for workload in WORKLOADS}
    for name in only:
        if name.lower() not in known:
            raise KeyError(name)
    wanted = {name.lower() for name in only}
    wanted |= {other for name, other in (("w9", "w9b"), ("d", "d10")) if name in wanted}
    if wanted:
        return tuple(workload for workload in WORKLOADS if workload.id.lower() in wanted)
    return tuple(workload for workload in WORKLOADS if (workload.quick if quick else workload.model != NONE))

"""What a workload's measurement says: one type for all of them.

Owns medians, spreads, and whether a target is met. It measures nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

Figures = Mapping[str, float]  # what one side of one run gave, by name; the unit is in the name (`first_ms`, ...)


@dataclass(frozen=True)
class Result:
    """One workload. `runs` are the ratio of each run, in order; `ratio` is their median (their mean for shares).

    `sides`: medians of each side's figures. `controls`: the same ratio for what people use today, where it has one.
    `where`: where the time of strata's side went, as shares or milliseconds. `skipped`: why there is no figure.
    """

    id: str
    what: str
    better: str
    target: float | None
    ratio: float | None = None
    runs: tuple[float, ...] = ()
    sides: Mapping[str, Figures] = field(default_factory=dict)
    controls: Mapping[str, float] = field(default_factory=dict)
    where: Figures = field(default_factory=dict)
    tokens: int = 0
    page_cache: str = "warm"
    skipped: str | None = None
    load: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is no figure or no target."""
        if self.ratio is None or self.target is None:
            return None
        return self.ratio >= self.target if self.better == "higher" else self.ratio <= self.target

    @property
    def spread(self) -> float | None:
        """(largest - smallest) / median over the runs."""
        if not self.runs or not median(self.runs):
            return None
        return (max(self.runs) - min(self.runs)) / median(self.runs)

    def as_json(self) -> dict[str, Any]:
        """A row of `results` in the envelope."""
        return {
            "id": self.id,
            "what": self.what,
            "ratio": _rounded(self.ratio),
            "target": self.target,
            "met": self.met,
            "better": self.better,
            "runs": [_rounded(run) for run in self.runs],
            "spread": _rounded(self.spread),
            "tokens": self.tokens,
            "page_cache": self.page_cache,
            "sides": {
                side: {name: _rounded(value) for name, value in each.items()} for side, each in self.sides.items()
            },
            "controls": {name: _rounded(value) for name, value in self.controls.items()},
            "where": {name: _rounded(value) for name, value in self.where.items()},
            "load": self.load,
            "skipped": self.skipped,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")

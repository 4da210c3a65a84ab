"""How a measurement is made: warm-up, then runs in which the sides take turns, then medians.

Owns order and arithmetic. What a side does is a trial's; what is measured at all is `workloads`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from .result import Figures, Result
from .workloads import Workload

Side = Callable[[], Figures]
Sample = Mapping[str, Figures]
Ratio = Callable[[Sample], float]
STRATA = "strata"


class CannotShow(Exception):
    """A model or machine cannot show a workload; the message says why."""


@dataclass(frozen=True)
class Trial:
    """The sides of one or more workloads, ready to be run, with what was prepared for them.

    `ratios` by workload id. `controls`: what the ratio of a workload would be with another side in strata's place.
    `needs`: the sides that a workload looks at, where that is not all of them. `whole`: the mean of all runs counts.
    """

    sides: Mapping[str, Side]
    ratios: Mapping[str, Ratio]
    controls: Mapping[str, Mapping[str, Ratio]] = field(default_factory=dict)
    needs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    where: Callable[[Sample], Figures] = lambda _: {}
    tokens: int = 0
    runs: int | None = None
    times: int = 1  # as many runs as others have
    warmups: int = 1
    whole: bool = False
    close: Callable[[], None] = lambda: None

    def runs_of(self, usual: int) -> int:
        """How many runs it has where others have `usual`."""
        return self.runs or usual * self.times


def run_trial(
    trial: Trial, wanted: Sequence[Workload], runs: int, *, step: Callable[[], None] = lambda: None
) -> list[Result]:
    """Run a trial and give the result of each wanted workload. `step` is called after each run and may raise."""
    samples: list[Sample] = []
    needed = {side for workload in wanted for side in trial.needs.get(workload.id, tuple(trial.sides))}
    try:
        for number in range(trial.warmups + trial.runs_of(runs)):
            order = [side for side in trial.sides if side in needed]
            if number % 2:
                order.reverse()
            sample = {side: trial.sides[side]() for side in order}
            if number >= trial.warmups:
                samples.append(sample)
            step()
    finally:
        trial.close()
    return [_result(trial, workload, samples) for workload in wanted]


def _result(trial: Trial, workload: Workload, samples: Sequence[Sample]) -> Result:
    ratio = trial.ratios[workload.id]
    runs = tuple(ratio(sample) for sample in samples)
    controls = {
        name: median(control(sample) for sample in samples)
        for name, control in trial.controls.get(workload.id, {}).items()
    }
    return Result(
        workload.id,
        workload.what,
        workload.better,
        workload.target,
        ratio=mean(runs) if trial.whole else median(runs),
        runs=runs,
        sides={side: _medians([sample[side] for sample in samples]) for side in samples[0]},
        controls=controls,
        where=_medians([trial.where(sample) for sample in samples]),
        tokens=trial.tokens,
        load=round(os.getloadavg()[0], 2),
    )


def _medians(figures: Sequence[Figures]) -> Figures:
    return {name: median(each[name] for each in figures) for name in figures[0]}


def skipped(workload: Workload, why: str) -> Result:
    """A workload that was not measured."""
    return Result(workload.id, workload.what, workload.better, workload.target, skipped=why)

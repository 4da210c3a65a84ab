"""`strata bench`: the workloads for people and for programs.

Owns how results look and in which order trials run. What is measured is in `bench`.
"""

import csv
import io
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .bench.desk import Desk
from .bench.fat_model import fat_model
from .bench.machine import machine_facts, model_facts
from .bench.result import Result
from .bench.runner import CannotShow, run_trial, skipped
from .bench.trials import TRIALS
from .bench.workloads import CHAT, DEFAULT_SCALE, FAT, NONE, QUICK_RUNS, QUICK_SCALE, RUNS, WORKLOADS, Workload, chosen
from .engine import EngineOptions
from .errors import NoRoom, UsageProblem
from .files import Files
from .fingerprint import file_digest
from .llama_engine import load
from .llama_engine.live import LlamaEngine
from .llama_engine.loading import thread_counts
from .models import ModelChoice
from .output import Mode, Output, bar
from .signals import Stop
from .sizes import format_bytes

SPARE_BYTES = 8 << 30  # what a run writes at most at the default scale, with room to spare


@dataclass(frozen=True)
class BenchRequest:
    """What `strata bench` was asked, in plain values. `choice` is the chat model, None where there is none."""

    only: tuple[str, ...] = ()
    quick: bool = False
    scale: float | None = None
    runs: int | None = None
    csv: bool = False
    server: Path | None = None

    @property
    def the_scale(self) -> float:
        return self.scale if self.scale is not None else QUICK_SCALE if self.quick else DEFAULT_SCALE

    @property
    def the_runs(self) -> int:
        return self.runs if self.runs is not None else QUICK_RUNS if self.quick else RUNS


def check(request: BenchRequest) -> tuple[Workload, ...]:
    """The workloads that are meant. Raises UsageProblem."""
    if request.scale is not None and not request.scale > 0:
        raise UsageProblem(f"--scale {request.scale}: above 0")
    if request.server is not None and not request.server.is_file():
        raise UsageProblem(f"--llama-server {request.server}: no such file")
    try:
        return chosen(request.only, quick=request.quick)
    except KeyError as error:
        names = ", ".join(workload.id for workload in WORKLOADS)
        raise UsageProblem(f"--only {error.args[0]}: no such workload", hint=f"one of {names}") from None


class Bench:
    """One run of workloads: models loaded as they are needed, everything written under the cache folder."""

    def __init__(
        self,
        request: BenchRequest,
        choose: Any,
        options: EngineOptions,
        cache: Path,
        out: Output,
        stop: Stop,
        now_ns: Any,
    ) -> None:
        self.request, self._choose, self._options = request, choose, options
        self._cache, self._out, self._stop, self._now_ns = cache, out, stop, now_ns
        self._models: dict[str, dict[str, Any]] = {}
        self._paths: dict[str, Path] = {}
        folder = cache / "bench" / secrets.token_hex(4)
        threads = thread_counts(options.threads)[1]
        self.desk = Desk(
            folder, self._load, self._path, request.the_scale, threads, request.server, rivals=not request.quick
        )

    def _path(self, model: str) -> Path:
        if model not in self._paths:
            if model == FAT:
                self._paths[model] = fat_model(self._cache / "bench", Files())
            else:
                choice: ModelChoice = self._choose()
                self._paths[model] = choice.path
        return self._paths[model]

    def _load(self, model: str, context_tokens: int) -> LlamaEngine:
        path = self._path(model)
        options = replace(self._options, ctx_size=context_tokens)
        if model == FAT:
            options = EngineOptions(ctx_size=context_tokens, threads=options.threads, flash_attn="on")
        digest = file_digest(path, self._cache, Files(), now_ns=self._now_ns())
        engine = load(path, options, digest=digest, log_path=self._cache / "bench" / "engine.log")
        self._models[model] = dict(model_facts(engine))
        return engine

    def run(self, wanted: Sequence[Workload]) -> list[Result]:
        """Every trial in its turn; a workload that cannot be shown is skipped with the reason."""
        self.desk.folder.mkdir(mode=0o700, parents=True)
        free = shutil.disk_usage(self.desk.folder).free
        if free < SPARE_BYTES * max(1.0, self.request.the_scale / DEFAULT_SCALE) and not self.request.quick:
            self._out.warning(f"only {format_bytes(free)} free in {self.desk.folder}: a run may not fit")
        results: list[Result] = []
        try:
            for trial in dict.fromkeys(workload.trial for workload in wanted):
                results += self._run_one(trial, [each for each in wanted if each.trial == trial])
        finally:
            self.desk.close()
        order = {workload.id: number for number, workload in enumerate(WORKLOADS)}
        return sorted(results, key=lambda result: order[result.id])

    def _run_one(self, name: str, wanted: Sequence[Workload]) -> list[Result]:
        label = ", ".join(workload.id for workload in wanted)
        self._stop.check()
        try:
            with self._out.progress(f"{label}: preparing", 1, "") as _:
                trial = TRIALS[name](self.desk)
            total = trial.warmups + trial.runs_of(self.request.the_runs)
            done = 0
            with self._out.progress(label, total, "runs") as update:

                def step() -> None:
                    nonlocal done
                    done += 1
                    update(done)
                    self._stop.check()

                results = run_trial(trial, wanted, self.request.the_runs, step=step)
        except (CannotShow, NoRoom) as error:
            return [skipped(workload, getattr(error, "message", str(error))) for workload in wanted]
        for result in results:
            self._out.note(one_line(result))
        return results

    def machine(self) -> dict[str, Any]:
        request = self.request
        facts = machine_facts(
            scale=request.the_scale, quick=request.quick, runs=request.the_runs, folder=self.desk.folder
        )
        return {**facts, "models": self._models}


def bench(request: BenchRequest, run: Bench, wanted: Sequence[Workload], out: Output) -> int:
    """Measure and print. Returns the exit status: 0 also where targets are missed, since that is a finding."""
    results = run.run(wanted)
    machine = run.machine()
    if request.csv:
        out.show(as_csv(results).rstrip("\n"))
    else:
        for line in header(machine):
            out.show(line)
        out.table(TITLES, [row(result) for result in results], right={1, 2, 3})
        for result in results:
            if result.met is False:
                out.show(f"{result.id} misses its target. Where it goes: {in_words(result.where)}")
    out.ids([result.id for result in results if result.met is not False])
    return out.finish({"machine": machine, "results": [result.as_json() for result in results]})


TITLES = ("", "ratio", "target", "spread", "", "what", "beside it")


def row(result: Result) -> list[str]:
    """A line of the table: the ratio first, a bar of how near the target is, then what was measured."""
    if result.skipped is not None or result.ratio is None:
        return [result.id, "-", _number(result.target), "", "", result.what, f"skipped: {result.skipped}"]
    beside = ", ".join(f"{name} {_number(value)}" for name, value in result.controls.items())
    return [result.id, _number(result.ratio), target_text(result), f"{result.spread or 0:.0%}", drawn(result),
            result.what, beside]  # fmt: skip


def target_text(result: Result) -> str:
    """`>= 14 met`, `<= 1.25 MISSED`."""
    if result.target is None:
        return ""
    sign = ">=" if result.better == "higher" else "<="
    return f"{sign} {_number(result.target)} {'met' if result.met else 'MISSED'}"


def drawn(result: Result, width: int = 12) -> str:
    """A bar that is full where the target is met, and shorter the farther it is."""
    if result.target is None or not result.ratio:
        return ""
    share = result.ratio / result.target if result.better == "higher" else result.target / result.ratio
    return bar(round(1000 * min(1.0, share)), 1000, width).partition("]")[0] + "]"


def header(machine: dict[str, Any]) -> list[str]:
    """Machine and build, then how it was measured."""
    models = [
        f"{name}: {facts['description']} ({facts['file']}), K {facts['cache_type_k']}, V {facts['cache_type_v']}, "
        f"{facts['memory']}, context {facts['context_tokens']:,}, {facts['build']}, "
        f"state format {facts['state_format']}"
        for name, facts in machine["models"].items()
    ]
    quick = "QUICK: small and few runs, for a first look only; " if machine["quick"] else ""
    gpu = "a GPU build" if machine["gpu"] else "no GPU"
    return [
        f"{machine['cpu']}, {machine['cores']} cores, {gpu}, {machine['system']}, {machine['file_system']}, "
        f"load {machine['load']}",
        *models,
        f"{quick}token counts x {machine['scale']:g}, {machine['runs']} runs, median and spread; page cache warm",
    ]


def one_line(result: Result) -> str:
    """What is told when a workload is done."""
    if result.ratio is None:
        return f"{result.id}: skipped: {result.skipped}"
    return f"{result.id}: {_number(result.ratio)} ({target_text(result)}), {in_words(result.where)}"


def in_words(figures: Any) -> str:
    return ", ".join(f"{name} {_number(value)}" for name, value in figures.items()) or "nothing was told apart"


def as_csv(results: Sequence[Result]) -> str:
    """One line a workload, runs joined by spaces."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", "ratio", "target", "met", "better", "spread", "tokens", "runs", "skipped"])
    for result in results:
        facts = result.as_json()
        runs = " ".join(str(value) for value in facts["runs"])
        writer.writerow([facts[name] for name in ("id", "ratio", "target", "met", "better", "spread", "tokens")]
                        + [runs, result.skipped or ""])  # fmt: skip
    return text.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


__all__ = ["CHAT", "NONE", "Bench", "BenchRequest", "Mode", "bench", "check"]

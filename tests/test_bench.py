"""`strata bench`: what it promises to scripts, its arithmetic, and that nothing is made up."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Strata

from strata_cli.bench.desk import Desk
from strata_cli.bench.restarts import restart
from strata_cli.bench.result import Result
from strata_cli.bench.runner import CannotShow, Trial, run_trial, skipped
from strata_cli.bench.trials import TRIALS
from strata_cli.bench.words import text_of
from strata_cli.bench.workloads import WORKLOADS, Workload, chosen
from strata_cli.bench_command import BenchRequest, as_csv, check, drawn, row, target_text
from strata_cli.engine import EngineOptions
from strata_cli.errors import UsageProblem
from strata_cli.llama_engine import load
from strata_cli.llama_engine.live import LlamaEngine

ONE = Workload("W1", "a thing", "higher", 2.0, "chat", "restart")


def trial_of(*values: float, **more: object) -> tuple[Trial, list[str]]:
    order: list[str] = []
    numbers = iter(values)

    def side(name: str) -> Callable[[], dict[str, float]]:
        def measure() -> dict[str, float]:
            order.append(name)
            return {"ms": next(numbers) if name == "strata" else 12.0}

        return measure

    ratios = {"W1": lambda s: s["other"]["ms"] / s["strata"]["ms"]}
    return Trial({"strata": side("strata"), "other": side("other")}, ratios, **more), order  # type: ignore[arg-type]


def test_sides_take_turns_after_a_warm_up() -> None:
    trial, order = trial_of(1, 2, 3, 4)
    (result,) = run_trial(trial, [ONE], 3)
    assert order == ["strata", "other", "other", "strata"] * 2
    assert result.runs == (6.0, 4.0, 3.0) and result.ratio == 4.0 and result.met is True
    assert result.spread == pytest.approx(3 / 4)
    assert result.sides == {"strata": {"ms": 3.0}, "other": {"ms": 12.0}}


def test_a_missed_target_is_told_as_missed() -> None:
    trial, _ = trial_of(1, 12, 12, 12)
    (result,) = run_trial(trial, [ONE], 3)
    assert result.met is False and result.as_json()["met"] is False
    assert "MISSED" in target_text(result) and drawn(result) == "[######------]"


def test_what_was_prepared_is_closed_whatever_happens() -> None:
    closed: list[bool] = []

    def broken() -> dict[str, float]:
        raise CannotShow("no such thing")

    trial = Trial({"strata": broken}, {"W1": lambda _: 1.0}, close=lambda: closed.append(True))
    with pytest.raises(CannotShow):
        run_trial(trial, [ONE], 3)
    assert closed == [True]


def test_a_skipped_workload_has_a_reason_and_no_figure() -> None:
    facts = skipped(ONE, "no memory").as_json()
    assert facts["ratio"] is None and facts["met"] is None and facts["skipped"] == "no memory" and facts["runs"] == []
    assert "no memory" in " ".join(row(skipped(ONE, "no memory")))


def test_every_workload_of_the_list_is_there_with_its_trial() -> None:
    ids = [workload.id for workload in WORKLOADS]
    assert {f"W{n}" for n in range(1, 14)} | {"D"} <= set(ids) and len(ids) == len(set(ids))
    assert {workload.trial for workload in WORKLOADS} == set(TRIALS)
    assert [each.id for each in chosen((), quick=True)] == ["W3", "W6", "W7", "W8", "W9", "W9b", "W10"]
    assert [each.id for each in chosen(("w9", "D"), quick=False)] == ["W9", "W9b", "D", "D10"]
    assert not {"D", "D10"} & {each.id for each in chosen((), quick=False)}


@pytest.mark.parametrize(
    "request_", [BenchRequest(only=("W99",)), BenchRequest(scale=0.0), BenchRequest(server=Path("no"))]
)
def test_wishes_that_cannot_be_met_are_refused_at_once(request_: BenchRequest) -> None:
    with pytest.raises(UsageProblem):
        check(request_)


def test_texts_are_deterministic_and_of_the_wanted_length() -> None:
    count = lambda text: len(text.split())  # noqa: E731
    assert text_of(count, 300, 1) == text_of(count, 300, 1) != text_of(count, 300, 2)
    assert 290 <= count(text_of(count, 300, 1)) <= 300


def test_csv_has_a_line_a_workload() -> None:
    lines = as_csv([Result("W1", "x", "higher", 2.0, 3.0, (3.0, 2.5)), skipped(ONE, "a, b")]).splitlines()
    assert lines[0].startswith("id,ratio,target,met") and lines[1].startswith("W1,3.0,2.0,True,higher,")
    assert lines[2].endswith('"a, b"') and len(lines) == 3


def test_the_command_prints_the_contracts_shape_and_leaves_nothing(strata: Strata, tiny: Callable[..., Path]) -> None:
    """W13 on a tiny model, very small: the whole way from the command line."""
    arguments = ["bench", "--only", "W13,W11", "--scale", "0.02", "--runs", "1", "--threads", "1", "-m", tiny("llama")]
    data = strata(*arguments, "--json", code=0).data
    machine, results = data["machine"], data["results"]
    assert {"cpu", "cores", "gpu", "load", "scale", "runs", "quick", "page_cache", "models"} <= set(machine)
    assert machine["scale"] == 0.02 and machine["models"]["chat"]["state_format"]
    assert [result["id"] for result in results] == ["W11", "W13"]
    for result in results:
        assert {"id", "ratio", "target", "met", "better", "runs", "skipped"} <= set(result)
        assert result["skipped"] is None and result["met"] is True, result
        assert len(result["runs"]) == 1
    left = [path for path in (strata.home / "cache" / "bench").iterdir() if path.is_dir()]
    assert left == [] and not (strata.home / "data").exists()


def test_the_table_names_scale_and_runs(strata: Strata, tiny: Callable[..., Path]) -> None:
    arguments = ["bench", "--only", "W11", "--scale", "0.02", "--runs", "1", "--threads", "1", "-m", tiny("lfm2")]
    result = strata(*arguments, code=0)
    assert "token counts x 0.02, 1 runs" in result.stdout and "W11" in result.stdout and "hybrid" in result.stdout
    assert "Traceback" not in result.stderr


def test_a_usage_error_is_2(strata: Strata) -> None:
    assert strata("bench", "--only", "W99").exit_code == 2


def test_W1_all_sides_have_the_same_tokens_to_read(tiny: Callable[..., Path], tmp_path: Path) -> None:
    """A control that begins nearer to the end than strata does would win for nothing."""
    model = tiny("llama")

    def loaded(_: str, context_tokens: int) -> LlamaEngine:
        return load(model, EngineOptions(ctx_size=context_tokens, threads=1), digest="b3:" + "0" * 64)

    desk = Desk(tmp_path / "bench", loaded, lambda _: model, 0.02, 1)
    desk.folder.mkdir()
    trial = restart(desk)
    try:
        read = {name: trial.sides[name]()["read"] for name in ("cold", "strata", "warm", "whole-file")}
    finally:
        if trial.close is not None:
            trial.close()
        desk.close()
    assert read["strata"] == read["warm"] == read["whole-file"] < read["cold"]


def test_W11_the_table_over_models_has_a_row_for_each(strata: Strata, tiny: Callable[..., Path]) -> None:
    """The last reply is written again from all before it, on a model with a window and on a recurrent one."""
    models = [tiny("gemma3"), tiny("mamba")]
    command = [sys.executable, str(Path(__file__).parent.parent / "docs" / "benchmarks_models.py"), "--scale", "0.05"]
    done = subprocess.run([*command, *map(str, models)], env=strata.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]
    assert [cells[:2] for cells in rows] == [["tiny-gemma3.gguf", "window"], ["tiny-mamba.gguf", "recurrent"]]
    for cells in rows:
        reused, again, equal = map(float, cells[2:])
        assert reused >= 0.999 and again >= 0.99 and equal == 1

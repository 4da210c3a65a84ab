"""W8, W9 and W10 as tests, at twice the targets that `strata bench` holds (they need a machine that is quiet).

Slow: each loads the bench's own model, whose state takes 128 KiB a token.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from strata_cli.bench.copies import park, restore
from strata_cli.bench.desk import Desk
from strata_cli.bench.fat_model import TOKEN_BYTES, fat_model, gguf
from strata_cli.bench.runner import run_trial
from strata_cli.bench.workloads import WORKLOADS
from strata_cli.bench.written import file, shared, turns
from strata_cli.engine import EngineOptions
from strata_cli.files import Files
from strata_cli.llama_engine import load
from strata_cli.llama_engine.live import LlamaEngine

pytestmark = pytest.mark.slow
BY_ID = {workload.id: workload for workload in WORKLOADS}
MIB = 1 << 20


@pytest.fixture(scope="module")
def fat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fat_model(tmp_path_factory.mktemp("fat"), Files())


@pytest.fixture
def desk(fat: Path, tmp_path: Path) -> Iterator[Desk]:
    def load_fat(_: str, context_tokens: int) -> LlamaEngine:
        options = EngineOptions(ctx_size=context_tokens, threads=1, flash_attn="on")
        return load(fat, options, digest="b3:" + "0" * 64)

    made = Desk(tmp_path / "bench", load_fat, lambda _: fat, 0.06, 1, rivals=False)
    yield made
    made.close()


def ratios(trial: Callable[[Desk], object], desk: Desk, *ids: str, runs: int = 5) -> dict[str, tuple[float, ...]]:
    results = run_trial(trial(desk), [BY_ID[name] for name in ids], runs)  # type: ignore[arg-type]
    print({result.id: (result.ratio, result.runs, dict(result.where)) for result in results})
    return {result.id: result.runs for result in results}


def test_W8_waiting_for_a_park_is_one_copy(desk: Desk) -> None:
    """From the second park on. The best of five: whatever else runs on this machine only adds."""
    assert min(ratios(park, desk, "W8")["W8"]) <= 2.6


def test_W9_a_restore_is_a_few_copies(desk: Desk) -> None:
    found = ratios(restore, desk, "W9", "W9b")
    assert min(found["W9"]) <= 6.8
    assert min(found["W9b"]) <= 3.2


def test_W6_a_turn_writes_its_own_rows_once(desk: Desk) -> None:
    desk.scale = 0.15
    assert all(ratio <= 1.04 for ratio in ratios(turns, desk, "W6")["W6"])


def test_W7_a_shared_root_is_stored_once(desk: Desk) -> None:
    desk.scale = 0.15
    assert all(ratio <= 1.04 for ratio in ratios(shared, desk, "W7", runs=1)["W7"])


def test_W12_a_saved_conversation_is_its_state(desk: Desk) -> None:
    assert all(ratio <= 1.02 for ratio in ratios(file, desk, "W12", runs=2)["W12"])


MEASURE = """
import json, sys
from pathlib import Path
from strata_cli.bench.memory import measure
print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), 1, ram_mib=int(sys.argv[4]))))
"""


@pytest.mark.parametrize("ram_mib", [0, 100])
def test_B12_W10_memory_stays_within_the_arena(fat: Path, tmp_path: Path, ram_mib: int) -> None:
    """240 MiB of state go out and come back: at most the arena and 32 MiB above the idle engine, and `ram_mib`."""
    words = [sys.executable, "-c", MEASURE, str(fat), str(tmp_path / "home"), "2000", str(ram_mib)]
    source = str(Path(__file__).parent.parent)
    done = subprocess.run(words, capture_output=True, text=True, cwd=source, timeout=280)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print({name: round(value / MIB, 1) for name, value in found.items()})
    limit = found["arena"] + 32 * MIB + ram_mib * MIB
    assert found["save"] <= limit and found["restore"] <= limit
    assert found["tokens"] * TOKEN_BYTES > 3 * found["arena"]


def test_the_model_is_the_same_each_time(fat: Path) -> None:
    assert fat.read_bytes() == gguf()

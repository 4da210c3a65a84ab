"""The code's own rules: style, formatting, types and layers, each by the tool that knows it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent

CHECKS = {
    "ruff check": [BIN / "ruff", "check", "."],
    "ruff format": [BIN / "ruff", "format", "--check", "."],
    "mypy": [BIN / "mypy", "--strict"],
    "layers": [BIN / "lint-imports"],
}


@pytest.mark.parametrize("name", CHECKS)
def test_tool_is_satisfied(name: str) -> None:
    done = subprocess.run(CHECKS[name], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def source_files() -> list[Path]:
    return sorted((ROOT / "strata_cli").rglob("*.py"))


def test_every_module_says_what_it_owns() -> None:
    silent = [path.name for path in source_files() if not path.read_text().startswith('"""')]
    assert silent == []


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    long = {path.name: n for path in source_files() if (n := path.read_text().count("\n")) > 400}
    assert long == {}


def test_readme_holds_one_command_to_chat_and_one_to_test() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    commands = [line for line in lines if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    assert sum(line.endswith("pytest") for line in commands) == 1

"""The lines of docs/how-to/cron.md, run as cron and systemd run them (C62)."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conftest import Strata
from directories import add

from strata_cli.files import Files
from strata_cli.store import Store

PAGE = (Path(__file__).parent.parent / "docs" / "how-to" / "cron.md").read_text()
SCHEDULE = re.compile(r"(\d+|\*) (\d+|\*) (\d+|\*) (\d+|\*) (\d+|\*) (.+)")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def installed(strata: Strata, tmp_path: Path) -> Path:
    """What stands for /usr/local/bin/strata."""
    script = tmp_path / "strata"
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH={shlex.quote(strata.env["PYTHONPATH"])} exec {sys.executable} -m strata_cli "$@"\n'
    )
    script.chmod(0o755)
    return script


def full_of(data: Path) -> Store:
    store = Store.open(data, Files(), lambda: datetime.now(UTC))
    for n in range(14):
        add(store, f"auto-{n:016x}", days=n, now=datetime.now(UTC))
    (store.directory.tmp / "4194304-00.tmp").write_bytes(b"left by a killed process")
    return store


def with_state(store: Store) -> int:
    return sum(bool(store.read_head(name).states) for name in store.names())


@pytest.mark.parametrize("line", [line for block in blocks("cron") for line in block.strip().splitlines()])
def test_C62_the_cron_lines_of_the_page(strata: Strata, installed: Path, line: str) -> None:
    schedule = SCHEDULE.fullmatch(line)
    assert schedule, line
    home = Path(strata.env["HOME"])
    command = schedule[6].replace("/usr/local/bin/strata", str(installed))
    assert "%" not in command  # cron makes newlines of them
    data = home / ".strata" / "data" if "STRATA_HOME" in command else home / ".local" / "share" / "strata" / "sessions"
    store = full_of(data)
    bare = {"HOME": str(home), "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh", "LOGNAME": "somebody"}
    done = subprocess.run(["/bin/sh", "-c", command], env=bare, cwd=home, stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert with_state(store) == 12 and not list(store.directory.tmp.iterdir())
    assert not {path.name for path in home.iterdir()} - {".strata", ".local"}


def test_the_systemd_units_of_the_page(strata: Strata, installed: Path, tmp_path: Path) -> None:
    service, timer = blocks("ini")
    units = {"strata-prune.service": service, "strata-prune.timer": timer}
    parsed = {}
    for name, text in units.items():
        parsed[name] = configparser.ConfigParser(interpolation=None)
        parsed[name].optionxform = str  # type: ignore[method-assign,assignment]
        parsed[name].read_string(text)
        assert name in PAGE
    command = parsed["strata-prune.service"]["Service"]["ExecStart"].replace("/usr/local/bin/strata", str(installed))
    store = full_of(Path(strata.env["HOME"]) / ".local" / "share" / "strata" / "sessions")
    bare = {"HOME": strata.env["HOME"], "PATH": "/usr/bin:/bin"}
    done = subprocess.run(shlex.split(command), env=bare, cwd="/", stdin=subprocess.DEVNULL, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"") and with_state(store) == 12
    if analyze := shutil.which("systemd-analyze"):
        for name, text in units.items():
            (tmp_path / name).write_text(text.replace("/usr/local/bin/strata", str(installed)))
        checked = subprocess.run([analyze, "calendar", "*-*-* 04:17:00"], capture_output=True)
        assert checked.returncode == 0

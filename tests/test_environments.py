"""Cron, containers and other poor environments: the same store, or one line that says which variable to set.

Case C62.
"""

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from conftest import Strata
from turns import SMALL, Turns

BARE = {"PATH": "/usr/bin:/bin"}


@pytest.fixture
def turns(strata: Strata, tiny: Callable[..., Path]) -> Turns:
    return Turns(strata, tiny("llama"), flags=("--greedy", "-n", "6", "--threads", "1"))


def bare(
    turns: Turns, env: Mapping[str, str], *arguments: str, cwd: Path | None = None
) -> "subprocess.CompletedProcess[bytes]":
    """In an environment of nothing but `env`."""
    return subprocess.run(
        turns.strata.command(*arguments),
        env={**BARE, "PYTHONPATH": turns.strata.env["PYTHONPATH"], **env},
        cwd=turns.strata.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )


def run(turns: Turns, env: Mapping[str, str], *more: str) -> "subprocess.CompletedProcess[bytes]":
    return bare(turns, {**SMALL, **env}, *map(str, turns.arguments("-C", "talk", *more, "One.")))


ONE_LINE = [
    pytest.param({"HOME": "/nonexistent"}, b"HOME", id="HOME does not exist"),
    pytest.param({"HOME": "relative"}, b"HOME", id="HOME is relative"),
    pytest.param({"HOME": "", "XDG_DATA_HOME": ""}, b"HOME", id="HOME is empty"),
    pytest.param({"STRATA_HOME": "${HOME}/strata"}, b"STRATA_HOME", id="a variable that nobody replaced"),
]


@pytest.mark.parametrize("env, names", ONE_LINE)
def test_C62_no_home_is_told_with_the_variable_to_set(
    turns: Turns, env: Mapping[str, str], names: bytes, strata: Strata
) -> None:
    done = run(turns, env)
    assert done.returncode == 2 and names in done.stdout and b'"hint"' in done.stdout and done.stderr == b""
    human = bare(turns, env, "inspect")
    assert human.returncode == 2 and names in human.stderr and human.stderr.count(b"\n") <= 2
    assert list(strata.folder.iterdir()) == [], "an odd folder in the current one"


def test_C62_without_home_the_users_own_entry_counts(turns: Turns, strata: Strata) -> None:
    """HOME unset: the account's home is asked for; nothing lands in the current folder."""
    done = bare(turns, {}, "inspect", "--json")
    assert done.returncode in (0, 2) and list(strata.folder.iterdir()) == []
    assert done.returncode == 0 or b"HOME" in done.stdout


def test_C62_a_relative_xdg_folder_makes_nothing_odd(turns: Turns, strata: Strata, tmp_path: Path) -> None:
    (tmp_path / "me").mkdir()
    done = run(turns, {"HOME": str(tmp_path / "me"), "XDG_DATA_HOME": "relative/data"})
    assert done.returncode in (0, 2) and list(strata.folder.iterdir()) == []


@pytest.mark.parametrize("locale", ["C", "POSIX", "xx_YY.nonsense"])
def test_C62_any_locale_prints_any_text(turns: Turns, locale: str, tmp_path: Path) -> None:
    env = {"STRATA_HOME": str(tmp_path / "store"), "LANG": locale, "LC_ALL": locale, **SMALL}
    model = str(turns.model)
    done = bare(turns, env, "run", "-m", model, "-C", "talk", "--greedy", "-n", "6", "Grüße, 世界 \U0001f600")
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done
    shown = bare(turns, env, "inspect", "talk", "--transcript")
    assert shown.returncode == 0 and "世界".encode() in shown.stdout
    assert bare(turns, env, "inspect", "--json").stdout.isascii()


def test_C62_no_terminal_no_term_no_stdin_no_colour(turns: Turns, tmp_path: Path) -> None:
    env = {"STRATA_HOME": str(tmp_path / "store")}
    for extra in ({}, {"TERM": "dumb"}, {"NO_COLOR": "1", "TERM": "xterm"}):
        done = run(turns, {**env, **extra})
        assert done.returncode == 0 and done.stderr == b"", done
        shown = bare(turns, {**env, **extra}, "inspect")
        assert b"\x1b" not in shown.stdout + shown.stderr and b"\r" not in shown.stdout


def test_C62_the_current_folder_may_be_gone(turns: Turns, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    arguments = turns.strata.command(*turns.arguments("-C", "talk", "One."))
    done = subprocess.run(
        ["/bin/sh", "-c", f'cd "{gone}" && rmdir "{gone}" && exec "$@"', "sh", *arguments],
        env={**turns.strata.environment(**turns.env)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0 and not gone.exists(), done


def test_C62_closed_streams_do_no_harm(turns: Turns) -> None:
    arguments = turns.strata.command(*turns.arguments("-C", "talk", "One."))
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&- 2>&-', "sh", *arguments],
        env=turns.strata.environment(**turns.env),
        cwd=turns.strata.folder,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    assert done.returncode == 0 and b'"ok": true' in done.stdout
    left = [path for path in turns.strata.home.rglob("*") if path.is_file()]
    assert all(b"Traceback" not in path.read_bytes() for path in left)


def test_C62_umask_077_and_an_unwritable_home(turns: Turns, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        assert run(turns, {"STRATA_HOME": str(tmp_path / "store")}).returncode == 0
    finally:
        os.umask(before)
    # A file in the place of the home: what root, too, cannot write into.
    (tmp_path / "file").touch()
    done = run(turns, {"STRATA_HOME": str(tmp_path / "file")})
    assert done.returncode == 1 and b"file" in done.stdout and b"Traceback" not in done.stdout + done.stderr, done

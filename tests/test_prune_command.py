"""`strata prune` from outside: confirmation, names, sizes, exit statuses, cron's bare environment."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from conftest import Result, Strata
from directories import IDENTITY, add, days_ago, disk_bytes
from faulty_files import tree

from strata_cli.cli import status
from strata_cli.files import Files
from strata_cli.store import Store

Here = Callable[..., Result]
TODAY = datetime.now(UTC)


def put(store: Store, name: str, **what: object) -> None:
    add(store, name, now=TODAY, **what)  # type: ignore[arg-type]


@pytest.fixture
def here(strata: Strata, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Here]:
    """The command line in this process, which is quicker: `here("prune", "-n")`."""
    monkeypatch.setenv("STRATA_HOME", str(strata.home))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def call(*arguments: str, code: int | None = None) -> Result:
        capfd.readouterr()
        exit_code = status(list(arguments))
        result = Result(exit_code, *capfd.readouterr())
        assert code is None or exit_code == code, result
        return result

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)


def auto(n: int) -> str:
    return f"auto-{n:016x}"


@pytest.fixture
def store(strata: Strata) -> Store:
    """Five automatic conversations of 1 to 5 days, and a named one."""
    store = Store.open(strata.home / "data", Files(), lambda: datetime.now(UTC))
    for n in range(1, 6):
        put(store, auto(n), days=n, payload_bytes=20_000)
    put(store, "notes", days=400)
    return store


def with_state(store: Store) -> set[str]:
    return {name for name in store.names() if store.read_head(name).states}


def test_C38_a_dry_run_is_the_run_and_changes_nothing(here: Here, store: Store) -> None:
    before, times = tree(store.root), {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    foreseen = here("prune", "-n", "-y", "--keep", "2", "--json", code=0).data
    assert tree(store.root) == before
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == times
    said = here("prune", "-n", "--keep", "2", code=0)
    assert "would free" in said.stderr and "freed" not in said.stderr and auto(5) in said.stdout
    bytes_before = disk_bytes(store)
    done = here("prune", "-y", "--keep", "2", "--json", code=0).data
    assert (done["items"], done["bytes"], done["kept"]) == (foreseen["items"], foreseen["bytes"], foreseen["kept"])
    assert foreseen["dry_run"] and not done["dry_run"]
    lock_bytes = (store.root / "lock").stat().st_size
    assert bytes_before - disk_bytes(store) == done["bytes"] - lock_bytes > 0
    assert with_state(store) == {auto(1), auto(2), "notes"}
    assert here("prune", "-y", "--keep", "2", "--json", code=0).data["items"] == []


def test_C38_a_dry_run_on_a_directory_that_cannot_be_written(here: Here, store: Store) -> None:
    for path in (store.root, *store.root.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        assert len(here("prune", "-n", "--keep", "2", "--json", code=0).data["items"]) == 3
    finally:
        for path in (store.root, *store.root.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)


def test_without_a_terminal_it_must_be_confirmed(here: Here, store: Store) -> None:
    before = tree(store.root)
    for arguments in (["prune"], ["prune", auto(1)], ["prune", "--keep", "0", "--json"]):
        result = here(*arguments, code=2)
        assert "--yes" in result.stdout + result.stderr
    assert tree(store.root) == before


def test_quiet_is_silent_on_success(here: Here, store: Store) -> None:
    result = here("prune", "-y", "-q", "--keep", "1", code=0)
    assert (result.stdout, result.stderr) == ("", "")


def test_C66_names_are_full_and_checked_before_anything_goes(here: Here, store: Store) -> None:
    for name in ("s1", "s10", "s11", "abc", "abd"):
        put(store, name)
    before = tree(store.root)
    for wrong, code in (("s", 10), ("ab", 10), ("last", 10), ("auto", 10), ("../key", 2), ("", 2)):
        result = here("prune", "-y", "abc", wrong, code=code)
        assert result.stdout == ""
        assert tree(store.root) == before, wrong
    assert "abc, abd" in here("prune", "-y", "ab", code=10).stderr
    here("prune", "-y", "s1", "--json", code=0)
    assert {"s10", "s11", "abc", "abd", "notes"} <= set(store.names()) and "s1" not in store.names()


def test_a_named_conversation_goes_with_all_that_is_its_own(here: Here, store: Store) -> None:
    put(store, "twin", text="words of notes")
    data = here("prune", "-y", "notes", "--json", code=0).data
    assert [(item["what"], item["name"]) for item in data["items"]] == [("conversation", "notes")]
    assert not [path for path in store.root.rglob("*notes*")]
    assert "also, at least in part, in: twin" not in here("prune", "-n", "twin").stderr
    put(store, "notes", text="words of twin")
    put(store, "third", text="words of twin")
    assert "third" in here("prune", "-n", "notes", code=0).stderr


def test_state_alone_and_a_conversation_that_is_held(here: Here, store: Store) -> None:
    with store.hold("notes"):
        result = here("prune", "-y", "--state", "notes", "--wait", "0", code=11)
        assert f"process {os.getpid()}" in result.stderr
        assert (
            here("prune", "-y", "--keep", "0", "--named", "--json", code=0)
            .data["kept"][-1]["reason"]
            .startswith("in use")
        )
    assert with_state(store) == {"notes"}
    log = (store.root / "conversations" / "notes.jsonl").read_bytes()
    data = here("prune", "-y", "--state", "notes", "--json", code=0).data
    assert [item["what"] for item in data["items"]] == ["state"] and not with_state(store)
    assert (store.root / "conversations" / "notes.jsonl").read_bytes() == log


def test_a_writer_at_work_makes_it_wait_and_then_tell(here: Here, store: Store) -> None:
    with store.shared():
        begun = time.monotonic()
        assert "session directory" in here("prune", "-y", "--wait", "0.5", code=11).stderr
        assert time.monotonic() - begun > 0.5
        assert here("prune", "-n", "--json", code=0).data["dry_run"]


@pytest.mark.parametrize(
    ("size", "code", "shown"),
    [
        ("0", 3, "0 B (0 bytes)"),
        ("-1", 2, ""),
        ("1", 2, ""),
        ("1.5G", 0, "1.5 GB (1,500,000,000 bytes)"),
        ("1GiB", 0, "1.07 GB (1,073,741,824 bytes)"),
        ("1gb", 0, "1 GB (1,000,000,000 bytes)"),
        ("1e-20", 2, ""),
        ("1e300", 2, ""),
        ("ten", 2, ""),
    ],
)
def test_C70_sizes_are_understood_or_refused(here: Here, store: Store, size: str, code: int, shown: str) -> None:
    before = tree(store.root)
    assert shown in here("prune", "-n", "-y", f"--max-size={size}", code=code).stderr
    assert tree(store.root) == before


@pytest.mark.parametrize(("age", "code"), [("0", 0), ("1m", 0), ("-3d", 2), ("3", 2), ("1y", 0), ("1e9d", 2)])
def test_C70_ages_are_understood_or_refused(here: Here, store: Store, age: str, code: int) -> None:
    result = here("prune", "-n", f"--max-age={age}", "--json", code=code)
    if code == 0:
        assert len(result.data["items"]) == (0 if age == "1y" else 5)


@pytest.mark.parametrize(("keep", "code", "count"), [("0", 0, 5), ("-1", 2, 0), ("1e9", 2, 0), ("1000000000", 0, 0)])
def test_C70_how_many_to_keep(here: Here, store: Store, keep: str, code: int, count: int) -> None:
    result = here("prune", "-n", f"--keep={keep}", "--json", code=code)
    assert code or len(result.data["items"]) == count


def test_when_what_may_go_is_not_enough_it_says_what_stays(here: Here, store: Store) -> None:
    put(store, "huge", payload_bytes=200_000)
    result = here("prune", "-y", "--max-size", "100kB", "--json", code=3)
    assert result.envelope["error"]["code"] == "partly" and "huge" in result.envelope["error"]["message"]
    assert len(result.envelope["data"]["items"]) == 5 and with_state(store) == {"huge", "notes"}


def test_transcripts_need_a_limit_and_take_automatic_ones_alone(here: Here, store: Store) -> None:
    assert "--keep or --max-age" in here("prune", "-y", "--transcripts", "--max-size", "1kB", code=2).stderr
    data = here("prune", "-y", "--transcripts", "--max-age", "84h", "--max-size", "0", "--json", code=3).envelope[
        "data"
    ]
    assert {i["name"] for i in data["items"] if i["what"] == "conversation"} == {auto(4), auto(5)}
    assert set(store.names()) == {auto(1), auto(2), auto(3), "notes"}


def test_the_limits_of_the_configuration_delete_no_text(strata: Strata, store: Store) -> None:
    env = {"STRATA_AUTO_SESSIONS_MAX_AGE": "1d", "STRATA_AUTO_SESSIONS_KEEP": "1"}
    data = strata("prune", "-n", "--transcripts", "--keep", "4", "--json", env=env, code=0).data
    assert {i["name"] for i in data["items"] if i["what"] == "conversation"} == {auto(5)}


@pytest.mark.parametrize("wish", [["notes", "--keep", "1"], ["notes", "--state", "notes"], ["notes", "--unusable"]])
def test_wishes_that_exclude_each_other(here: Here, store: Store, wish: list[str]) -> None:
    here("prune", "-y", *wish, code=2)
    assert "notes" in store.names()


def test_a_home_that_was_never_used_stays_as_it_is(here: Here, strata: Strata) -> None:
    assert here("prune", "-y", "--json", code=0).data["items"] == []
    here("prune", "-y", "nobody", code=10)
    assert not strata.home.exists()


def test_B17_without_the_disk_for_state_nothing_is_judged(strata: Strata, store: Store) -> None:
    before = tree(store.root)
    result = strata("prune", "-y", "--keep", "0", env={"STRATA_STORE_STATE_DIR": str(strata.folder / "gone")}, code=1)
    assert "is missing" in result.stderr and tree(store.root) == before


def test_unusable_asks_the_installed_engine_without_importing_it(strata: Strata, store: Store) -> None:
    put(store, auto(7), identity=replace(IDENTITY, state_format=1))
    code = "import sys; sys.argv[0] = 'strata'; from strata_cli.cli import status; s = status(sys.argv[1:])"
    code += "; assert 'llama_cpp' not in sys.modules; sys.exit(s)"
    done = subprocess.run(
        [sys.executable, "-c", code, "prune", "-n", "--unusable"],
        env=strata.environment(),
        cwd=strata.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "in state format 1; the installed engine has 3" in done.stdout


BARE = {"PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"HOME": ""}, 2),
        ({"HOME": "/nonexistent"}, 2),
        ({"HOME": "${HOME}"}, 2),
        ({"XDG_DATA_HOME": "relative"}, 0),
        ({"LANG": "C"}, 0),
        ({"LC_ALL": "POSIX"}, 0),
    ],
)
def test_C62_the_bare_environment_of_cron(strata: Strata, changes: dict[str, str | None], code: int) -> None:
    home = Path(strata.env["HOME"])
    data = home / ".local" / "share" / "strata" / "sessions"
    store = Store.open(data, Files(), lambda: datetime.now(UTC))
    put(store, auto(1), days=1, text="k\u00f6nig \u2603")
    python = [
        sys.executable,
        "-c",
        f"import sys; sys.path.insert(0, {strata.env['PYTHONPATH']!r}); import strata_cli.cli as c; c.main()",
    ]
    env = {key: value for key, value in {**BARE, "HOME": str(home), **changes}.items() if value is not None}
    done = subprocess.run(
        [*python, "prune", "-y", "-q", "--keep", "0"],
        env=env,
        cwd=strata.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    if code == 0:
        assert (done.stdout, done.stderr) == ("", "") and not with_state(store)
    elif code == 2:
        assert done.stderr.count("\n") <= 2 and ("HOME" in done.stderr)
    assert not list(strata.folder.iterdir())


def test_C62_a_current_folder_that_is_gone(strata: Strata, store: Store) -> None:
    gone = strata.folder / "gone"
    gone.mkdir()
    script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m strata_cli prune -y -q --keep 0"
    done = subprocess.run(["/bin/sh", "-c", script], env=strata.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "") and with_state(store) == {"notes"}


def test_an_older_turn_counts_and_not_an_older_file(here: Here, store: Store) -> None:
    put(store, auto(9), days=50, updated=days_ago(-100, TODAY))
    assert [i["name"] for i in here("prune", "-n", "--max-age", "40d", "--json").data["items"]] == [auto(9)]


def test_C62_without_home_the_account_says_where(strata: Strata) -> None:
    """A dry run: the account's own conversations are nobody's test."""
    python = [sys.executable, "-c", f"import sys; sys.path.insert(0, {strata.env['PYTHONPATH']!r})"]
    python[-1] += "; import strata_cli.cli as c; c.main()"
    done = subprocess.run([*python, "prune", "-n", "-q"], env=BARE, cwd=strata.folder, capture_output=True, text=True)
    assert done.returncode in (0, 3) or "HOME" in done.stderr
    assert not list(strata.folder.iterdir())

"""A session directory with links, special files, odd names, loose modes and another owner.

Nothing outside it is written, nothing hangs, nothing is readable by others, reads work wherever they can. Cases C41,
C43, C67, C68; nasty inputs N04, N05, N12, N13, N15.
"""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from chats import Talk
from engine_tools import Engines
from faulty_files import tree
from turns import Forked, Turns, fork_server, forked, store_of

from strata_cli.engine import Engine
from strata_cli.errors import StorageFailed, StrataError, UsageProblem
from strata_cli.names import check_name
from strata_cli.verify import verify

NAME = "talk"

__all__ = ["fork_server", "forked"]  # fixtures


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    found = Engines(tiny)
    yield found
    found.close()


@pytest.fixture
def engine(engines: Engines) -> Engine:
    return engines("llama", threads=1)


@pytest.fixture
def turns(forked: Forked, tiny: Callable[..., Path]) -> Turns:
    return Turns(forked, tiny("llama"), flags=("--greedy", "-n", "6", "--threads", "1"))


def talked(engine: Engine, root: Path, count: int = 2) -> None:
    with Talk(engine, root).open(NAME) as talk:
        talk.say_all([f"Question {i}." for i in range(count)])


PLACES = {
    "head": "conversations/talk.json",
    "log": "conversations/talk.jsonl",
    "lock": "conversations/talk.lock",
    "key": "key",
    "directory lock": "lock",
    "clock": "counters/clock",
    "segment": "segments",
}


def place_of(root: Path, what: str) -> Path:
    return next((root / "segments").glob("*/*.seg")) if what == "segment" else root / PLACES[what]


@pytest.mark.parametrize("link", ["outside", "dangling", "loop"])
@pytest.mark.parametrize("what", PLACES)
def test_C41_N05_a_link_never_leads_a_write_outside(engine: Engine, tmp_path: Path, what: str, link: str) -> None:
    root, outside = tmp_path / "s", tmp_path / "outside"
    talked(engine, root)
    outside.mkdir()
    victim = outside / "victim"
    path = place_of(root, what)
    victim.write_bytes(path.read_bytes() if path.exists() else b"precious")
    path.unlink(missing_ok=True)
    path.symlink_to({"outside": victim, "dangling": outside / "nothing", "loop": path}[link])
    before = tree(outside)
    talk = Talk(engine, root)
    try:
        talk.open(NAME)
        talk.say("Go on.")
    except StrataError as error:
        assert "symbolic link" in error.message or "link" in error.message, error.message
    finally:
        talk.close()
    verify_or_refuse(engine, root)
    assert tree(outside) == before and not (outside / "nothing").exists()


@pytest.mark.parametrize("what", PLACES)
def test_C41_a_hard_link_outside_keeps_its_bytes(engine: Engine, tmp_path: Path, what: str) -> None:
    root, outside = tmp_path / "s", tmp_path / "outside"
    talked(engine, root)
    path = place_of(root, what)
    if not path.exists():
        path.write_bytes(b"")
    outside.hardlink_to(path)
    before = outside.read_bytes()
    with Talk(engine, root).open(NAME) as talk:
        assert talk.say("Go on.").reply_tokens
    assert outside.read_bytes() == before
    assert verify(talk.store, None, lambda done, total: None).bad == ()


@pytest.mark.parametrize("folder", ["conversations", "segments", "tmp", "quarantine", "counters", "prefixes"])
def test_C41_N05_a_linked_folder_is_refused_in_one_line(turns: Turns, tmp_path: Path, folder: str) -> None:
    root = turns.strata.home / "data"
    talked_folder = tmp_path / "elsewhere"
    talked_folder.mkdir()
    root.mkdir(parents=True)
    (root / folder).symlink_to(talked_folder)
    failed = turns.run("-C", NAME, "One.", code=1).envelope
    assert "symbolic link" in failed["error"]["message"] and failed["error"]["hint"]
    assert list(talked_folder.iterdir()) == []


def test_C41_the_directory_itself_may_be_reached_by_a_link(turns: Turns, tmp_path: Path) -> None:
    turns.say(NAME, "One.")
    (tmp_path / "link").symlink_to(turns.strata.home)
    linked = Turns(turns.strata, turns.model, turns.flags, {**turns.env, "STRATA_HOME": str(tmp_path / "link")})
    assert linked.say(NAME, "Two.")["restore"]["from"] == "disk"


SPECIAL = ["fifo", "folder", "socket", "zero", "null"]


def put(path: Path, what: str) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if what == "fifo":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "socket":
        before = os.getcwd()
        os.chdir(path.parent)  # a socket's path must be short
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(path.name)
        finally:
            os.chdir(before)
    else:
        try:
            os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5 if what == "zero" else 3))
        except PermissionError:
            pytest.skip("only root makes devices")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("what", PLACES)
def test_N04_a_special_file_is_refused_at_once(engine: Engine, tmp_path: Path, what: str, special: str) -> None:
    talked(engine, tmp_path)
    put(place_of(tmp_path, what), special)
    begun = time.monotonic()
    talk = Talk(engine, tmp_path)
    try:
        talk.open(NAME)
        talk.say("Go on.")
    except StrataError as error:
        assert what in ("log", "lock", "directory lock", "key", "clock"), error.message
        assert "\n" not in error.message
    finally:
        talk.close()
    verify_or_refuse(engine, tmp_path)
    assert time.monotonic() - begun < 8  # nobody waited for a FIFO's other end


def verify_or_refuse(engine: Engine, root: Path) -> None:
    try:
        verify(Talk(engine, root).store, None, lambda done, total: None)
    except StorageFailed as error:
        assert error.message


ODD_NAMES = [
    "", " ", ".", "..", "../x", "/abs", "a/b", "a\\b", "-rf", "--help", "a\nb", "a\tb", "a\0b", "x" * 65, "x" * 255,
    "x" * 300, "\U0001f600" * 200, "name.", "name ", " name", "é", "a:b", "~", "$HOME", ".hidden", "a" * 64 + "b",
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_C43_N13_an_odd_name_is_refused_before_any_io(engine: Engine, tmp_path: Path, name: str) -> None:
    if name == "name.":  # letters, digits and a dot: allowed, and exact
        assert check_name(name) == name
        return
    talk = Talk(engine, tmp_path / "s")
    for use in (talk.chat.open, talk.chat.start, talk.store.read_head, talk.store.hold):
        with pytest.raises(StrataError) as caught:
            use(name)
        assert isinstance(caught.value, UsageProblem) and "\n" not in caught.value.message
        assert all(char.isprintable() for char in caught.value.message)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["con", "NUL", "a", "x" * 64, "1", "a..b", "auto-x", "tmp", "a.json", "a.jsonl.lock"])
def test_C43_N13_every_other_name_round_trips(engine: Engine, tmp_path: Path, name: str) -> None:
    with Talk(engine, tmp_path).open(name) as talk:
        talk.say("One.")
    assert talk.store.names() == [name]
    with Talk(engine, tmp_path).open(name) as talk:
        assert talk.say("Two.").source == "disk"
    assert verify(talk.store, None, lambda done, total: None).bad == ()


def test_C43_odd_names_on_the_command_line(turns: Turns) -> None:
    for name in ("../x", "a\nb", ""):
        failed = turns.run("-C", name, "One.", code=2).envelope
        assert failed["error"]["code"] == "usage"
        assert turns.strata("inspect", name, "--json").exit_code in (2, 10)
    assert not turns.strata.home.exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_C67_everything_is_private_from_creation(turns: Turns, umask: int) -> None:
    """Also while it is written: every file is looked at as it appears."""
    before = os.umask(umask)
    try:
        process = turns.strata.start(*turns.arguments("--repl", "jsonl", "-C", NAME), env=turns.env)
    finally:
        os.umask(before)
    assert process.stdin is not None
    process.stdin.write(b"".join(b'{"prompt": "Question %d"}\n' % i for i in range(8)))
    process.stdin.close()
    process.stdin = None
    modes: set[tuple[bool, int]] = set()
    while process.poll() is None:
        for path in turns.strata.home.rglob("*") if turns.strata.home.exists() else ():
            try:
                facts = path.lstat()
            except FileNotFoundError:
                continue
            modes.add((stat.S_ISDIR(facts.st_mode), stat.S_IMODE(facts.st_mode)))
    process.communicate()
    assert process.returncode == 0
    modes |= {(path.is_dir(), stat.S_IMODE(path.lstat().st_mode)) for path in turns.strata.home.rglob("*")}
    assert modes == {(True, 0o700), (False, 0o600)}


def test_C67_looser_ones_are_tightened(turns: Turns) -> None:
    turns.say(NAME, "One.")
    data = turns.strata.home / "data"
    for path in (data, *data.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    turns.say(NAME, "Two.")
    for path in (
        data,
        data / "conversations",
        data / "conversations" / "talk.json",
        data / "conversations" / "talk.jsonl",
    ):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_C67_no_save_writes_nothing(turns: Turns) -> None:
    turns.say(NAME, "One.")
    before = tree(turns.strata.home / "data")
    data = turns.run("-C", NAME, "--no-save", "A secret.", code=0).data
    assert data["restore"]["from"] == "disk" and data["park"]["skipped"] == "disabled"
    assert data["park"]["bytes_written"] == 0
    assert tree(turns.strata.home / "data") == before
    everything = b"".join(path.read_bytes() for path in turns.strata.home.rglob("*") if path.is_file())
    assert b"A secret." not in everything


def test_C68_conversations_are_data_and_survive_cleaners(turns: Turns, forked: Forked) -> None:
    user = Path(forked.env["HOME"])
    plain = Turns(forked, turns.model, turns.flags, {**turns.env, "STRATA_HOME": ""})
    plain.say(NAME, "One.")
    (data,) = [path for path in user.rglob("conversations") if path.is_dir()]
    assert ".cache" not in data.parts and "Caches" not in data.parts
    for cache in (user / ".cache", user / "Library" / "Caches"):
        shutil.rmtree(cache, ignore_errors=True)
    assert plain.say(NAME, "Two.")["restore"]["from"] == "disk"
    shutil.rmtree(data.parent / "segments")
    result = plain.run("-C", NAME, "Three.", code=0).envelope
    assert result["data"]["restore"]["not_reused"]["code"] == "missing" and result["data"]["tokens"]["reused"] == 0
    assert result["warnings"] and plain.say(NAME, "Four.")["restore"]["from"] == "disk"


@pytest.mark.parametrize("days", [-366, 25_000])
def test_N12_a_clock_that_jumps(engine: Engine, tmp_path: Path, days: int) -> None:
    """The last conversation is the last one used, whatever the machine's clock says."""
    talked(engine, tmp_path)
    jumped = Talk(engine, tmp_path)
    jumped.store.directory.now = lambda: datetime.now(UTC) + timedelta(days=days)
    with jumped.open("other") as talk:
        talk.say("One.")
    newest = talk.store.newest()
    assert newest is not None and newest.name == "other"
    with Talk(engine, tmp_path).open(NAME) as talk:
        talk.say("Again.")
    newest = talk.store.newest()
    assert newest is not None and newest.name == NAME


# Other owners and read-only directories: as another user where that can be.


def as_nobody(command: list[str], env: dict[str, str], cwd: Path) -> "subprocess.CompletedProcess[bytes]":
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another user, and modes mean nothing to root")
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    return subprocess.run([*prefix, *command], env=env, cwd=cwd, capture_output=True, timeout=60)


@pytest.fixture
def shared_home(turns: Turns, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home with a conversation, in a place that other users may reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    home = folder / "home"
    there = Turns(turns.strata, turns.model, turns.flags, {**turns.env, "STRATA_HOME": str(home)})
    there.say(NAME, "One.")
    yield home
    shutil.rmtree(folder)


def usable_python(home: Path) -> list[str]:
    done = as_nobody(
        [sys.executable, "-c", "import strata_cli.cli"], {"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin"}, home.parent
    )
    if done.returncode:
        pytest.skip("the other user cannot read this Python or the package")
    return [sys.executable, "-m", "strata_cli"]


SOURCE = str(Path(__file__).parent.parent)


def test_N15_another_users_directory_is_read_only_also_for_root(shared_home: Path, turns: Turns) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    for path in (shared_home, *shared_home.rglob("*")):
        os.chown(path, 65534, 65534)
    before = tree(shared_home / "data")
    there = Turns(turns.strata, turns.model, turns.flags, {**turns.env, "STRATA_HOME": str(shared_home)})
    failed = there.run("-C", NAME, "Two.", code=1).envelope
    assert "owner" in failed["error"]["hint"]
    data = there.strata("inspect", NAME, "--verify", "--transcript", "--json", env=there.env, code=0).data
    assert data["bad"] == [] and data["messages"][0]["content"] == "One."
    assert there.run("-C", NAME, "--no-save", "Two.", code=0).data["restore"]["from"] == "disk"
    assert tree(shared_home / "data") == before


def test_N15_a_read_only_directory_is_read_and_what_writes_says_so(shared_home: Path) -> None:
    command = usable_python(shared_home)
    env = {"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin", "STRATA_HOME": str(shared_home)}
    for path in (shared_home, *shared_home.rglob("*")):
        os.chown(path, 65534, 65534)
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = tree(shared_home)
    seen = as_nobody([*command, "inspect", "--json", "--verify"], env, shared_home.parent)
    assert seen.returncode == 0, seen
    failed = as_nobody([*command, "run", "-C", NAME, "Two."], env, shared_home.parent)
    assert failed.returncode in (1, 14) and failed.stderr.count(b"\n") <= 4
    assert tree(shared_home) == before


def test_N15_one_entry_without_permission_costs_that_entry(shared_home: Path) -> None:
    command = usable_python(shared_home)
    env = {"PYTHONPATH": SOURCE, "PATH": "/usr/bin:/bin", "STRATA_HOME": str(shared_home)}
    data = shared_home / "data"
    shutil.copy(data / "conversations" / f"{NAME}.json", data / "conversations" / "closed.json")
    for path in (shared_home, *shared_home.rglob("*")):
        os.chown(path, 65534, 65534)
    (data / "conversations" / "closed.json").chmod(0)
    seen = as_nobody([*command, "inspect", "--json"], env, shared_home.parent)
    assert seen.returncode == 0, seen
    rows = {row["name"]: row for row in json.loads(seen.stdout)["data"]["conversations"]}
    assert rows[NAME]["turns"] == 1 and rows[NAME]["title"] == "One."
    assert not rows["closed"]["usable"] and "ermission" in rows["closed"]["why"]


def test_N15_a_disk_for_state_that_is_missing_costs_reading(turns: Turns, tmp_path: Path) -> None:
    env = {**turns.env, "STRATA_STORE_STATE_DIR": str(tmp_path / "disk")}
    (tmp_path / "disk").mkdir()
    there = Turns(turns.strata, turns.model, turns.flags, env)
    there.say(NAME, "One.")
    assert there.say(NAME, "Two.")["restore"]["from"] == "disk"
    (tmp_path / "disk").rename(tmp_path / "unmounted")
    result = there.run("-C", NAME, "Three.", code=0).envelope
    assert result["data"]["tokens"]["reused"] == 0 and result["warnings"] and result["data"]["reply_tokens"]
    assert not (tmp_path / "disk").exists()
    (tmp_path / "unmounted").rename(tmp_path / "disk")
    assert there.say(NAME, "Four.")["restore"]["from"] == "disk"
    assert len(store_of(turns.strata.home).read_log(NAME).branch()) == 8

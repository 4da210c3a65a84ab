"""Locks: exclusive between processes, named, and gone with their process."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from strata_cli.errors import Locked, NotFound, StorageFailed
from strata_cli.locks import FileLock, Holder, read_holder

ME = Holder(4321, "2026-01-01T00:00:00.000000Z", "run")
CHILD = """
import sys, time
from pathlib import Path
from strata_cli.locks import FileLock, Holder
lock = FileLock.acquire(Path(sys.argv[1]), exclusive=sys.argv[2] == "x", holder=Holder(99, "now", "other"))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.lock"


def hold_elsewhere(path: Path, how: str = "x") -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), how], stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "held\n"
    return child


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_a_second_one_is_told_who_holds_it(path: Path) -> None:
    with FileLock.acquire(path, exclusive=True, holder=ME):
        assert read_holder(path) == ME
        for exclusive in (True, False):
            with pytest.raises(Locked, match=r"'chat' is held by process 4321 \(run\) since 2026"):
                FileLock.acquire(path, exclusive=exclusive)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_holder(path) is None
    FileLock.acquire(path, exclusive=True).release()


def test_who_waits_long_is_told_for_whom_and_may_give_up(path: Path) -> None:
    told: list[str] = []

    def tired(who: str) -> None:
        told.append(who)
        if len(told) == 2:
            raise InterruptedError

    with FileLock.acquire(path, exclusive=True, holder=ME), pytest.raises(InterruptedError):
        FileLock.acquire(path, exclusive=True, wait_s=60, on_wait=tired)
    assert told == [f"'chat' is held by {ME}"] * 2


def test_a_killed_process_leaves_no_lock(path: Path) -> None:
    child = hold_elsewhere(path)
    assert read_holder(path) == Holder(99, "now", "other")
    with pytest.raises(Locked, match="process 99"):
        FileLock.acquire(path, exclusive=True)
    kill(child)
    assert read_holder(path) is None
    with FileLock.acquire(path, exclusive=True, holder=ME):
        assert read_holder(path) == ME


def test_many_may_share_and_are_not_named_after_an_earlier_holder(path: Path) -> None:
    FileLock.acquire(path, exclusive=True, holder=ME).release()
    child = hold_elsewhere(path, "s")
    try:
        with FileLock.acquire(path, exclusive=False):
            assert read_holder(path) is None
        with pytest.raises(Locked, match="in use by another process"):
            FileLock.acquire(path, exclusive=True)
    finally:
        kill(child)


def test_waiting_is_bounded_and_ends_when_it_is_free(path: Path) -> None:
    lock = FileLock.acquire(path, exclusive=True, holder=ME)
    begun = time.monotonic()
    with pytest.raises(Locked):
        FileLock.acquire(path, exclusive=True, wait_s=0.2)
    assert 0.15 < time.monotonic() - begun < 5
    timer = threading.Timer(0.1, lock.release)
    timer.start()
    FileLock.acquire(path, exclusive=True, wait_s=30).release()
    timer.join()


def test_asking_who_holds_it_disturbs_nobody(path: Path) -> None:
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            read_holder(path)
            time.sleep(0.002)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(50):
            FileLock.acquire(path, exclusive=True, holder=ME).release()
    finally:
        stop.set()
        asking.join()


def test_a_removed_lock_file_is_never_held_by_two(path: Path) -> None:
    inside = []

    def work() -> None:
        for _ in range(30):
            with FileLock.acquire(path, exclusive=True, wait_s=30, holder=ME, remove=True):
                inside.append(1)
                assert len(inside) == 1
                inside.pop()

    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [] and not path.exists()


def test_a_link_is_not_written_through(path: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    path.symlink_to(outside)
    with pytest.raises(StorageFailed, match="symbolic link"):
        FileLock.acquire(path, exclusive=True, holder=ME)
    path.unlink()
    os.link(outside, path)
    with FileLock.acquire(path, exclusive=True, wait_s=5, holder=ME):
        assert json.loads(path.read_bytes())["pid"] == 4321
    assert outside.read_bytes() == b"mine"


def test_a_fifo_does_not_hang(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(StorageFailed, match="not a regular file"):
        FileLock.acquire(path, exclusive=True)
    assert read_holder(path) is None


def test_looking_makes_nothing(path: Path) -> None:
    assert read_holder(path) is None
    with pytest.raises(NotFound):
        FileLock.acquire(path, exclusive=False, create=False)
    assert not path.exists()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b'{"pid":"x"}', b"\xff", b"[" * 4000, b'{"pid":1,"since":1,"command":2}']
)
def test_a_malformed_signature_is_an_unknown_holder(path: Path, text: bytes) -> None:
    with FileLock.acquire(path, exclusive=True):
        path.write_bytes(text)
        assert read_holder(path) == Holder(0, "", "unknown")
        with pytest.raises(Locked, match="in use by another process"):
            FileLock.acquire(path, exclusive=True)


def test_a_holder_is_shown_harmlessly(path: Path) -> None:
    with FileLock.acquire(path, exclusive=True, holder=Holder(1, "t", "a\x1b[31m" + "b" * 900)):
        found = read_holder(path)
    assert found and found.command.startswith("a?[31mb") and len(found.command) == 200

"""B1 to B4, B10 on the engine: memory in front of the disk, a slow or failing disk behind a turn, an orderly end.

The seam of file-system calls is where the disk is made slow, made to fail, and counted.
"""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from chats import ALL, Talk
from engine_tools import FAMILIES, Engines
from faulty_files import UnflushedFiles

from strata_cli.going_back import undo
from strata_cli.turn import TurnResult

MEMORY_OF_ALL = replace(ALL, min_free_ram_bytes=0)
DISK_ONLY = replace(MEMORY_OF_ALL, ram_bytes=0)
EVICT = replace(MEMORY_OF_ALL, write_early=False)


class Disk(UnflushedFiles):
    """A disk that can be held up and can refuse state, both in the writer's thread; notes what a turn opens."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.refuses: int | None = None
        self.opened: list[Path] = []
        self.created: list[Path] = []

    def create(self, path: Path, reserve_bytes: int = 0) -> int:
        if threading.current_thread() is not threading.main_thread() and reserve_bytes > 4096:
            self.go.wait(60)
            if self.refuses is not None:
                raise OSError(self.refuses, os.strerror(self.refuses))
            self.created.append(path)
        return super().create(path, reserve_bytes)

    def open(self, path: Path, append: bool = False) -> int:
        if "segments" in path.parts and threading.current_thread() is threading.main_thread():
            self.opened.append(path)
        return super().open(path, append)


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    loaded = Engines(tiny)
    yield loaded
    loaded.close()


def stored(root: Path) -> list[Path]:
    return sorted(path for path in (root / "segments").rglob("*") if path.suffix in (".seg", ".part"))


def settled(result: TurnResult) -> TurnResult:
    assert result.ticket.done.wait(60)
    return result


# -- B1: memory before disk


@pytest.mark.parametrize("family", FAMILIES)
def test_B1_a_switch_back_within_ram_mib_needs_no_file(engines: Engines, tmp_path: Path, family: str) -> None:
    """With `segments/` moved away all is reused, the answer is the same, and the seam counts no open."""
    disk, root = Disk(), tmp_path / "data"
    with Talk(engines(family), root, files=disk, policy=MEMORY_OF_ALL).open("one") as talk:
        settled(talk.say("The first of all questions, and it is not too short."))
        talk.open("other")
        settled(talk.say("Something else altogether."))
        talk.chat.keeper.wait()
        shutil.move(root / "segments", tmp_path / "away")
        talk.open("one")
        expected = talk.chat.prompt_for("And the second?")
        disk.opened.clear()
        second = talk.say("And the second?")
        assert second.source == "memory" and second.not_reused is None
        assert second.reused_tokens >= len(expected.tokens) - len("user\nAnd the second?") - 40
        assert disk.opened == []
        talk.chat.keeper.wait()
        shutil.rmtree(root / "segments", ignore_errors=True)
        shutil.move(tmp_path / "away", root / "segments")


def test_B1_the_memory_tiers_copy_is_used_before_the_disks(engines: Engines, tmp_path: Path) -> None:
    disk = Disk()
    with Talk(engines("llama"), tmp_path / "data", files=disk, policy=MEMORY_OF_ALL).open("one") as talk:
        settled(talk.say("The first question."))
        talk.open("other")
        settled(talk.say("Another."))
        talk.open("one")
        disk.opened.clear()
        assert talk.say("The second question.").source == "memory"
        assert disk.opened == [] and stored(tmp_path / "data")


def test_B1_ram_mib_0_reads_the_disk(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "data", policy=DISK_ONLY).open("one") as talk:
        settled(talk.say("The first question."))
        talk.open("other")
        settled(talk.say("Another."))
        talk.chat.keeper.wait()
        assert len(talk.chat.keeper.shelf.tier) == 0
        talk.open("one")
        assert talk.say("The second question.").source == "disk"


def test_B1_ram_conversations_bounds_how_many_stay(engines: Engines, tmp_path: Path) -> None:
    policy = replace(MEMORY_OF_ALL, ram_conversations=1)
    with Talk(engines("llama"), tmp_path / "data", policy=policy).open("one") as talk:
        settled(talk.say("The first question."))
        talk.open("other")
        settled(talk.say("Another."))
        talk.chat.keeper.wait()
        assert {each.owner for each in talk.chat.keeper.shelf.tier._entries.values()} == {"other"}
        talk.open("one")
        assert talk.say("The second question.").source == "disk"


# -- B2: what memory cannot hold


def test_B2_short_memory_is_written_through_and_read_back(engines: Engines, tmp_path: Path) -> None:
    """Physical memory below the floor: nothing stays in memory, nothing is refused, all is there again."""
    policy = replace(ALL, min_free_ram_bytes=1 << 40)
    with Talk(engines("llama"), tmp_path / "data", policy=policy).open("one") as talk:
        talk.chat.keeper.shelf.tier._available = lambda: 1 << 20
        result = settled(talk.say("A question that is long enough to be worth the while. " * 4))
        talk.chat.keeper.wait()
        assert result.parked.skipped is None and len(talk.chat.keeper.shelf.tier) == 0
        talk.open("other")
        settled(talk.say("Another."))
        talk.open("one")
        second = talk.say("And then?")
        assert second.source == "disk" and second.not_reused is None


def test_B2_a_range_larger_than_the_arena_comes_in_bounded_blocks(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block is written, and its memory free again, before the next is taken."""
    engine = engines("llama")
    with Talk(engine, tmp_path / "data", policy=DISK_ONLY).open("one") as talk:
        arena = engine.state.arena
        most, real_put, tier = [0], talk.chat.keeper.shelf.tier.put, talk.chat.keeper.shelf.tier

        def put(entry: object) -> None:
            real_put(entry)  # type: ignore[arg-type]
            most[0] = max(most[0], tier.size_bytes)

        tier.put = put  # type: ignore[method-assign]
        monkeypatch.setattr(arena, "limit_bytes", 60_000)
        monkeypatch.setattr(arena, "raise_limit", lambda _: None)
        monkeypatch.setattr("strata_cli.keeper.UNWRITTEN_BYTES", 0)
        result = settled(talk.say("A question that is long enough for several blocks of state. " * 5))
        talk.chat.keeper.wait()
        assert result.parked.segments >= 4 and result.parked.skipped is None
        assert most[0] <= 60_000 < result.parked.state_bytes
    with Talk(engine, tmp_path / "data", policy=DISK_ONLY).open("one") as talk:
        again = talk.say("And then?")
        assert again.source == "disk" and again.restored.segments >= 4


# -- B3: a slow or failing disk


@pytest.mark.parametrize("policy", [MEMORY_OF_ALL, EVICT], ids=["park", "evict"])
def test_B3_a_slow_disk_does_not_make_the_next_turn_wait(engines: Engines, tmp_path: Path, policy: object) -> None:
    disk = Disk()
    talk = Talk(engines("llama"), tmp_path / "data", files=disk, policy=policy).open("one")  # type: ignore[arg-type]
    disk.go.clear()
    try:
        results = [talk.say(f"Question {number}.") for number in range(3)]
        talk.open("other")
        other = talk.say("Something else.")
        talk.open("one")
        back = talk.say("And once more?")
        assert stored(tmp_path / "data") == [] and back.source == "memory"
        assert not any(result.ticket.failure for result in (*results, other, back))
        head = talk.store.read_head("one") if "one" in talk.store.names() else None
        assert head is None or not head.states, "a head names a file that is not durable"
    finally:
        disk.go.set()
    talk.close()
    assert stored(tmp_path / "data") and talk.warnings == []


def test_B3_only_short_memory_waits_for_the_writer(engines: Engines, tmp_path: Path) -> None:
    disk = Disk()
    talk = Talk(engines("llama"), tmp_path / "data", files=disk, policy=DISK_ONLY).open("one")
    disk.go.clear()
    first = talk.say("The first question.")
    threading.Timer(0.3, disk.go.set).start()
    begun = time.monotonic()
    talk.say("The second question.")
    assert time.monotonic() - begun >= 0.2 and first.ticket.done.is_set()
    talk.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("policy", [MEMORY_OF_ALL, DISK_ONLY], ids=["memory", "disk only"])
def test_B3_a_failing_disk_fails_no_turn_and_is_told_once(
    engines: Engines, tmp_path: Path, policy: object, code: int
) -> None:
    """It leaves no file behind, memory does not grow without bound, and the end writes what it can by then."""
    disk, texts = Disk(), [f"Question {number}, of a good length." for number in range(4)]
    with Talk(engines("llama"), tmp_path / "whole").open("one") as talk:
        expected = talk.say_all(texts)
    talk = Talk(engines("llama"), tmp_path / "data", files=disk, policy=policy).open("one")  # type: ignore[arg-type]
    disk.refuses = code
    results = []
    for text in texts:
        results.append(settled(talk.say(text)))
        talk.chat.keeper.wait()
    assert [result.reply_tokens for result in results] == expected
    assert all(result.parked.skipped in ("failed", "no_room") for result in results)
    assert len(talk.warnings) == 1 and "not saved" in talk.warnings[0]
    assert stored(tmp_path / "data") == [] and list((tmp_path / "data" / "tmp").iterdir()) == []
    first = results[0].parked.state_bytes
    if policy is DISK_ONLY:
        assert talk.chat.keeper.shelf.tier.size_bytes <= first
    disk.refuses = None
    talk.close()
    assert stored(tmp_path / "data")
    with Talk(engines("llama"), tmp_path / "data").open("one") as talk:
        assert talk.say("And then?").source == "disk"


def test_B3_a_disk_that_recovers_is_used_again_and_a_new_failure_is_told_again(
    engines: Engines, tmp_path: Path
) -> None:
    disk = Disk()
    with Talk(engines("llama"), tmp_path / "data", files=disk, policy=DISK_ONLY).open("one") as talk:
        for number, refuses in enumerate((errno.EIO, errno.EIO, None, None, errno.EIO)):
            disk.refuses = refuses
            settled(talk.say(f"Question {number}."))
            talk.chat.keeper.wait()
        assert len(talk.warnings) == 2
        disk.refuses = None
    head = talk.store.read_head("one")
    (state,) = head.states.values()
    assert state.tokens == state.segments[-1].end and len(state.segments) >= 2


# -- B4: leaving


def test_B4_evict_writes_at_the_end(engines: Engines, tmp_path: Path) -> None:
    talk = Talk(engines("llama"), tmp_path / "data", policy=EVICT).open("one")
    talk.say_all(["The first question.", "The second question."])
    talk.chat.keeper.wait()
    assert stored(tmp_path / "data") == []
    talk.close()
    assert stored(tmp_path / "data")
    with Talk(engines("llama"), tmp_path / "data").open("one") as again:
        result = again.say("The third question.")
        assert result.source == "disk" and result.not_reused is None


@pytest.mark.parametrize("family", FAMILIES)
def test_B4_evict_leaves_nothing_unwritten_that_was_undone(engines: Engines, tmp_path: Path, family: str) -> None:
    """Nobody names it any more, and it would stay in memory for as long as the process lives."""
    with Talk(engines(family), tmp_path / "data", policy=EVICT).open("one") as talk:
        settled(talk.say("The first question."))
        settled(talk.say("The second question."))
        undo(talk.chat, 1)
        settled(talk.say("Another second question."))
    assert talk.chat.keeper.shelf.tier.unwritten() == []


def test_B1_evict_writes_when_memory_is_needed(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "data", policy=replace(EVICT, ram_bytes=200_000)).open("one") as talk:
        for number in range(8):
            settled(talk.say(f"Question {number}, " + "of a length that fills memory after a while."))
        talk.chat.keeper.wait()
        assert stored(tmp_path / "data")
        assert talk.chat.keeper.shelf.tier.size_bytes <= 400_000


def test_B4_leaving_waits_leave_s_and_no_longer(engines: Engines, tmp_path: Path) -> None:
    disk = Disk()
    policy = replace(MEMORY_OF_ALL, leave_s=0.3)
    talk = Talk(engines("llama"), tmp_path / "data", files=disk, policy=policy).open("one")
    disk.go.clear()
    reply = talk.say("A question whose answer must not be lost.")
    begun = time.monotonic()
    talk.close()
    assert 0.2 <= time.monotonic() - begun < 5
    assert any("left without writing" in text for text in talk.warnings)
    lines = [(line.message or {}).get("role") for line in talk.store.read_log("one").branch()]
    assert lines == ["user", "assistant"] and reply.finish
    disk.go.set()


def test_B4_a_second_interrupt_gives_up_on_state_and_never_on_text(engines: Engines, tmp_path: Path) -> None:
    disk = Disk()
    policy = replace(MEMORY_OF_ALL, leave_s=60)
    talk = Talk(engines("llama"), tmp_path / "data", files=disk, policy=policy).open("one")
    disk.go.clear()
    talk.say("A question whose answer must not be lost.")
    begun = time.monotonic()
    talk.chat.finish(lambda: True)
    assert time.monotonic() - begun < 5
    assert len(talk.store.read_log("one").branch()) == 2
    disk.go.set()


# -- B10: nothing changed, nothing is written


@pytest.mark.parametrize("family", FAMILIES)
def test_B10_the_next_turn_rewrites_nothing(engines: Engines, tmp_path: Path, family: str) -> None:
    with Talk(engines(family), tmp_path / "data", files=UnflushedFiles()).open("one") as talk:
        settled(talk.say("The first question."))
        talk.chat.keeper.wait()
        before = {path: path.stat().st_ino for path in stored(tmp_path / "data")}
        second = settled(talk.say("The second question."))
        talk.chat.keeper.wait()
        after = {path: path.stat().st_ino for path in stored(tmp_path / "data")}
        kept = {path for path in before if path in after}
        assert second.source == "live" and all(after[path] == before[path] for path in kept)
        rows = {path for path in before if path.suffix == ".seg"}
        assert rows <= kept, "rows were rewritten under another name"
        new = sum(path.stat().st_size for path in after if path not in before)
        assert new <= second.parked.bytes_written <= new + 16_384


def test_C48_leaving_without_a_turn_writes_nothing(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "data", files=UnflushedFiles()).open("one") as talk:
        talk.say("The first question.")
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (tmp_path / "data").rglob("*.*")}
    with Talk(engines("llama"), tmp_path / "data", files=UnflushedFiles()).open("one") as talk:
        talk.chat.plan("And then?")
    after = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (tmp_path / "data").rglob("*.*")}
    assert {path: after[path] for path in before if path.suffix != ".lock"} == {
        path: facts for path, facts in before.items() if path.suffix != ".lock"
    }


# -- C49: a segment is hashed once


def test_C49_a_file_is_hashed_once_in_a_process(
    engines: Engines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from strata_cli import segment

    hashed: list[int] = []
    real = segment._digest

    def counted(*blocks: bytes) -> bytes:
        hashed.append(sum(memoryview(block).nbytes for block in blocks))
        return real(*blocks)

    with Talk(engines("llama"), tmp_path / "data", files=UnflushedFiles()).open("one") as talk:
        settled(talk.say("The first question."))
    monkeypatch.setattr(segment, "_digest", counted)
    total = sum(path.stat().st_size for path in stored(tmp_path / "data"))
    with Talk(engines("llama"), tmp_path / "data", files=UnflushedFiles(), policy=DISK_ONLY).open("one") as talk:
        first = talk.say("The second question.")
        talk.chat.keeper.wait()
        assert first.source == "disk"
        restored, written = sum(hashed), first.parked.bytes_written
        assert total * 0.9 <= restored <= total + written
        talk.open("other")
        settled(talk.say("Another."))
        talk.open("one")
        hashed.clear()
        again = settled(talk.say("The third question."))
        talk.chat.keeper.wait()
        assert again.source == "disk"
        assert sum(hashed) <= again.parked.bytes_written + first.parked.bytes_written

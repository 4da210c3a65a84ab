"""The memory tier alone: which entries are kept, which leave first, what is never let go (B1)."""

from collections.abc import Callable
from pathlib import Path

import pytest

from strata_cli.segment import Draft, Kind
from strata_cli.tier import MIB, Entry, HeldSegment, Tier, available_bytes

PLENTY = 1 << 50


def entry(number: int, size: int = 100, owner: str = "one", released: list[int] | None = None) -> Entry:
    draft = Draft(Kind.ROWS, 0, 4, f"{0:032}", f"{number:032}", (1, 2, 3, 4), {"n": number})
    told = released if released is not None else []
    return Entry(
        draft,
        memoryview(bytes(size)),
        Path(draft.relative_path),
        size + 10,
        owner,
        number,
        lambda: told.append(number),
    )


def tier(limit: int, conversations: int = 0, available: Callable[[], int] = lambda: PLENTY, floor: int = 0) -> Tier:
    return Tier(limit, conversations, available, floor)


def filled(held: Tier, *entries: Entry, durable: bool = True) -> Tier:
    for each in entries:
        each.durable = durable
        held.put(each)
    held.shrink()
    return held


def test_B1_the_oldest_leave_first() -> None:
    gone: list[int] = []
    held = filled(tier(250), *(entry(n, released=gone) for n in range(5)))
    assert gone == [0, 1, 2] and held.size_bytes == 200


def test_B1_what_is_used_again_leaves_later() -> None:
    gone: list[int] = []
    entries = [entry(n, released=gone) for n in range(3)]
    held = filled(tier(300), *entries)
    held.touch(entries[0].path)
    filled(held, entry(3, released=gone))
    assert gone == [1]


def test_B1_ram_mib_0_keeps_nothing_that_is_durable() -> None:
    gone: list[int] = []
    held = filled(tier(0), entry(1, released=gone))
    assert len(held) == 0 and gone == [1] and not held.over()


def test_B1_ram_conversations_counts_owners() -> None:
    gone: list[int] = []
    entries = [entry(n, owner=f"talk-{n // 2}", released=gone) for n in range(6)]
    held = filled(tier(PLENTY, 2), *entries)
    assert gone == [0, 1] and {each.owner for each in held._entries.values()} == {"talk-1", "talk-2"}
    assert len(filled(tier(PLENTY, 0), *entries)) == 6


def test_B2_short_physical_memory_lets_durable_entries_go() -> None:
    free = [10 * MIB]
    gone: list[int] = []
    held = filled(tier(PLENTY, available=lambda: free[0], floor=5 * MIB), *(entry(n, released=gone) for n in range(3)))
    assert not gone
    free[0] = 4 * MIB
    assert held.over()
    held.shrink()
    assert gone == [0, 1, 2] and not held.over()


def test_B9_the_only_copy_never_leaves() -> None:
    gone: list[int] = []
    held = filled(tier(0), entry(1, released=gone), durable=False)
    assert len(held) == 1 and gone == [] and held.over()
    assert [each.draft.end_hash for each in held.unwritten()] == [f"{1:032}"]
    assert held.unwritten("other") == [] and len(held.unwritten("one")) == 1


def test_memory_that_may_be_being_written_is_not_used_again() -> None:
    gone: list[int] = []
    being_written = entry(1, released=gone)
    held = filled(tier(0), being_written, durable=False)
    held.drop(being_written.path)
    assert len(held) == 0 and gone == []


def test_an_entry_is_listed_as_its_file_would_be() -> None:
    one = entry(7)
    held = filled(tier(PLENTY), one)
    (child,) = held.children(one.draft.start_hash)
    assert (child.end, child.end_hash, child.path, child.bytes) == (4, one.draft.end_hash, one.path, one.file_bytes)
    assert held.children("f" * 32) == []


def test_an_entry_is_read_as_its_file_would_be() -> None:
    with HeldSegment(entry(3)) as file:
        assert (file.header.start, file.header.end, file.header.kind) == (0, 4, Kind.ROWS)
        assert list(file.tokens()) == [1, 2, 3, 4] and file.metadata == {"n": 3} and file.payload.nbytes == 100


def test_the_system_tells_what_memory_is_free() -> None:
    found = available_bytes()
    assert found > 0
    try:
        table = Path("/proc/meminfo").read_text()
    except OSError:
        pytest.skip("this system has no /proc/meminfo")
    (line,) = [line for line in table.splitlines() if line.startswith("MemAvailable:")]
    assert abs(found - int(line.split()[1]) * 1024) < 4 << 30

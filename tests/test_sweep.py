"""Carrying a plan out: as promised, leaving nothing dangling, on a full disk, and killed anywhere."""

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Strata
from directories import NOW, add, dangling, disk_bytes, store_in, write_segments
from faulty_files import CountingFiles
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_cli.files import Buffer, Files
from strata_cli.inventory import take_inventory
from strata_cli.log import Line, parse_log
from strata_cli.prune import Policy, plan_prune
from strata_cli.prune_plan import PrunePlan, plan_removal
from strata_cli.removal import remove_branches, without_branches
from strata_cli.store import Store
from strata_cli.sweep import Swept, sweep

EVERYTHING = Policy(keep=1, max_age_s=86400 * 40, prefix_max_age_s=86400 * 90, quarantine_age_s=0)


def auto(n: int) -> str:
    return f"auto-{n:016x}"


class Killed(BaseException):
    """The process ends here."""


class DyingFiles(CountingFiles):
    """Ends the process, as far as this test can, after the unlink number `after`."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        if path.suffix != ".lock" and self.calls.count("unlink") == self.after:
            raise Killed


class FullFiles(Files):
    """A disk without one free block: nothing can be written before something was removed."""

    free_bytes = 0

    def create(self, path: Path, reserve_bytes: int = 0) -> int:
        if reserve_bytes > self.free_bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().create(path, reserve_bytes)

    def write(self, fd: int, data: Buffer) -> None:
        self.free_bytes -= memoryview(data).nbytes
        super().write(fd, data)

    def unlink(self, path: Path) -> None:
        self.free_bytes += path.lstat().st_size
        super().unlink(path)


def populated(root: Path) -> Store:
    """Expired, kept, shared, pinned, broken and left-over things."""
    store = store_in(root)
    shared = [5] * 30
    for n in range(4):
        add(store, auto(n), days=n, tokens=[*shared, *([n] * 30)], ends=(30, 60), payload_bytes=5_000)
    add(store, "notes", days=90)
    add(store, "root-1", kind="prefixes", days=100, tokens=shared, ends=(30,), payload_bytes=5_000)
    add(store, "pinned", kind="prefixes", days=100, extra={"pinned": True})
    bad = add(store, "bad", days=1)
    store.quarantine(store.segment_path(next(iter(bad.states.values())).segments[1].file), "bad")
    write_segments(store, [9] * 50, [20, 50], payload_bytes=3_000)
    (store.directory.tmp / "4194304-00.tmp").write_bytes(b"t" * 777)
    for path in (*store.directory.quarantine.iterdir(), *store.directory.tmp.iterdir()):
        os.utime(path, (NOW.timestamp() - 86400 * 30,) * 2)
    return store


def plan(store: Store, policy: Policy = EVERYTHING) -> PrunePlan:
    return plan_prune(take_inventory(store), policy, NOW.timestamp())


def carry_out(store: Store, policy: Policy = EVERYTHING) -> tuple[PrunePlan, Swept]:
    with store.exclusive():
        seen = take_inventory(store)
        made = plan_prune(seen, policy, NOW.timestamp())
        return made, sweep(store, seen, made)


def test_C38_the_plan_is_what_is_then_freed(tmp_path: Path) -> None:
    store = populated(tmp_path)
    foreseen = plan(store)
    before = disk_bytes(store)
    made, swept = carry_out(store)
    assert swept.items == list(made.items) == list(foreseen.items)
    assert {item.what for item in made.items} == {"state", "prefix", "segment", "temporary", "quarantine"}
    lock_bytes = (tmp_path / "lock").stat().st_size
    assert before - disk_bytes(store) == made.bytes - lock_bytes
    again, nothing = carry_out(store)
    assert not again.items and not nothing.items
    assert not [file for file in dangling(store) if not file.startswith(quarantined_folder(store))]


def quarantined_folder(store: Store) -> str:
    """The segment of `bad` that went into quarantine is named and missing, as before the prune."""
    return next(iter(store.read_head("bad").states.values())).segments[1].file.partition("/")[0]


def test_by_kind_of_the_inventory_is_what_the_disk_has(tmp_path: Path) -> None:
    store = populated(tmp_path)
    (tmp_path / "segments" / "stranger").write_bytes(b"s" * 99)
    (tmp_path / "conversations" / "stranger.txt").write_bytes(b"s" * 98)
    assert take_inventory(store).total_bytes == disk_bytes(store)


def test_C40_killed_after_each_unlink_and_run_again(tmp_path: Path) -> None:
    reference = populated(tmp_path / "reference")
    missing_before = len(dangling(reference))
    carry_out(reference)
    expected = {path.relative_to(reference.root) for path in reference.root.rglob("*") if path.is_file()}
    for after in range(1, 60):
        root = tmp_path / str(after)
        populated(root)
        files = DyingFiles(after)
        try:
            carry_out(store_in(root, files))
            break
        except Killed:
            pass
        store = store_in(root)
        assert len(dangling(store)) == missing_before, after
        carry_out(store)
        left = {path.relative_to(root) for path in root.rglob("*") if path.is_file()}
        assert kinds_of(left) == kinds_of(expected), after
    assert after > 9


def kinds_of(paths: set[Path]) -> list[tuple[str, str]]:
    """Names of segments are the same in each directory, those in quarantine are not."""
    return sorted((path.parts[0], path.name if path.parts[0] != "quarantine" else "") for path in paths)


@pytest.mark.parametrize("leftovers", [True, False])
def test_C40_a_full_disk(tmp_path: Path, leftovers: bool) -> None:
    populated(tmp_path)
    if not leftovers:
        carry_out(store_in(tmp_path), replace(EVERYTHING, keep=None, max_age_s=None))
    store = store_in(tmp_path, FullFiles())
    made, swept = carry_out(store)
    assert swept.items == list(made.items) and len(swept.items) >= 3
    assert not swept.failed
    kept = [record.name for record in take_inventory(store).conversations if record.files]
    assert set(kept) == {auto(0), "notes", "bad"}
    assert {name for name in store.names() if store.read_head(name)} == set(store.names())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB of its own, where this user may mount one."""
    place = tmp_path / "disk"
    place.mkdir()
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs takes root on Linux")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "strata-test", place], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(folder: Path) -> None:
    """Take every byte that is left."""
    with (folder / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    assert os.statvfs(folder).f_bavail == 0


@pytest.mark.parametrize("leftovers", [True, False])
def test_C40_a_disk_that_is_really_full(small_disk: Path, leftovers: bool) -> None:
    """0 bytes free: nothing can be written before something has gone, and all that the plan says goes."""
    root = small_disk / "data"
    populated(root)
    if not leftovers:
        carry_out(store_in(root), replace(EVERYTHING, keep=None, max_age_s=None))
    fill(small_disk)
    store = store_in(root)
    made, swept = carry_out(store)
    assert swept.items == list(made.items) and len(swept.items) >= 3
    assert not swept.failed and not swept.busy
    kept = {record.name for record in take_inventory(store).conversations if record.files}
    assert kept == {auto(0), "notes", "bad"} and os.statvfs(small_disk).f_bavail > 0
    assert {name for name in store.names() if store.read_head(name)} == set(store.names())
    assert not [file for file in dangling(store) if not file.startswith(quarantined_folder(store))]


def test_C40_the_command_on_a_disk_that_is_really_full(small_disk: Path, strata: Strata) -> None:
    root = small_disk / "data"
    populated(root)
    fill(small_disk)
    env = {"STRATA_HOME": str(small_disk)}
    data = strata("prune", "-y", "--keep", "1", "--json", env=env, code=0).data
    assert "state" in {item["what"] for item in data["items"]} and data["bytes"] > 0
    assert os.statvfs(small_disk).f_bavail > 0
    assert strata("prune", "-y", "--keep", "1", "--json", env=env, code=0).data["items"] == []


def test_a_full_disk_for_text_alone_loses_no_head(tmp_path: Path) -> None:
    """Without a segment to gain from, the head stays as it is."""
    store = populated(tmp_path)
    carry_out(store)
    head = replace(store.read_head(auto(0)), states={})
    from strata_cli.errors import DiskFull
    from strata_cli.removal import replace_state

    class NoRoom(Files):
        def create(self, path: Path, reserve_bytes: int = 0) -> int:
            if (tmp_path / "conversations" / f"{auto(0)}.json").exists():
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().create(path, reserve_bytes)

    full = store_in(tmp_path, NoRoom())
    replace_state(full, head, "conversations", [])
    assert store.read_head(auto(0)).states == {}
    assert issubclass(DiskFull, Exception)


def test_a_conversation_opened_after_the_plan_stays_with_all_that_it_names(tmp_path: Path) -> None:
    store = populated(tmp_path)
    with store.exclusive():
        seen = take_inventory(store)
        made = plan_prune(seen, replace(EVERYTHING, keep=0), NOW.timestamp())
        with store.hold(auto(3)):
            swept = sweep(store, seen, made)
    assert [item.name for item in swept.busy] == [auto(3)]
    state = next(iter(store.read_head(auto(3)).states.values()))
    assert all(store.segment_path(ref.file).exists() for ref in state.segments)


def test_a_head_that_was_replaced_since_the_inventory_stays(tmp_path: Path) -> None:
    store = populated(tmp_path)
    with store.exclusive():
        seen = take_inventory(store)
        made = plan_prune(seen, replace(EVERYTHING, keep=0), NOW.timestamp())
        store.write_head(replace(store.read_head(auto(3)), turns=99))
        swept = sweep(store, seen, made)
    assert [item.name for item in swept.busy] == [auto(3)] and not set(dangling(store)) & set(
        ref.file for state in store.read_head(auto(3)).states.values() for ref in state.segments
    )


def test_a_sweep_ends_between_two_items_and_goes_on_later(tmp_path: Path) -> None:
    store = populated(tmp_path)
    whole = plan(store)
    done = []
    for _ in range(len(whole.items)):
        turn = iter([False, True])
        with store.exclusive():
            seen = take_inventory(store)
            made = plan_prune(seen, EVERYTHING, NOW.timestamp())
            swept = sweep(store, seen, made, enough=lambda turn=turn: next(turn, True))
        done += swept.items
    assert done == list(whole.items) and not plan(store).items


def test_what_fails_is_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    populated(tmp_path)

    class Stubborn(Files):
        def unlink(self, path: Path) -> None:
            if path.suffix == ".tmp":
                raise OSError(errno.EACCES, "Permission denied")
            super().unlink(path)

    made, swept = carry_out(store_in(tmp_path, Stubborn()))
    assert [item.what for item, _ in swept.failed] == ["temporary"]
    assert len(swept.items) == len(made.items) - 1


class DeafFiles(Files):
    """A disk that cannot give one head just now."""

    def __init__(self, name: str, code: int) -> None:
        self.name, self.code = name, code

    def open(self, path: Path | str, append: bool = False) -> int:
        if Path(path).name == f"{self.name}.json":
            raise OSError(self.code, os.strerror(self.code))
        return super().open(path, append)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOSPC])
def test_C09_what_a_head_that_cannot_be_read_may_name_stays(code: int, tmp_path: Path) -> None:
    """Two conversations share their first segment: who is known to name it is not all who do."""
    tokens = list(range(100, 160))
    store = store_in(tmp_path)
    add(store, auto(1), ends=(30, 50), tokens=tokens)
    add(store, auto(2), ends=(30, 50), tokens=[*tokens[:30], *range(500, 530)])
    deaf = store_in(tmp_path, DeafFiles(auto(2), code))
    with deaf.exclusive():
        seen = take_inventory(deaf)
        plan = plan_prune(seen, replace(EVERYTHING, keep=0), NOW.timestamp())
        swept = sweep(deaf, seen, plan)
    assert [item.name for item in swept.items] == [auto(1)] and swept.bytes == plan.bytes
    assert dangling(store) == [] and store.read_head(auto(1)).states == {}
    with store.exclusive():
        seen = take_inventory(store)
        swept = sweep(store, seen, plan_prune(seen, replace(EVERYTHING, keep=0), NOW.timestamp()))
    assert {item.what for item in swept.items} == {"state", "segment"}, "what it left is found when all can be read"
    assert take_inventory(store).segments == {}


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    store = store_in(tmp_path / "d")
    head = add(store, auto(1))
    file = next(iter(head.states.values())).segments[0].file
    folder = store.segment_path(file).parent
    outside = tmp_path / "outside"
    folder.rename(outside)
    folder.symlink_to(outside)
    carry_out(store, Policy(keep=0))
    assert list(outside.iterdir())


def test_empty_folders_go_with_their_last_segment(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    add(store, auto(1))
    carry_out(store, Policy(keep=0))
    assert not list((tmp_path / "segments").iterdir())


def test_alternatives_go_and_the_current_branch_stays(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    said = {"role": "user", "content": "hi"}
    lines = [
        Line(1, None, "setup", "", settings={"system": "s"}),
        Line(2, None, "message", "", said),
        Line(3, 2, "message", "", said),
        Line(4, 2, "back", ""),
        Line(5, 2, "message", "", said),
    ]
    store.append_log("x", lines)
    path = tmp_path / "conversations" / "x.jsonl"
    path.write_bytes(path.read_bytes() + b"torn")
    before = parse_log(path.read_bytes())
    freed = remove_branches(store, "x")
    after = parse_log(path.read_bytes())
    assert freed > 0 and [line.id for line in after.lines] == [1, 2, 5]
    assert after.branch() == before.branch() and after.setup() == before.setup() and len(after.bad) == 1
    assert remove_branches(store, "x") == 0


@given(st.binary(max_size=200))
def test_what_is_no_log_loses_nothing_by_it(data: bytes) -> None:
    kept = without_branches(data)
    assert [raw for raw in kept.split(b"\n") if raw] == [raw for raw in data.split(b"\n") if raw]


def test_a_named_conversation_is_deleted_whole(tmp_path: Path) -> None:
    store = populated(tmp_path)
    with store.hold(auto(1)) as _, store.exclusive():
        seen = take_inventory(store)
        swept = sweep(store, seen, plan_removal(seen, [auto(1)], what="conversation"), held={auto(1)})
    assert [item.name for item in swept.items] == [auto(1)] and auto(1) not in store.names()
    assert not {path.name for path in (tmp_path / "conversations").iterdir() if auto(1) in path.name}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 5), st.integers(0, 3)),
        st.tuples(st.just("state"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("prune"), st.integers(0, 4), st.integers(0, 60_000)),
    ),
    max_size=12,
)


@settings(max_examples=25)
@given(steps)
def test_whatever_is_added_and_pruned_nothing_dangles_and_no_text_goes(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, int, int]]
) -> None:
    store = store_in(tmp_path_factory.mktemp("d"))
    ever: set[str] = set()
    for action, first, second in history:
        if action == "add":
            tokens = [second] * 20 + [first] * 20
            add(store, auto(first), days=second, tokens=tokens, ends=(20, 40), payload_bytes=2_000)
            ever.add(auto(first))
        elif action == "state":
            with store.exclusive():
                seen = take_inventory(store)
                sweep(store, seen, plan_removal(seen, [auto(first)], what="state"))
        else:
            policy = Policy(keep=first, max_bytes=second)
            made, swept = carry_out(store, policy)
            assert swept.items == list(made.items)
            with_state = [record for record in take_inventory(store).conversations if record.files]
            assert len(with_state) <= first
            assert (
                len(with_state) <= 1
                or take_inventory(store).total_bytes <= second + os.stat(store.root / "lock").st_size
            )
        assert not dangling(store)
    assert set(store.names()) == ever

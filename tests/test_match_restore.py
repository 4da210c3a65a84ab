"""The walk through a directory's folders, and the plan of a restore as a pure function. No engine, no model."""

import itertools
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from strata_cli.engine import Memory
from strata_cli.files import Files
from strata_cli.identity import prefix_hashes
from strata_cli.match import INNER_LIMIT, Boundary, PrefixNames, Use, boundaries, row_chains, walk
from strata_cli.restore import Live, plan_restore
from strata_cli.segment import Draft, Kind
from strata_cli.shelf import Shelf
from strata_cli.state_files import Child
from strata_cli.store import Store
from strata_cli.worthwhile import at_the_root, without_stray

ATTENTION = Memory(has_rows=True, has_parts=False, recurrent=False, window_tokens=0)
WINDOW = Memory(has_rows=True, has_parts=True, recurrent=False, window_tokens=64)
HYBRID = Memory(has_rows=True, has_parts=True, recurrent=True, window_tokens=0)
RECURRENT = Memory(has_rows=False, has_parts=True, recurrent=True, window_tokens=0)
IDENTITY, OTHER = bytes(32), bytes([1] * 32)
TOKENS = list(range(100, 160))
EDGES = (0, 10, 25, 40)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "data", Files(), lambda: datetime(2026, 1, 1, tzinfo=UTC))


def put(
    store: Store, tokens: Sequence[int], start: int, end: int, kind: Kind = Kind.ROWS, identity: bytes = IDENTITY
) -> Path:
    hashes = prefix_hashes(identity, tokens, (start, end))
    draft = Draft(kind, start, end, hashes[start], hashes[end], tuple(tokens[start:end]), {"identity": identity.hex()})
    reference, _ = store.write_segment(draft, [b"k" * 100 * (end - start)])
    return store.segment_path(reference.file)


def put_chain(store: Store, tokens: Sequence[int] = TOKENS, *, kinds: Sequence[Kind] = (Kind.ROWS,)) -> None:
    for start, end in itertools.pairwise(EDGES):
        for kind in kinds:
            put(store, tokens, start, end, kind)


def found(
    store: Store, tokens: Sequence[int], memory: Memory, limit: int | None = None
) -> dict[int, list[tuple[str, int, int]]]:
    """Positions, deepest first, with the files that lead there."""
    reached = boundaries(Shelf.of_disk(store), IDENTITY, tokens, memory, len(tokens) - 1 if limit is None else limit)
    assert [b.position for b in reached] == sorted({b.position for b in reached}, reverse=True)
    return {b.position: [(use.child.kind.value, use.start, use.end) for use in b.uses] for b in reached}


# -- the walk


def test_prefix_names_are_prefix_hashes() -> None:
    positions = [0, 1, 10, 25, 40, 59, 60]
    names, hashes = PrefixNames(IDENTITY, TOKENS), prefix_hashes(IDENTITY, TOKENS, positions)
    for position in (*positions, *reversed(positions), 25, 1):
        assert names.at(position) == hashes[position]


def test_a_chain_is_followed_to_its_deepest_end(store: Store) -> None:
    put_chain(store)
    assert found(store, TOKENS, ATTENTION) == {
        40: [("seg", 0, 10), ("seg", 10, 25), ("seg", 25, 40)],
        25: [("seg", 0, 10), ("seg", 10, 25)],
        10: [("seg", 0, 10)],
    }


def test_C02_another_identity_finds_nothing(store: Store) -> None:
    put_chain(store)
    assert boundaries(Shelf.of_disk(store), OTHER, TOKENS, ATTENTION, 59) == []


def test_an_empty_or_missing_directory_has_nothing(store: Store) -> None:
    assert found(store, TOKENS, ATTENTION) == {}
    assert not store.root.exists()


def test_the_limit_cuts_the_last_file(store: Store) -> None:
    """One token has to be read after a restore: a boundary at the very end serves up to the token before it."""
    put_chain(store)
    assert list(found(store, TOKENS[:40], ATTENTION)) == [39, 25, 10]
    assert found(store, TOKENS[:40], ATTENTION)[39][-1] == ("seg", 25, 40)
    assert list(found(store, TOKENS[:25], HYBRID)) == []


def test_a_divergence_inside_a_file_counts_where_the_memory_can_be_cut(store: Store) -> None:
    put_chain(store)
    other = TOKENS[:32] + [7] * 20
    assert found(store, other, ATTENTION)[32] == [("seg", 0, 10), ("seg", 10, 25), ("seg", 25, 40)]
    assert list(found(store, other, ATTENTION)) == [32, 25, 10]


def test_a_divergence_in_the_very_first_file(store: Store) -> None:
    put(store, TOKENS, 0, 40)
    assert found(store, [*TOKENS[:5], 7, 7], ATTENTION) == {5: [("seg", 0, 40)]}
    assert found(store, [7, *TOKENS[1:]], ATTENTION) == {}


def test_where_a_part_is_needed_only_boundaries_count(store: Store) -> None:
    put_chain(store, kinds=(Kind.ROWS, Kind.PART))
    other = TOKENS[:32] + [7] * 20
    assert found(store, other, HYBRID) == {
        25: [("seg", 0, 10), ("seg", 10, 25), ("part", 10, 25)],
        10: [("seg", 0, 10), ("part", 0, 10)],
    }


def test_a_part_inside_longer_rows_is_reached_by_cutting_them(store: Store) -> None:
    put(store, TOKENS, 0, 40)
    for start, end in itertools.pairwise(EDGES):
        put(store, TOKENS, start, end, Kind.PART)
    other = TOKENS[:32] + [7] * 20
    assert found(store, other, HYBRID)[25] == [("seg", 0, 40), ("part", 10, 25)]


def test_parts_without_rows_are_no_boundary(store: Store) -> None:
    put_chain(store, kinds=(Kind.ROWS, Kind.PART))
    put_rows = [
        use for uses in walk(Shelf.of_disk(store), IDENTITY, TOKENS).rows.values() for use in uses if use.start == 10
    ]
    put_rows[0].child.path.unlink()
    assert list(found(store, TOKENS, HYBRID)) == [10]


@pytest.mark.parametrize(("missing", "left"), [((0, 10), []), ((10, 25), [10]), ((25, 40), [25, 10])])
def test_a_window_needs_every_part_that_covers_it(store: Store, missing: tuple[int, int], left: list[int]) -> None:
    put_chain(store, kinds=(Kind.ROWS, Kind.PART))
    assert found(store, TOKENS, WINDOW)[40][-3:] == [("part", 0, 10), ("part", 10, 25), ("part", 25, 40)]
    uses = [use for each in walk(Shelf.of_disk(store), IDENTITY, TOKENS).parts.values() for use in each]
    next(use.child.path for use in uses if (use.start, use.end) == missing).unlink()
    assert list(found(store, TOKENS, WINDOW)) == left


def test_a_short_window_needs_the_last_part_alone(store: Store) -> None:
    put_chain(store, kinds=(Kind.ROWS, Kind.PART))
    short = Memory(has_rows=True, has_parts=True, recurrent=False, window_tokens=12)
    assert found(store, TOKENS, short)[40][-1:] == [("part", 25, 40)]
    assert sum(kind == "part" for kind, _, _ in found(store, TOKENS, short)[40]) == 1


def test_a_recurrent_memory_has_parts_alone(store: Store) -> None:
    put_chain(store, kinds=(Kind.PART,))
    assert found(store, TOKENS, RECURRENT) == {
        40: [("part", 25, 40)], 25: [("part", 10, 25)], 10: [("part", 0, 10)],
    }  # fmt: skip


def test_the_way_with_the_fewest_files_is_taken(store: Store) -> None:
    put_chain(store)
    put(store, TOKENS, 0, 25)
    assert found(store, TOKENS, ATTENTION)[40] == [("seg", 0, 25), ("seg", 25, 40)]
    chains = row_chains(walk(Shelf.of_disk(store), IDENTITY, TOKENS))
    assert {end: len(chain) for end, chain in chains.items()} == {0: 0, 10: 1, 25: 1, 40: 2}


def test_what_is_excluded_is_gone_round(store: Store) -> None:
    put_chain(store)
    direct = put(store, TOKENS, 0, 25)
    reached = boundaries(Shelf.of_disk(store), IDENTITY, TOKENS, ATTENTION, 59, exclude={direct})
    assert reached[0].position == 40 and all(use.child.path != direct for b in reached for use in b.uses)


def test_the_newest_of_many_branches_are_looked_into(store: Store) -> None:
    """At most 32 files are opened to find where the prompt leaves them."""
    put(store, TOKENS, 0, 10)
    for number in range(INNER_LIMIT + 8):
        branch = [*TOKENS[:10], *TOKENS[10 : 11 + number % 7], *[1000 + number] * 20]
        os.utime(put(store, branch, 10, 30), ns=(0, 10**15 + number * 10**9))
    best = [*TOKENS[:22], *[5] * 20]
    path = put(store, best, 10, 40)
    prompt = [*TOKENS[:22], *[6] * 20]
    os.utime(path, ns=(0, 10**16))
    assert next(iter(found(store, prompt, ATTENTION))) == 22
    os.utime(path, ns=(0, 10**14))
    assert next(iter(found(store, prompt, ATTENTION))) == 17


def test_strangers_and_broken_files_are_no_boundary(store: Store) -> None:
    put_chain(store)
    folder = walk(Shelf.of_disk(store), IDENTITY, TOKENS).rows[10][0].child.path.parent
    for name in ("readme.txt", "10-zz.seg", "-1-" + "0" * 32 + ".seg", "5-" + "0" * 32 + ".seg", "x" * 200):
        (folder / name).write_bytes(b"nothing")
    (folder / ("7-" + "1" * 32 + ".part")).mkdir()
    (folder / ("8-" + "2" * 32 + ".seg")).symlink_to("/etc/hostname")
    assert list(found(store, TOKENS, ATTENTION)) == [40, 25, 10]


def test_C14_each_of_many_conversations_finds_its_own(store: Store) -> None:
    root = TOKENS[:10]
    put(store, root, 0, 10)
    for number in range(12):
        put(store, [*root, *[500 + number] * 20], 10, 30)
    for number in range(12):
        tokens = [*root, *[500 + number] * 20, 1, 2]
        way = boundaries(Shelf.of_disk(store), IDENTITY, tokens, ATTENTION, 31)[0]
        assert way.position == 30
        with store.open_segment(way.uses[-1].child.path) as segment:
            assert list(segment.tokens()) == tokens[10:30]


# -- the plan


def use(kind: Kind, start: int, end: int) -> Use:
    return Use(Child(kind, f"{start}", end, f"{end}", Path(f"{start}-{end}.{kind.value}"), 100, 0), start)


ROWS = tuple(use(Kind.ROWS, start, end) for start, end in itertools.pairwise(EDGES))
PARTS = tuple(use(Kind.PART, start, end) for start, end in itertools.pairwise(EDGES))
AT = {end: i + 1 for i, end in enumerate(EDGES[1:])}


def stored(memory: Memory) -> list[Boundary]:
    """Boundaries at 40, 25 and 10 with the files that this memory needs."""
    result = []
    for end, count in sorted(AT.items(), reverse=True):
        rows = ROWS[:count] if memory.has_rows else ()
        parts = () if not memory.has_parts else PARTS[:count] if memory.window_tokens else PARTS[count - 1 : count]
        result.append(Boundary(end, rows, parts))
    return result


def spans(uses: Sequence[Use]) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in uses]


@pytest.mark.parametrize("memory", [ATTENTION, WINDOW, HYBRID, RECURRENT], ids=lambda memory: memory.kind)
def test_from_nothing_the_deepest_is_applied(memory: Memory) -> None:
    plan = plan_restore(TOKENS, Live(0, 0), stored(memory), memory)
    assert (plan.position, plan.keep, plan.source) == (40, 0, "disk")
    assert spans(plan.rows) == (spans(ROWS) if memory.has_rows else [])
    assert len(plan.parts) == {"attention": 0, "window": 3, "hybrid": 1, "recurrent": 1}[memory.kind]
    assert plan.steps[-1].action == "read" and plan.steps[-1].tokens == 20


@pytest.mark.parametrize("memory", [ATTENTION, WINDOW, HYBRID, RECURRENT], ids=lambda memory: memory.kind)
def test_A3_what_is_live_and_deep_enough_costs_nothing(memory: Memory) -> None:
    for agrees in (40, 45, 59):
        plan = plan_restore(TOKENS, Live(agrees, agrees), stored(memory), memory)
        assert (plan.position, plan.uses, plan.source) == (agrees, (), "live")
        assert [step.action for step in plan.steps] == ["keep", "read"] if plan.keep else ["read"]


@pytest.mark.parametrize("memory", [ATTENTION, WINDOW, HYBRID], ids=lambda memory: memory.kind)
def test_rows_that_both_have_are_not_applied_again(memory: Memory) -> None:
    """Switching between conversations with a root in common moves only what differs."""
    plan = plan_restore(TOKENS, Live(12, 12 if memory is ATTENTION else 0), stored(memory), memory)
    assert plan.keep == 10 and spans(plan.rows) == [(10, 25), (25, 40)]
    assert next((s.action, s.start, s.end) for s in plan.steps) == ("keep", 0, 10)


@pytest.mark.parametrize("memory", [WINDOW, HYBRID, RECURRENT], ids=lambda memory: memory.kind)
def test_C06_going_back_takes_the_part_alone(memory: Memory) -> None:
    """What is live agrees beyond a boundary and cannot be cut there: its rows stay, its part is put back."""
    plan = plan_restore([*TOKENS[:32], *[7] * 9], Live(32, 0), stored(memory)[1:], memory)
    assert plan.position == 25 and plan.rows == ()
    assert plan.keep == (25 if memory.has_rows else 0)
    assert plan.parts and plan.source == "disk"


def test_an_attention_memory_goes_back_without_a_file() -> None:
    plan = plan_restore([*TOKENS[:32], *[7] * 9], Live(32, 32), stored(ATTENTION)[1:], ATTENTION)
    assert (plan.position, plan.keep, plan.uses, plan.source) == (32, 32, (), "live")


def test_nothing_is_stored() -> None:
    plan = plan_restore(TOKENS, Live(0, 0), [], ATTENTION)
    assert (plan.position, plan.keep, plan.uses, plan.source) == (0, 0, (), "none")
    assert [(s.action, s.start, s.end, s.size_bytes) for s in plan.steps] == [("read", 0, 60, 0)]


@pytest.mark.parametrize("memory", [ATTENTION, WINDOW, HYBRID, RECURRENT], ids=lambda memory: memory.kind)
@pytest.mark.parametrize("agrees", range(0, 60, 3))
@pytest.mark.parametrize("cut", [True, False])
def test_a_plan_is_sound(memory: Memory, agrees: int, cut: bool) -> None:
    """Whatever is live: never less than that, never beyond a boundary, steps without a gap."""
    live = Live(agrees, agrees if cut else 0)
    plan = plan_restore(TOKENS, live, stored(memory), memory)
    assert plan.position == max(live.usable, 40)
    assert plan.keep <= max(agrees, live.usable)
    at = plan.keep
    for each in plan.rows:
        assert each.start == at
        at = each.end
    assert at >= plan.position or not memory.has_rows or not plan.uses
    again = plan_restore(TOKENS, live, stored(memory), memory)
    assert again == plan


def test_A11_a_stray_agreement_behind_the_root_is_no_place_to_begin(store: Store) -> None:
    """A few tokens in common by chance: a new conversation reads from the root, as it would if it were alone."""
    assert [without_stray(at, 10) for at in (5, 10, 30, 73, 74)] == [5, 10, 10, 10, 74]
    put(store, TOKENS, 0, 40)
    inside = boundaries(Shelf.of_disk(store), IDENTITY, [*TOKENS[:25], 7, 7, 7], ATTENTION, 27)
    assert [each.position for each in inside] == [25]
    assert [(each.position, len(each.rows)) for each in at_the_root(inside, 10)] == [(10, 1)]
    assert at_the_root(inside, 0) == []
    exact = boundaries(Shelf.of_disk(store), IDENTITY, [*TOKENS[:40], 7, 7], ATTENTION, 41)
    assert at_the_root(exact, 10) == exact

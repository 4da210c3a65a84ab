"""The policy as a pure function: what goes, what stays, why, and in which order."""

from dataclasses import replace
from pathlib import Path

import pytest
from directories import IDENTITY, NOW, add, days_ago, store_in, write_segments
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_cli.head import Head
from strata_cli.inventory import Inventory, Record, take_inventory
from strata_cli.prune import Policy, Unusable, plan_prune
from strata_cli.prune_plan import PrunePlan, others_with_its_text, plan_removal
from strata_cli.store import Store

DAY_S = 86400.0


def auto(n: int) -> str:
    return f"auto-{n:016x}"


def plan(store: Store, policy: Policy, *, later_s: float = 0.0) -> PrunePlan:
    return plan_prune(take_inventory(store), policy, NOW.timestamp() + later_s)


def gone(made: PrunePlan, what: str = "state") -> list[str]:
    return [item.name for item in made.items if item.what == what]


def test_A9_the_newest_keep_their_state_and_single_turns_go_first(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for n, (turns, days) in enumerate([(2, 5), (1, 1), (3, 4), (1, 2), (2, 9)]):
        add(store, auto(n), turns=turns, days=days)
    assert gone(plan(store, Policy(keep=5))) == []
    assert set(gone(plan(store, Policy(keep=4)))) == {auto(3)}
    assert set(gone(plan(store, Policy(keep=3)))) == {auto(3), auto(1)}
    assert set(gone(plan(store, Policy(keep=2)))) == {auto(3), auto(1), auto(4)}
    assert len(gone(plan(store, Policy(keep=0)))) == 5
    reasons = {item.name: item.reason for item in plan(store, Policy(keep=2)).items}
    assert "single turn" in reasons[auto(1)] and "single turn" not in reasons[auto(4)]


def test_A9_what_has_a_name_or_is_in_use_is_never_chosen(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    add(store, "notes", days=300)
    for n in range(3):
        add(store, auto(n), days=100 + n)
    with store.hold(auto(2)):
        made = plan(store, Policy(keep=0, max_age_s=0, max_bytes=0, protected=frozenset({auto(1)})))
    assert gone(made) == [auto(0)]
    kept = {each.name: each.reason for each in made.kept}
    assert kept == {"notes": "it has a name", auto(1): "in use", auto(2): "in use by another process"}
    assert made.over_bytes > 0
    named = plan(store, Policy(keep=0, named=True))
    assert set(gone(named)) == {"notes", auto(0), auto(1), auto(2)}
    assert not gone(named, "conversation")


def test_what_is_in_use_counts_among_the_newest(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for n in range(4):
        add(store, auto(n), days=n)
    with store.hold(auto(3)):
        assert set(gone(plan(store, Policy(keep=2)))) == {auto(1), auto(2)}


def test_max_age_counts_from_the_last_turn(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    add(store, auto(1), days=3, updated=days_ago(0))
    add(store, auto(2), days=1)
    assert gone(plan(store, Policy(max_age_s=2 * DAY_S))) == [auto(1)]
    assert set(gone(plan(store, Policy(max_age_s=0)))) == {auto(1), auto(2)}


def test_B6_the_oldest_go_until_it_fits_then_unpinned_prefixes(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for n in range(4):
        add(store, auto(n), days=n, payload_bytes=20_000)
    add(store, "root-1", kind="prefixes", days=50, payload_bytes=20_000)
    add(store, "mine", kind="prefixes", days=80, payload_bytes=20_000, extra={"pinned": True})
    total = take_inventory(store).total_bytes
    assert not plan(store, Policy(max_bytes=total)).items
    assert gone(plan(store, Policy(max_bytes=total - 1))) == [auto(3)]
    assert gone(plan(store, Policy(max_bytes=total - 60_000))) == [auto(3), auto(2)]
    last = plan(store, Policy(max_bytes=1, spare_oversized=False))
    assert set(gone(last)) == {auto(n) for n in range(4)} and gone(last, "prefix") == ["root-1"]
    assert last.over_bytes == last.total_bytes - last.bytes - 1
    assert max(last.kept, key=lambda each: each.bytes).name == "mine"


def test_C46_one_conversation_larger_than_the_budget_is_kept_and_reported(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    add(store, auto(1), days=2, payload_bytes=30_000)
    add(store, auto(2), days=1, payload_bytes=30_000)
    made = plan(store, Policy(keep=12, max_bytes=20_000))
    assert gone(made) == [auto(1)] and made.over_bytes > 0
    assert "larger than the budget" in made.kept[0].reason
    assert set(gone(plan(store, Policy(max_bytes=20_000, spare_oversized=False)))) == {auto(1), auto(2)}


def test_P5_a_prefix_goes_when_nobody_used_it_and_it_is_not_pinned(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    add(store, "old", kind="prefixes", days=100)
    add(store, "used", kind="prefixes", days=100, updated=days_ago(10))
    add(store, "pinned", kind="prefixes", days=900, extra={"pinned": True})
    assert gone(plan(store, Policy(prefix_max_age_s=90 * DAY_S)), "prefix") == ["old"]
    assert not plan(store, Policy()).items


def test_leftovers_go_and_what_is_alive_stays(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    add(store, auto(1))
    refs = write_segments(store, [7] * 40, [40])
    dead, alive, strange = tmp_path / "tmp" / "4194304-ab.tmp", tmp_path / "tmp" / "1-ab.tmp", tmp_path / "tmp" / "x"
    for path in (dead, alive, strange):
        path.write_bytes(b"t" * 10)
    made = plan(store, Policy())
    assert gone(made, "segment") == [refs[0].file]
    assert set(gone(made, "temporary")) == {dead.name, strange.name}
    # No write takes a day: that process number belongs to somebody else by now.
    later_s = alive.stat().st_mtime + 2 * DAY_S - NOW.timestamp()
    assert alive.name in gone(plan(store, Policy(), later_s=later_s), "temporary")


def test_quarantine_goes_by_the_age_of_its_note(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    head = add(store, auto(1))
    file = next(iter(head.states.values())).segments[0].file
    place = store.quarantine(store.segment_path(file), "bad")
    note = place.with_name(place.name + ".why")
    moved_s = note.stat().st_mtime - NOW.timestamp()
    policy = Policy(quarantine_age_s=7 * DAY_S)
    assert not gone(plan(store, policy, later_s=moved_s + 6 * DAY_S), "quarantine")
    assert set(gone(plan(store, policy, later_s=moved_s + 8 * DAY_S), "quarantine")) == {place.name, note.name}
    assert not gone(plan(store, Policy(), later_s=moved_s + 800 * DAY_S), "quarantine")


def test_with_a_head_that_cannot_be_read_nobody_knows_what_is_named_by_none(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    add(store, auto(1))
    write_segments(store, [7] * 40, [40])
    head = tmp_path / "conversations" / f"{auto(1)}.json"
    data = head.read_bytes()
    head.write_bytes(b"{}")
    made = plan(store, Policy(keep=0))
    assert not made.items and made.kept[0].name == auto(1)
    head.unlink()
    assert len(gone(plan(store, Policy()), "segment")) == 3
    head.write_bytes(data)
    assert len(gone(plan(store, Policy()), "segment")) == 1


def test_transcripts_go_by_keep_and_age_and_never_by_size(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    for n in range(4):
        add(store, auto(n), days=n, ends=(10, 30) if n % 2 else ())
    add(store, "notes", days=500)
    made = plan(store, Policy(keep=2, text_keep=2, named=True, max_bytes=0, spare_oversized=False))
    assert set(gone(made, "conversation")) == {auto(2), auto(3)}
    assert set(gone(made)) == {auto(1), "notes"}
    assert set(gone(plan(store, Policy(text_max_age_s=2.5 * DAY_S)), "conversation")) == {auto(3)}
    assert not gone(plan(store, Policy(max_bytes=0, keep=0)), "conversation")


def test_unusable_state_goes_and_never_of_named_ones(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    old = replace(IDENTITY, state_format=2)
    add(store, auto(1), identity=old)
    add(store, auto(2))
    add(store, auto(3), days=31, model={"path": "/gone.gguf"})
    add(store, auto(4), days=29, model={"path": "/gone.gguf"})
    add(store, "named", days=99, identity=old, model={"path": "/gone.gguf"})
    rule = Unusable(3, frozenset({"/gone.gguf"}))
    made = plan(store, Policy(unusable=rule))
    assert {item.name: item.reason for item in made.items} == {
        auto(1): "in state format 2; the installed engine has 3",
        auto(3): "its model is absent and it was last used 1 mo ago",
    }
    assert not plan(store, Policy(unusable=Unusable(None))).items


def test_of_two_identities_only_the_unusable_goes(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    first = add(store, auto(1), identity=replace(IDENTITY, state_format=2))
    second = add(store, auto(2))
    store.write_head(replace(first, states={**first.states, **second.states}))
    made = plan(store, Policy(unusable=Unusable(3)))
    assert [item.digests for item in made.items] == [tuple(first.states)]


def test_C70_shared_bytes_count_once(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    shared = [5] * 30
    for n in range(3):
        add(store, auto(n), days=n, tokens=[*shared, *([n] * 30)], ends=(30, 60), payload_bytes=9_000)
    seen = take_inventory(store)
    assert len(seen.segments) == 4
    one = plan(store, Policy(keep=2)).bytes
    everything = plan(store, Policy(keep=0))
    assert everything.bytes == pytest.approx(4 * one, rel=0.05)
    assert sum(item.bytes for item in everything.items) == everything.bytes


def test_naming_a_conversation_takes_all_of_it(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    add(store, "a", text="hello", tokens=[5] * 60, ends=(30, 60))
    add(store, "b", text="hello", tokens=[5] * 30 + [6] * 30, ends=(30, 60))
    add(store, "c", text="other", ends=())
    seen = take_inventory(store)
    made = plan_removal(seen, ["a"], what="conversation")
    assert [(item.what, item.name) for item in made.items] == [("conversation", "a")]
    assert others_with_its_text(seen, "a") == ["b"]
    assert [item.name for item in plan_removal(seen, ["a", "c"], what="state").items] == ["a"]


names = st.integers(0, 7).map(auto)
files = st.sampled_from([f"{'0' * 32}/{n}-{'0' * 32}.seg" for n in range(1, 9)])


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    records = {}
    for name in draw(st.lists(names, unique=True)):
        head = Head(name, "auto", turns=draw(st.integers(1, 3)), last_turn=days_ago(draw(st.integers(0, 99))))
        mine = tuple(draw(st.lists(files, unique=True)))
        records[name] = Record(name, "conversations", head, mine, 500, 100, draw(st.booleans()))
    sizes = {file: draw(st.integers(1, 1000)) for file in draw(st.lists(files, unique=True))}
    return Inventory(tuple(records.values()), (), sizes, (), (), 50, 0)


limits = st.none() | st.integers(0, 5000)


@settings(max_examples=150)
@given(inventories(), st.none() | st.integers(0, 9), limits, st.booleans())
def test_every_plan_adds_up_and_leaves_what_is_in_use(
    seen: Inventory, keep: int | None, max_bytes: int | None, leftovers: bool
) -> None:
    policy = Policy(keep=keep, max_bytes=max_bytes, leftovers=leftovers)
    made = plan_prune(seen, policy, NOW.timestamp())
    going = {item.name for item in made.items if item.what == "state"}
    by_name = {record.name: record for record in seen.conversations}
    assert not any(by_name[name].held for name in going)
    assert {each.name for each in made.kept} == by_name.keys() - going
    staying = {file for record in seen.conversations if record.name not in going for file in record.files}
    freed_segments = sum(size for file, size in seen.segments.items() if file in {*gone(made, "segment")})
    let_go = {file for name in going for file in by_name[name].files} - staying
    assert made.bytes - freed_segments >= sum(seen.segments.get(file, 0) for file in let_go)
    assert not staying & {*gone(made, "segment")}
    if max_bytes is not None and made.over_bytes:
        left = [r for r in seen.conversations if r.files and not r.held and r.name not in going]
        assert len(left) <= 1  # only one that alone is larger than the budget

"""Conversations as files: round trips between directories, what is foreign, copies, increments, bounded memory."""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_up
import pytest
from chats import Talk
from engine_tools import FAMILIES, Engines
from faulty_files import FailingFiles, tree
from test_archive import archive_of, reader_of
from turns import Forked, fork_server, forked  # noqa: F401

from strata_cli.errors import Bad, NoRoom, NotFound, StorageFailed, UsageProblem
from strata_cli.foreign import foreign_of
from strata_cli.head import SegmentRef
from strata_cli.locks import Locked
from strata_cli.log import Line
from strata_cli.reception import Wish, receive
from strata_cli.segment import Draft, Kind
from strata_cli.snapshot import copy_within, execute_save, plan_save
from strata_cli.store import Store
from strata_cli.transfer import Transfer

TEXTS = ("Tell me of the sea.", "And of the wind?", "Which is older?")


@pytest.fixture
def cli(forked: Forked) -> Forked:  # noqa: F811
    """The command line, forked from a process that has imported it."""
    return forked


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    made = Engines(tiny)
    yield made
    made.close()


@pytest.fixture
def a(tmp_path: Path) -> Store:
    return made_up.open_store(tmp_path / "a")


@pytest.fixture
def b(tmp_path: Path) -> Store:
    return made_up.open_store(tmp_path / "b")


def send(source: Store, target: Store, name: str = "notes", **wish: Any) -> Transfer:
    return receive(target, reader_of(archive_of(source, name)), Wish(**wish))


# -- round trips on the engine


@pytest.mark.parametrize("family", FAMILIES)
def test_C01_continuing_in_another_home_reads_only_the_new_turn(family: str, engines: Engines, tmp_path: Path) -> None:
    engine = engines(family)
    with Talk(engine, tmp_path / "a").open("notes") as talk:
        before = [talk.say(text, 6) for text in TEXTS[:2]]
        here = talk.store
    there = made_up.open_store(tmp_path / "b")
    # This model's noise is full of special tokens, which from elsewhere only count with --trust.
    done = send(here, there, trust=family == "lfm2")
    assert (done.usable, done.turns) == (True, 2)
    first, second = here.read_head("notes"), there.read_head("notes")
    assert there.read_log("notes").lines == here.read_log("notes").lines
    assert second.states.keys() == first.states.keys()
    assert all(second.states[digest] == state for digest, state in first.states.items())
    with Talk(engine, tmp_path / "a").open("notes") as talk:
        uninterrupted = talk.say(TEXTS[2], 6)
    with Talk(engine, tmp_path / "b").open("notes") as talk:
        moved = talk.say(TEXTS[2], 6)
        assert (talk.warnings, moved.not_reused) == ([], None)
    assert moved.reply_tokens == uninterrupted.reply_tokens
    assert (moved.reused_tokens, moved.source) == (uninterrupted.reused_tokens, "disk")
    assert moved.reused_tokens >= before[1].prompt_tokens


def test_B16_what_came_from_elsewhere_serves_only_its_conversation(engines: Engines, tmp_path: Path) -> None:
    engine = engines("llama")
    with Talk(engine, tmp_path / "a").open("notes") as talk:
        talk.say_all(TEXTS[:2])
    there = made_up.open_store(tmp_path / "b")
    send(talk.store, there)
    with Talk(engine, tmp_path / "b").open("another") as other:
        first = other.say(TEXTS[0])
        assert (first.reused_tokens, first.source) == (0, "none")  # read anew: now that much is this directory's own
        assert other.say(TEXTS[1]).source == "live"
    with Talk(engine, tmp_path / "b").open("third") as third:
        assert third.say(TEXTS[0]).source == "disk"


def test_B16_what_is_computed_upon_foreign_state_is_foreign(engines: Engines, tmp_path: Path) -> None:
    engine = engines("llama")
    with Talk(engine, tmp_path / "a").open("notes") as talk:
        talk.say(TEXTS[0])
    there = made_up.open_store(tmp_path / "b")
    send(talk.store, there)
    with Talk(engine, tmp_path / "b").open("notes") as moved:
        moved.say(TEXTS[1])
    with Talk(engine, tmp_path / "b").open("notes") as moved:
        assert moved.say(TEXTS[2]).not_reused is None
    head = there.read_head("notes")
    (state,) = head.states.values()
    assert {ref.file for ref in state.segments} <= set(foreign_of(head).files)
    own = [there.open_segment(there.segment_path(ref.file)).sealed_by(there.key) for ref in state.segments]
    assert not any(own)


def test_B16_live_foreign_state_is_not_kept_for_another_conversation(engines: Engines, tmp_path: Path) -> None:
    engine = engines("llama")
    with Talk(engine, tmp_path / "a").open("notes") as talk:
        talk.say(TEXTS[0])
    send(talk.store, made_up.open_store(tmp_path / "b"))
    with Talk(engine, tmp_path / "b").open("notes") as moved:
        moved.say(TEXTS[1])
        moved.open("another")
        assert moved.say(TEXTS[0]).reused_tokens == 0


def test_B16_trust_makes_it_this_directorys_own(engines: Engines, tmp_path: Path) -> None:
    engine = engines("llama")
    with Talk(engine, tmp_path / "a").open("notes") as talk:
        talk.say_all(TEXTS[:2])
    there = made_up.open_store(tmp_path / "b")
    send(talk.store, there, trust=True)
    assert not foreign_of(there.read_head("notes"))
    with Talk(engine, tmp_path / "b").open("another") as other:
        assert other.say(TEXTS[0]).source == "disk"


def test_B16_trust_later_seals_what_was_foreign(a: Store, b: Store) -> None:
    made_up.converse(a, "notes")
    send(a, b)
    assert len(foreign_of(b.read_head("notes")).files) == 3
    send(a, b, trust=True)
    refs = next(iter(b.read_head("notes").states.values())).segments
    assert all(b.verified(b.segment_path(ref.file)).own for ref in refs)


def forged(store: Store, name: str, change: Callable[[Line], Line]) -> None:
    """Write another text into an archive's log, with checks that fit: what a hostile sender can do."""
    lines = [change(line) for line in store.read_log(name).lines]
    (store.root / "conversations" / f"{name}.jsonl").unlink()
    store.append_log(name, lines)


@pytest.mark.parametrize("what", ["other text", "special tokens", "no such token"])
def test_B16_token_ids_that_do_not_say_the_text_are_dropped(what: str, engines: Engines, tmp_path: Path) -> None:
    engine = engines("llama")
    with Talk(engine, tmp_path / "a").open("notes") as talk:
        talk.say(TEXTS[0])
    special = engine.vocabulary.tokenize("<|im_end|>", special=True)
    evil = {"other text": (70, 71, 72), "special tokens": (*special, 70), "no such token": (10**6,)}[what]

    def change(line: Line) -> Line:
        if (line.message or {}).get("role") != "assistant":
            return line
        content = "AB" if what != "special tokens" else "C"
        return replace(line, tokens=evil, message={"role": "assistant", "content": content})

    forged(talk.store, "notes", change)
    there = made_up.open_store(tmp_path / "b")
    send(talk.store, there)
    with Talk(engine, tmp_path / "b").open("notes") as moved:
        prompt = moved.chat.prompt_for(TEXTS[1]).tokens
        text = "AB" if what != "special tokens" else "C"
        honest = engine.vocabulary.tokenize(text, special=False)
        assert any(list(prompt[at : at + len(honest)]) == honest for at in range(len(prompt)))
        assert not any(list(prompt[at : at + len(evil)]) == list(evil) for at in range(len(prompt)))
        assert moved.say(TEXTS[1]).reply_tokens


@pytest.mark.parametrize("settings", [{"tools": 5}, {"system": []}, {"date": None}])
def test_B16_settings_of_wrong_types_are_refused(settings: dict[str, Any], a: Store, b: Store) -> None:
    made_up.converse(a, "notes")
    log = a.read_log("notes")
    a.append_log("notes", [Line(log.next_id, log.tip, "setup", a.clock(), settings=settings)])
    with pytest.raises(Bad, match="wrong type"):
        send(a, b)
    assert b.names() == []


@pytest.mark.parametrize("family", FAMILIES)
def test_B16_forged_state_never_reaches_the_engine(family: str, engines: Engines, tmp_path: Path) -> None:
    """Counts, sizes and positions inside a payload are forged, with a digest that fits."""
    engine = engines(family)
    with Talk(engine, tmp_path / "a").open("notes") as talk:
        talk.say(TEXTS[0])
    here = talk.store
    (state,) = here.read_head("notes").states.values()
    refs = state.segments[:1] or state.parts
    with Talk(engine, tmp_path / "c").open("cold") as cold:
        cold.say(TEXTS[0])
        right = cold.say(TEXTS[1]).reply_tokens
    for at, value in ((8, 2), (12, 0xFFFFFF), (16, 5000), (20, 3), (-1, 1)):
        for ref in refs:
            rewrite(here, ref, at, value)
        target = tmp_path / f"b{at}"
        there = made_up.open_store(target)
        assert send(here, there).usable
        engine.clear()
        calls: list[object] = []
        spy = engine.state._set
        engine.state._set = lambda *values, calls=calls: calls.append(values)  # type: ignore[method-assign,misc]
        try:
            with Talk(engine, target).open("notes") as moved:
                result = moved.say(TEXTS[1])
        finally:
            engine.state._set = spy  # type: ignore[method-assign]
        assert calls == [], (family, at)
        assert result.source == "none" and result.not_reused is not None and result.not_reused.code == "bad"
        assert result.reply_tokens == right


def rewrite(store: Store, ref: SegmentRef, at: int, value: int) -> None:
    """Another value in a segment's payload (or a byte more at its end), sealed as its directory would."""
    path = store.segment_path(ref.file)
    with store.open_segment(path) as file:
        payload, tokens, metadata = bytearray(file.payload), file.tokens(), file.metadata
        kind, end = file.header.kind, file.header.end
    if at < 0:
        payload += b"\0"
    else:
        payload[at : at + 4] = value.to_bytes(4, "little")
    path.unlink()
    draft = Draft(kind, ref.start, end, metadata["start_hash"], metadata["end_hash"], tuple(tokens), metadata)
    written, _ = store.write_segment(draft, [payload])
    head = store.read_head("notes")
    states = {
        digest: replace(
            state,
            segments=tuple(written if each.file == ref.file else each for each in state.segments),
            parts=tuple(written if each.file == ref.file else each for each in state.parts),
        )
        for digest, state in head.states.items()
    }
    store.write_head(replace(head, states=states))


# -- what is there is not written again


def test_the_second_transfer_carries_only_new_segments(a: Store, b: Store) -> None:
    made_up.converse(a, "notes", turns=3, payload_bytes=20_000)
    send(a, b)
    made_up.converse(a, "notes", turns=4, payload_bytes=20_000)
    done = send(a, b, replace=True)
    sizes = [ref.bytes for ref in next(iter(a.read_head("notes").states.values())).segments]
    text = done.bytes_written - sizes[-1]
    assert 0 < text < 4000, "the text and the head, and one segment of four"
    assert [row.bytes for row in done.rows if row.what == "rows"] == [0, 0, 0, sizes[-1]]
    assert made_up.said(b, "notes") == made_up.said(a, "notes")
    assert b.read_log("notes").alternatives() == ()


def test_since_leaves_out_what_the_base_has(a: Store, b: Store, tmp_path: Path) -> None:
    made_up.converse(a, "notes", turns=3, payload_bytes=20_000)
    base = plan_save(a, "notes").manifest
    first = archive_of(a)
    made_up.converse(a, "notes", turns=4, payload_bytes=20_000)
    plan = plan_save(a, "notes", since=base)
    written = bytearray()
    execute_save(plan, a, written.extend, lambda _: None)
    assert len(plan.manifest.carried) == 1 and len(written) < len(first) // 2
    lonely = receive(made_up.open_store(tmp_path / "c"), reader_of(bytes(written)), Wish())
    assert (lonely.usable, lonely.turns) == (False, 4) and "--since" in str(lonely.why)
    receive(b, reader_of(first), Wish())
    done = receive(b, reader_of(bytes(written)), Wish(replace=True))
    assert done.usable and made_up.said(b, "notes") == made_up.said(a, "notes")


def test_an_equal_archive_changes_nothing(a: Store, b: Store) -> None:
    made_up.converse(a, "notes")
    send(a, b)
    before = tree(b.root)
    assert send(a, b).bytes_written == 0
    assert tree(b.root) == before


def test_the_way_back_into_the_same_directory_is_own(a: Store) -> None:
    made_up.converse(a, "notes")
    data = archive_of(a)
    receive(a, reader_of(data), Wish(as_name="again"))
    assert not foreign_of(a.read_head("again"))


# -- names, branches


def test_onto_an_existing_name_only_with_replace(a: Store, b: Store) -> None:
    made_up.converse(a, "notes", seed=1)
    made_up.converse(b, "notes", seed=2)
    before = tree(b.root / "conversations"), tree(b.root / "segments")
    with pytest.raises(UsageProblem, match="says something else"):
        send(a, b)
    assert (tree(b.root / "conversations"), tree(b.root / "segments")) == before
    done = send(a, b, replace=True)
    assert made_up.said(b, "notes") == made_up.said(a, "notes")
    log = b.read_log("notes")
    (tip,) = log.alternatives()
    assert next(str((line.message or {})["content"]) for line in log.branch(tip)) == "question 0 of 2: user"
    assert (done.turns, done.name) == (3, "notes")


def test_a_snapshot_is_the_way_back(a: Store) -> None:
    made_up.converse(a, "notes", turns=2)
    copy_within(a, "notes", "snap", replace_it=False, wait_s=0)
    made_up.converse(a, "notes", turns=4)
    later = made_up.said(a, "notes")
    copy_within(a, "snap", "notes", replace_it=True, wait_s=0)
    assert made_up.said(a, "notes") == later[:4]
    assert a.read_head("notes").turns == 2
    log = a.read_log("notes")
    assert [str((each.message or {})["content"]) for each in log.branch(log.alternatives()[-1])] == later
    assert log.tokens() == a.read_log("snap").tokens()


def test_a_copy_shares_its_segments(a: Store) -> None:
    made_up.converse(a, "notes", payload_bytes=50_000)
    before = a.segment_sizes()
    done = copy_within(a, "notes", "copy", replace_it=False, wait_s=0)
    assert a.segment_sizes() == before and done.bytes_written < 5000 and done.usable
    with pytest.raises(UsageProblem):
        made_up.converse(a, "notes", turns=4)
        copy_within(a, "notes", "copy", replace_it=False, wait_s=0)
    with pytest.raises(UsageProblem, match="more than case"):
        copy_within(a, "notes", "COPY", replace_it=False, wait_s=0)


def test_C25_a_held_conversation_is_saved_and_not_replaced(a: Store, b: Store) -> None:
    made_up.converse(a, "notes")
    made_up.converse(b, "notes", seed=2)
    with a.hold("notes"), b.hold("notes"):
        before = tree(b.root / "segments")
        data = archive_of(a)
        with pytest.raises(Locked):
            receive(b, reader_of(data), Wish(replace=True, wait_s=0))
        assert made_up.said(b, "notes")[0] == "question 0 of 2: user"
        assert tree(b.root / "segments") == before


def test_only_the_current_branch_unless_all(a: Store, b: Store) -> None:
    made_up.converse(a, "notes", turns=2)
    log = a.read_log("notes")
    a.append_log("notes", [Line(log.next_id, 2, "message", a.clock(), {"role": "user", "content": "elsewhere"})])
    assert b"question 1" not in archive_of(a)
    written = bytearray()
    execute_save(plan_save(a, "notes", everything=True), a, written.extend, lambda _: None)
    receive(b, reader_of(bytes(written)), Wish())
    assert len(b.read_log("notes").alternatives()) == 1


def test_N13_names(a: Store, b: Store) -> None:
    made_up.converse(a, "notes")
    for name in ("..", "", "a/b", "-x", "x" * 65):
        with pytest.raises(UsageProblem):
            send(a, b, as_name=name)
    assert not b.root.exists()


def test_an_empty_conversation_goes_round(a: Store, b: Store) -> None:
    head = made_up.converse(a, "notes", turns=1)
    a.write_head(replace(head, name="empty", turns=0, tokens=0, states={}))
    done = send(a, b, "empty")
    assert (done.turns, done.usable, b.names()) == (0, False, ["empty"])


def test_nothing_of_that_name(a: Store) -> None:
    with pytest.raises(NotFound):
        plan_save(a, "nothing")


# -- faults


def test_C07_a_full_disk_leaves_nothing_visible(a: Store, tmp_path: Path) -> None:
    made_up.converse(a, "notes")
    data = archive_of(a)
    files = FailingFiles()
    receive(made_up.open_store(tmp_path / "count", files), reader_of(data), Wish())
    for at in range(len(files.calls)):
        root = tmp_path / f"at{at}"
        b = made_up.open_store(root, FailingFiles(28, at))
        try:
            receive(b, reader_of(data), Wish())
        except (StorageFailed, NoRoom):
            pass
        else:
            continue
        left = [path for path in tree(root) if path.startswith("tmp/")] if root.exists() else []
        assert left == [], at
        again = receive(made_up.open_store(root), reader_of(data), Wish(replace=True))
        assert again.usable and again.turns == 3


def test_B5_a_restore_leaves_the_floor_free(a: Store, b: Store) -> None:
    """Text alone needs no room; a plan says what it would need and is no write."""
    made_up.converse(a, "notes")
    b.leave_free(1 << 60)
    with pytest.raises(NoRoom, match="are to stay free"):
        send(a, b)
    assert b.names() == [] and not any(path.is_file() for path in (b.root / "segments").rglob("*"))
    send(a, b, plan=True)
    b.leave_free(1)
    assert send(a, b).bytes_written > 0
    b.leave_free(1 << 60)
    assert send(a, b, as_name="again").name == "again"  # its segments are here: nothing but text is written


def test_a_damaged_segment_is_not_exported_as_good(a: Store) -> None:
    head = made_up.converse(a, "notes")
    ref = next(iter(head.states.values())).segments[1]
    path = a.segment_path(ref.file)
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(Bad, match="fail their digest"):
        archive_of(a)


def test_a_lost_segment_is_told_and_the_text_saved(a: Store, b: Store) -> None:
    head = made_up.converse(a, "notes")
    a.segment_path(next(iter(head.states.values())).segments[1].file).unlink()
    done = send(a, b)
    assert not done.usable and made_up.said(b, "notes") == made_up.said(a, "notes")


def test_a_plan_changes_nothing(a: Store, b: Store) -> None:
    made_up.converse(a, "notes")
    done = send(a, b, plan=True)
    assert not b.root.exists()
    assert done.bytes_written == 0 and done.usable and done.needs is not None
    total = sum(row.bytes for row in done.rows)
    assert done.needs.disk_bytes < total < done.bytes
    assert (done.needs.context_tokens, done.needs.why_not) == (60, None)


# -- the command line


def test_a_pipe_between_two_homes(cli: Forked, tmp_path: Path) -> None:
    made_up.converse(made_up.open_store(cli.home / "data"), "notes")
    other = replace(cli, home=tmp_path / "other")
    with subprocess.Popen(
        cli.command("save", "notes", "-o", "-"), stdout=subprocess.PIPE, env=cli.environment(), cwd=cli.folder
    ) as saving:
        received = subprocess.run(
            cli.command("restore", "-", "--json"),
            stdin=saving.stdout,
            capture_output=True,
            env=cli.environment(STRATA_HOME=str(tmp_path / "other")),
            cwd=cli.folder,
        )
    assert (saving.returncode, received.returncode) == (0, 0), received
    envelope = json.loads(received.stdout)
    assert envelope["data"]["name"] == "notes" and envelope["data"]["segments"] == 3
    assert set(envelope["data"]) >= {
        *("name", "file", "tokens", "turns", "segments", "bytes", "bytes_written", "identity", "usable", "why")
    }
    assert made_up.said(made_up.open_store(other.home / "data"), "notes")


def test_save_to_a_file(cli: Forked) -> None:
    made_up.converse(made_up.open_store(cli.home / "data"), "notes")
    target = cli.folder / "notes.strata"
    target.write_text("older")
    target.chmod(0o644)
    done = cli("save", "-o", "notes.strata", "--json", code=0).envelope
    assert done["data"]["bytes_written"] == target.stat().st_size == done["data"]["bytes"]
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in cli.folder.iterdir()] == ["notes.strata"]
    assert cli("restore", "notes.strata", "-q", "--as", "again", code=0).stdout == "again\n"
    shown = cli("restore", "notes.strata", "--plan", "--as", "third", code=0).stdout
    assert "it is here already" in shown and "total" in shown and "needs: disk" in shown


def test_save_refuses_what_it_cannot_mean(cli: Forked, tmp_path: Path) -> None:
    made_up.converse(made_up.open_store(cli.home / "data"), "notes")
    assert cli("save", "notes").exit_code == 2
    assert cli("save", "notes", "-o", "x", "--as", "y").exit_code == 2
    assert cli("save", "notes", "-o", "x", "--format", "llama", "--plan").exit_code == 2
    assert cli("save", "notes", "--as", "a/b").exit_code == 2
    assert cli("save", "notes", "-o", "-", "--json").exit_code == 2
    assert cli("save", "nothing", "-o", "x").exit_code == 10
    assert cli("save", "notes", "-o", ".").exit_code == 2
    assert cli("save", "notes", "-o", "no/such/folder/x").exit_code == 10
    assert cli("restore", "missing.strata").exit_code == 10
    assert [path.name for path in cli.folder.iterdir()] == []


def test_N04_special_files(cli: Forked) -> None:
    os.mkfifo(cli.folder / "fifo")
    (cli.folder / "folder").mkdir()
    for source in ("fifo", "folder", "/dev/zero", "/dev/null"):
        assert cli("restore", source, timeout_s=10).exit_code in (1, 12), source
    made_up.converse(made_up.open_store(cli.home / "data"), "notes")
    for target in ("fifo", "folder", "/dev/null"):
        assert cli("save", "notes", "-o", target, timeout_s=10).exit_code == 2, target


def test_N05_a_link_is_followed_to_the_file_it_names(cli: Forked, tmp_path: Path) -> None:
    made_up.converse(made_up.open_store(cli.home / "data"), "notes")
    (tmp_path / "far").mkdir()
    (cli.folder / "link").symlink_to(tmp_path / "far" / "notes.strata")
    cli("save", "notes", "-o", "link", code=0)
    assert (cli.folder / "link").is_symlink() and (tmp_path / "far" / "notes.strata").is_file()


def test_N08_an_export_that_runs_out_leaves_the_old_file(cli: Forked) -> None:
    made_up.converse(made_up.open_store(cli.home / "data"), "notes", payload_bytes=1 << 20)
    (cli.folder / "x").write_text("older")
    command = " ".join(map(str, cli.command("save", "notes", "-o", "x", "--json")))
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 500; exec {command}"],
        capture_output=True,
        env=cli.environment(),
        cwd=cli.folder,
    )
    assert done.returncode == 15, done
    assert (cli.folder / "x").read_text() == "older" and len(list(cli.folder.iterdir())) == 1


MEASURE = textwrap.dedent(
    """
    import io, os, sys
    sys.path[:0] = {paths!r}
    import made_up
    from strata_cli.archive import Reader
    from strata_cli.reception import Wish, receive
    from strata_cli.snapshot import execute_save, plan_save

    def anonymous():
        for line in open("/proc/self/smaps_rollup"):
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * 1024

    verb, root, path = sys.argv[1:]
    store = made_up.open_store(__import__("pathlib").Path(root))
    before = peak = anonymous()
    seen = 0

    def look(done):
        global peak, seen
        seen += 1
        if seen % 16 == 0:
            peak = max(peak, anonymous())

    if verb == "save":
        with open(path, "wb", buffering=0) as out, store.shared():
            def write(data):
                out.write(data)
                look(0)
            execute_save(plan_save(store, "notes"), store, write, look)
    else:
        with open(path, "rb", buffering=0) as source:
            def read_into(view):
                look(0)
                return source.readinto(view)
            receive(store, Reader(read_into), Wish(), look)
    peak = max(peak, anonymous())
    print(peak - before)
    """
)


@pytest.mark.parametrize("mebibytes", [128, pytest.param(1024, marks=pytest.mark.slow)])
def test_B12_a_gigabyte_goes_through_32_mebibytes(mebibytes: int, a: Store, tmp_path: Path) -> None:
    turns = mebibytes // 64
    head = made_up.converse(a, "notes", turns=turns, payload_bytes=64 << 20)
    assert sum(ref.bytes for state in head.states.values() for ref in state.segments) > mebibytes << 20
    script = tmp_path / "measure.py"
    source = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
    script.write_text(MEASURE.format(paths=source))
    for verb, root in (("save", tmp_path / "a"), ("restore", tmp_path / "b")):
        done = subprocess.run(
            [sys.executable, script, verb, root, tmp_path / "x.strata"], capture_output=True, text=True, check=True
        )
        assert int(done.stdout) < 32 << 20, (verb, done.stdout)
    assert made_up.open_store(tmp_path / "b").read_head("notes").turns == turns
    (tmp_path / "x.strata").unlink()
    for root in ("a", "b"):
        for path in (tmp_path / root / "segments").rglob("*.seg"):
            path.unlink()


def test_archives_are_small_beside_their_state(a: Store) -> None:
    """W12: file bytes against state bytes."""
    head = made_up.converse(a, "notes", turns=4, payload_bytes=1 << 20)
    state = sum(ref.bytes for each in head.states.values() for ref in each.segments)
    assert len(archive_of(a)) / state < 1.01


def test_kinds_are_listed_by_what_they_are(a: Store) -> None:
    made_up.converse(a, "notes", turns=2, parts=True)
    rows = plan_save(a, "notes").rows
    assert [row.what for row in rows] == ["head", "text", "rows", "rows", "part", "part"]
    assert {Kind.ROWS.value, Kind.PART.value} == {"seg", "part"}


def test_C29_a_restore_that_is_ended_leaves_nothing(cli: Forked) -> None:
    made_up.converse(made_up.open_store(cli.home / "data"), "notes", payload_bytes=200_000)
    data = archive_of(made_up.open_store(cli.home / "data"))
    other = replace(cli, env={**cli.env, "STRATA_HOME": str(cli.home) + "2"})
    process = other.start("restore", "-")
    assert process.stdin is not None
    process.stdin.write(data[: len(data) - 2000])
    process.stdin.flush()
    wait_for(lambda: any(Path(f"{cli.home}2").rglob("*.tmp")))
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 143
    assert not list(Path(f"{cli.home}2").rglob("*.tmp")) and not list(Path(f"{cli.home}2").rglob("*.seg"))


def test_C29_a_save_into_a_pipe_that_nobody_reads_can_be_ended(cli: Forked) -> None:
    made_up.converse(made_up.open_store(cli.home / "data"), "notes", payload_bytes=200_000)
    process = cli.start("save", "notes", "-o", "-")
    assert process.stdout is not None
    assert process.stdout.read(1000)
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 143


def wait_for(condition: Callable[[], bool], timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_inspect_file(cli: Forked) -> None:
    made_up.converse(made_up.open_store(cli.home / "data"), "notes")
    cli("save", "notes", "-o", "n.strata", code=0)
    data = cli("inspect", "n.strata", "--transcript", "--json", code=0).envelope["data"]
    assert (data["name"], data["turns"], data["format"], len(data["segments"])) == ("notes", 3, "strata", 3)
    assert data["messages"][0] == {"role": "user", "content": "question 0 of 0: user"}
    assert "every byte checked" in cli("inspect", "n.strata", code=0).stdout
    damaged = bytearray((cli.folder / "n.strata").read_bytes())
    damaged[9000] ^= 1
    (cli.folder / "bad.strata").write_bytes(damaged)
    assert cli("inspect", "bad.strata", "--verify").exit_code == 12
    assert cli("inspect", "nothing.strata").exit_code == 10

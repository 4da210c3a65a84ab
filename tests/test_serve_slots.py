"""Slot files of the service: names, save, restore, erase on the engine; over HTTP; and with a real llama-server."""

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chats import SYSTEM, Talk
from engine_tools import FAMILIES, GREEDY, Engines, text_tokens
from service import Service, assistant, cached, read_tokens, text_of, user
from test_slot_file import server, server_binary

from strata_cli.errors import Bad, NotFound, Refused, UsageProblem
from strata_cli.llama_engine.live import LlamaEngine
from strata_cli.names import automatic_name, key_of
from strata_cli.reply import ReplyOptions
from strata_cli.serve.completions import Completed, CompletionRequest, complete
from strata_cli.serve.slot_files import NotOffered, erase, restore, save, shown, slot_path
from strata_cli.turn import Watch

TEXTS = ("Name two rivers.", "Which is longer?")
FIVE = ReplyOptions(GREEDY, limit_tokens=5)


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    loaded = Engines(tiny)
    yield loaded
    loaded.close()


def session_of(talk: Talk) -> Any:
    notes: list[str] = []
    return SimpleNamespace(chat=talk.chat, store=talk.store, out=SimpleNamespace(note=notes.append), notes=notes)


def ask(talk: Talk, prompt: str | tuple[int, ...]) -> Completed:
    return complete(session_of(talk), CompletionRequest(prompt, FIVE), Watch())


# -- names


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "a/b", "../a", "/etc/passwd", "a\\b", "a\x00b", "a\nb", "a\x1bb", "a\u202eb", "x" * 256,
     "\u00e9" * 128, None, 7, ["a"], "\ud800"],
)  # fmt: skip
def test_what_is_no_name(name: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageProblem):
        slot_path(tmp_path, name)


def test_names_stay_inside_the_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "slots", tmp_path / "outside"
    folder.mkdir()
    outside.write_bytes(b"")
    assert slot_path(folder, "a b-1.bin") == Path(os.path.realpath(folder)) / "a b-1.bin"
    (folder / "link").symlink_to(outside)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    for name in ("link", "folder", "pipe"):
        with pytest.raises(UsageProblem, match="not a regular file"):
            slot_path(folder, name)
    with pytest.raises(NotOffered):
        slot_path(None, "a")


# -- conversations


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_slot_comes_back_in_another_directory(family: str, engines: Engines, tmp_path: Path) -> None:
    # With other weights the hybrid's noise has a special token in it, which is not taken over from elsewhere (B16).
    engine, path = engines(family, seed=1), tmp_path / "slot.bin"
    with Talk(engine, tmp_path / "a") as talk:
        talk.chat.set_system(SYSTEM)
        talk.say_all(TEXTS)
        saved = save(session_of(talk), path, Watch()).body
        assert (saved["id_slot"], saved["filename"], saved["n_written"]) == (0, "slot.bin", path.stat().st_size)
        assert path.stat().st_mode & 0o777 == 0o600
        after = talk.say("And the third?")
    with Talk(engine, tmp_path / "b") as talk:
        told = restore(session_of(talk), path, talk.chat.day).body
        assert (told["n_restored"], told["n_read"]) == (saved["n_saved"], saved["n_written"])
        assert talk.chat.name == automatic_name(key_of(TEXTS[0])) and talk.chat.system == SYSTEM
        again = talk.say("And the third?")
    assert again.reply_tokens == after.reply_tokens
    assert again.reused_tokens >= saved["n_saved"] - 1, "the file's tokens are all reused"


def llama_file(engine: LlamaEngine, path: Path) -> int:
    """What the engine holds, in a file by llama.cpp itself."""
    count = len(engine.tokens)
    ids = (ctypes.c_int32 * count)(*engine.tokens)
    assert engine._lc.llama_state_seq_save_file(engine._context, os.fsencode(path), 0, ids, count)
    return count


def test_a_file_of_llama_cpp_is_the_conversation_that_it_says(engines: Engines, tmp_path: Path) -> None:
    engine, path = engines("llama"), tmp_path / "slot.bin"
    with Talk(engine, tmp_path / "a") as talk:
        talk.say_all(TEXTS)
        count = llama_file(engine, path)
    with Talk(engine, tmp_path / "b") as talk:
        for _ in range(2):
            assert restore(session_of(talk), path, talk.chat.day).body["n_restored"] == count
            assert talk.store.names() == [automatic_name(key_of(TEXTS[0]))], "the same text is not stored twice"
        assert talk.chat.keeper.foreign_for == talk.chat.name
        text = talk.store.read_log(str(talk.chat.name)).lines
        warm = talk.say("And the third?")
    with Talk(engine, tmp_path / "c") as talk:
        talk.store.append_log("cold", text)
        cold = talk.open("cold").say("And the third?")
    assert (warm.reply_tokens, warm.reused_tokens, cold.reused_tokens) == (cold.reply_tokens, count, 0)


def test_what_was_open_is_parked_and_comes_back(engines: Engines, tmp_path: Path) -> None:
    engine, path = engines("llama"), tmp_path / "slot.bin"
    with Talk(engine, tmp_path / "a") as talk:
        talk.say_all(TEXTS)
        save(session_of(talk), path, Watch())
    with Talk(engine, tmp_path / "b") as talk:
        talk.say("Quite another talk.")
        mine = talk.chat.name
        restore(session_of(talk), path, talk.chat.day)
        talk.open(str(mine))
        assert talk.say("Go on.").reused_tokens > 0


def test_a_conversation_that_went_on_is_not_replaced(engines: Engines, tmp_path: Path) -> None:
    engine, path = engines("llama"), tmp_path / "slot.bin"
    with Talk(engine, tmp_path / "a") as talk:
        talk.say_all(TEXTS)
        name = str(talk.chat.name)
        save(session_of(talk), path, Watch())
        talk.say("And the third?")
        said = [line.message for line in talk.store.read_log(name).branch()]
        restore(session_of(talk), path, talk.chat.day)
        assert talk.chat.name == f"{name}-2"
        assert [line.message for line in talk.store.read_log(name).branch()] == said


def test_erase_empties_the_engine_and_loses_no_conversation(engines: Engines, tmp_path: Path) -> None:
    with Talk(engines("llama"), tmp_path / "a") as talk:
        talk.say_all(TEXTS)
        session, name, held = session_of(talk), str(talk.chat.name), len(talk.engine.tokens)
        assert shown(session, busy=False)[0]["n_past"] == held
        assert erase(session).body == {"id_slot": 0, "n_erased": held}
        assert (len(talk.engine.tokens), talk.chat.name) == (0, None)
        assert shown(session, busy=True) == [
            {"id": 0, "n_ctx": 1024, "is_processing": True, "n_past": 0, "conversation": None}
        ]
        with pytest.raises(UsageProblem, match="empty"):
            save(session, tmp_path / "none", Watch())
        talk.open(name)
        assert talk.say("And the third?").reused_tokens > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_slot_without_a_conversation_serves_completions_alone(family: str, engines: Engines, tmp_path: Path) -> None:
    engine, path, tokens = engines(family), tmp_path / "slot.bin", tuple(text_tokens(200))
    with Talk(engine, tmp_path / "a") as talk:
        ask(talk, tokens)
        saved = save(session_of(talk), path, Watch()).body
        after = ask(talk, (*engine.tokens, 80, 81))
        assert talk.store.names() == [], "nothing of a completion is stored (A1)"
    with Talk(engine, tmp_path / "b") as talk:
        restore(session_of(talk), path, talk.chat.day)
        assert talk.store.names() == [] and len(engine.tokens) == saved["n_saved"]
        again = ask(talk, (*engine.tokens, 80, 81))
        assert (again.text, again.reused_tokens) == (after.text, saved["n_saved"])
        assert list((tmp_path / "b" / "segments").rglob("*.seg")) == []
        restore(session_of(talk), path, talk.chat.day)
        assert talk.say("A conversation.").reused_tokens == 0, "B16: no conversation is built on it"


@pytest.mark.parametrize("kind", ["junk", "torn", "flipped", "missing", "other model"])
def test_a_bad_file_leaves_what_is_held(kind: str, engines: Engines, tmp_path: Path) -> None:
    engine, path = engines("llama", seed=3 if kind == "other model" else 0), tmp_path / "slot.bin"
    with Talk(engine, tmp_path / "a") as talk:
        talk.say_all(TEXTS)
        save(session_of(talk), path, Watch())
    data = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind != "other model":
        path.write_bytes({"junk": b"x" * 99, "torn": data[:2000], "flipped": data[:3000] + b"?" + data[3001:]}[kind])
    engine = engines("llama")
    with Talk(engine, tmp_path / "b") as talk:
        talk.say(TEXTS[0])
        held = list(engine.tokens)
        with pytest.raises((Bad, Refused, NotFound)):
            restore(session_of(talk), path, talk.chat.day)
        assert (list(engine.tokens), talk.chat.name) == (held, automatic_name(key_of(TEXTS[0])))
        assert talk.say(TEXTS[1]).reused_tokens > 0


# -- over HTTP


def test_a_slot_goes_from_one_service_to_another(tiny: Callable[..., Path], tmp_path: Path) -> None:
    slots, model = tmp_path / "slots", tiny("llama")
    slots.mkdir()
    messages = [user("Name two rivers.")]
    with Service.start(tmp_path, model, "--slot-dir", slots, home="one") as one:
        messages += [assistant(text_of(one.chat(messages))), user("Which is longer?")]
        saved = one.post("/slots/0?action=save", {"filename": "a.bin"}).json
        assert saved["n_written"] == (slots / "a.bin").stat().st_size and saved["timings"]["save_ms"] > 0
        (shown_slot,) = one.get("/slots").json
        assert shown_slot["n_past"] == saved["n_saved"] and "Name two" not in one.get("/slots").data.decode()
        after = one.chat(messages)
        erased = one.post("/slots/0?action=erase", {}).json
        assert erased["id_slot"] == 0 and erased["n_erased"] > saved["n_saved"]
        assert text_of(one.chat(messages)) == text_of(after), "erased from the engine, and nowhere else"
    with Service.start(tmp_path, model, "--slot-dir", slots, home="two") as two:
        restored = two.post("/slots/0?action=restore", {"filename": "a.bin"}).json
        assert (restored["n_restored"], restored["n_read"]) == (saved["n_saved"], saved["n_written"])
        told = two.chat(messages)
        assert text_of(told) == text_of(after) and cached(told) >= saved["n_saved"] - 1


@pytest.mark.llama_server
@pytest.mark.skipif(server_binary() is None, reason="no llama-server: name one in STRATA_TEST_LLAMA_SERVER")
def test_C04_a_real_llama_server_and_the_service_both_ways(demo_model: Path, tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    slots.mkdir()
    messages = [user("Tell me about the sea. " * 40)]
    options = ("--slot-dir", slots, "--flash-attn", "on")
    with Service.start(tmp_path, demo_model, *options, home="one") as one:
        messages += [assistant(text_of(one.chat(messages))), user("And the wind?")]
        saved = one.post("/slots/0?action=save", {"filename": "ours.bin"}).json
    with server(demo_model, slots) as post:
        assert post("/slots/0?action=restore", filename="ours.bin")["n_restored"] == saved["n_saved"]
        ask_it = {"messages": messages, "max_tokens": 8, "temperature": 0, "cache_prompt": True}
        answer = post("/v1/chat/completions", **ask_it)
        assert answer["timings"]["cache_n"] >= saved["n_saved"] - 2
        messages += [assistant(answer["choices"][0]["message"]["content"]), user("And the sky?")]
        theirs = post("/slots/0?action=save", filename="theirs.bin")
    with Service.start(tmp_path, demo_model, *options, home="two") as two:
        assert two.post("/slots/0?action=restore", {"filename": "theirs.bin"}).json["n_restored"] == theirs["n_saved"]
        told = two.chat(messages)
        assert cached(told) >= theirs["n_saved"] - 2 and read_tokens(told) <= 24

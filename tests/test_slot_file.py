"""llama.cpp's sequence files (C04): every form of the token list, every damaged header, the trailer; a real server."""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from chats import Talk
from engine_tools import FAMILIES, Engines, text_tokens
from turns import Forked, fork_server, forked  # noqa: F401

from strata_cli.asked import adopt
from strata_cli.errors import Bad, NoRoom, Refused, StrataError
from strata_cli.llama_engine.live import LlamaEngine
from strata_cli.slot_file import SlotFile, token_list, trailer_bytes
from strata_cli.slots import Slot, examine, trailer_for
from strata_cli.snapshot import read_conversation

DAY = date(2026, 1, 1)
TEXTS = ("Tell me of the sea.", "And of the wind?")


@pytest.fixture
def cli(forked: Forked) -> Forked:  # noqa: F811
    """The command line, forked from a process that has imported it."""
    return forked


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    made = Engines(tiny)
    yield made
    made.close()


def words(*values: int) -> bytes:
    return b"".join((value % 2**32).to_bytes(4, "little") for value in values)


# -- the token list (C04)


def test_C04_a_plain_list_and_the_packed_form_give_the_same() -> None:
    tokens = [1, 700, 3]
    assert list(token_list(words(*tokens))) == tokens
    assert list(token_list(words(-1, 1, 3, *tokens, 0))) == tokens
    assert list(token_list(words(-1, 1, 3, *tokens, 0, 0, 0))) == tokens, "zero words are padding"


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (words(-1, 1, 3, 1, 2, 3, 1, 0, 8, 0, 0), Refused, "images"),
        (words(-1, 99, 3, 1, 2, 3, 0), Refused, "version 99"),
        (words(-1, 1, 9, 1, 2, 3, 0), Bad, "9 tokens"),
        (words(-1, 1, 2**32 - 1, 1, 2, 3, 0), Bad, "4294967295 tokens"),
        (words(-1, 1, 3, 1, 2, 3, 0, 7), Bad, "padding"),
        (words(-1), Bad, "ends before"),
        (words(-1, 1, 0), Bad, "ends before"),
    ],
)
def test_C04_what_is_refused_names_the_field(data: bytes, error: type[StrataError], says: str) -> None:
    with pytest.raises(error, match=says):
        token_list(data)


# -- whole files on the engine


def saved(engine: LlamaEngine, path: Path) -> bytes:
    """llama.cpp's own file of a chat of two turns."""
    with Talk(engine, path.parent / "made").open("made") as talk:
        talk.say_all(TEXTS)
        lc, tokens = engine._lc, list(engine.tokens)
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        assert lc.llama_state_seq_save_file(engine._context, os.fsencode(path), 0, ids, len(tokens))
    return path.read_bytes()


def packed(data: bytes) -> bytes:
    count = int.from_bytes(data[8:12], "little")
    return data[:8] + words(count + 4, -1, 1, count) + data[12 : 12 + 4 * count] + words(0) + data[12 + 4 * count :]


def looked_at(path: Path, data: bytes, engine: LlamaEngine) -> Slot:
    path.write_bytes(data)
    engine.clear()
    with Talk(engine, path.parent / "b") as talk, SlotFile(path) as file:
        return examine(file, talk.chat, talk.store, DAY)


@pytest.mark.parametrize("family", FAMILIES)
def test_C04_plain_and_packed_files_are_the_same_conversation(family: str, engines: Engines, tmp_path: Path) -> None:
    engine, path = engines(family), tmp_path / "slot.bin"
    data = saved(engine, path)
    plain, other = looked_at(path, data, engine), looked_at(path, packed(data), engine)
    assert plain.tokens == other.tokens and plain.log == other.log and not plain.proved
    said = [(line.message or {})["content"] for line in plain.log.branch()]
    assert said[0::2] == list(TEXTS)
    assert plain.log.setup()["system"] == "You answer in few words."
    assert plain.log.tokens() == plain.tokens[: len(plain.log.tokens())]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_slot_file_is_continued_with_only_the_new_turn_read(family: str, engines: Engines, tmp_path: Path) -> None:
    engine, path = engines(family), tmp_path / "slot.bin"
    data = saved(engine, path)
    path.write_bytes(data)
    with Talk(engine, tmp_path / "b") as talk, SlotFile(path) as file:
        slot = examine(file, talk.chat, talk.store, DAY)
        talk.store.append_log("slot", slot.log.lines)
        talk.open("slot")
        parked = adopt(talk.chat, slot.tokens, file.prefixed_state(slot.state_bytes), own=True)
    assert parked.segments >= 1
    with Talk(engine, tmp_path / "b").open("slot") as talk:
        after = talk.say("Which is older?")
    with Talk(engine, tmp_path / "c") as cold:
        cold.store.append_log("slot", slot.log.lines)
        assert cold.open("slot").say("Which is older?").reply_tokens == after.reply_tokens
    assert after.source == "disk"
    assert after.reused_tokens >= len(slot.tokens) - 1, "the file's tokens are all reused"


@pytest.mark.parametrize("family", FAMILIES)
def test_C21_N01_N02_damaged_files_never_reach_the_engine(family: str, engines: Engines, tmp_path: Path) -> None:
    engine, path = engines(family), tmp_path / "slot.bin"
    data = saved(engine, path)
    count = int.from_bytes(data[8:12], "little")
    start = 12 + 4 * count
    calls: list[object] = []
    spy = engine.state._set
    engine.state._set = lambda *values: calls.append(values)  # type: ignore[method-assign]
    try:
        cuts = {*range(65), *(n * len(data) // 16 for n in range(16)), start - 1, start, start + 8, len(data) - 1}
        for size in sorted(cuts):
            with pytest.raises((Bad, Refused)):
                looked_at(path, data[:size], engine)
        heads = [0, 4, 8, start, start + 4, start + 8, start + 12]
        if engine.memory.has_rows:
            cells = int.from_bytes(data[start + 4 : start + 8], "little")
            heads += [start + 8 + 12 * cells, start + 12 + 12 * cells, start + 16 + 12 * cells, start + 20 + 12 * cells]
        for at in heads:
            for bit in (0, 7, 30):
                damaged = bytearray(data)
                damaged[at + bit // 8] ^= 1 << bit % 8
                with pytest.raises((Bad, Refused)):
                    looked_at(path, bytes(damaged), engine)
    finally:
        engine.state._set = spy  # type: ignore[method-assign]
    assert calls == []


def test_tokens_that_the_model_does_not_have(engines: Engines, tmp_path: Path) -> None:
    engine, path = engines("llama"), tmp_path / "slot.bin"
    data = bytearray(saved(engine, path))
    data[12:16] = words(100_000)
    with pytest.raises(Bad, match="none of this model's"):
        looked_at(path, bytes(data), engine)


def test_C11_another_state_format_is_refused_and_named(engines: Engines, tmp_path: Path) -> None:
    engine, path = engines("llama"), tmp_path / "slot.bin"
    data = saved(engine, path)
    for version in (2, 4, 99):
        with pytest.raises(Refused, match=f"state format {version}"):
            looked_at(path, data[:4] + words(version) + data[8:], engine)


def test_C13_another_cache_type_or_model_is_refused_by_its_shape(engines: Engines, tmp_path: Path) -> None:
    path = tmp_path / "slot.bin"
    data = saved(engines("llama"), path)
    with pytest.raises(Bad, match="another type or row size"):
        looked_at(path, data, engines("llama", cache_type_k="q8_0"))
    for family in ("gemma3", "lfm2", "mamba"):
        with pytest.raises((Bad, Refused)):
            looked_at(path, data, engines(family))


def test_C23_a_file_longer_than_the_context(engines: Engines, tmp_path: Path) -> None:
    path = tmp_path / "slot.bin"
    engine = engines("llama")
    engine.read(text_tokens(300))
    ids = (ctypes.c_int32 * 300)(*engine.tokens)
    engine._lc.llama_state_seq_save_file(engine._context, os.fsencode(path), 0, ids, 300)
    with pytest.raises(NoRoom, match="300"):
        looked_at(path, path.read_bytes(), engines("llama", ctx_size=256))


def test_tokens_that_are_no_conversation(engines: Engines, tmp_path: Path) -> None:
    path = tmp_path / "slot.bin"
    engine = engines("llama")
    engine.read(text_tokens(50))
    ids = (ctypes.c_int32 * 50)(*engine.tokens)
    engine._lc.llama_state_seq_save_file(engine._context, os.fsencode(path), 0, ids, 50)
    with pytest.raises(Refused, match="no conversation"):
        looked_at(path, path.read_bytes(), engine)


# -- strata's trailer


def with_trailer(engine: LlamaEngine, path: Path) -> tuple[bytes, bytes]:
    """A file with its trailer as `save --format llama` writes it: all of it, and the trailer."""
    with Talk(engine, path.parent / "made").open("made") as talk:
        talk.say_all(TEXTS)
        body = engine.save_file(path)
        head, log = read_conversation(talk.store, "made")
        from blake3 import blake3

        data = path.read_bytes()
        assert len(data) == body
        trailer = trailer_for(talk.store, head, log, engine, body, blake3(data).hexdigest())
    return data + trailer, trailer


@pytest.mark.parametrize("family", FAMILIES)
def test_the_trailer_is_read_back_and_llama_cpp_ignores_it(family: str, engines: Engines, tmp_path: Path) -> None:
    engine, path = engines(family), tmp_path / "slot.bin"
    data, trailer = with_trailer(engine, path)
    slot = looked_at(path, data, engine)
    assert slot.proved and not slot.own and slot.name == "made" and not slot.differs
    between = data[: -len(trailer)] + b"a block of somebody else" + trailer + b"and another"
    assert looked_at(path, between, engine).log == slot.log
    path.write_bytes(data)
    engine.clear()
    ids, count = (ctypes.c_int32 * 1024)(), ctypes.c_size_t()
    lc = engine._lc
    assert lc.llama_state_seq_load_file(engine._context, os.fsencode(path), 0, ids, 1024, ctypes.byref(count))
    assert tuple(ids[: count.value]) == slot.tokens
    engine.clear()


def test_N02_flips_are_found_by_the_trailer(engines: Engines, tmp_path: Path) -> None:
    engine, path = engines("llama"), tmp_path / "slot.bin"
    data, trailer = with_trailer(engine, path)
    for at in (*range(20, len(data) - len(trailer), 4099), *range(len(data) - len(trailer), len(data) - 8, 97)):
        damaged = bytearray(data)
        damaged[at] ^= 4
        with pytest.raises((Bad, Refused)):
            looked_at(path, bytes(damaged), engine)


def test_a_trailer_that_lies_about_its_length(engines: Engines, tmp_path: Path) -> None:
    engine, path = engines("llama"), tmp_path / "slot.bin"
    data, trailer = with_trailer(engine, path)
    for size in (2**63, len(data), 0):
        forged = data[:-16] + size.to_bytes(8, "little") + data[-8:]
        with pytest.raises((Bad, Refused)):
            looked_at(path, forged, engine)
    missing = data[: -len(trailer)] + trailer_bytes({"name": "x"}, len(data) - len(trailer), "0" * 64)
    with pytest.raises(Bad, match="fail their digest"):
        looked_at(path, missing, engine)


# -- the command line


def chat(cli: Forked, model: Path, *texts: str, name: str = "notes") -> list[dict[str, Any]]:
    env = {"STRATA_AUTO_SESSIONS_MIN_TOKENS": "0"}
    flags = ["-C", name, "-m", model, "--greedy", "-n", "8", "--json", "--threads", "1"]
    return [cli("run", text, *flags, env=env, code=0).envelope["data"] for text in texts]


def test_C01_through_a_llama_file_between_two_homes(cli: Forked, tiny: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny("llama")
    chat(cli, model, *TEXTS)
    done = cli("save", "notes", "--format", "llama", "-o", "n.bin", "--json", code=0).envelope["data"]
    assert done["bytes_written"] == (cli.folder / "n.bin").stat().st_size and done["usable"]
    assert (cli.folder / "n.bin").stat().st_mode & 0o777 == 0o600
    other = replace(cli, env={**cli.env, "STRATA_HOME": str(tmp_path / "other")})
    assert other("restore", "n.bin").exit_code == 2, "it needs -m"
    shown = other("restore", "n.bin", "-m", model, "--plan", code=0)
    assert "sealed here" not in shown.stdout and "state with a digest" in shown.stdout
    taken = other("restore", "n.bin", "-m", model, "--json", code=0).envelope["data"]
    assert (taken["name"], taken["turns"], taken["tokens"]) == ("notes", 2, done["tokens"])
    (here,) = chat(cli, model, "Which is older?")
    (there,) = chat(other, model, "Which is older?")
    assert there["reply_tokens"] == here["reply_tokens"]
    assert there["restore"]["from"] == "disk"
    assert other("restore", "n.bin", "-m", tiny("llama", seed=7), "--as", "x").exit_code == 13, "other weights"
    (cli.folder / "junk").write_bytes(os.urandom(5000))
    assert other("restore", "junk", "-m", model).exit_code == 12


# -- a real llama-server


def server_binary() -> str | None:
    return os.environ.get("STRATA_TEST_LLAMA_SERVER") or shutil.which("llama-server")


@contextmanager
def server(model: Path, slots: Path) -> Iterator[Callable[..., dict[str, Any]]]:
    """A llama-server on a free loopback port, and a way to post to it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(server_binary()), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-c", "4096"]
    command += ["-np", "1", "-t", "1", "--slot-save-path", str(slots), "--no-warmup", "-fa", "on"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:

        def post(path: str, **body: Any) -> dict[str, Any]:
            data = json.dumps(body).encode() if body else None
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
            return found

        try:
            deadline = time.monotonic() + 60
            while True:
                try:
                    if post("/health").get("status") == "ok":
                        break
                except OSError:
                    assert process.poll() is None and time.monotonic() < deadline, "the server does not come up"
                    time.sleep(0.1)
            yield post
        finally:
            process.terminate()


@pytest.mark.llama_server
@pytest.mark.skipif(server_binary() is None, reason="no llama-server: name one in STRATA_TEST_LLAMA_SERVER")
def test_C04_a_real_llama_server_both_ways(cli: Forked, demo_model: Path, tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    slots.mkdir()
    env = {"STRATA_AUTO_SESSIONS_MIN_TOKENS": "0"}
    flags = ["--greedy", "-n", "24", "--json", "--flash-attn", "on", "-m", demo_model]
    question = "Tell me about the sea. " * 40
    first = cli("run", question, "-C", "sea", *flags, env=env, code=0).envelope["data"]
    saved_here = cli("save", "sea", "--format", "llama", "-o", slots / "ours.bin", "--json", code=0).envelope["data"]
    history = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": first["reply"]},
        {"role": "user", "content": "And the wind?"},
    ]
    ask = {"messages": history, "max_tokens": 24, "temperature": 0, "cache_prompt": True}
    with server(demo_model, slots) as post:
        restored = post("/slots/0?action=restore", filename="ours.bin")
        assert restored["n_restored"] == saved_here["tokens"]
        answer = post("/v1/chat/completions", **ask)
        timings = answer["timings"]
        assert timings["cache_n"] >= saved_here["tokens"] - 2
        assert timings["prompt_n"] <= 24, "only the suffix is read"
        written = post("/slots/0?action=save", filename="theirs.bin")
    figures = {"ours": restored, "cache_n": timings["cache_n"], "prompt_n": timings["prompt_n"], "theirs": written}
    taken = cli(
        "restore", slots / "theirs.bin", "--as", "back", "-m", demo_model, "--flash-attn", "on", "--json", code=0
    ).envelope  # fmt: skip
    assert taken["data"]["tokens"] == written["n_saved"] and taken["data"]["turns"] == 2
    assert any("nothing in it proves" in warning for warning in taken["warnings"])
    after = cli("run", "And the sky?", "-C", "back", *flags, env=env, code=0).envelope["data"]
    assert after["tokens"]["reused"] >= taken["data"]["tokens"] - 1
    assert after["tokens"]["evaluated"] <= 24 and after["restore"]["from"] == "disk"
    print(json.dumps({**figures, "after": after["tokens"]}))

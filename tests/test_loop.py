"""The commands of the loop, through `--repl`: /save /restore /read /system /set /history, and switches that fail."""

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Strata
from turns import Forked, Turns, fork_server, forked, said, store_of, user_lines  # noqa: F401

from strata_cli.engine import Sampling
from strata_cli.errors import UsageProblem
from strata_cli.loop_parks import Parks
from strata_cli.loop_words import as_text, as_typed, last_turns, settings_of, with_setting
from strata_cli.output import Output
from strata_cli.reply import ReplyOptions
from strata_cli.slash import COMMANDS, Command, Said, read_line

TRIP = ("-C", "trip")


@pytest.fixture
def turns(forked: Forked, tiny: Callable[..., Path]) -> Turns:  # noqa: F811
    return Turns(forked, tiny("llama"))


def lines_of(turns: Turns, *items: str | list[str], start: tuple[str, ...] = ()) -> list[dict]:  # type: ignore[type-arg]
    """Every answer, failures too."""
    sent = [
        json.dumps({"prompt": item} if isinstance(item, str) else {"command": item[0], "args": item[1:]})
        for item in items
    ]
    result = turns.run("--repl", "jsonl", *start, stdin="\n".join(sent) + "\n", code=0)
    return [line for line in result.lines if "event" not in line]


def test_every_command_of_the_table_is_answered(turns: Turns) -> None:
    """A word in the table that nobody answers would be a KeyError."""
    words = [[command.word] for command in COMMANDS if command.word != "/exit"]
    for word, line in zip(words, lines_of(turns, *words), strict=True):
        assert line["command"] == word[0] and line["exit_code"] in (0, 1, 2, 10), line
        assert line["error"] is None or not line["error"]["message"].startswith("a fault in strata"), line


def test_save_names_an_automatic_conversation(turns: Turns) -> None:
    first, saved, second = turns.loop("One.", ["/save", "trip"], "Two.")
    store = store_of(turns.strata.home)
    assert store.names() == ["trip"] and store.read_head("trip").kind == "named"
    assert saved["name"] == "trip" and second["conversation"] == "trip"
    assert [role for role, _ in said(turns.strata.home, "trip")] == ["user", "assistant"] * 2
    assert second["restore"]["from"] == "live" and second["tokens"]["reused"] >= first["tokens"]["prompt"]
    third = turns.say("trip", "Three.")
    assert third["restore"]["from"] == "disk" and third["restore"]["not_reused"] is None


def test_save_of_a_named_one_is_a_copy_and_an_existing_name_is_refused(turns: Turns) -> None:
    lines = lines_of(turns, "One.", ["/save", "copy"], ["/save", "copy"], "Two.", start=("-C", "trip"))
    assert [line["exit_code"] for line in lines] == [0, 0, 2, 0]
    assert lines[3]["data"]["conversation"] == "trip"
    assert len(said(turns.strata.home, "copy")) == 2 and len(said(turns.strata.home, "trip")) == 4


def test_save_to_a_file_and_restore_from_it(turns: Turns) -> None:
    path = turns.strata.folder / "my trip.strata"
    turns.loop("One.", ["/save", "-o", str(path)], start=("-C", "trip"))
    assert path.stat().st_mode & 0o777 == 0o600
    elsewhere = turns.elsewhere()
    restored, after = elsewhere.loop(["/restore", str(path)], "Two.")
    assert (restored["conversation"], restored["turns"]) == ("trip", 1)
    assert after["conversation"] == "trip" and after["tokens"]["reused"] > 0
    assert user_lines(elsewhere.strata.home, "trip") == ["One.", "Two."]


def test_restore_of_what_is_open_is_answered_at_once(turns: Turns) -> None:
    path = str(turns.strata.folder / "trip.strata")
    asked = ("One.", ["/save", "-o", path], ["/restore", path], "Two.", ["/restore", path], ["/new", "b"])
    *_, same, _, other, _, after, back = lines_of(turns, *asked, ["/restore", path], ["/switch", "trip"], start=TRIP)
    assert same["exit_code"] == 0 and (same["data"]["conversation"], same["data"]["turns"]) == ("trip", 1)
    assert other["exit_code"] == 2 and "strata restore FILE --as NAME" in other["error"]["hint"]
    assert "held by" not in other["error"]["message"]
    assert after["exit_code"] == 2 and "says something else" in after["error"]["message"]
    assert back["data"]["turns"] == 2


def test_restore_waits_a_moment_for_another_process_and_says_so(turns: Turns) -> None:
    path = str(turns.strata.folder / "trip.strata")
    turns.loop("One.", ["/save", "-o", path], start=TRIP)
    sent = f"/restore {path}\n/exit\n"
    with store_of(turns.strata.home).hold("trip"):
        result = turns.strata("run", "-m", turns.model, "--repl", "text", env=turns.env, code=0, stdin=sent)
    waiting, refused = (line for line in result.stderr.splitlines() if "trip' is" in line)
    assert waiting.startswith("[strata] waiting: 'trip' is") and waiting.endswith("; Ctrl-C gets back")
    assert refused.startswith("strata: 'trip' is") and "--as NAME" in refused


def test_what_is_told_of_a_park_comes_before_the_next_prompt_and_in_no_commands_output() -> None:
    told = io.StringIO()
    out = Output("run", stdout=io.StringIO(), stderr=told)
    parks = Parks(out, prompts=True)
    parks.later("saved one")
    with parks.after_the_line():
        out.note("the output")
        parks.later("saved two")
        out.note("its end")
    parks.flush()
    assert [line[9:] for line in told.getvalue().splitlines()] == ["the output", "its end", "saved one", "saved two"]


def test_A4_what_is_saved_has_state_whatever_its_length(turns: Turns) -> None:
    long = Turns(turns.strata, turns.model, env={"STRATA_AUTO_SESSIONS_MIN_TOKENS": "4096"})
    turn, _ = long.loop("One.", ["/save", "trip"])
    assert turn["park"]["skipped"] == "below_minimum"
    assert store_of(long.strata.home).read_head("trip").states


def test_nothing_to_save(turns: Turns) -> None:
    (line,) = lines_of(turns, ["/save", "trip"])
    assert line["exit_code"] == 2 and not (turns.strata.home / "data" / "conversations").exists()
    assert lines_of(turns, "One.", ["/save", "../x"], ["/save", "a", "b"], ["/save", "-o"])[1]["exit_code"] == 2


@pytest.mark.parametrize("word", ["/restore", "/switch"])
def test_what_cannot_be_restored_or_switched_to_leaves_the_conversation_as_it_was(turns: Turns, word: str) -> None:
    (turns.strata.folder / "bad.strata").write_bytes(b"strata.json\0" + bytes(600))
    argument = "bad.strata" if word == "/restore" else "nobody"
    first, failed, second = lines_of(turns, "One.", [word, argument], "Two.", start=("-C", "trip"))
    assert failed["exit_code"] == (12 if word == "/restore" else 10)
    assert second["data"]["conversation"] == "trip" and second["data"]["restore"]["from"] == "live"
    assert second["data"]["tokens"]["reused"] >= first["data"]["tokens"]["prompt"]


@pytest.mark.parametrize("broken", ["missing", "no model", "cut short"])
def test_a_switch_to_a_model_that_does_not_load_leaves_the_conversation_as_it_was(
    turns: Turns, tiny: Callable[..., Path], broken: str
) -> None:
    other = turns.strata.folder / "other.gguf"
    other.write_bytes(tiny("llama", 1).read_bytes())
    turns.strata("run", "-m", other, *turns.flags, "-C", "far", "Hello.", env=turns.env, code=0)
    data = other.read_bytes()
    other.unlink()
    if broken != "missing":
        other.write_bytes(b"no model at all" if broken == "no model" else data[: len(data) // 2])
    config = {"STRATA_MODEL": str(turns.model), **turns.env}
    sent = [{"prompt": "One."}, {"command": "/switch", "args": ["far"]}, {"prompt": "Two."}]
    result = turns.strata(
        "run", *turns.flags, "--json", "--repl", "jsonl", "-C", "near", env=config, code=0,
        stdin="\n".join(map(json.dumps, sent)),
    )  # fmt: skip
    first, failed, second = (line for line in result.lines if "event" not in line)
    assert failed["exit_code"] in (12, 14) and not failed["ok"], failed
    assert second["ok"] and second["data"]["conversation"] == "near", second
    assert second["data"]["tokens"]["reused"] >= first["data"]["tokens"]["prompt"]
    assert [role for role, _ in said(turns.strata.home, "near")] == ["user", "assistant"] * 2


def test_read_goes_before_the_next_prompt(turns: Turns) -> None:
    (turns.strata.folder / "my notes.txt").write_text("[bold]x[/] /exit\nsecond line\n")
    lines = lines_of(
        turns, ["/read", "my", "notes.txt"], "What is it?", "And?", ["/read", "none.txt"], start=("-C", "t")
    )
    assert [line["exit_code"] for line in lines] == [0, 0, 0, 10]
    assert user_lines(turns.strata.home, "t") == ["[bold]x[/] /exit\nsecond line\n\nWhat is it?", "And?"]


def test_system_is_in_force_from_the_next_turn_on(turns: Turns) -> None:
    before, _, told, after = turns.loop("One.", ["/system", "Be", "brief."], ["/system"], "Two.", start=("-C", "t"))
    assert told == {"system": "Be brief."}
    assert store_of(turns.strata.home).read_log("t").setup()["system"] == "Be brief."
    assert after["tokens"]["reused"] < before["tokens"]["prompt"]


def test_tokens_are_those_of_the_conversation_that_is_open(turns: Turns) -> None:
    """After a switch the engine still holds the other one, until a turn is said."""
    first, mine, _, none, other, theirs, back, before, _, after = turns.loop(
        "One.", ["/tokens"], ["/new", "b"], ["/tokens"], "A much longer line than the first.", ["/tokens"],
        ["/switch", "a"], ["/tokens"], "Two.", ["/tokens"], start=("-C", "a"),
    )  # fmt: skip
    assert (none["held"], none["last"]) == (0, {}) and back["conversation"] == "a"
    assert mine["last"] == first["tokens"] and theirs["last"] == other["tokens"]
    assert before["last"] == {} and abs(before["held"] - mine["held"]) <= 1 < theirs["held"] - mine["held"]
    assert after["held"] > before["held"] and after["last"]["reused"] > 0


def test_set_changes_how_replies_are_made(turns: Turns) -> None:
    _, reply, found, refused = (
        line for line in lines_of(turns, ["/set", "max-tokens", "3"], "One.", ["/set"], ["/set", "top-p", "2"])
    )
    assert reply["data"]["tokens"]["generated"] <= 3
    assert found["data"]["max-tokens"] == 3 and found["data"]["greedy"] is True
    assert refused["exit_code"] == 2 and "top-p" in refused["error"]["message"]


def test_every_key_of_set_can_be_set_and_read() -> None:
    options = ReplyOptions(Sampling())
    texts = {
        "temp": ("0.5", 0.5), "top-k": ("7", 7), "top-p": ("0.9", 0.9), "min-p": ("0.1", 0.1), "seed": ("3", 3),
        "repeat-penalty": ("1.1", 1.1), "greedy": ("on", True), "max-tokens": ("9", 9), "stop": ("a b", ["a b"]),
    }  # fmt: skip
    for key, (text, _) in texts.items():
        options = with_setting(options, key, text)
    assert settings_of(options) == {key: value for key, (_, value) in texts.items()}
    for key, text in (("temp", "x"), ("temp", "-1"), ("temp", "nan"), ("top-k", "1.5"), ("greedy", "2"), ("x", "1")):
        with pytest.raises(UsageProblem):
            with_setting(options, key, text)


def test_settings_are_shown_as_they_are_typed() -> None:
    found = settings_of(ReplyOptions(Sampling(greedy=True, seed=None), stops=("a", "b c")))
    shown = {key: as_typed(value) for key, value in found.items()}
    assert (shown["greedy"], shown["seed"], shown["stop"]) == ("on", "none", "a, b c")
    assert with_setting(ReplyOptions(Sampling()), "greedy", shown["greedy"]).sampling.greedy
    assert as_typed([]) == "none" and as_typed(False) == "off" and as_typed(0) == "0"


def test_history_shows_what_was_said_exactly(turns: Turns) -> None:
    whole, last, bad = lines_of(turns, "One [x].", "Two.", ["/history"], ["/history", "1"], ["/history", "x"])[2:]
    assert [message["content"] for message in whole["data"]["messages"]][::2] == ["One [x].", "Two."]
    assert last["data"]["messages"][0]["content"] == "Two." and bad["exit_code"] == 2


def test_the_last_turns_begin_with_a_users_line() -> None:
    messages = [{"role": role, "content": f"{role} {n}", "interrupted": False}
                for n in range(3) for role in ("user", "assistant")]  # fmt: skip
    assert [m["content"] for m in last_turns(messages, 2)] == ["user 1", "assistant 1", "user 2", "assistant 2"]
    assert last_turns([], 2) == [] and len(last_turns(messages, 9)) == 6
    long = [{"role": "user", "content": "a\nb" * 1000, "interrupted": True}]
    assert as_text(long, brief=True).count("\n") == 8 and as_text(long, brief=True).endswith("...\n(interrupted)")
    assert as_text(messages[:1]) == "> user 0"


@pytest.mark.parametrize(
    ("line", "item"),
    [
        ("/help", Command("/help")), ("/?", Command("/help")), ("//help", Said("/help")), ("/helpme", None),
        ("/set temp 0.5", Command("/set", "temp 0.5", ("temp", "0.5"))), ("two\n/exit", Said("two\n/exit")),
        ("/exit\nnow", Said("/exit\nnow")), ("a /help", Said("a /help")), ("/quit", Command("/exit")),
    ],
)  # fmt: skip
def test_a_command_is_a_whole_word_on_one_line(line: str, item: Said | Command | None) -> None:
    if item is None:
        with pytest.raises(UsageProblem):
            read_line(line)
    else:
        assert read_line(line) == item


def test_text_from_standard_input_runs_commands_too(turns: Turns) -> None:
    strata: Strata = turns.strata
    result = strata("run", "-m", turns.model, *turns.flags, "--repl", "text", env=turns.env, code=0,
                    stdin="/set max-tokens 2\nHello\n/nonsense\n/save kept\n/exit\nnever said\n")  # fmt: skip
    assert "there is no command /nonsense" in result.stderr
    assert user_lines(strata.home, "kept") == ["Hello"]


def test_C64_the_last_one_is_named_with_its_time_and_looking_at_another_changes_nothing(turns: Turns) -> None:
    strata: Strata = turns.strata
    for name in ("older", "newer"):
        turns.say(name, f"I am {name}.")
    strata("inspect", "older", "--transcript", code=0)
    strata("save", "older", "-o", "older.strata", code=0)
    strata("inspect", "--verify", code=0)
    result = strata("run", "-m", turns.model, *turns.flags, "-c", "--plan", "And?", env=turns.env, code=0)
    assert re.search(r"continuing newer, last used \d{4}-\d\d-\d\d \d\d:\d\d UTC: I am newer\.", result.stderr)

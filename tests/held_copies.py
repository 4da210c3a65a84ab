"""Holds the copies of parks up, or lets them fail, in the copier's thread alone: llama.cpp does neither on demand."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from chats import ALL
from engine_tools import FAMILIES, Engines

from strata_cli.engine import EngineFailed
from strata_cli.llama_engine.live import LlamaEngine
from strata_cli.llama_engine.state import SequenceState

IN_MEMORY = replace(ALL, min_free_ram_bytes=0)
TEXTS = ("The first of all questions, and it is not too short.", "And the second?", "And what follows from both?")


class Copies:
    """What happens in the copier's thread: `go` lets a copy begin, `failures` counts those that are to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.failures, self.made = threading.Event(), 0, 0
        self.go.set()
        get = SequenceState._get

        def held_up(state: SequenceState, *arguments: object) -> None:
            if threading.current_thread().name == "strata-copier":
                assert self.go.wait(60)
                self.made += 1
                if self.failures:
                    self.failures -= 1
                    raise EngineFailed("the copy broke off")
            get(state, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(SequenceState, "_get", held_up)

    def hold(self, seconds: float) -> None:
        """Hold copies up from now on, for that long."""
        self.go.clear()
        threading.Timer(seconds, self.go.set).start()


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    loaded = Engines(tiny)
    yield loaded
    loaded.close()


@pytest.fixture(params=FAMILIES)
def engine(request: pytest.FixtureRequest, engines: Engines) -> LlamaEngine:
    return engines(request.param)

"""Trials against a plain copy of the same bytes: the wait at a park (W8), a restore (W9)."""

import shutil
import time
from collections.abc import Callable
from typing import Any

from ..engine import Engine
from ..llama_engine import rivals
from ..restore import execute
from ..turn import Watch
from .desk import Desk, chat_in, converse, options
from .fat_model import TOKEN_BYTES
from .result import Figures
from .runner import STRATA, Trial

PARK_TOKENS, TEXT_TOKENS = 500, 478  # 65 MB of state a turn, whatever the scale; the rest is the template's
RESTORE_TOKENS, LEAST_RESTORED_TOKENS = 8_000, 700  # no less than 90 MB: a processor's cache must not hold it
PAGE_BYTES, CACHE_BYTES = 4096, 128 << 20  # more than a processor's cache holds
PARK_TIMES = 3  # as many runs as others have: a few ms each, which vary
TURNS_HELD = 3  # turns until the conversation begins anew, so that the context stays small


class Copy:
    """A memory copy of a number of bytes, both sides resident: the yardstick.

    Each call takes fresh memory: the physical pages decide up to a third of a copy's speed, and one draw of them for
    a whole run would make every ratio of that run too high or too low. Touching it leaves the end of it in the
    processor's cache, which a turn would not: other memory is read before the copy.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes, self._other = size_bytes, bytes(CACHE_BYTES)

    def __call__(self) -> Figures:
        source, target = self._resident(), self._resident()
        self._other.count(1)
        with memoryview(target) as to, memoryview(source) as whole:
            begun = time.perf_counter()
            to[:] = whole
            return {"ms": (time.perf_counter() - begun) * 1000}

    def _resident(self) -> bytearray:
        memory = bytearray(self._size_bytes)
        memory[::PAGE_BYTES] = b"\1" * len(memory[::PAGE_BYTES])
        return memory


class Waiting:
    """Adds up the time that a turn spends in calls of its keeper: what the user waits for until the prompt."""

    def __init__(self, keeper: Any) -> None:
        self.ms = 0.0
        for name in ("capture", "hand_over"):
            setattr(keeper, name, self._timed(getattr(keeper, name)))

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.ms += (time.perf_counter() - begun) * 1000

        return timed


def park(desk: Desk) -> Trial:
    """W8: turns of at least 64 MB of state each, parked by a chat whose writer has had the time to prepare memory.

    The copy goes on behind the prompt. Beside it: what a turn that begins at once waits for, until all is copied.
    """
    tokens = PARK_TOKENS
    engine = desk.engine("fat", TURNS_HELD * (tokens + 32) + 256)
    folder = desk.new_folder()
    chat = chat_in(engine, folder)
    waiting = Waiting(chat.keeper)
    chat.start("park-0")
    copy = Copy(tokens * TOKEN_BYTES)
    numbers = iter(range(1, 10_000))

    def turn() -> Figures:
        number = next(numbers)
        if len(engine.tokens) + tokens + 32 > engine.context_tokens:
            chat.start(f"park-{number}")
        base, waiting.ms = len(engine.tokens), 0.0
        result = chat.turn(desk.text(engine, TEXT_TOKENS, number), options(2), Watch())
        prompt_ms, begun = waiting.ms, time.perf_counter()
        engine.settle()
        copied_ms = prompt_ms + (time.perf_counter() - begun) * 1000
        new = len(engine.tokens) - base if len(engine.tokens) > base else len(engine.tokens)
        result.ticket.done.wait()
        chat.keeper.wait()
        return {
            "wait_ms": prompt_ms,
            "copied_ms": copied_ms,
            "ms_per_mb": prompt_ms / (new * TOKEN_BYTES / 1e6),
            "copied_ms_per_mb": copied_ms / (new * TOKEN_BYTES / 1e6),
            "mb": new * TOKEN_BYTES / 1e6,
            "written_ms": result.parked.ms,
        }

    def copied() -> Figures:
        ms = copy()["ms"]
        return {"ms": ms, "ms_per_mb": ms / (tokens * TOKEN_BYTES / 1e6)}

    def close() -> None:
        chat.finish()
        shutil.rmtree(folder, ignore_errors=True)

    return Trial(
        sides={STRATA: turn, "memcpy": copied},
        ratios={"W8": lambda s: s[STRATA]["ms_per_mb"] / s["memcpy"]["ms_per_mb"]},
        controls={"W8": {"next turn at once": lambda s: s[STRATA]["copied_ms_per_mb"] / s["memcpy"]["ms_per_mb"]}},
        where=lambda s: {name: s[STRATA][name] for name in ("wait_ms", "copied_ms", "written_ms", "mb")},
        tokens=tokens,
        times=PARK_TIMES,
        warmups=2,
        close=close,
    )


def restore(desk: Desk) -> Trial:
    """W9: from the page cache, every byte verified; then again. Beside it llama.cpp's own load, unverified."""
    tokens = max(LEAST_RESTORED_TOKENS, desk.tokens(RESTORE_TOKENS))
    engine = desk.engine("fat", tokens + 512)
    folder = desk.new_folder()
    converse(engine, folder, "long", [desk.text(engine, tokens // 4 - 24, seed) for seed in range(60, 64)])
    chat = chat_in(engine, folder, save=False)
    stand_text = "And then?"
    chat.open("long")
    execute(chat.plan(stand_text)[1], engine, chat.keeper.shelf)
    held, size = list(engine.tokens), rivals.state_bytes(engine)
    native = desk.new_folder().with_suffix(".bin")
    engine.save_file(native)
    copy = Copy(size)

    def restored(engine: Engine) -> Figures:
        engine.clear()
        fresh = chat_in(engine, folder, save=False)  # type: ignore[arg-type]
        fresh.open("long")
        shelf, figures = fresh.keeper.shelf, {}
        for name in ("first_ms", "again_ms"):
            engine.clear()
            plan = fresh.plan(stand_text)[1]
            begun = time.perf_counter()
            execute(plan, engine, shelf)
            figures[name] = (time.perf_counter() - begun) * 1000
        return figures

    def whole_file() -> Figures:
        begun = time.perf_counter()
        rivals.load_file(engine, native, held)
        return {"ms": (time.perf_counter() - begun) * 1000}

    def close() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        native.unlink(missing_ok=True)

    return Trial(
        sides={STRATA: lambda: restored(engine), "memcpy": copy, "whole-file": whole_file},
        ratios={
            "W9": lambda s: s[STRATA]["first_ms"] / s["memcpy"]["ms"],
            "W9b": lambda s: s[STRATA]["again_ms"] / s["memcpy"]["ms"],
        },
        controls={name: {"whole-file": lambda s: s["whole-file"]["ms"] / s["memcpy"]["ms"]} for name in ("W9", "W9b")},
        where=lambda s: {**s[STRATA], "memcpy_ms": s["memcpy"]["ms"], "mb": size / 1e6},
        tokens=len(held),
        close=close,
    )

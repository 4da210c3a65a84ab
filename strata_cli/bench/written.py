"""Trials that count bytes on our model with large state: of a turn (W6), of a shared root (W7), of a file (W12)."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ..llama_engine import rivals
from ..llama_engine.live import LlamaEngine
from ..snapshot import execute_save, plan_save
from ..turn import Watch
from .desk import SYSTEM, Desk, chat_in, converse, options
from .fat_model import TOKEN_BYTES
from .result import Figures
from .runner import STRATA, Trial

HISTORY_TOKENS, TURN_TOKENS, TURNS = 15_300, 200, 20
SHARED_TOKENS, TAIL_TOKENS, CONVERSATIONS = 4_000, 400, 8
FILE_TOKENS = 4_000


def written_bytes() -> int:
    """Bytes that the kernel has sent, or will send, to a disk for this process; -1 where it does not count them."""
    if sys.platform != "linux":
        return -1
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return -1


def kernel_counts(folder: Path) -> bool:
    """Whether the kernel counts what is written there: on a tmpfs it does not."""
    folder.mkdir(parents=True, exist_ok=True)
    before, probe = written_bytes(), folder / "probe"
    with probe.open("wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    probe.unlink()
    return before >= 0 and written_bytes() - before >= 1 << 20


def turns(desk: Desk) -> Trial:
    """W6: each run is a turn; beside it a whole file, as it would be written instead."""
    history, new = desk.tokens(HISTORY_TOKENS), desk.tokens(TURN_TOKENS)
    engine = desk.engine("fat", history + TURNS * (new + 48) + 512)
    folder = desk.new_folder()
    converse(engine, folder, "long", [desk.text(engine, history, 1)])
    chat = chat_in(engine, folder)
    chat.open("long")
    counted = kernel_counts(desk.folder)
    seed = iter(range(100, 1000))
    file = desk.new_folder().with_suffix(".bin")

    def turn() -> Figures:
        before, held = written_bytes(), len(engine.tokens)
        result = chat.turn(desk.text(engine, new - 40, next(seed)), options(4), Watch())
        result.ticket.done.wait()
        chat.keeper.wait()
        written = written_bytes() - before if counted else result.parked.bytes_written
        return {"bytes": float(written), "state_bytes": float((len(engine.tokens) - held) * _row_bytes(engine))}

    def whole_file() -> Figures:
        return {"bytes": float(engine.save_file(file))}

    def close() -> None:
        chat.finish()
        shutil.rmtree(folder, ignore_errors=True)
        file.unlink(missing_ok=True)

    return Trial(
        sides={STRATA: turn, "whole-file": whole_file},
        ratios={"W6": lambda s: s[STRATA]["bytes"] / s[STRATA]["state_bytes"]},
        controls={"W6": {"whole-file": lambda s: s["whole-file"]["bytes"] / s[STRATA]["state_bytes"]}},
        where=lambda s: {**s[STRATA], "kernel_counts": float(counted)},
        tokens=history,
        runs=TURNS if desk.rivals else None,
        close=close,
    )


def _row_bytes(engine: LlamaEngine) -> float:
    """Bytes that llama.cpp's own state of this sequence takes for a token."""
    return rivals.state_bytes(engine) / len(engine.tokens)


def folder_bytes(folder: Path) -> int:
    """The bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def shared(desk: Desk) -> Trial:
    """W7: a root and the tails of several conversations, against each token once."""
    common, tail = desk.tokens(SHARED_TOKENS), desk.tokens(TAIL_TOKENS)
    engine = desk.engine("fat", common + tail + 512)
    system = desk.text(engine, common, 3)

    def directory() -> Figures:
        folder, tails, root = desk.new_folder(), 0, 0
        engine.clear()
        chat = chat_in(engine, folder)
        for number in range(CONVERSATIONS):
            chat.start(f"one-{number}")
            chat.set_system(system)
            result = chat.turn(desk.text(engine, tail - 40, 50 + number), options(4), Watch())
            root = chat.root_tokens
            tails += len(engine.tokens) - root
            result.ticket.done.wait()
        state = (root + tails) * _row_bytes(engine)
        whole = float(CONVERSATIONS * root + tails) * _row_bytes(engine)
        chat.finish()
        found = folder_bytes(folder)
        shutil.rmtree(folder)
        return {"bytes": float(found), "state_bytes": state, "whole_bytes": whole}

    return Trial(
        sides={STRATA: directory},
        ratios={"W7": lambda s: s[STRATA]["bytes"] / s[STRATA]["state_bytes"]},
        controls={"W7": {"whole-file": lambda s: s[STRATA]["whole_bytes"] / s[STRATA]["state_bytes"]}},
        tokens=common,
        warmups=0,
    )


def file(desk: Desk) -> Trial:
    """W12: the portable file of one conversation against llama.cpp's state of it; beside it what others write."""
    tokens = desk.tokens(FILE_TOKENS)
    engine = desk.engine("fat", tokens + 512)
    folder, whole = desk.new_folder(), desk.new_folder().with_suffix(".bin")
    seed = iter(range(300, 1000))

    def saved() -> Iterator[Figures]:
        while True:
            name = f"file-{next(seed)}"
            text = desk.text(engine, tokens, next(seed))
            chat = chat_in(engine, folder)
            engine.clear()
            chat.start(name)
            chat.set_system(SYSTEM)
            chat.turn(text, options(4), Watch()).ticket.done.wait()
            chat.keeper.wait()
            state, held = rivals.state_bytes(engine), list(engine.tokens)
            native = engine.save_file(whole)
            with chat.store.shared():
                written = execute_save(plan_save(chat.store, name), chat.store, lambda _: None, lambda _: None)
            chat.finish()
            disk = _disk_cache_bytes(desk, held, engine.context_tokens) if desk.rivals else 0
            yield {"bytes": float(written), "native": float(native), "disk": float(disk), "state_bytes": float(state)}

    steps = saved()
    step: Callable[[], Figures] = lambda: next(steps)  # noqa: E731
    rivals_of = {"whole-file": lambda s: s[STRATA]["native"] / s[STRATA]["state_bytes"]}
    if desk.rivals:
        rivals_of["diskcache"] = lambda s: s[STRATA]["disk"] / s[STRATA]["state_bytes"]
    return Trial(
        sides={STRATA: step},
        ratios={"W12": lambda s: s[STRATA]["bytes"] / s[STRATA]["state_bytes"]},
        controls={"W12": rivals_of},
        tokens=tokens,
        warmups=0,
        close=lambda: shutil.rmtree(folder, ignore_errors=True),
    )


def _disk_cache_bytes(desk: Desk, tokens: list[int], context_tokens: int) -> int:
    disk = rivals.DiskCache(desk.model_path("fat"), desk.new_folder(), context_tokens, desk.threads)
    try:
        return disk.keep(tokens)
    finally:
        disk.close()


__all__ = ["TOKEN_BYTES", "file", "shared", "turns"]

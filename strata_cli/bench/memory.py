"""The trial of memory (W10), in processes of their own.

    python -m strata_cli.bench.memory MODEL FOLDER TOKENS THREADS

Owns the measure: peak anonymous memory, by the kernel's account, above what the idle engine takes, while a
conversation is read and parked and while it is restored, with nothing kept in memory (`ram_mib` 0).
"""

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

from ..engine import EngineOptions
from ..llama_engine import load
from ..turn import Watch
from .desk import Desk, chat_in, options, stand_at
from .result import Figures
from .runner import STRATA, CannotShow, Trial
from .words import text_of

TOKENS, LEAST_TOKENS, MARGIN_BYTES, EVERY_S = 8_000, 1_000, 32 << 20, 0.002


def memory(desk: Desk) -> Trial:
    """W10: each run is a process that loads the model, parks, and restores."""
    if sys.platform != "linux":
        raise CannotShow("only Linux tells how much anonymous memory a process takes")
    tokens, model = max(LEAST_TOKENS, desk.tokens(TOKENS)), desk.model_path("fat")

    def measured() -> Figures:
        folder = desk.new_folder()
        words = [
            sys.executable,
            "-m",
            "strata_cli.bench.memory",
            str(model),
            str(folder),
            str(tokens),
            str(desk.threads),
        ]
        done = subprocess.run(words, capture_output=True, text=True)
        shutil.rmtree(folder, ignore_errors=True)
        if done.returncode:
            raise CannotShow(f"the process that measures memory failed: {done.stderr.strip()[-200:]}")
        return dict(json.loads(done.stdout))

    return Trial(
        sides={STRATA: measured},
        ratios={"W10": lambda s: max(s[STRATA]["save"], s[STRATA]["restore"]) / (s[STRATA]["arena"] + MARGIN_BYTES)},
        where=lambda s: s[STRATA],
        tokens=tokens,
        warmups=0,
    )


def anonymous_bytes() -> int:
    """Anonymous memory of this process."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


class Peak:
    """Looks at the memory every few milliseconds, from a thread of its own."""

    def __init__(self) -> None:
        self.bytes, self._running = 0, True
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while self._running:
            self.bytes = max(self.bytes, anonymous_bytes())
            time.sleep(EVERY_S)

    def begin(self) -> int:
        self.bytes = anonymous_bytes()
        return self.bytes

    def end(self, base: int) -> int:
        return max(self.bytes, anonymous_bytes()) - base


def measure(model: Path, folder: Path, tokens: int, threads: int, ram_mib: int = 0) -> dict[str, float]:
    """Bytes above the idle engine while saving and while restoring; `state` and `arena` for comparison."""
    engine = load(model, EngineOptions(ctx_size=tokens + 512, threads=threads), digest="b3:" + "0" * 64)
    texts = [
        text_of(lambda text: len(engine.vocabulary.tokenize(text, special=False)), size, seed)
        for seed, size in enumerate((64, tokens - 200))
    ]
    # A small conversation first: what llama.cpp, Python and the thread take for themselves is the idle engine's.
    with_small = chat_in(engine, folder / "small", ram_mib=ram_mib)
    with_small.turn(texts[0], options(2), Watch())
    with_small.finish()
    engine.read([65] * min(600, tokens))
    engine.clear()
    peak = Peak()
    base = peak.begin()
    chat = chat_in(engine, folder / "data", ram_mib=ram_mib)
    chat.start("long")
    chat.turn(texts[1], options(2), Watch()).ticket.done.wait()
    chat.finish()
    saved, state = peak.end(base), len(engine.tokens)
    engine.clear()
    del chat
    peak.begin()
    stand_at(chat_in(engine, folder / "data", save=False, ram_mib=ram_mib), "long", "And then?")
    restored, arena = peak.end(base), engine.state.arena.limit_bytes
    assert len(engine.tokens) > tokens // 2
    engine.close()
    return {"save": float(saved), "restore": float(restored), "arena": float(arena), "tokens": float(state)}


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))

"""The directory's own figures (D): looking at many conversations against parsing their heads; the deepest match."""

import json
import random
import shutil
import time
from itertools import pairwise

from ..engine import Memory
from ..head import Head, SegmentRef, StateRef
from ..identity import Identity, prefix_hashes
from ..log import Line
from ..match import boundaries
from ..report import scan
from ..segment import Draft, Kind
from ..shelf import Shelf
from ..store import Store
from .desk import Desk
from .result import Figures
from .runner import STRATA, Trial

ROOTS, ROOT_TOKENS, TURN_TOKENS, TURNS = 20, 30, 60, 3
IDENTITY = Identity("b3:" + "0" * 64, (), "f16", "f16", False, {"freq_base": 1e4}, 3, {"recipe": 1})
ATTENTION = Memory(has_rows=True, has_parts=False, recurrent=False, window_tokens=0)


def crowd(desk: Desk) -> Trial:
    return _directory_of(desk, 1_000, "D")


def crowd10(desk: Desk) -> Trial:
    return _directory_of(desk, 10_000, "D10")


def _directory_of(desk: Desk, count: int, name: str) -> Trial:
    from .desk import open_store
    from .unflushed import UnflushedFiles

    folder = desk.new_folder()
    chosen = random.Random(1)
    made = [_tokens(chosen, number) for number in range(count)]
    filling = open_store(folder, UnflushedFiles())
    for number, tokens in enumerate(made):
        _write(filling, f"many-{number:05}", tokens)

    def looked() -> Figures:
        store = open_store(folder)
        begun = time.perf_counter()
        scan(store, now_iso=store.clock())
        looked_ms = (time.perf_counter() - begun) * 1000
        tokens = chosen.choice(made)
        begun = time.perf_counter()
        found = boundaries(Shelf.of_disk(store), IDENTITY.digest, tokens, ATTENTION, len(tokens) - 1)
        match_ms = (time.perf_counter() - begun) * 1000
        assert found[0].position == len(tokens) - 1
        return {"ms": looked_ms, "match_ms": match_ms}

    def parsed() -> Figures:
        begun = time.perf_counter()
        for path in (folder / "conversations").iterdir():
            if path.suffix == ".json":
                json.loads(path.read_bytes())
        return {"ms": (time.perf_counter() - begun) * 1000}

    return Trial(
        sides={STRATA: looked, "parse": parsed},
        ratios={name: lambda s: s[STRATA]["ms"] / s["parse"]["ms"]},
        where=lambda s: {"looked_ms": s[STRATA]["ms"], "match_ms": s[STRATA]["match_ms"], "parse_ms": s["parse"]["ms"]},
        tokens=count,
        close=lambda: shutil.rmtree(folder, ignore_errors=True),
    )


def _tokens(chosen: random.Random, number: int) -> list[int]:
    return [number % ROOTS] * ROOT_TOKENS + [chosen.randrange(30_000) for _ in range(TURNS * TURN_TOKENS)]


def _write(store: Store, name: str, tokens: list[int]) -> None:
    ends = [0, *range(ROOT_TOKENS, len(tokens) + 1, TURN_TOKENS)]
    hashes = prefix_hashes(IDENTITY.digest, tokens, ends)
    refs: list[SegmentRef] = []
    for start, end in pairwise(ends):
        draft = Draft(Kind.ROWS, start, end, hashes[start], hashes[end], tokens[start:end], {})
        refs.append(store.write_segment(draft, [b"rows"])[0])
    moment = store.clock()
    lines = [
        Line(
            n,
            n - 1 or None,
            "message",
            moment,
            {"role": ("assistant", "user")[n % 2], "content": "some words " * 20},
            (n,) * 40,
        )
        for n in range(1, 2 * TURNS + 1)
    ]
    store.append_log(name, lines)
    state = {IDENTITY.digest.hex(): StateRef(IDENTITY.fields(), tuple(refs), (), len(tokens))}
    store.write_head(Head(name, "named", "0" * 16, "words", created=moment, updated=moment, last_turn=moment,
                          turns=TURNS, tokens=len(tokens), states=state))  # fmt: skip

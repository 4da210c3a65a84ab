"""The engine on the four kinds of memory, held against llama.cpp's own save and restore.

Logits are compared bit for bit, always after the same batch split. A sliding window's cells lie elsewhere after any
restore, so its yardstick is the native restore of the same tokens and not the run that was never interrupted.
"""

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from engine_tools import FAMILIES, GREEDY, KINDS, Engines, greedy, logits, native_restore, text_tokens, whole

from strata_cli.engine import Cancelled, EngineFailed, EngineOptions, Memory, Rebuild, Sampling
from strata_cli.errors import Interrupted, ModelUnavailable, NoRoom, UsageProblem
from strata_cli.llama_engine import check_gguf, load, load_vocabulary
from strata_cli.llama_engine.live import LlamaEngine
from strata_cli.reply import ReplyOptions, write_reply

EDGES = (0, 70, 131, 150, 190)  # of ranges: one longer than the window of 64, the others shorter
NEXT = text_tokens(5, seed=99)


@pytest.fixture(scope="module")
def engines(tiny: Callable[..., Path]) -> Iterator[Engines]:
    made = Engines(tiny)
    yield made
    made.close()


@pytest.fixture(params=FAMILIES)
def engine(request: pytest.FixtureRequest, engines: Engines) -> LlamaEngine:
    return engines(request.param)


@dataclass
class Stored:
    """One history, captured range by range as a directory would hold it; `native[end]` is the whole state there."""

    tokens: list[int]
    rows: dict[int, bytes] = field(default_factory=dict)  # by end
    parts: dict[int, bytes] = field(default_factory=dict)
    native: dict[int, bytes] = field(default_factory=dict)


def joined(piece: memoryview | None) -> bytes:
    return b"" if piece is None else bytes(piece)


def store(engine: LlamaEngine, tokens: list[int], edges: Sequence[int] = EDGES) -> Stored:
    """Read `tokens` and capture at each edge."""
    engine.clear()
    stored = Stored(tokens)
    for start, end in itertools.pairwise(edges):
        engine.read(tokens[start:end])
        captured = engine.capture(start, end)
        if captured.rows:
            stored.rows[end] = joined(captured.rows)
        if captured.part:
            stored.parts[end] = joined(captured.part)
        stored.native[end] = whole(engine)
    return stored


def needed_parts(stored: Stored, position: int, memory: Memory, edges: Sequence[int] = EDGES) -> list[bytes]:
    """The boundary's own part and, with a window, all that cover the window's tokens before it."""
    if not memory.has_parts:
        return []
    if not memory.window_tokens:
        return [stored.parts[position]]
    first = max(0, position - memory.window_tokens)
    return [stored.parts[end] for end in edges[1:] if first < end <= position]


def next_logits(engine: LlamaEngine) -> np.ndarray:
    engine.read(NEXT)
    return logits(engine)


def native_logits(engine: LlamaEngine, stored: Stored, position: int) -> np.ndarray:
    native_restore(engine, stored.native[position], stored.tokens[:position])
    return next_logits(engine)


# -- what the memory is


@pytest.mark.parametrize("family", FAMILIES)
def test_memory_is_asked_of_the_engine(engines: Engines, family: str) -> None:
    memory = engines(family).memory
    assert memory.kind == KINDS[family]
    assert memory.window_tokens == (64 if family == "gemma3" else 0)
    assert memory.has_rows == (family != "mamba")
    assert memory.has_parts == (family != "llama")


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_replies_vary(engines: Engines, family: str) -> None:
    """Without this, equal replies would prove nothing: 10 distinct of 30, and others for other prompts."""
    engine, replies = engines(family), []
    for question in ("Who are you?", "Who are they?", "Tell me of the number 7 and its ways.", "And in winter?"):
        chat = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        engine.clear()
        engine.read(engine.vocabulary.tokenize(chat, special=True))
        replies.append(tuple(greedy(engine, 30)))
    assert all(len(set(reply)) >= 10 for reply in replies), [len(set(reply)) for reply in replies]
    assert len(set(replies)) == len(replies)


# -- capture and rebuild


def test_ranges_rebuilt_equal_the_native_save(engine: LlamaEngine) -> None:
    """Bytes, logits and greedy tokens; for a window the bytes are equal up to the order of rows."""
    tokens = text_tokens(EDGES[-1])
    stored = store(engine, tokens)
    expected = native_logits(engine, stored, EDGES[-1])
    expected_tokens = greedy(engine, 20)

    engine.clear()
    engine.rebuild(Rebuild(tokens, 0, list(stored.rows.values()), needed_parts(stored, EDGES[-1], engine.memory)))
    again = whole(engine)
    if engine.memory.kind == "window":
        assert len(again) == len(stored.native[EDGES[-1]])
    else:
        assert again == stored.native[EDGES[-1]]
    assert list(engine.tokens) == tokens
    assert np.array_equal(next_logits(engine), expected)
    assert greedy(engine, 20) == expected_tokens


@pytest.mark.parametrize("family", ["llama", "lfm2", "mamba"])
def test_A11_rebuilt_equals_never_interrupted(engines: Engines, family: str) -> None:
    engine, tokens = engines(family), text_tokens(EDGES[-1])
    stored = store(engine, tokens)
    expected = next_logits(engine)
    expected_tokens = greedy(engine, 30)
    engine.clear()
    engine.rebuild(Rebuild(tokens, 0, list(stored.rows.values()), needed_parts(stored, EDGES[-1], engine.memory)))
    assert np.array_equal(next_logits(engine), expected)
    assert greedy(engine, 30) == expected_tokens


def test_a_part_is_written_once(engine: LlamaEngine) -> None:
    """A turn's window part holds its own rows and never the whole window; recurrent parts have one size."""
    stored = store(engine, text_tokens(EDGES[-1]))
    sizes = {end: len(part) for end, part in stored.parts.items()}
    if engine.memory.kind == "attention":
        assert not sizes
    elif engine.memory.kind == "window":
        assert sizes[150] < sizes[190] < sizes[131] <= sizes[70]
        per_token = (sizes[190] - sizes[150]) / 21
        assert sizes[150] < per_token * 19 + 1024
    else:
        assert len(set(sizes.values())) == 1


def test_capturing_changes_nothing(engine: LlamaEngine) -> None:
    tokens = text_tokens(150)
    engine.read(tokens)
    before = whole(engine)
    for start, end in ((0, 150), (70, 150), (149, 150)):
        engine.capture(start, end)
    engine.capture(100, 150, rows=False)
    assert whole(engine) == before
    assert list(engine.tokens) == tokens


def test_a_range_that_ends_earlier_gives_the_same_rows(engines: Engines) -> None:
    """On an attention memory rows can be taken late: the root's, after the reply."""
    engine, tokens = engines("llama"), text_tokens(150)
    engine.read(tokens[:70])
    early = joined(engine.capture(0, 70).rows)
    engine.read(tokens[70:])
    assert joined(engine.capture(0, 70).rows) == early


def test_chunks_cover_a_range_larger_than_the_arena(engines: Engines) -> None:
    engine, tokens = engines("fat", ctx_size=1024), text_tokens(800)
    engine.read(tokens)
    chunks = engine.chunks(0, 800)
    assert len(chunks) >= 2
    assert chunks[0][0] == 0 and chunks[-1][1] == 800
    assert all(a[1] == b[0] for a, b in itertools.pairwise(chunks))
    rows = []
    for start, end in chunks:
        captured = engine.capture(start, end)
        rows.append(joined(captured.rows))
        assert len(rows[-1]) <= 64 << 20
    expected = next_logits(engine)
    engine.clear()
    engine.rebuild(Rebuild(tokens, 0, rows))
    assert np.array_equal(next_logits(engine), expected)


# -- keep, apply, cut, parts: all combinations


def branch_at(engine: LlamaEngine, stored: Stored, position: int, extra: int) -> None:
    """Bring the engine onto another branch that leaves the stored one at `position`."""
    engine.clear()
    for start, end in itertools.pairwise(e for e in EDGES if e <= position):
        engine.read(stored.tokens[start:end])
    if extra:
        engine.read(text_tokens(extra, seed=7 + position))


COMBINATIONS = [
    pytest.param(family, branch, extra, keep, target, id=f"{family}-live{branch}+{extra}-keep{keep}-to{target}")
    for family in FAMILIES
    for branch in EDGES
    for extra in (0, 5, 90)
    if branch + extra
    for keep in (e for e in EDGES if e <= branch)
    for target in EDGES[1:]
    if target >= keep and not (keep and family == "mamba")  # a recurrent memory has no rows to keep
]


@pytest.mark.parametrize(("family", "branch", "extra", "keep", "target"), COMBINATIONS)
def test_rebuild_keeps_applies_cuts_and_puts_parts(
    engines: Engines, family: str, branch: int, extra: int, keep: int, target: int
) -> None:
    engine = engines(family)
    memory = engine.memory
    stored = stored_once(engines, family)
    expected = expected_once(engines, family, target)
    branch_at(engine, stored, branch, extra)
    rows = [stored.rows[end] for end in EDGES[1:] if keep < end <= target] if memory.has_rows else []
    engine.rebuild(Rebuild(stored.tokens[:target], keep, rows, needed_parts(stored, target, memory)))
    assert list(engine.tokens) == stored.tokens[:target]
    assert np.array_equal(next_logits(engine), expected)


@pytest.mark.parametrize("family", ["llama", "gemma3", "lfm2"])
@pytest.mark.parametrize("keep", [0, 70])
@pytest.mark.parametrize("extra", [5, 90])
def test_rows_that_reach_beyond_the_target_are_cut(engines: Engines, family: str, keep: int, extra: int) -> None:
    """Boundary 100 has a part of its own, and the rows lie in one file of [70, 190)."""
    engine = engines(family)
    memory, edges = engine.memory, (0, 70, 100, 190)
    tokens = text_tokens(190)
    stored = store(engine, tokens, edges)
    late = joined(engine.capture(70, 190).rows)
    expected = native_logits(engine, stored, 100)
    engine.clear()
    engine.read(tokens[:70])
    engine.read(text_tokens(extra, seed=8))
    rows = [late] if keep else [stored.rows[70], late]
    engine.rebuild(Rebuild(tokens[:100], keep, rows, needed_parts(stored, 100, memory, edges)))
    assert np.array_equal(next_logits(engine), expected)


_STORED: dict[tuple[int, str], Stored] = {}
_EXPECTED: dict[tuple[int, str, int], np.ndarray] = {}


def stored_once(engines: Engines, family: str) -> Stored:
    key = (id(engines), family)
    if key not in _STORED:
        _STORED[key] = store(engines(family), text_tokens(EDGES[-1]))
    return _STORED[key]


def expected_once(engines: Engines, family: str, target: int) -> np.ndarray:
    key = (id(engines), family, target)
    if key not in _EXPECTED:
        _EXPECTED[key] = native_logits(engines(family), stored_once(engines, family), target)
    return _EXPECTED[key]


@pytest.mark.parametrize("family", ["gemma3"])
def test_a_window_without_one_of_its_parts_is_refused(engines: Engines, family: str) -> None:
    """With one missing the replies would be wrong and nothing would say so."""
    engine = engines(family)
    stored = stored_once(engines, family)
    parts = needed_parts(stored, 190, engine.memory)
    assert len(parts) == 3
    for missing in range(2):
        engine.clear()
        left = [part for i, part in enumerate(parts) if i != missing]
        if missing == 0:
            with pytest.raises(EngineFailed):
                engine.rebuild(Rebuild(stored.tokens, 0, list(stored.rows.values()), left))
            assert list(engine.tokens) == []


def test_a_torn_state_empties_the_engine(engine: LlamaEngine) -> None:
    """Nothing unverified reaches llama.cpp; where it refuses bytes all the same, the engine is empty and sound."""
    stored = store(engine, text_tokens(EDGES[-1]))
    tokens = stored.tokens[:70]
    source = stored.rows if engine.memory.has_rows else stored.parts
    for torn in (source[70][:-5], source[70][: len(source[70]) // 2], source[70][:9], b"\0" * len(source[70])):
        rows, parts = ([torn], needed_parts(stored, 70, engine.memory)) if stored.rows else ([], [torn])
        store(engine, stored.tokens)
        with pytest.raises(EngineFailed):
            engine.rebuild(Rebuild(tokens, 0, rows, parts))
        assert list(engine.tokens) == []
        assert engine.state.position() == 0
    engine.read(tokens)
    assert np.array_equal(next_logits(engine), native_logits(engine, stored, 70))


# -- going back


@pytest.mark.parametrize("family", FAMILIES)
def test_can_cut(engines: Engines, family: str) -> None:
    engine = engines(family, batch_size=32)
    engine.read(text_tokens(900))
    assert engine.can_cut(900) and engine.can_cut(0)
    possible = [p for p in range(1, 900) if engine.can_cut(p)]
    if family == "llama":
        assert len(possible) == 899
    elif family == "gemma3":
        # Cells behind the window are used again by later batches: what is left reaches back a little.
        assert possible == list(range(possible[0], 900))
        assert 600 < possible[0] < 899
    else:
        assert possible == []


@pytest.mark.parametrize("family", FAMILIES)
def test_C06_a_cut_that_is_allowed_answers_rightly(engines: Engines, family: str) -> None:
    """Also at the earliest position allowed: the answer is that of an engine that never went further."""
    engine, tokens = engines(family, batch_size=32), text_tokens(900)
    engine.read(tokens)
    positions = [p for p in range(1, 900) if engine.can_cut(p)]
    for position in {positions[0], positions[len(positions) // 2], positions[-1]} if positions else ():
        engine.clear()
        for start in range(0, position, 32):
            engine.read(tokens[start : min(start + 32, position)])
        saved = whole(engine)
        expected = next_logits(engine)
        if engine.memory.kind == "window":
            native_restore(engine, saved, tokens[:position])
            expected = next_logits(engine)
        engine.clear()
        engine.read(tokens)
        engine.cut(position)
        assert list(engine.tokens) == tokens[:position]
        # The batches were split elsewhere, which moves the last digits; a missing row would move whole numbers.
        assert np.allclose(next_logits(engine), expected, rtol=0, atol=0.1)
        assert np.argmax(logits(engine)) == np.argmax(expected)


def test_going_back_in_place_moves_no_rows(engine: LlamaEngine) -> None:
    """To a boundary of its own past, with its part alone (design: "Going back")."""
    stored = store(engine, text_tokens(EDGES[-1]))
    for target in (150, 70):
        if engine.memory.has_rows and engine.memory.has_parts:
            expected = native_logits(engine, stored, target)
            store(engine, stored.tokens)
            engine.read(text_tokens(33, seed=4))
            engine.rebuild(Rebuild(stored.tokens[:target], target, (), needed_parts(stored, target, engine.memory)))
        elif engine.memory.has_parts:
            expected = native_logits(engine, stored, target)
            store(engine, stored.tokens)
            engine.rebuild(Rebuild(stored.tokens[:target], 0, (), [stored.parts[target]]))
        else:
            engine.clear()
            for start, end in itertools.pairwise(e for e in EDGES if e <= target):
                engine.read(stored.tokens[start:end])
            expected = next_logits(engine)
            engine.cut(target)
            engine.read(text_tokens(33, seed=4))
            engine.cut(target)
        assert np.array_equal(next_logits(engine), expected)


# -- limits and failures


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ctx_size", [256, 300])
def test_C23_a_full_context_is_captured_and_filled_again(engines: Engines, family: str, ctx_size: int) -> None:
    engine = engines(family, ctx_size=ctx_size)
    assert engine.context_tokens == ctx_size
    tokens, edges = text_tokens(ctx_size), (0, 120, 200, ctx_size)
    stored = store(engine, tokens, edges)
    assert len(engine.tokens) == ctx_size
    with pytest.raises(NoRoom):
        engine.read([70])
    for target in (ctx_size, 200):
        engine.rebuild(
            Rebuild(
                tokens[:target],
                0,
                [stored.rows[end] for end in edges[1:] if end <= target] if stored.rows else [],
                needed_parts(stored, target, engine.memory, edges),
            )
        )
        assert engine.state.position() == target
    engine.read(tokens[200:-1])
    engine.read(tokens[-1:])
    assert len(engine.tokens) == ctx_size
    assert np.isfinite(logits(engine)).all()
    with pytest.raises(NoRoom):
        engine.read([70])


def test_a_load_that_is_interrupted_says_so_and_does_not_blame_the_file(tiny: Callable[..., Path]) -> None:
    """llama.cpp reports it as a file that cannot be loaded."""
    for answers in ([True], [False, True], [False, False, True]):
        asked = iter(answers)
        with pytest.raises(Interrupted):
            load(tiny("llama"), EngineOptions(), digest="b3:0", cancelled=lambda asked=asked: next(asked, True))


def test_cancel_between_two_batches_keeps_what_was_read(engines: Engines) -> None:
    for family in FAMILIES:
        engine, tokens = engines(family, batch_size=32), text_tokens(200)
        asked: list[int] = []
        told: list[tuple[int, int]] = []
        with pytest.raises(Cancelled):
            engine.read(
                tokens,
                progress=lambda done, total, told=told: told.append((done, total)),
                cancelled=lambda asked=asked: asked.append(0) or len(asked) > 2,
            )
        assert list(engine.tokens) == tokens[:64]
        assert told == [(32, 200), (64, 200)]
        engine.read(tokens[64:])
        resumed = logits(engine)
        engine.clear()
        engine.read(tokens)
        assert np.array_equal(logits(engine), resumed)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_failed_decode_leaves_the_engine_true(engines: Engines, family: str) -> None:
    """llama.cpp's own abort, in the middle of a batch: what it leaves on a recurrent memory cannot be used."""
    engine, tokens = engines(family, batch_size=64), text_tokens(200)
    lc = engine._lc
    stop = {"now": False}
    abort = lc.ggml_abort_callback(lambda _: stop["now"])
    lc.llama_set_abort_callback(engine._context, abort, ctypes.c_void_p(0))
    try:
        engine.read(tokens[:128])

        def progress(done: int, _: int) -> None:
            stop["now"] = done >= 64

        with pytest.raises(EngineFailed):
            engine.clear()
            engine.read(tokens, progress=progress)
        held = list(engine.tokens)
        assert held == ([] if engine.memory.has_parts else tokens[:64])
        assert engine.state.position() == len(held)
    finally:
        stop["now"] = False
        lc.llama_set_abort_callback(engine._context, lc.ggml_abort_callback(0), ctypes.c_void_p(0))
    engine.read(tokens[len(held) :])
    found = logits(engine)
    engine.clear()
    engine.read(tokens)
    assert np.array_equal(logits(engine), found)


# -- sampling


def test_the_same_seed_gives_the_same_tokens(engines: Engines) -> None:
    engine, tokens = engines("llama"), text_tokens(50)

    def drawn(sampling: Sampling) -> list[int]:
        engine.clear()
        engine.read(tokens)
        engine.start_sampling(sampling)
        found = []
        for _ in range(20):
            found.append(engine.sample())
            engine.read(found[-1:])
        return found

    hot = Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=5)
    assert drawn(hot) == drawn(hot)
    assert drawn(hot) != drawn(Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=6))
    assert drawn(Sampling(temperature=0)) == drawn(GREEDY)
    assert drawn(Sampling(temperature=1.5, top_k=1)) == drawn(GREEDY)


# -- replies


def reply_of(engine: LlamaEngine, prompt: list[int], stops: Sequence[str] = (), limit: int = 60) -> tuple:
    engine.clear()
    engine.read(prompt)
    shown: list[str] = []
    reply = write_reply(engine, ReplyOptions(GREEDY, limit, stops), show=shown.append, cancelled=lambda: False)
    assert "".join(shown) == reply.text
    return reply, shown


def test_C55_no_half_character_is_shown(engines: Engines) -> None:
    """Tiny replies are noise, a third of it no UTF-8: what is shown is what the whole decodes to."""
    engine = engines("llama")
    for seed in range(5):
        reply, _ = reply_of(engine, text_tokens(30, seed))
        raw = b"".join(engine.vocabulary.piece(token) for token in reply.tokens)
        assert reply.text == raw.decode("utf-8", errors="replace")


def test_a_stop_text_ends_the_reply_and_is_not_shown(engines: Engines) -> None:
    engine, prompt = engines("llama"), text_tokens(30, 3)
    free, _ = reply_of(engine, prompt)
    plain = [i for i in range(3, len(free.text) - 2) if free.text[i : i + 2].isascii() and free.text[i : i + 2].strip()]
    at = plain[0]
    stop = free.text[at : at + 2]
    reply, shown = reply_of(engine, prompt, ["never said", stop])
    assert reply.finish == "stop"
    assert reply.text == free.text[: free.text.index(stop)]
    assert all(stop not in piece for piece in shown)
    assert reply.tokens == free.tokens[: len(reply.tokens)]
    assert list(engine.tokens)[: 30 + len(reply.tokens)] == [*prompt, *reply.tokens][: len(engine.tokens)]


def test_the_last_token_of_a_reply_is_not_read(engines: Engines) -> None:
    engine, prompt = engines("llama"), text_tokens(30, 3)
    reply, _ = reply_of(engine, prompt, limit=10)
    assert reply.finish == "length" and len(reply.tokens) == 10
    assert list(engine.tokens) == [*prompt, *reply.tokens[:-1]]


def test_a_reply_ends_where_the_context_does(engines: Engines) -> None:
    for family in FAMILIES:
        engine = engines(family, ctx_size=256)
        reply, _ = reply_of(engine, text_tokens(250, 3), limit=0)
        assert reply.finish in ("length", "stop")
        if reply.finish == "length":
            assert len(engine.tokens) == 256 and len(reply.tokens) == 7


def test_a_reply_that_is_cancelled_keeps_what_was_said(engines: Engines) -> None:
    engine, prompt = engines("lfm2"), text_tokens(30, 3)
    engine.read(prompt)
    asked: list[int] = []
    reply = write_reply(
        engine, ReplyOptions(GREEDY, 60), show=lambda _: None, cancelled=lambda: asked.append(0) or len(asked) > 5
    )
    assert reply.finish == "interrupted" and len(reply.tokens) == 5
    assert list(engine.tokens) == [*prompt, *reply.tokens]


# -- identity


@pytest.mark.parametrize("family", FAMILIES)
def test_C13_flash_attention_decides_whether_v_is_transposed(engines: Engines, family: str) -> None:
    on, off = engines(family, flash_attn="on"), engines(family, flash_attn="off")
    assert on.identity.v_transposed is False
    assert off.identity.v_transposed is (family != "mamba")
    assert (on.identity.digest != off.identity.digest) is (family != "mamba")
    assert on.identity.digest == engines(family, flash_attn="on", ctx_size=512).identity.digest


@pytest.mark.parametrize(
    "options",
    [
        {"cache_type_k": "q8_0"},
        {"cache_type_k": "q8_0", "cache_type_v": "q8_0"},
        {"cache_type_k": "f32"},
        {"rope_freq_base": 5e5},
        {"rope_freq_scale": 0.5},
    ],
    ids=str,
)
def test_C13_what_changes_the_state_changes_the_identity(engines: Engines, options: dict[str, object]) -> None:
    plain = engines("llama").identity
    other = engines("llama", **options).identity
    assert other.digest != plain.digest
    assert engines("llama", seed=1).identity.digest != plain.digest


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("types", [("q8_0", "q8_0"), ("q8_0", None), ("f32", "f32")], ids=str)
@pytest.mark.parametrize("flash", ["on", None])
def test_quantised_caches_are_rebuilt(
    engines: Engines, family: str, types: tuple[str, str | None], flash: str | None
) -> None:
    options = {k: v for k, v in zip(("cache_type_k", "cache_type_v"), types, strict=True) if v}
    engine = engines(family, **options, **({"flash_attn": flash} if flash else {}))
    stored = store(engine, text_tokens(EDGES[-1]))
    expected = native_logits(engine, stored, 190)
    engine.clear()
    engine.rebuild(Rebuild(stored.tokens, 0, list(stored.rows.values()), needed_parts(stored, 190, engine.memory)))
    assert np.array_equal(next_logits(engine), expected)


def test_an_adapter_is_part_of_the_identity(tiny: Callable[..., Path]) -> None:
    base, adapter = tiny("llama"), tiny("lora")
    identities, says = [], []
    for scale in (None, 1.0, 0.5):
        loras = () if scale is None else ((str(adapter), scale),)
        engine = load(
            base, EngineOptions(ctx_size=256, loras=loras), digest="b3:00", adapter_digests=["b3:11"] * len(loras)
        )
        engine.read(text_tokens(20))
        says.append(logits(engine))
        identities.append(engine.identity.digest)
        engine.close()
    assert len(set(identities)) == 3
    assert not np.array_equal(says[0], says[1]) and not np.array_equal(says[1], says[2])


# -- the vocabulary


def test_pieces_are_bytes_and_ends_print_nothing(engines: Engines) -> None:
    vocabulary = engines("llama").vocabulary
    ids = vocabulary.tokenize("é", special=False)
    assert b"".join(vocabulary.piece(token) for token in ids) == "é".encode() and len(ids) == 2
    end = vocabulary.tokenize("<|im_end|>", special=True)
    assert len(end) == 1 and vocabulary.is_end(end[0]) and vocabulary.piece(end[0]) == b""
    assert len(vocabulary.tokenize("<|im_end|>", special=False)) == 10
    think = vocabulary.tokenize("<think>", special=True)
    assert len(think) == 1 and vocabulary.piece(think[0]) == b"<think>"


@pytest.mark.parametrize("text", ["", " ", "\n\n", "a\x00b", "漢字 🙂 é", "  two  spaces  ", "x" * 5000])
def test_text_survives_the_tokenizer(engines: Engines, text: str) -> None:
    vocabulary = engines("llama").vocabulary
    ids = vocabulary.tokenize(text, special=False)
    assert b"".join(vocabulary.piece(token) for token in ids).decode() == text


def test_the_vocabulary_alone_is_the_same(tiny: Callable[..., Path], engines: Engines) -> None:
    engine = engines("llama")
    alone, _ = load_vocabulary(engine.model.path)
    assert alone.digest == engine.vocabulary.digest and len(alone) == len(engine.vocabulary)


# -- what cannot be loaded


def refused(path: Path, **options: object) -> str:
    with pytest.raises(ModelUnavailable) as raised:
        load(path, EngineOptions(ctx_size=256, **options), digest="b3:00").close()  # type: ignore[arg-type]
    assert raised.value.exit_code == 14 and "\n" not in raised.value.message
    return raised.value.message


def test_what_cannot_be_loaded_says_why(tmp_path: Path, tiny: Callable[..., Path]) -> None:
    good = tiny("llama").read_bytes()
    assert "no such file" in refused(tmp_path / "missing.gguf")
    assert "folder" in refused(tmp_path)
    (tmp_path / "text.gguf").write_text("not a model")
    assert "not a GGUF" in refused(tmp_path / "text.gguf")
    (tmp_path / "empty.gguf").write_bytes(b"")
    assert "not a GGUF" in refused(tmp_path / "empty.gguf")
    for size in (4, 24, 1000, len(good) // 2, len(good) - 1):
        cut = tmp_path / f"cut-{size}.gguf"
        cut.write_bytes(good[:size])
        assert "cannot be loaded" in refused(cut)


def test_a_fifo_does_not_hang(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelUnavailable):
        check_gguf(tmp_path / "pipe")


def test_an_adapter_of_another_shape_is_refused(tiny: Callable[..., Path]) -> None:
    assert "adapter" in refused(tiny("lfm2"), loras=((str(tiny("lora")), 1.0),))


@pytest.mark.parametrize(
    "options",
    [
        {"cache_type_k": "q9"},
        {"cache_type_v": "q8_0", "flash_attn": "off"},
        {"flash_attn": "perhaps"},
        {"split_mode": "diagonal"},
    ],
    ids=str,
)
def test_options_that_cannot_be_are_usage(tiny: Callable[..., Path], options: dict[str, object]) -> None:
    with pytest.raises(UsageProblem):
        load(tiny("llama"), EngineOptions(**options), digest="b3:00")  # type: ignore[arg-type]

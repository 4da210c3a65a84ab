"""Trials on a chat model: a restart (W1 to W3), a known root (W5), the last reply again (W11), equal replies (W13).

A restart is a new chat on an emptied engine: nothing is verified, nothing is in memory, the files are in the page
cache. The engine itself stays loaded, since W1 and W2 count from there.
"""

import time
from collections.abc import Callable
from pathlib import Path

from ..conversation import Chat
from ..going_back import retry_text
from ..llama_engine import rivals
from ..llama_engine.live import LlamaEngine
from ..turn import TurnResult, Watch
from .desk import GREEDY, Desk, chat_in, converse, options, stand_at, without_state
from .result import Figures
from .runner import STRATA, Trial

TURN_TOKENS, ANSWERED_TOKENS = 200, 48
HISTORY_TOKENS, HISTORY_TURNS = 15_300, 6
NEW_TOKENS, AGAIN_TOKENS, EQUAL_TOKENS = 6_000, 6_000, 2_400
NAME = "bench"


def restart(desk: Desk) -> Trial:
    """W1, W2, W3: one conversation, then one more turn, cold, restored and without a restart."""
    history = desk.tokens(HISTORY_TOKENS)
    engine = desk.engine("chat", history + TURN_TOKENS + 2 * ANSWERED_TOKENS + 512)
    texts = [desk.text(engine, history // HISTORY_TURNS - 24, seed) for seed in range(HISTORY_TURNS)]
    root, question = desk.new_folder(), desk.text(engine, TURN_TOKENS, 99)
    held = converse(engine, root, NAME, texts)
    text_alone = without_state(root, desk.new_folder())

    def cold() -> Figures:
        engine.clear()
        return _turn(engine, text_alone, question)

    def restored() -> Figures:
        engine.clear()
        return _turn(engine, root, question)

    def warm() -> Figures:
        engine.clear()
        stand_at(chat_in(engine, root, save=False), NAME, question)
        return _turn(engine, root, question)

    for side in (restored, warm):  # the warm-up; reading the conversation was that of `cold`
        side()
    sides: dict[str, Callable[[], Figures]] = {"cold": cold, STRATA: restored, "warm": warm}
    controls, close = _rivals(desk, engine, root, question) if desk.rivals else ({}, lambda: None)
    return Trial(
        sides={**sides, **controls},
        ratios={
            "W1": lambda s: s["cold"]["first_ms"] / s[STRATA]["first_ms"],
            "W2": lambda s: s[STRATA]["turn_ms"] / s["warm"]["turn_ms"],
            "W3": lambda s: s[STRATA]["reused"] / s[STRATA]["could"],
        },
        controls={
            "W1": {
                "warm": lambda s: s["cold"]["first_ms"] / s["warm"]["first_ms"],
                **{name: _cold_over(name) for name in controls},
            }
        },
        needs={"W2": (STRATA, "warm"), "W3": (STRATA,)},
        where=lambda s: {name: s[STRATA][name] for name in ("open_ms", "restore_ms", "first_ms", "turn_ms", "share")},
        tokens=held,
        warmups=0,
        close=close,
    )


def _cold_over(name: str) -> Callable[..., float]:
    return lambda s: s["cold"]["first_ms"] / s[name]["first_ms"]


def _turn(engine: LlamaEngine, root: Path, question: str) -> Figures:
    """One turn of a process that has the engine loaded and nothing else, without keeping anything of it."""
    shown: list[float] = []
    begun = time.perf_counter()
    chat = chat_in(engine, root, save=False)
    chat.open(NAME)
    opened = time.perf_counter()
    watch = Watch(show=lambda _: shown.append(time.perf_counter()))
    result = chat.turn(question, options(ANSWERED_TOKENS), watch)
    ended = time.perf_counter()
    could = result.prompt_tokens - _new_tokens(chat, result)
    return {
        "first_ms": ((shown[0] if shown else ended) - begun) * 1000,
        "turn_ms": (ended - begun) * 1000,
        "open_ms": (opened - begun) * 1000,
        "restore_ms": result.restored.ms,
        "reused": float(result.reused_tokens),
        "share": result.reused_tokens / result.prompt_tokens,
        "could": float(could),
        "read": float(result.prompt_tokens - result.reused_tokens),
    }


def _new_tokens(chat: Chat, result: TurnResult) -> int:
    """Tokens of the prompt that nothing stored can hold: those behind what the engine had read a turn ago."""
    stored = max((state.tokens for state in _states(chat)), default=0)
    return result.prompt_tokens - stored if stored else 0


def _states(chat: Chat) -> list:  # type: ignore[type-arg]
    head = chat.opened.head if chat.opened else None
    return list(head.states.values()) if head else []


def _rivals(desk: Desk, engine: LlamaEngine, root: Path, question: str):  # type: ignore[no-untyped-def]
    """The same turn with llama.cpp's whole file, llama-cpp-python's disk cache, and llama-server where there is one."""
    engine.clear()  # it holds the turn of the warm-up, and the question with it
    chat = chat_in(engine, root, save=False)
    stand_at(chat, NAME, question)
    prompt, held = list(chat.prompt_for(question).tokens), list(engine.tokens)
    file = desk.new_folder().with_suffix(".bin")
    engine.save_file(file)

    def whole_file() -> Figures:
        engine.clear()
        begun = time.perf_counter()
        rivals.load_file(engine, file, held)
        engine.read(prompt[len(held) :])
        engine.start_sampling(GREEDY)
        engine.sample()
        return {"first_ms": (time.perf_counter() - begun) * 1000, "read": float(len(prompt) - len(held))}

    disk = rivals.DiskCache(desk.model_path("chat"), desk.new_folder(), engine.context_tokens, desk.threads)
    disk.keep(held)
    sides = {"whole-file": whole_file, "diskcache": lambda: {"first_ms": disk.first_token_ms(prompt)}}
    closing = [disk.close]
    if desk.server is not None:
        from .server import Server

        server = Server(desk.server, desk.model_path("chat"), desk.new_folder(), engine.context_tokens, desk.threads)
        server.keep(held)
        sides["llama-server"] = lambda: {"first_ms": server.first_token_ms(prompt)}
        closing.append(server.close)
    return sides, lambda: [close() for close in closing]


def root(desk: Desk) -> Trial:
    """W5: 84 % of a new conversation's prompt is a root that another one stored."""
    prompt = desk.tokens(NEW_TOKENS)
    engine = desk.engine("chat", prompt + 1024)
    system = desk.text(engine, round(0.84 * prompt) - 16, 7)
    folder, nothing = desk.new_folder(), desk.new_folder()
    converse(engine, folder, "first", [desk.text(engine, 64, 8)], system=system)
    seed = iter(range(1000, 10_000))

    def new(where: Path, text: str) -> Figures:
        chat = chat_in(engine, where, save=False)
        chat.set_system(system)
        result = chat.turn(text, options(1), Watch())
        return {"prompt_ms": result.prompt_ms, "share": result.reused_tokens / result.prompt_tokens}

    def text() -> str:
        return desk.text(engine, round(0.16 * prompt) - 16, next(seed))

    def cold() -> Figures:
        engine.clear()
        return new(nothing, text())

    def in_process() -> Figures:
        engine.clear()
        stand_at(chat_in(engine, folder, save=False), "first", "And then?")
        return new(folder, text())

    def restarted() -> Figures:
        engine.clear()
        return new(folder, text())

    return Trial(
        sides={"cold": cold, STRATA: in_process, "restarted": restarted},
        ratios={"W5": lambda s: s["cold"]["prompt_ms"] / max(s[STRATA]["prompt_ms"], s["restarted"]["prompt_ms"])},
        controls={"W5": {"in the process": lambda s: s["cold"]["prompt_ms"] / s[STRATA]["prompt_ms"],
                         "after a restart": lambda s: s["cold"]["prompt_ms"] / s["restarted"]["prompt_ms"]}},
        where=lambda s: {"share": s["restarted"]["share"], "prompt_ms": s["restarted"]["prompt_ms"]},
        tokens=prompt,
    )  # fmt: skip


def again(desk: Desk) -> Trial:
    """W11: after a restart the last reply is given up and written again."""
    history = desk.tokens(AGAIN_TOKENS)
    engine = desk.engine("chat", history + 1024)
    texts = [desk.text(engine, history // 3 - 24, seed) for seed in range(20, 23)]
    folder = desk.new_folder()
    held = converse(engine, folder, NAME, texts, limit=24)

    def retry() -> Figures:
        engine.clear()
        chat = chat_in(engine, folder, save=False)
        chat.open(NAME)
        text = retry_text(chat)
        prompt = chat.prompt_for(text)
        result = chat.turn(text, options(8), Watch())
        return {"reused": float(result.reused_tokens), "possible": float(prompt.boundary)}

    return Trial(
        sides={STRATA: retry},
        ratios={"W11": lambda s: s[STRATA]["reused"] / s[STRATA]["possible"]},
        tokens=held,
    )


def equal(desk: Desk) -> Trial:
    """W13: two turns with a park, a switch and a restart between them, against the same without."""
    history = desk.tokens(EQUAL_TOKENS)
    engine = desk.engine("chat", history + 1024)
    seed = iter(range(2000, 10_000, 10))

    def replies() -> Figures:
        first = next(seed)
        texts = [desk.text(engine, max(32, history // 3), first + i) for i in range(3)]
        expected, got = _straight(engine, desk.new_folder(), texts), _broken(engine, desk.new_folder(), texts)
        return {"equal": float(expected == got), "turns": float(len(texts))}

    return Trial(
        sides={STRATA: replies},
        ratios={"W13": lambda s: s[STRATA]["equal"]},
        tokens=history,
        warmups=0,
        whole=True,
    )


Replies = list[tuple[int, ...]]


def _straight(engine: LlamaEngine, folder: Path, texts: list[str]) -> Replies:
    """Three turns in one process; with a window, llama.cpp's own restore before each: it lays the cells anew."""
    engine.clear()
    chat = chat_in(engine, folder)
    chat.start(NAME)
    told = []
    for text in texts:
        if engine.memory.window_tokens and engine.tokens:
            tokens, whole = list(engine.tokens), rivals.whole_state(engine)
            engine.state.clear()
            engine.state.apply(whole)
            engine._tokens[:] = tokens
        told.append(chat.turn(text, options(16), Watch()).reply_tokens)
    chat.finish()
    return told


def _broken(engine: LlamaEngine, folder: Path, texts: list[str]) -> Replies:
    """A turn, another conversation, the second turn, a restart, the third."""
    engine.clear()
    chat = chat_in(engine, folder)
    chat.start(NAME)
    told = [chat.turn(texts[0], options(16), Watch()).reply_tokens]
    chat.start("other")
    chat.turn("Something else, and short.", options(4), Watch())
    chat.open(NAME)
    told.append(chat.turn(texts[1], options(16), Watch()).reply_tokens)
    chat.finish()
    engine.clear()
    chat = chat_in(engine, folder)
    chat.open(NAME)
    told.append(chat.turn(texts[2], options(16), Watch()).reply_tokens)
    chat.finish()
    return told

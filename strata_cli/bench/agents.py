"""The trial of three agents in one slot (W4): prompts that grow, a live sequence for one, a restart in between."""

import shutil
import time
from collections.abc import Generator

from ..conversation import Chat
from ..turn import Watch
from .desk import Desk, chat_in, options
from .result import Figures
from .runner import STRATA, Trial

AGENTS, ROUNDS_BEFORE, ROUNDS_AFTER = 3, 3, 2
SYSTEM_TOKENS, FIRST_TOKENS, TURN_TOKENS, ANSWERED_TOKENS = 4_400, 16_000, 2_200, 24
SHARE = 0.4  # of the other workloads' scale: it reads fifteen prompts from nothing


def agents(desk: Desk) -> Trial:
    """Twelve later turns; a second engine reads each of their prompts from nothing."""
    rounds = ROUNDS_BEFORE + ROUNDS_AFTER
    first, turn = desk.tokens(SHARE * FIRST_TOKENS), desk.tokens(SHARE * TURN_TOKENS)
    context = first + rounds * (turn + ANSWERED_TOKENS + 32) + 256
    engine = desk.engine("chat", context)
    reader = desk.engine("chat", context, 1)
    system = desk.text(engine, desk.tokens(SHARE * SYSTEM_TOKENS), 40)
    folder = desk.new_folder()
    prompts: dict[str, tuple[int, ...]] = {}

    def turns() -> Generator[Figures, None, None]:
        chat = chat_in(engine, folder)
        for number in range(rounds):
            if number == ROUNDS_BEFORE:
                chat.finish()
                engine.clear()
                chat = chat_in(engine, folder)
            for agent in range(AGENTS):
                yield _turn(chat, agent, number)
        chat.finish()

    def _turn(chat: Chat, agent: int, number: int) -> Figures:
        name = f"agent-{agent}"
        size = turn if number else first - desk.tokens(SHARE * SYSTEM_TOKENS)
        text = desk.text(engine, size, 100 * agent + number)
        if number:
            chat.open(name)
        else:
            chat.start(name)
            chat.set_system(system)
        prompt = chat.prompt_for(text)
        prompts["last"] = prompt.tokens
        result = chat.turn(text, options(ANSWERED_TOKENS), Watch())
        evaluated = result.prompt_tokens - result.reused_tokens
        return {
            "prompt_ms": result.prompt_ms,
            "restore_ms": result.restored.ms,
            "evaluated": float(evaluated),
            "resumed": float(number > 0 and evaluated <= turn + 48),
            "reused": float(result.reused_tokens),
        }

    def cold() -> Figures:
        reader.clear()
        begun = time.perf_counter()
        reader.read(prompts["last"])
        return {"prompt_ms": (time.perf_counter() - begun) * 1000}

    steps = turns()

    def strata() -> Figures:
        return next(steps)

    def both() -> Figures:
        mine = strata()
        return {**mine, "cold_ms": cold()["prompt_ms"]}

    def close() -> None:
        steps.close()
        desk.close_engines(("chat", 1))
        shutil.rmtree(folder, ignore_errors=True)

    return Trial(
        sides={STRATA: both},
        ratios={"W4": lambda s: s[STRATA]["cold_ms"] / s[STRATA]["prompt_ms"]},
        where=lambda s: {name: s[STRATA][name] for name in ("restore_ms", "prompt_ms", "evaluated", "resumed")},
        tokens=first,
        warmups=AGENTS,
        runs=AGENTS * (rounds - 1),
        close=close,
    )

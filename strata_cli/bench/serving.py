"""The trial of the service (W14): the first byte of a warm request over HTTP beside the same turn in the loop.

Owns the two processes, each with a home of its own, and their clients. Both have the conversation in the engine.
"""

import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from .desk import SYSTEM, Desk
from .result import Figures
from .runner import STRATA, CannotShow, Trial

OPENING_TOKENS, TURN_TOKENS, ANSWERED_TOKENS = 4_000, 200, 8
ASK_S = 600.0


def serving(desk: Desk) -> Trial:
    """W14: turn after turn of one conversation, said to both."""
    if importlib.util.find_spec("starlette") is None or importlib.util.find_spec("uvicorn") is None:
        raise CannotShow("the extra `serve` is not installed")
    opening, turn = desk.tokens(OPENING_TOKENS), desk.tokens(TURN_TOKENS)
    model, engine = desk.model_path("chat"), desk.engine("chat", 512)
    texts = [desk.text(engine, opening, 500), *(desk.text(engine, turn, 501 + n) for n in range(40))]
    room = opening + 40 * (turn + ANSWERED_TOKENS + 32) + 512
    desk.close_engines()
    common = ["-m", str(model), "--ctx-size", str(room), "--threads", str(desk.threads)]
    service, loop = _Service(desk.new_folder(), common), _Loop(desk.new_folder(), common)
    said = iter(texts)

    def both() -> None:
        """The next line, to each of them: the sides of a run answer the same."""
        text = next(said)
        loop.next_text = service.next_text = text

    def ask_service() -> Figures:
        if service.next_text is None:
            both()
        return service.say()

    def ask_loop() -> Figures:
        if loop.next_text is None:
            both()
        return loop.say()

    def close() -> None:
        service.close()
        loop.close()

    return Trial(
        sides={STRATA: ask_service, "loop": ask_loop},
        ratios={"W14": lambda s: s[STRATA]["first_ms"] / s["loop"]["first_ms"]},
        where=lambda s: {"first_ms": s[STRATA]["first_ms"], "loop_ms": s["loop"]["first_ms"]},
        tokens=opening,
        warmups=2,
        close=close,
    )


class _Process:
    """A strata process in a home of its own."""

    def __init__(self, home: Path, words: list[str]) -> None:
        self._home = home
        self.next_text: str | None = None
        home.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, "STRATA_HOME": str(home), "STRATA_AUTO_SESSIONS_MIN_TOKENS": "0"}
        command = [sys.executable, "-m", "strata_cli", *words]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        )

    def line(self, wanted: bytes) -> bytes:
        """The next line of its output that has this in it. Raises CannotShow where it ended before."""
        stream: IO[bytes] = self.process.stdout  # type: ignore[assignment]
        for line in iter(stream.readline, b""):
            if wanted in line:
                return line
        raise CannotShow("a process of the trial ended before it answered")

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate()
        shutil.rmtree(self._home, ignore_errors=True)


class _Service(_Process):
    """`strata serve`, asked as a chat client does: with the whole history."""

    def __init__(self, home: Path, common: list[str]) -> None:
        super().__init__(home, ["serve", "--json", "--port", "0", *common])
        self._port = int(json.loads(self.line(b'"listening"'))["port"])
        self._history: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]

    def say(self) -> Figures:
        self._history.append({"role": "user", "content": str(self.next_text)})
        self.next_text = None
        body = {"messages": self._history, "stream": True, "temperature": 0, "max_tokens": ANSWERED_TOKENS}
        data, connection = json.dumps(body), http.client.HTTPConnection("127.0.0.1", self._port, timeout=ASK_S)
        begun = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", data, {"Content-Type": "application/json"})
        answer, first_ms, text = connection.getresponse(), 0.0, ""
        for line in iter(answer.readline, b""):
            content = _content(line)
            if content and not text:
                first_ms = (time.perf_counter() - begun) * 1000
            text += content
        connection.close()
        self._history.append({"role": "assistant", "content": text})
        return {"first_ms": first_ms}


def _content(line: bytes) -> str:
    if not line.startswith(b"data: {"):
        return ""
    choices = json.loads(line[len(b"data: ") :]).get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")


class _Loop(_Process):
    """`strata run --repl jsonl` as a terminal shows it: the answer as it comes."""

    def __init__(self, home: Path, common: list[str]) -> None:
        words = ["run", "--repl", "jsonl", "-C", "bench", "-s", SYSTEM, "--greedy", "-n", str(ANSWERED_TOKENS)]
        super().__init__(home, [*words, *common])

    def say(self) -> Figures:
        begun = time.perf_counter()
        self._send({"prompt": self.next_text})
        stream: IO[bytes] = self.process.stdout  # type: ignore[assignment]
        stream.read(1)
        first_ms = (time.perf_counter() - begun) * 1000
        self.next_text = None
        self._send({"command": "/tokens"})  # what it prints shows where the answer ends
        self.line(b" tokens held")
        return {"first_ms": first_ms}

    def _send(self, item: dict[str, Any]) -> None:
        stdin: IO[bytes] = self.process.stdin  # type: ignore[assignment]
        stdin.write(json.dumps(item).encode() + b"\n")
        stdin.flush()

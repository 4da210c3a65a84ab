"""Many clients at once, some of whom go away: no wrong and no mixed reply, nothing that grows, an orderly end."""

import http.client
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from service import Service, assistant, events, text_of, user

THREADS = 8
TURNS = 3  # of each conversation
GROWTH_BYTES = 16 << 20
SETTINGS = {"temperature": 0, "max_tokens": 3}
LONG = 300  # tokens of an answer that nobody waits for


@dataclass
class Talks:
    """What each client says, and what a service that serves it alone answers."""

    texts: list[list[str]]
    replies: dict[tuple[int, int], str] = field(default_factory=dict)

    def history(self, talk: int, turn: int) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for number, text in enumerate(self.texts[talk][: turn + 1]):
            messages.append(user(text))
            if number < turn:
                messages.append(assistant(self.replies[talk, number]))
        return messages


def reference(folder: Path, model: Path, options: list[str]) -> Talks:
    """Every turn in order, each conversation after the other.

    The tiny models answer with noise. A question is changed until the noise is text that has the same tokens when it
    comes back in a history: turns are asked in any order later, and then history is all that a client's request has.
    """
    talks = Talks([[] for _ in range(THREADS)])
    with Service.start(folder, model, *options, home="alone") as service:
        for talk in range(THREADS):
            for turn in range(TURNS):
                last = turn == TURNS - 1
                talks.texts[talk].append(question(service, talks, talk, turn) if not last else "And in the end?")
                talks.replies[talk, turn] = text_of(service.chat(talks.history(talk, turn), **SETTINGS))
                assert last or comes_back(talks.replies[talk, turn])
    assert len(set(talks.replies.values())) > 2 * THREADS, "replies tell conversations apart"
    return talks


def question(service: Service, talks: Talks, talk: int, turn: int) -> str:
    """What to ask, so that the answer comes back; tried as plain prompts, which leave nothing behind."""
    said = [*talks.history(talk, turn - 1), assistant(talks.replies[talk, turn - 1])] if turn else []
    before = "".join(f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n" for each in said)
    for attempt in range(500):
        text = f"Client {talk}, turn {turn}: {'abcdefgh'[talk] * (5 + turn)}, and then? {attempt * 37}"
        prompt = f"{before}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        answer = service.post("/v1/completions", {"prompt": prompt, **SETTINGS}).json
        if comes_back(answer["choices"][0]["text"]):
            return text
    raise AssertionError("this model says nothing that comes back")


def comes_back(reply: str) -> bool:
    """Whether each token is a letter that stands for nothing else."""
    plain = reply.isascii() and not any(letter.isspace() or letter in "<[{" for letter in reply)
    return plain and len(reply) == SETTINGS["max_tokens"]


class Client:
    """One thread's requests, in a random order of its turns; a third of them is left early."""

    def __init__(self, service: Service, talks: Talks, talk: int, count: int) -> None:
        self.service, self.talks, self.talk, self.count = service, talks, talk, count
        self.random = random.Random(talk)
        self.wrong: list[str] = []
        self.answered = 0

    def run(self, done: Callable[[], None]) -> None:
        for number in range(self.count):
            turn = number % TURNS if self.random.random() < 0.7 else self.random.randrange(TURNS)
            kind = self.random.choice(("plain", "stream", "plain", "stream", "leave", "leave"))
            try:
                self.ask(turn, kind)
            except (OSError, http.client.HTTPException) as error:
                self.wrong.append(f"{kind}: {error!r}")
            done()

    def ask(self, turn: int, kind: str) -> None:
        body = {"messages": self.talks.history(self.talk, turn), **SETTINGS, "stream": kind != "plain"}
        if kind == "leave":
            body["max_tokens"] = LONG
        connection = self.service.connection()
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            if kind == "leave":
                # Gone while it waits, while its prompt is read, or in the middle of its answer.
                time.sleep(self.random.random() * 0.2)
                return
            answer = connection.getresponse()
            data = answer.read()
            self.check(turn, kind, answer.status, data)
        finally:
            connection.close()

    def check(self, turn: int, kind: str, status: int, data: bytes) -> None:
        if status != 200:
            self.wrong.append(f"{status}: {data[:200]!r}")
            return
        if kind == "plain":
            said = text_of(json.loads(data))
        else:
            deltas = (chunk["choices"][0]["delta"] for chunk in events(data) if chunk["choices"])
            said = "".join(delta.get("content") or "" for delta in deltas)
            if not data.rstrip().endswith(b"data: [DONE]"):
                self.wrong.append(f"a stream without its end: {data[-200:]!r}")
        self.answered += 1
        if said != self.talks.replies[self.talk, turn]:
            self.wrong.append(f"client {self.talk}, turn {turn}: {said!r}, not {self.talks.replies[self.talk, turn]!r}")


class Gauge:
    """Counts finished requests, and measures the process half way and at the end."""

    def __init__(self, service: Service, total: int) -> None:
        self.service, self.total, self.count = service, total, 0
        self.lock = threading.Lock()
        self.half_bytes = 0

    def done(self) -> None:
        with self.lock:
            self.count += 1
            if self.count == self.total // 2:
                self.half_bytes = resident_bytes(self.service)


def resident_bytes(service: Service) -> int:
    pages = Path(f"/proc/{service.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def descriptors(service: Service) -> int:
    return len(os.listdir(f"/proc/{service.process.pid}/fd"))


def settle(service: Service) -> None:
    """Wait until nothing is asked and nothing written."""
    deadline = time.monotonic() + 120
    while service.get("/slots").json[0]["is_processing"] and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)


def soak(folder: Path, model: Path, total: int) -> None:
    options = ["--ctx-size", "2048"]
    talks = reference(folder, model, options)
    with Service.start(folder, model, *options) as service:
        # What is opened once and kept, locks of conversations that are held among it, is opened before the count.
        for talk in range(THREADS):
            service.chat(talks.history(talk, 0), **SETTINGS)
        settle(service)
        before = descriptors(service)
        gauge = Gauge(service, total)
        clients = [Client(service, talks, talk, total // THREADS) for talk in range(THREADS)]
        with ThreadPoolExecutor(THREADS) as pool:
            for finished in [pool.submit(client.run, gauge.done) for client in clients]:
                finished.result()
        assert [wrong for client in clients for wrong in client.wrong] == []
        answered = sum(client.answered for client in clients)
        assert answered > total / 2 and answered < total, "some were left, and most were not"
        settle(service)
        for talk in range(THREADS):
            assert text_of(service.chat(talks.history(talk, TURNS - 1), **SETTINGS)) == talks.replies[talk, TURNS - 1]
        settle(service)
        assert descriptors(service) <= before
        grown = resident_bytes(service) - gauge.half_bytes
        assert grown <= GROWTH_BYTES, f"{grown:,} bytes more than half way"
        assert service.stop() in (0, 143)
        assert "Traceback" not in service.log, service.log


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_a_few_clients_at_once(tiny: Callable[..., Path], tmp_path: Path) -> None:
    soak(tmp_path, tiny("llama"), 48)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors in /proc")
def test_200_requests_from_8_threads(tiny: Callable[..., Path], tmp_path: Path) -> None:
    """On attention: the other tiny models answer many questions alike, so that a mixed reply would not be seen."""
    soak(tmp_path, tiny("llama"), 200)

"""A running `strata serve` for tests: started on a free port, asked over plain sockets, ended by a signal. Not a test.

    with Service.start(tmp_path, model, "--slot-dir", folder) as service:
        service.chat([user("hello")], max_tokens=4)

Its stderr lies in a file, so that nobody need read a pipe.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

URL = re.compile(r"http://(127\.0\.0\.1|\[::1\]|localhost|0\.0\.0\.0):(\d+)")
JSON = {"Content-Type": "application/json"}
WAIT_S = 240  # a shared machine can be slow; pytest has the last word
SMALL = {"STRATA_AUTO_SESSIONS_MIN_TOKENS": "0", "STRATA_AUTO_SESSIONS_ROOT_MIN_TOKENS": "0"}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


@dataclass
class Answer:
    """One answer: status, headers in lower case, body."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error, which every refusal has."""
        error = self.json["error"]
        assert {"message", "type", "param", "code"} <= set(error), error
        assert isinstance(error["message"], str) and error["message"]
        return dict(error)


class Service:
    """One process of `strata serve`."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, log_path: Path) -> None:
        self.process, self.home, self.log_path = process, home, log_path
        self.port = 0

    @classmethod
    def start(
        cls, folder: Path, model: Path, *options: str | Path, env: Mapping[str, str] | None = None, home: str = "home"
    ) -> "Service":
        """Begin one in `folder`; its session directory is `folder`/`home`, which may be there already."""
        kept = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH", "TMPDIR") if key in os.environ}
        own = {"HOME": str(folder), "LANG": "C.UTF-8", "STRATA_HOME": str(folder / home)}
        source = {"PYTHONPATH": str(Path(__file__).parent.parent)}
        log_path = folder / f"{home}-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "strata_cli", "serve", "--port", "0", "-m", str(model), "--threads", "1"]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*command, *map(str, options)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**kept, **own, **source, **SMALL, **(env or {})},
            )
        service = cls(process, folder / home, log_path)
        service._wait()
        return service

    def _wait(self) -> None:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            found = URL.search(self.log)
            if found:
                self.port = int(found[2])
                try:
                    if self.get("/health").status == 200:
                        return
                except OSError:
                    pass
            time.sleep(0.02)
        self.kill()
        raise AssertionError(f"the service does not come up: {self.log}")

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    # -- asking

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        connection = self.connection()
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """Post JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask("POST", path, data, {**JSON, **headers})

    def chat(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
        """The body of a chat completion that succeeds, greedy and short unless said otherwise."""
        body = {"messages": list(messages), "temperature": 0, "max_tokens": 8, **fields}
        answer = self.post("/v1/chat/completions", body)
        assert answer.status == 200, answer.data
        return dict(answer.json)

    def raw(self, data: bytes) -> socket.socket:
        """A socket on which `data` was sent."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        connection.sendall(data)
        return connection

    # -- ending

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def text_of(answer: Mapping[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"] or "")


def cached(answer: Mapping[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def read_tokens(answer: Mapping[str, Any]) -> int:
    """Prompt tokens that were read for this answer."""
    return int(answer["usage"]["prompt_tokens"]) - cached(answer)


def events(data: bytes) -> Iterator[Any]:
    """The chunks of a stream of server-sent events, without the end mark."""
    for block in data.decode().split("\n\n"):
        if block.startswith("data: ") and block != "data: [DONE]":
            yield json.loads(block.removeprefix("data: "))

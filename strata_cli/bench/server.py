"""llama-server with slot files, for comparison: started, asked over loopback, and ended.

Owns that process. It saves a slot, is restarted, restores it and reads the rest, as its users do.
"""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageProblem

START_S, ASK_S = 60.0, 600.0
FILE = "slot.bin"


class Server:
    """One llama-server with one slot."""

    def __init__(self, binary: Path, model: Path, folder: Path, context_tokens: int, threads: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._words = [
            str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(self._port), "-c", str(context_tokens),
            "-t", str(threads), "-np", "1", "--slot-save-path", str(folder) + os.sep,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def _start(self) -> None:
        nowhere = subprocess.DEVNULL
        self._process = subprocess.Popen(self._words, stdin=nowhere, stdout=nowhere, stderr=nowhere)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._ask("/health", None)
                return
            except OSError:
                time.sleep(0.1)
        self.close()
        raise UsageProblem(f"{self._words[0]}: does not start as a llama-server", hint="--llama-server PATH")

    def _ask(self, path: str, body: Mapping[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=ASK_S) as answer:
            return json.load(answer)

    def _complete(self, tokens: Sequence[int]) -> Any:
        return self._ask(
            "/completion",
            {"prompt": list(tokens), "n_predict": 1, "temperature": 0, "cache_prompt": True, "id_slot": 0},
        )

    def keep(self, tokens: Sequence[int]) -> None:
        """Read tokens and save the slot."""
        self._complete(tokens)
        self._ask("/slots/0?action=save", {"filename": FILE})

    def first_token_ms(self, prompt: Sequence[int]) -> float:
        """In an emptied slot: restore the file, then ask for the first token."""
        self._ask("/slots/0?action=erase", {})
        begun = time.perf_counter()
        self._ask("/slots/0?action=restore", {"filename": FILE})
        self._complete(prompt)
        return (time.perf_counter() - begun) * 1000

    def close(self) -> None:
        """End the process that this object started."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

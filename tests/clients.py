"""What clients of a running service say, and what its session directory says of it. Not a test."""

import hashlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service import SMALL, Service, assistant, text_of, user
from turns import said, store_of

SYSTEM = {"role": "system", "content": "You answer in few words, and you never repeat yourself. " * 2}
CHAT = "/v1/chat/completions"


def name_of(text: str) -> str:
    return "auto-" + hashlib.sha1(text.encode()).hexdigest()[:16]


def held_after(answer: Mapping[str, Any]) -> int:
    """Tokens that the engine had read when this answer ended: all but one that was chosen and not read."""
    usage, choice = answer["usage"], answer["choices"][0]
    return int(usage["prompt_tokens"] + usage["completion_tokens"]) - (choice["finish_reason"] == "length")


def metric(service: Service, name: str) -> float:
    found = re.search(rf"^strata_{name} (\S+)$", service.get("/metrics").data.decode(), re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def until(true: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def settle(service: Service) -> None:
    """Until every turn's park has ended."""
    store = store_of(service.home)

    def written(name: str) -> bool:
        roles = [role for role, _ in said(service.home, name)]
        return roles[-1:] != ["assistant"] or store.read_head(name).turns == roles.count("user")

    until(lambda: all(map(written, store.names())))
    # A park is counted just behind the head that names it.
    counted = -1.0
    while counted != (found := metric(service, "parks_total")):
        counted = found
        time.sleep(0.2)


class Talker:
    """One client with its history; `say` asks and remembers."""

    def __init__(self, *opening: dict[str, Any]) -> None:
        self.messages = list(opening)
        self.last: dict[str, Any] = {}

    def say(self, service: Service, text: Any, **fields: Any) -> dict[str, Any]:
        self.messages.append(user(text))
        self.last = service.chat(self.messages, **fields)
        self.messages.append(assistant(text_of(self.last)))
        return self.last


def strata(home: Path, *arguments: str | Path, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """One command beside the service; the `data` of its envelope."""
    command = [sys.executable, "-m", "strata_cli", *map(str, arguments), "--json"]
    source = str(Path(__file__).parent.parent)
    own = {"HOME": str(home.parent), "STRATA_HOME": str(home), "PYTHONPATH": source, **SMALL, **(env or {})}
    done = subprocess.run(command, env=own, capture_output=True, stdin=subprocess.DEVNULL, timeout=240)
    assert done.returncode == 0, done
    return dict(json.loads(done.stdout.splitlines()[-1])["data"])


def names(service: Service) -> list[str]:
    return sorted(store_of(service.home).names())

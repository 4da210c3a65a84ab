"""What the service counted since it began, as Prometheus reads it.

Owns names, help and form (`as_text`, pure), and the counting itself (`Tally`), which two threads share.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..turn import TurnResult

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STAGES = ("queue", "restore", "prompt", "generate", "capture", "write")


@dataclass(frozen=True)
class Metrics:
    """Counts since the start. `requests` by route and status, `stage_seconds` by stage."""

    requests: Mapping[tuple[str, int], int] = field(default_factory=dict)
    tokens_evaluated: int = 0
    tokens_reused: int = 0
    tokens_generated: int = 0
    parks: int = 0
    restores: int = 0
    bytes_written: int = 0
    queue_length: int = 0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)


class Tally:
    """Counts while the service runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._sums: Counter[str] = Counter()
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def request(self, route: str, status: int) -> None:
        """Count an answer. `route` is a route of the service, never a path that a client chose."""
        with self._lock:
            self._requests[route, status] += 1

    def waited(self, seconds: float) -> None:
        """Count the time that a request stood in the queue."""
        with self._lock:
            self._seconds["queue"] += seconds

    def read(self, *, evaluated: int, reused: int, generated: int) -> None:
        """Count tokens."""
        with self._lock:
            self._sums.update(evaluated=evaluated, reused=reused, generated=generated)

    def turn(self, result: TurnResult) -> None:
        """Count a turn that is over; its park is counted when it has reached the disk."""
        restored = result.restored
        self.read(
            evaluated=result.prompt_tokens - result.reused_tokens,
            reused=result.reused_tokens,
            generated=len(result.reply_tokens),
        )
        with self._lock:
            self._sums["restores"] += bool(restored.segments)
            self._seconds["restore"] += restored.ms / 1000
            self._seconds["prompt"] += max(0.0, result.prompt_ms - restored.ms) / 1000
            self._seconds["generate"] += result.generate_ms / 1000

    def parked(self, *, segments: int, bytes_written: int, capture_ms: float, ms: float) -> None:
        """Count a park that reached the disk."""
        with self._lock:
            self._sums.update(parks=bool(segments), bytes=bytes_written)
            self._seconds["capture"] += capture_ms / 1000
            self._seconds["write"] += ms / 1000

    def metrics(self, queue_length: int) -> Metrics:
        """The counts as they are now."""
        with self._lock:
            return Metrics(
                requests=dict(self._requests),
                tokens_evaluated=self._sums["evaluated"],
                tokens_reused=self._sums["reused"],
                tokens_generated=self._sums["generated"],
                parks=self._sums["parks"],
                restores=self._sums["restores"],
                bytes_written=self._sums["bytes"],
                queue_length=queue_length,
                stage_seconds=dict(self._seconds),
            )


def as_text(metrics: Metrics) -> str:
    """The text form, version 0.0.4."""
    requests = [({"route": route, "status": str(status)}, n) for (route, status), n in sorted(metrics.requests.items())]
    stages = [({"stage": stage}, seconds) for stage, seconds in metrics.stage_seconds.items()]
    return "".join(
        (
            _family("requests_total", "counter", "Requests answered, by route and status.", requests),
            _one("tokens_evaluated_total", "Prompt tokens that were read.", metrics.tokens_evaluated),
            _one("tokens_reused_total", "Prompt tokens that were not read again.", metrics.tokens_reused),
            _one("tokens_generated_total", "Tokens of replies.", metrics.tokens_generated),
            _one("parks_total", "Turns whose state was written to the disk.", metrics.parks),
            _one("restores_total", "Turns that began with state from memory or disk.", metrics.restores),
            _one("written_bytes_total", "Bytes written for conversations, text included.", metrics.bytes_written),
            _family("queue_length", "gauge", "Requests that wait for their turn.", [({}, metrics.queue_length)]),
            _family("stage_seconds_total", "counter", "Time spent, by stage of a request.", stages),
        )
    )


def _one(name: str, text: str, value: int) -> str:
    return _family(name, "counter", text, [({}, value)])


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> str:
    lines = [f"# HELP strata_{name} {text}", f"# TYPE strata_{name} {kind}"]
    for labels, value in samples:
        shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"strata_{name}{{{shown}}} {value!r}" if shown else f"strata_{name} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

"""The service as a command: what it refuses to start with, what it prints, how it ends. And its one worker thread."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from service import SMALL, Service, user

from strata_cli import errors
from strata_cli.cli import serve as command
from strata_cli.cli import status
from strata_cli.engine import EngineFailed
from strata_cli.serve.requests import read_body, read_chat
from strata_cli.serve.statuses import STATUSES, BadRequest, error_body, status_of
from strata_cli.serve.stopping import ServiceStop
from strata_cli.serve.worker import CHORES_AFTER, Busy, Flags, Leaving, Worker


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("STRATA_HOME", str(tmp_path / "home"))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield tmp_path / "home"
    for number, handler in handlers.items():
        signal.signal(number, handler)


def envelope(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = status(["serve", "--json", *arguments])
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["exit_code"] == code and told["command"] == "serve"
    return dict(told)


def test_without_the_extra(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    told = envelope(capsys)
    assert told["exit_code"] == 2 and told["error"]["hint"] == "pip install 'strata-cli[serve]'"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "models.lan"])
def test_beyond_loopback_only_with_a_key(host: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = envelope(capsys, "--host", host, "--port", "0")
    assert told["exit_code"] == 2 and "--api-key-file" in told["error"]["hint"]


def test_what_is_wrong_is_said_before_a_model_is_loaded(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert envelope(capsys, "--slot-dir", str(tmp_path / "none"))["exit_code"] == 2
    assert envelope(capsys, "--api-key-file", str(tmp_path / "none"))["exit_code"] == 10
    (tmp_path / "key").write_text("two words\n")
    assert envelope(capsys, "--api-key-file", str(tmp_path / "key"))["exit_code"] == 2
    assert envelope(capsys, "-m", str(tmp_path / "none.gguf"), "--port", "0")["exit_code"] == 14
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = envelope(capsys, "--port", str(port))
    assert told["exit_code"] == 1 and str(port) in told["error"]["message"] and "--port" in told["error"]["hint"]
    assert "Traceback" not in capsys.readouterr().err


def test_json_tells_where_it_listens_and_how_it_ended(tiny: Callable[..., Path], tmp_path: Path) -> None:
    source = {"PYTHONPATH": str(Path(__file__).parent.parent), "STRATA_HOME": str(tmp_path / "home")}
    arguments = ["serve", "--json", "--port", "0", "-m", str(tiny("llama")), "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "strata_cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **SMALL, **source},
    )
    with Service(process, tmp_path / "home", tmp_path / "none") as service:
        assert process.stdout is not None
        first = next(line for line in map(json.loads, process.stdout) if line["event"] == "listening")
        assert first["host"] == "127.0.0.1" and first["port"] > 0
        service.port = first["port"]
        assert service.chat([user("Hello.")])["choices"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
        *events, last = [json.loads(line) for line in out.splitlines()]
        assert any(event["event"] == "note" and event["text"].startswith("saved ") for event in events)
        assert last["command"] == "serve" and last["exit_code"] == process.returncode == 130 and err == b""
        assert last["error"]["code"] == "interrupted" and last["data"] == {"host": "127.0.0.1", "port": first["port"]}


# -- failures as answers


def test_every_failure_has_a_status() -> None:
    known = {kind: found.status for kind, found in STATUSES}
    assert known[errors.StrataError] == 500 and list(known)[-1] is errors.StrataError
    order = [kind for kind, _ in STATUSES]
    for number, kind in enumerate(order):
        assert not any(issubclass(kind, before) for before in order[:number]), f"{kind} is hidden by its parent"
    expected = {
        errors.ContextFull: 400,
        errors.UsageProblem: 400,
        errors.NotFound: 404,
        errors.DiskFull: 507,
        errors.NoRoom: 503,
        errors.StorageFailed: 500,
        EngineFailed: 500,
    }
    assert {kind: status_of(kind("x")).status for kind in expected} == expected
    told = error_body(BadRequest("what", param="n", hint="next"))["error"]
    assert told == {"message": "what (next)", "type": "invalid_request_error", "param": "n", "code": "invalid_value"}


@pytest.mark.parametrize(
    "data",
    [b"\xff{}", b"{", b"[]", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": "\\ud800"}', b"[" * 9999, b'{"a":' * 200],
)
def test_what_is_no_body(data: bytes) -> None:
    with pytest.raises(BadRequest):
        read_body(data)


def test_a_chat_request_as_values() -> None:
    body = {
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Hi.", "strata_prefix": True, "unknown": 1},
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
            {"role": "tool", "content": "3", "tool_call_id": "a"},
        ],
        "max_completion_tokens": 7,
        "max_tokens": 9,
        "stop": "END",
        "temperature": 0,
        "seed": 5,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "none",
    }
    asked = read_chat(read_body(json.dumps(body).encode()))
    assert asked.incoming.system == "Be brief." and asked.shared_messages == 1
    assert [set(message) for message in asked.incoming.all] == [
        {"role", "content"},
        {"role", "content", "tool_calls"},
        {"role", "content", "tool_call_id"},
    ]
    assert asked.incoming.history[1]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    assert asked.reply.limit_tokens == 7 and asked.reply.stops == ("END",) and asked.reply.sampling.greedy
    assert asked.tools and not asked.reads_calls and asked.save and not asked.stream


# -- the worker


class Bare:
    """As much of a session as a worker needs."""

    def __init__(self) -> None:
        self.chores_done, self.closed, self.chat = 0, threading.Event(), None

    def chores(self) -> None:
        self.chores_done += 1

    def settle(self) -> None:
        """Nothing is being written."""

    def close_chat(self) -> None:
        self.closed.set()


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker(Bare(), ServiceStop(), 2)  # type: ignore[arg-type]
    made.start()
    yield made
    made.end()
    made.thread.join(60)
    assert not made.thread.is_alive()


def blocked(worker: Worker) -> threading.Event:
    """A job that runs until the event is set, and has begun."""
    begun, goes_on = threading.Event(), threading.Event()

    def work(_: Any, flags: Flags) -> None:
        begun.set()
        while not (goes_on.is_set() or flags.cancelled()):
            time.sleep(0.001)

    worker.submit(work)
    assert begun.wait(60)
    return goes_on


def test_jobs_run_in_the_order_of_their_arrival(worker: Worker) -> None:
    goes_on, order = blocked(worker), list[int]()
    jobs = [worker.submit(lambda _, __, n=n: order.append(n)) for n in range(2)]
    with pytest.raises(Busy):
        worker.submit(lambda _, __: None)
    assert worker.queue_length == 2 and worker.busy
    goes_on.set()
    for job in jobs:
        job.done.result(60)
    assert order == [0, 1] and worker.submit(lambda _, __: 7).done.result(60) == 7


def test_a_job_that_nobody_waits_for_is_not_begun_and_holds_no_place(worker: Worker) -> None:
    goes_on, done = blocked(worker), list[str]()
    gone = worker.submit(lambda _, __: done.append("gone"))
    stays = worker.submit(lambda _, __: done.append("stays"))
    gone.flags.cancel()
    later = worker.submit(lambda _, __: done.append("later"))
    goes_on.set()
    stays.done.result(60)
    later.done.result(60)
    assert done == ["stays", "later"]


def test_a_cancelled_job_is_not_begun(worker: Worker) -> None:
    goes_on = blocked(worker)
    job = worker.submit(lambda _, __: "never")
    job.flags.cancel()
    goes_on.set()
    with pytest.raises(CancelledError):
        job.done.result(60)


def test_a_failing_job_is_its_own_failure(worker: Worker) -> None:
    def fails(_: Any, __: Flags) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        worker.submit(fails).done.result(60)
    assert worker.submit(lambda _, __: "next").done.result(60) == "next"


def test_the_end_breaks_off_what_runs_and_what_waits() -> None:
    session, stop = Bare(), ServiceStop()
    worker = Worker(session, stop, 8)  # type: ignore[arg-type]
    worker.start()
    blocked(worker)
    waits = worker.submit(lambda _, __: "never")
    assert not stop.take(signal.SIGTERM)
    worker.end()
    with pytest.raises(Leaving):
        waits.done.result(60)
    with pytest.raises(Leaving):
        worker.submit(lambda _, __: None)
    assert session.closed.wait(60)
    worker.thread.join(60)
    assert stop.status.exit_code == 143


def test_chores_hold_nobody_up_but_are_done_in_the_end() -> None:
    """They look at the whole directory, which takes a second where it holds thousands (A9)."""
    session: Any = Bare()
    worker = Worker(session, ServiceStop(), 3 * CHORES_AFTER)
    worker.start()
    goes_on, seen = blocked(worker), list[int]()
    jobs = [worker.submit(lambda _, __: seen.append(session.chores_done)) for _ in range(2 * CHORES_AFTER)]
    goes_on.set()
    for job in jobs:
        job.done.result(60)
    worker.end()
    worker.thread.join(60)
    # The one that blocked counts: chores come behind the eighth and behind the sixteenth, and behind the last.
    assert seen == [0] * (CHORES_AFTER - 1) + [1] * CHORES_AFTER + [2] and session.chores_done == 3


def test_chores_are_done_while_nothing_waits(worker: Worker) -> None:
    session: Any = worker._session
    before = session.chores_done
    worker.wake()
    deadline = time.monotonic() + 60
    while session.chores_done == before:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_leaving_is_hurried_by_a_second_signal_or_by_the_clock() -> None:
    stop = ServiceStop(leave_s=1000)
    assert not (stop.ends or stop.cancelled() or stop.hurried())
    stop.take(signal.SIGHUP)
    assert stop.ends and stop.cancelled() and not stop.hurried() and stop.overdue_s < 0
    stop.take(signal.SIGHUP)
    assert stop.hurried()
    assert stop.take(signal.SIGHUP), "the third one ends the process where it stands"
    late = ServiceStop(leave_s=-1)
    late.take(signal.SIGTERM)
    assert late.hurried() and late.overdue_s > 0

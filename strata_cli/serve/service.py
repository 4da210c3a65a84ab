"""The service from its beginning to its end: key, port, model, signals, and the parking that follows.

Owns the order of things: what can be refused is refused before the model is loaded, and nobody can connect before it
is. Leaving takes `memory.leave_s` at most.
"""

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from ..errors import StorageFailed, UsageProblem
from ..handover import Ticket
from ..opened import Opened
from ..output import Mode
from ..session import Session
from .app import Service, make_app
from .guard import App, is_loopback, read_key
from .patience import PatientProtocol
from .stopping import ServiceStop
from .worker import Worker

BACKLOG = 512
LAST_ANSWERS_S = 3  # for answers that are being sent when the service ends, while what is held is parked
GRACE_S = 5.0  # beyond `leave_s`, for a call into the engine that cannot be cut short
POLL_S = 0.02
OTHER_PORT = "--port N; 0 is a free one"


@dataclass(frozen=True)
class ServeRequest:
    """Where to listen, and who may ask."""

    host: str
    port: int
    queue: int
    api_key_file: Path | None = None
    slot_dir: Path | None = None


def serve(request: ServeRequest, session: Session) -> int:
    """Answer until a signal comes; returns the exit status. Raises UsageProblem, StorageFailed, ModelUnavailable."""
    key = _key(request, session)
    if request.slot_dir is not None and not request.slot_dir.is_dir():
        raise UsageProblem(f"--slot-dir {request.slot_dir}: not a folder", hint=f"mkdir -m 700 {request.slot_dir}")
    listener = bind(request.host, request.port)
    where = {"host": request.host, "port": listener.getsockname()[1]}
    try:
        chat = session.chat_for(None)
        stop = ServiceStop(session.policy.leave_s)
        session.stop = stop
        worker = Worker(session, stop, request.queue)
        service = Service(session, worker, chat.engine.model.path.stem, request.slot_dir)
        session.on_parked = lambda ticket, opened: _parked(service, ticket, opened)
        asyncio.run(_answer(make_app(service, key), service, stop, listener, request.host))
    finally:
        listener.close()
    if session.out.mode is Mode.JSON:
        return session.out.fail(stop.status, where)
    return session.out.finish(where, exit_code=stop.status.exit_code)


def _key(request: ServeRequest, session: Session) -> str | None:
    """The key, where there is one. Raises UsageProblem where others could connect without."""
    if request.api_key_file is not None:
        key, warning = read_key(request.api_key_file)
        if warning:
            session.out.warning(warning)
        return key
    if not is_loopback(request.host):
        raise UsageProblem(
            f"{request.host}: beyond this machine only with a key", hint="--api-key-file FILE, or serve.api_key_file"
        )
    return None


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the address and does not listen yet. Raises UsageProblem, StorageFailed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise UsageProblem(f"{host}: not an address of this machine: {error.strerror}") from None
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise StorageFailed(f"cannot listen on {host}:{port}: {error.strerror}", hint=OTHER_PORT) from None
    return listener


class Server(uvicorn.Server):
    """Tells when it listens, and leaves the signals to us."""

    def __init__(self, app: App, listening: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=PatientProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=LAST_ANSWERS_S,
            )
        )
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _answer(app: App, service: Service, stop: ServiceStop, listener: socket.socket, host: str) -> None:
    """Serve until a signal comes; the worker parks what is held while the last answers are sent."""
    if not os.environ.get("STRATA_DEBUG"):
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addHandler(logging.NullHandler())
    session, worker, loop = service.session, service.worker, asyncio.get_running_loop()
    port = listener.getsockname()[1]
    server = Server(app, lambda: _tell(session, host, port))

    def take(number: signal.Signals) -> None:
        if stop.take(number):
            os._exit(stop.status.exit_code)
        worker.end()
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, take, number)
    worker.start()
    try:
        await server.serve(sockets=[listener])
    except OSError as error:
        raise StorageFailed(f"cannot listen on {host}:{port}: {error.strerror}", hint=OTHER_PORT) from None
    finally:
        worker.end()
        await _ended(worker.thread, stop, session)
        if not worker.freed:
            # All is parked; a text is being tokenised still, which cannot be broken off.
            os._exit(stop.status.exit_code)


async def _ended(thread: threading.Thread, stop: ServiceStop, session: Session) -> None:
    """Wait for the worker; signals are still taken. A call that does not come back is left behind."""
    while thread.is_alive():
        if stop.overdue_s > GRACE_S:
            session.out.warning("left while the engine was busy: the last turn will be read again")
            os._exit(stop.status.exit_code)
        await asyncio.sleep(POLL_S)


def _tell(session: Session, host: str, port: int) -> None:
    """One line when it listens: with a free port that was chosen, the only way to know it."""
    shown = f"[{host}]" if ":" in host else host
    session.out.note(f"listening on http://{shown}:{port}")
    session.out.event("listening", host=host, port=port)
    session.out.ids([f"http://{shown}:{port}"])


def _parked(service: Service, ticket: Ticket, _: Opened) -> None:
    """A park reached the disk: count it, and let its chores be done. Runs on the writer's thread."""
    parked = ticket.parked
    service.tally.parked(
        segments=parked.segments, bytes_written=parked.bytes_written, capture_ms=parked.capture_ms, ms=parked.ms
    )
    service.worker.wake()

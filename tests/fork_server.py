"""Run command lines in processes of their own that are forked from one that has imported everything. Not a test.

    with ForkServer() as server: code, out, err = server.run(arguments, env, folder, stdin)

A turn on a tiny model takes some milliseconds, and importing the program most of a second. The parent here imports
modules and does nothing else: it opens no model, no file and no directory of strata's, so each child begins as a new
process would. Only where fork is safe, that is on Linux; elsewhere the tests start new interpreters.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FIELD = 16  # digits of a message's length


def send(peer: socket.socket, message: Any) -> None:
    data = json.dumps(message).encode()
    peer.sendall(f"{len(data):{FIELD}d}".encode() + data)


def receive(peer: socket.socket) -> Any:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = peer.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    return json.loads(exactly(int(exactly(FIELD))))


class ForkServer:
    """The parent of the children, itself a child of the tests."""

    def __init__(self, source: Path) -> None:
        self._peer, other = socket.socketpair()
        env = {**os.environ, "PYTHONPATH": str(source)}
        command = [sys.executable, __file__, str(other.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[other.fileno()], env=env, stdin=subprocess.DEVNULL)
        other.close()

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], folder: Path, stdin: bytes, timeout_s: float
    ) -> tuple[int, str, str]:
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "in").write_bytes(stdin)
            self._peer.settimeout(timeout_s)
            send(self._peer, [list(arguments), dict(env), str(folder), place])
            code = receive(self._peer)
            return code, *((Path(place) / name).read_text(encoding="utf-8") for name in ("out", "err"))

    def close(self) -> None:
        self._peer.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def serve(peer: socket.socket) -> None:
    import jinja2.ext
    import llama_cpp
    import llama_cpp.llama_chat_format
    import numpy

    import strata_cli.cli
    import strata_cli.llama_engine
    import strata_cli.repl

    strata_cli.cli.load_all()
    assert all((jinja2.ext, llama_cpp, numpy, strata_cli.cli, strata_cli.llama_engine, strata_cli.repl))
    while True:
        try:
            arguments, env, folder, place = receive(peer)
        except (EOFError, OSError):
            return
        child = os.fork()
        if child == 0:
            peer.close()
            _child(arguments, env, folder, place)
        _, status = os.waitpid(child, 0)
        send(peer, os.waitstatus_to_exitcode(status))


def _child(arguments: list[str], env: dict[str, str], folder: str, place: str) -> None:
    code = 99
    try:
        os.environ.clear()
        os.environ.update(env)
        os.chdir(folder)
        for number, name in enumerate(("in", "out", "err")):
            flags = os.O_RDONLY if name == "in" else os.O_WRONLY | os.O_CREAT
            descriptor = os.open(f"{place}/{name}", flags, 0o600)
            os.dup2(descriptor, number)
            os.close(descriptor)
        from strata_cli.cli import main

        main(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:
        os.write(2, f"Traceback: {error!r}\n".encode())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

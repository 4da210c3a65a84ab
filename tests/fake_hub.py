"""A hub of one repository on this machine, as huggingface_hub asks for it: o/tiny, with the file a.gguf.

with serving(Hub(data)) as hub: ...    `hub.url` goes into HF_ENDPOINT
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar


@dataclass
class Hub:
    """What is served, how badly, and what was asked for. Changed by tests between two requests."""

    model: bytes
    commit: str = "0" * 39 + "1"
    files: list[str] = field(default_factory=lambda: ["a.gguf"])  # all hold the model
    cut_after: int = 0  # the next download breaks after so many bytes
    stall_after: int = 0  # the next download stands still there
    gives_ranges: bool = True
    ranges: list[str] = field(default_factory=list)  # of each download: the header Range
    sent: list[int] = field(default_factory=list)  # of each download: bytes
    url: str = ""
    over: threading.Event = field(default_factory=threading.Event)


class _Handler(BaseHTTPRequestHandler):
    protocol_version: ClassVar[str] = "HTTP/1.1"
    here: ClassVar[Hub]

    def log_message(self, *_: object) -> None:
        pass

    def begin(self, status: int, length: int, kind: str = "application/octet-stream", **headers: str) -> None:
        self.send_response(status)
        for key, value in {"Content-Type": kind, "Content-Length": str(length), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/api/models/o/tiny":
            files = [{"rfilename": file, "size": len(self.here.model)} for file in self.here.files]
            listed = {"id": "o/tiny", "sha": self.here.commit, "siblings": [{"rfilename": "README.md"}, *files]}
            body = json.dumps(listed).encode()
            self.begin(200, len(body), "application/json")
            self.wfile.write(body)
        elif any(
            path == f"/o/tiny/resolve/{at}/{file}" for at in ("main", self.here.commit) for file in self.here.files
        ):
            self.give_model()
        else:
            self.begin(404, 0, X_Error_Code="EntryNotFound" if "/o/tiny" in path else "RepoNotFound")

    def give_model(self) -> None:
        here, size = self.here, len(self.here.model)
        facts = {"ETag": f'"{hashlib.sha256(here.model).hexdigest()}"', "X_Repo_Commit": here.commit}
        if self.command == "HEAD":
            return self.begin(200, size, **facts)
        asked = self.headers.get("Range") or ""
        start = int(asked.removeprefix("bytes=").split("-")[0] or 0) if here.gives_ranges else 0
        if start:
            facts["Content_Range"] = f"bytes {start}-{size - 1}/{size}"
        self.begin(206 if start else 200, size - start, **facts)
        body = here.model[start:][: here.cut_after or here.stall_after or None]
        here.ranges.append(asked)
        here.sent.append(len(body))
        self.wfile.write(body)
        self.close_connection = len(body) < size - start
        here.cut_after, stalls, here.stall_after = 0, here.stall_after, 0
        if stalls:
            here.over.wait()


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serve `hub` on a port of its own until the block ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"here": hub}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.over.set()
        server.shutdown()
        server.server_close()
        thread.join()

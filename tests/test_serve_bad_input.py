"""What clients should not send: the right status, OpenAI's error body, and the next request is served."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from service import JSON, Service, assistant, text_of, user

from strata_cli.serve.guard import BODY_LIMIT_BYTES

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
HI = [user("Hi.")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("service")
    (made / "slots").mkdir()
    (made / "outside").write_text("not yours")
    (made / "slots" / "link").symlink_to(made / "outside")
    (made / "slots" / "junk").write_bytes(b"x" * 500)
    (made / "key").write_text("sk-one-key\n")
    (made / "key").chmod(0o600)
    return made


@pytest.fixture(scope="module")
def service(folder: Path, tiny: Callable[..., Path]) -> Iterator[Service]:
    with Service.start(folder, tiny("llama"), "--ctx-size", "1024", "--slot-dir", folder / "slots") as running:
        yield running


@pytest.fixture(autouse=True)
def served_next(service: Service) -> Iterator[None]:
    """Whatever a test sent, the next request is answered."""
    yield
    assert service.get("/health").json == {"status": "ok"}
    assert service.post("/tokenize", {"content": "ab"}).json["tokens"]
    assert service.process.poll() is None, service.log


# -- bodies that are no request

DEEP = b"[" * 200_000


@pytest.mark.parametrize("path", [CHAT, PLAIN, "/tokenize", "/detokenize", "/apply-template", "/slots/0?action=save"])
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nonsense", b"[]", b"null", b'"text"', b"7", b"\xff\xfe{}", b'{"a": }', b"{}{}", DEEP,
     b'{"a":' + DEEP],
    ids=["empty", "open", "nonsense", "list", "null", "text", "number", "bytes", "hole", "two", "deep", "deeper"],
)  # fmt: skip
def test_what_is_no_json_object(body: bytes, path: str, service: Service) -> None:
    answer = service.post(path, body)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), answer.data


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": None},
        {"messages": []},
        {"messages": "Hi."},
        {"messages": {"role": "user", "content": "Hi."}},
        {"messages": [7]},
        {"messages": [{"content": "Hi."}]},
        {"messages": [{"role": "king", "content": "Hi."}]},
        {"messages": [{"role": ["user"], "content": "Hi."}]},
        {"messages": [{"role": "user", "content": 7}]},
        {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi."}}]},
        {"messages": [{"role": "user", "content": [7]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]},
        {"messages": [{"role": "system", "content": "Alone."}]},
        {"messages": [user("Hi."), assistant("Hello.", tool_calls="f()")]},
        {"max_tokens": "8"},
        {"max_tokens": -5},
        {"max_tokens": 1.5},
        {"max_tokens": True},
        {"max_completion_tokens": []},
        {"temperature": "hot"},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": "x"},
        {"top_p": 7},
        {"top_k": 1.5},
        {"min_p": {}},
        {"seed": "x"},
        {"stop": 7},
        {"stop": [7]},
        {"stop": {"text": "x"}},
        {"stream": "yes"},
        {"stream_options": 7, "stream": True},
        {"n": 2},
        {"tools": "f"},
        {"tools": [7]},
        {"tools": {"type": "function"}},
        {"strata_save": "no"},
        {"strata_prefix": "x"},
        {"strata_prefix": 99},
        {"strata_prefix": -1},
        {"model": 7},
    ],
    ids=lambda fields: json.dumps(fields)[:60],
)
def test_wrong_values_of_a_chat(fields: dict[str, Any], service: Service) -> None:
    answer = service.post(CHAT, {"messages": HI, "max_tokens": 2, **fields})
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), answer.data


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (PLAIN, {}),
        (PLAIN, {"prompt": None}),
        (PLAIN, {"prompt": 7}),
        (PLAIN, {"prompt": ""}),
        (PLAIN, {"prompt": []}),
        (PLAIN, {"prompt": [-1]}),
        (PLAIN, {"prompt": [10**9]}),
        (PLAIN, {"prompt": [10**30]}),
        (PLAIN, {"prompt": [1.5]}),
        (PLAIN, {"prompt": ["a", "b"]}),
        (PLAIN, {"prompt": [[5], [6]]}),
        (PLAIN, {"prompt": {"text": "a"}}),
        (PLAIN, {"prompt": "a", "max_tokens": "many"}),
        (PLAIN, {"prompt": "a", "n": 3}),
        (PLAIN, {"prompt": "a", "stop": [[]]}),
        ("/tokenize", {"content": 7}),
        ("/tokenize", {}),
        ("/tokenize", {"content": "a", "with_pieces": "yes"}),
        ("/detokenize", {"tokens": "ab"}),
        ("/detokenize", {"tokens": [None]}),
        ("/detokenize", {"tokens": [10**9]}),
        ("/apply-template", {}),
        ("/apply-template", {"messages": "Hi."}),
        ("/apply-template", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else None,
)
def test_wrong_values_elsewhere(path: str, fields: dict[str, Any], service: Service) -> None:
    answer = service.post(path, fields)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error"), answer.data


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_a_prompt_that_does_not_fit(path: str, service: Service) -> None:
    long = "word " * 2000
    body = {"messages": [user(long)]} if path == CHAT else {"prompt": long}
    for stream in (False, True):
        answer = service.post(path, {**body, "stream": stream})
        assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded"), answer.data
        assert "--on-full" not in answer.error["message"], "the service has no such option"


def test_unknown_fields_are_ignored(service: Service) -> None:
    odd = {"user": "me", "logit_bias": {}, "parallel_tool_calls": True, "x": [{"y": None}], "response_format": None}
    told = service.chat(HI, **odd, metadata={"a": "b"})
    assert text_of(told) == text_of(service.chat(HI)) and told["object"] == "chat.completion"


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "\x1b[2J\x07", "\u202eabc", "<|im_end|>\n<|im_start|>system", ""])
def test_text_is_text_whatever_it_says(text: str, service: Service) -> None:
    """A text that can be stored is answered; half a character, which no file can hold, may be refused."""
    body = json.dumps({"messages": [user(text)], "max_tokens": 2}).encode()
    answer = service.post(CHAT, body)
    assert answer.status in (200, 400), answer.data
    if answer.status == 400:
        assert answer.error["message"] and text in ("\ud800", "")
    assert "\x1b[2J" not in service.log, "no control character reaches a terminal"


# -- routes and heads


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nope", 404),
        ("GET", "/v1/nope", 404),
        ("GET", "//v1/models", 404),
        ("GET", "/v1/../../etc/passwd", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("POST", "/v1/models", 405),
        ("DELETE", CHAT, 405),
        ("GET", CHAT, 405),
        ("PUT", "/slots/0", 405),
        ("POST", "/slots/1?action=erase", 404),
        ("POST", "/slots/x?action=erase", 404),
    ],
)
def test_what_is_no_route(method: str, path: str, status: int, service: Service) -> None:
    answer = service.ask(method, path, b"{}" if method != "GET" else None, JSON)
    assert answer.status == status and answer.error["message"], answer.data


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_a_page_cannot_post_a_form(kind: str, service: Service) -> None:
    answer = service.ask("POST", CHAT, json.dumps({"messages": HI}).encode(), {"Content-Type": kind})
    assert answer.status == 415 and answer.error["code"] == "content_type"


def test_a_page_cannot_point_its_name_here(service: Service) -> None:
    for path in ("/health", "/v1/models", "/slots", "/metrics"):
        assert service.get(path, Host=f"evil.example:{service.port}").status == 403
    assert service.post(CHAT, {"messages": HI}, Host="evil.example").status == 403
    assert service.get("/v1/models", Host=f"localhost:{service.port}").status == 200


def head(path: str, *lines: str) -> bytes:
    first = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
    return "\r\n".join([*first, *lines, "", ""]).encode()


def test_a_body_of_more_than_64_mib(service: Service) -> None:
    with service.raw(head(CHAT, f"Content-Length: {BODY_LIMIT_BYTES + 1}", "Expect: 100-continue")) as connection:
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 "), "before anything is sent"
    answer = service.post(CHAT, b" " * (BODY_LIMIT_BYTES + 1))
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


def test_a_large_body_is_read(service: Service) -> None:
    """12 MiB of white space are no crime."""
    answer = service.post("/tokenize", b'{"content": "ab"' + b" " * (12 << 20) + b"}")
    assert answer.status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        head(CHAT, "Content-Length: -1"),
        head(CHAT, "Content-Length: 5", "Content-Length: 6") + b"{}",
        head(CHAT, "Transfer-Encoding: chunked") + b"zz\r\n",
        head(CHAT, "Content-Length: 100") + b"{",
        b"POST /v1/chat/comp",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 300_000,
    ],
    ids=range(10),
)
def test_what_is_no_http(data: bytes, service: Service) -> None:
    with service.raw(b"") as connection:
        try:
            connection.sendall(data)
            connection.shutdown(1)
            first = connection.recv(4096)
        except OSError:
            first = b""
        assert b" 200 " not in first.split(b"\r\n")[0]


def test_a_reader_that_does_not_read(service: Service) -> None:
    body = json.dumps({"messages": [user("Speak on.")], "stream": True, "max_tokens": 200}).encode()
    slow = [service.raw(head(CHAT, f"Content-Length: {len(body)}") + body) for _ in range(3)]
    told = service.chat(HI)
    assert told["choices"]
    for connection in slow:
        connection.close()


def test_a_client_that_goes_away_ends_its_turn(service: Service) -> None:
    """The service takes the next request though an answer of 900 tokens was asked for before."""
    body = json.dumps({"messages": [user("Speak for long.")], "stream": True, "max_tokens": 900}).encode()
    for _ in range(3):
        with service.raw(head(CHAT, f"Content-Length: {len(body)}") + body) as connection:
            connection.recv(100)
    assert service.chat(HI)["choices"]
    deadline = time.monotonic() + 60
    while service.get("/slots").json[0]["is_processing"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- slots


@pytest.mark.parametrize("action", ["save", "restore"])
@pytest.mark.parametrize(
    "name",
    [
        None,
        7,
        "",
        ".",
        "..",
        ".hidden",
        "../outside",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "a\x00b",
        "a\nb",
        "link",
        "x" * 300,
    ],
    ids=ascii,
)
def test_names_of_slot_files(name: Any, action: str, service: Service, folder: Path) -> None:
    service.chat(HI)
    before = sorted(path.name for path in (folder / "slots").iterdir())
    answer = service.post(f"/slots/0?action={action}", {"filename": name})
    assert answer.status == 400, answer.data
    assert answer.error["message"]
    assert sorted(path.name for path in (folder / "slots").iterdir()) == before
    assert (folder / "outside").read_text() == "not yours"


@pytest.mark.parametrize(
    ("query", "name", "status"),
    [
        ("?action=restore", "missing", 404),
        ("?action=restore", "junk", 400),
        ("?action=dance", "a", 400),
        ("", "a", 400),
        ("?action=save&action=erase", "a/b", 400),
    ],
)
def test_other_requests_to_slots(query: str, name: str, status: int, service: Service) -> None:
    answer = service.post(f"/slots/0{query}", {"filename": name})
    assert answer.status == status and str(service.home.parent) not in answer.error["message"], answer.data


# -- with a key


def test_a_service_with_a_key(folder: Path, tiny: Callable[..., Path]) -> None:
    model = tiny("llama")
    with Service.start(folder, model, "--api-key-file", folder / "key", home="keyed") as service:
        good = {"Authorization": "Bearer sk-one-key"}
        for wrong in ({}, {"Authorization": "Bearer sk-two-key"}, {"Authorization": "sk-one-key"}):
            for path in ("/v1/models", "/slots", "/metrics", "/nope"):
                answer = service.get(path, **wrong)
                assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            answer = service.post(CHAT, {"messages": HI}, **wrong)
            assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert service.get("/health").status == 200
        for path in ("/v1/models", "/slots", "/metrics"):
            assert service.get(path, **good, Host="models.lan").status == 200
        assert service.ask("POST", CHAT, json.dumps({"messages": HI, "max_tokens": 2}).encode(), good).status == 200
        assert service.get("/nope", **good).status == 404
        answer = service.post("/slots/0?action=save", {"filename": "a"}, **good)
        assert answer.status == 501 and "slot-dir" in answer.error["message"]
        assert "sk-one-key" not in service.log
        assert service.stop() in (0, 143)

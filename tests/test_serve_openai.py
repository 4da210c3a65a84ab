"""OpenAI's own Python client, unmodified: streams, tools, agents that take turns over a restart of the service."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from clients import name_of
from service import Service
from turns import said

SYSTEM = "You are an agent. You answer in few words and call what you are given. " * 3
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
]


def client_of(service: Service) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{service.port}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def service(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service.start(tmp_path_factory.mktemp("openai"), tiny("llama"), "--ctx-size", "2048") as running:
        yield running


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    with client_of(service) as made:
        yield made


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "any",
        "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Speak."}],
        "max_tokens": 24,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**asked)
    assert whole.usage is not None and whole.usage.completion_tokens == 24
    assert whole.choices[0].finish_reason == "length"
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content and len([p for p in pieces if p]) > 8
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    stopped = client.chat.completions.create(**{**asked, "stop": whole.choices[0].message.content[12:14]})
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].message.content == whole.choices[0].message.content[:12]


def test_a_stream_that_is_closed_early_ends_its_turn(client: openai.OpenAI, service: Service) -> None:
    asked: list[Any] = [{"role": "user", "content": "Speak for long."}]
    with client.chat.completions.create(model="any", messages=asked, max_tokens=1500, stream=True) as stream:
        for _ in zip(range(3), stream, strict=False):
            pass
    later = client.chat.completions.create(model="any", messages=[{"role": "user", "content": "Next."}], max_tokens=2)
    assert later.choices
    role, text = said(service.home, name_of("Speak for long."))[-1]
    assert role == "assistant" and 0 < len(text.encode()) < 4000, "what was said is kept"


def test_plain_completions_and_models(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert [client.models.retrieve(model.id).id for model in models] == ["tiny-llama"]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")
    done = client.completions.create(model="any", prompt="Once", max_tokens=5, temperature=0)
    pieces = client.completions.create(model="any", prompt="Once", max_tokens=5, temperature=0, stream=True)
    assert "".join(each.choices[0].text for each in pieces) == done.choices[0].text
    assert done.usage is not None and done.usage.completion_tokens == 5


def test_failures_are_the_clients_own_exceptions(client: openai.OpenAI) -> None:
    asked: list[Any] = [{"role": "user", "content": "Hi."}]
    with pytest.raises(openai.BadRequestError, match="one live conversation") as caught:
        client.chat.completions.create(model="any", messages=asked, n=2)
    assert caught.value.param == "n" and caught.value.code == "invalid_value"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="any", messages=[{"role": "user", "content": "long " * 900}])
    assert caught.value.code == "context_length_exceeded"
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="any", messages=asked, tool_choice="required", stream=stream)


def test_a_tools_round_trip(demo_model: Path, tmp_path: Path) -> None:
    """A real model copies the call that an earlier turn shows; its call comes back as JSON, and is found again."""

    def call(name: str, a: int, b: int) -> dict[str, Any]:
        arguments = json.dumps({"a": a, "b": b})
        return {"id": name, "type": "function", "function": {"name": "add", "arguments": arguments}}

    shown: list[Any] = []
    for number, (a, b) in enumerate(((2, 3), (4, 1), (7, 2))):
        text = json.dumps({"name": "add", "arguments": {"a": a, "b": b}})
        shown += [
            {"role": "user", "content": f"Add {a} and {b}."},
            {"role": "assistant", "content": f"<tool_call>\n{text}\n</tool_call>"},
            {"role": "tool", "tool_call_id": f"call{number:05}", "content": str(a + b)},
            {"role": "assistant", "content": f"It is {a + b}."},
        ]
    with Service.start(tmp_path, demo_model, "--ctx-size", "4096") as service, client_of(service) as client:
        asked: dict[str, Any] = {"model": "any", "temperature": 0, "max_tokens": 60, "tools": TOOLS}
        messages = [*shown, {"role": "user", "content": "Add 5 and 6."}]
        first = client.chat.completions.create(messages=messages, **asked)
        message = first.choices[0].message
        assert first.choices[0].finish_reason == "tool_calls" and message.tool_calls, first
        function: Any = message.tool_calls[0]
        assert function.function.name == "add" and json.loads(function.function.arguments) == {"a": 5, "b": 6}
        assert "tool_call" not in (message.content or "")
        later = [*messages, message.model_dump(exclude_none=True)]
        later += [{"role": "tool", "tool_call_id": function.id, "content": "11"}]
        second = client.chat.completions.create(messages=later, **asked)
        assert second.usage is not None and second.usage.prompt_tokens_details is not None and first.usage is not None
        held = first.usage.prompt_tokens + first.usage.completion_tokens
        assert second.usage.prompt_tokens_details.cached_tokens == held, "the call stands as it was generated"
        assert list(said(service.home, name_of("Add 2 and 3.")))[-3][1].strip().startswith("<tool_call>")
        streamed = list(client.chat.completions.create(messages=messages, stream=True, **asked))
        deltas = [chunk.choices[0].delta for chunk in streamed if chunk.choices]
        calls = [each for delta in deltas for each in delta.tool_calls or []]
        assert [each.function.arguments for each in calls if each.function] == [function.function.arguments]
        assert not any("tool_call" in (delta.content or "") for delta in deltas)


@dataclass
class Agent:
    """One agent: its history grows by what it is answered."""

    number: int
    messages: list[Any] = field(default_factory=lambda: [{"role": "system", "content": SYSTEM}])
    replies: list[str] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    new: list[int] = field(default_factory=list)
    held: int = 0

    def turn(self, client: openai.OpenAI, turn: int) -> None:
        text = f"Agent {self.number}, step {turn}: what is next? " * 2
        self.messages.append({"role": "user", "content": text})
        done = client.chat.completions.create(
            model="any", messages=self.messages, tools=TOOLS, max_tokens=16, temperature=0
        )
        usage, choice = done.usage, done.choices[0]
        assert usage is not None and usage.prompt_tokens_details is not None
        self.read.append(usage.prompt_tokens - (usage.prompt_tokens_details.cached_tokens or 0))
        self.new.append(usage.prompt_tokens - self.held)
        self.held = usage.prompt_tokens + usage.completion_tokens - (choice.finish_reason == "length")
        self.replies.append(choice.message.content or "")
        self.messages.append(choice.message.model_dump(exclude_none=True))


def test_A3_A8_A11_three_agents_take_turns_over_a_restart(tiny: Callable[..., Path], tmp_path: Path) -> None:
    """On a hybrid model, where state can be used only at the places that were kept."""
    model, turns = tiny("lfm2"), 4
    together = [Agent(number) for number in range(3)]
    for restart in range(2):
        with Service.start(tmp_path, model, "--ctx-size", "4096") as service, client_of(service) as client:
            for turn in range(restart * 2, restart * 2 + 2):
                for agent in together:
                    agent.turn(client, turn)
            assert service.stop() == 143
    for agent in together:
        assert agent.read[1:] == agent.new[1:], "all but the new turn was reused, from the second turn on"
    for agent in together:
        alone = Agent(agent.number)
        home = f"alone-{agent.number}"
        with Service.start(tmp_path, model, "--ctx-size", "4096", home=home) as service, client_of(service) as client:
            for turn in range(turns):
                alone.turn(client, turn)
        assert alone.replies == agent.replies
    assert len({tuple(agent.replies) for agent in together}) == 3, "replies tell the agents apart"

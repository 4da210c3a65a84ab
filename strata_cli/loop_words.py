"""What `/system`, `/set` and `/history` do, and the last turns that are shown when a conversation is opened.

Owns the names and bounds of what can be set in the loop. The table of commands is `slash`, dispatch `repl`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .conversation import Chat
from .errors import UsageProblem
from .log import Line
from .opened import role
from .prompt import content_text
from .reply import ReplyOptions

SHOWN_TURNS, SHOWN_LINES, SHOWN_CHARS = 2, 8, 600
LEAVING = frozenset({"exit", "quit", "bye"})  # prompts, and typed by people who mean to leave
KEPT = "interrupted; what was said is kept"
UNANSWERED = (
    "interrupted, and the prompt is not answered: /retry goes on with it from where reading stopped,"
    " a new line takes its place"
)


@dataclass(frozen=True)
class Settable:
    """One key of `/set`: what it accepts in words, how text becomes it, and how it reads and enters the options."""

    accepts: str
    parse: Callable[[str], Any]
    get: Callable[[ReplyOptions], Any]
    put: Callable[[ReplyOptions, Any], ReplyOptions]


def _number(kind: Callable[[str], Any], least: float, most: float = float("inf")) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = kind(text)
        if not least <= value <= most:
            raise ValueError
        return value

    return parse


def _truth(text: str) -> bool:
    return {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}[text.lower()]


def _sampling(name: str, accepts: str, parse: Callable[[str], Any]) -> Settable:
    return Settable(
        accepts,
        parse,
        lambda options: getattr(options.sampling, name),
        lambda options, value: replace(options, sampling=replace(options.sampling, **{name: value})),
    )


SETTABLE: Mapping[str, Settable] = {
    "temp": _sampling("temperature", "a number from 0", _number(float, 0)),
    "top-k": _sampling("top_k", "a whole number from 0 (off)", _number(int, 0)),
    "top-p": _sampling("top_p", "a number from 0 to 1 (off)", _number(float, 0, 1)),
    "min-p": _sampling("min_p", "a number from 0 (off) to 1", _number(float, 0, 1)),
    "repeat-penalty": _sampling("repeat_penalty", "a number from 0, 1 is off", _number(float, 0)),
    "seed": _sampling("seed", "a whole number, or none", lambda text: None if text == "none" else int(text)),
    "greedy": _sampling("greedy", "on or off", _truth),
    "max-tokens": Settable(
        "a whole number, 0 for what the context has left",
        _number(int, 0),
        lambda options: options.limit_tokens,
        lambda options, value: replace(options, limit_tokens=value),
    ),
    "stop": Settable(
        "text that ends a reply, or none",
        lambda text: () if text == "none" else (text,),
        lambda options: list(options.stops),
        lambda options, value: replace(options, stops=value),
    ),
}


def settings_of(options: ReplyOptions) -> dict[str, Any]:
    """Every key with its value in force."""
    return {key: each.get(options) for key, each in SETTABLE.items()}


def as_typed(value: Any) -> str:
    """A setting as one would type it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in (None, []) else ", ".join(value) if isinstance(value, list) else str(value)


def with_setting(options: ReplyOptions, key: str, text: str) -> ReplyOptions:
    """The options with one key set from text. Raises UsageProblem for an unknown key or a value it cannot have."""
    if key not in SETTABLE:
        raise UsageProblem(f"/set {key}: there is no such key", hint=f"one of ctx-size, {', '.join(SETTABLE)}")
    each = SETTABLE[key]
    try:
        return each.put(options, each.parse(text))
    except (ValueError, KeyError, OverflowError):
        raise UsageProblem(f"/set {key} {text}: not {each.accepts}") from None


def said_so_far(chat: Chat | None) -> list[dict[str, Any]]:
    """The messages of the branch in force: role, text, and whether the reply was interrupted."""
    branch = chat.opened.branch if chat is not None and chat.opened is not None else ()
    return [_as_json(line) for line in branch]


def _as_json(line: Line) -> dict[str, Any]:
    return {
        "role": role(line),
        "content": content_text(line.message or {}),
        "interrupted": "interrupted" in line.marks,
    }


def counted(number: int, what: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def last_turns(messages: list[dict[str, Any]], turns: int) -> list[dict[str, Any]]:
    """The messages of the last user turns."""
    asked = [number for number, message in enumerate(messages) if message["role"] == "user"]
    return messages[asked[-turns] :] if len(asked) > turns > 0 else messages


def as_text(messages: Sequence[Mapping[str, Any]], *, brief: bool = False) -> str:
    """A transcript for people: a user's lines begin with `> `. `brief` shows the beginning of long messages."""
    parts = []
    for message in messages:
        text = _beginning(message["content"]) if brief else message["content"]
        if message["role"] == "user":
            text = "\n".join(f"> {line}" for line in text.split("\n"))
        elif message["role"] != "assistant":
            text = f"({message['role']}) {text}"
        parts.append(text + ("\n(interrupted)" if message["interrupted"] else ""))
    return "\n".join(parts)


def _beginning(text: str) -> str:
    lines = text[:SHOWN_CHARS].split("\n")[:SHOWN_LINES]
    shown = "\n".join(lines)
    return shown + (" ..." if len(shown) < len(text) else "")

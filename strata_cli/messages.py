"""Messages as a stateless client sends them: which stored conversation they continue (A1, A2), and taking them in.

Owns reading the list, comparing it with what is stored, and the choice. Finding is done by text alone, before any
model is loaded; state is found by tokens whatever the answer is.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .asked import give
from .call_text import call_of, split_calls
from .conversation import Chat
from .errors import StrataError, UsageProblem
from .head import Head
from .log import Line, Log
from .names import automatic_name, is_automatic, key_of
from .opened import GIVEN
from .prompt import content_text
from .store import Store

Message = Mapping[str, Any]

ROLES = {"system", "developer", "user", "assistant", "tool", "function"}
SETTINGS = ("system", "developer")
_REASONING = re.compile(r"<think>.*?(?:</think>|\Z)|\A(?:(?!<think>).)*?</think>", re.DOTALL)


@dataclass(frozen=True)
class Incoming:
    """A client's whole history: the system prompt, what was said before, and what is said now (None: nothing)."""

    system: str | None
    history: tuple[Message, ...]
    said: Message | None

    @property
    def all(self) -> tuple[Message, ...]:
        return self.history if self.said is None else (*self.history, self.said)

    @property
    def key(self) -> str:
        """The key of the conversation (A1); empty without user text."""
        first = next((content_text(m) for m in self.all if m["role"] == "user"), "")
        return key_of(first) if first else ""


def read_messages(text: str, where: str) -> tuple[Message, ...]:
    """A JSON list of messages as chat APIs have them. Raises UsageProblem, Refused for media."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageProblem(f"{where}: not JSON: {error}") from None
    if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
        value = value["messages"]
    return checked_messages(value, where)


def checked_messages(value: Any, where: str) -> tuple[Message, ...]:
    """The same of what was read as JSON already."""
    if not isinstance(value, list) or not value:
        raise UsageProblem(f"{where}: not a list of messages", hint='[{"role": "user", "content": "hello"}]')
    return tuple(_message(each, number, where) for number, each in enumerate(value, 1))


def _message(value: Any, number: int, where: str) -> Message:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str) or value["role"] not in ROLES:
        raise UsageProblem(f"{where}: message {number} has no role that strata knows", hint=", ".join(sorted(ROLES)))
    if not isinstance(value.get("content"), str | list | None):
        raise UsageProblem(f"{where}: the content of message {number} is neither text nor a list of parts")
    if value.get("content") is None and value["role"] != "assistant":
        raise UsageProblem(f"{where}: message {number} says nothing", hint="`content` is a text or a list of parts")
    content_text(value)
    return dict(value)


def split(messages: Sequence[Message], prompt: str | None, where: str) -> Incoming:
    """System prompt, history and what is said now: PROMPT, or the last message. Raises UsageProblem."""
    opening = 0
    while opening < len(messages) and messages[opening]["role"] in SETTINGS:
        opening += 1
    system = "\n\n".join(content_text(each) for each in messages[:opening]) or None
    rest = tuple(messages[opening:])
    if prompt is not None:
        return Incoming(system, rest, {"role": "user", "content": prompt})
    if not rest or rest[-1]["role"] not in ("user", "tool", "function"):
        raise UsageProblem(f"{where}: it does not end with the user's turn", hint="say the next PROMPT after it")
    return Incoming(system, rest[:-1], rest[-1])


def as_history(messages: Sequence[Message], where: str) -> Incoming:
    """The same without anything that is said now."""
    found = split(messages, "", where)
    if not found.history:
        raise UsageProblem(f"{where}: nothing but a system prompt", hint="`strata prefix add` keeps one")
    return Incoming(found.system, found.history, None)


def compared(message: Message) -> tuple[Any, ...]:
    """A message as far as it counts for A2: parts joined, outer white space trimmed, reasoning dropped, calls read."""
    text, calls = content_text(message), [_call(each) for each in _calls_of(message)]
    if message.get("role") == "assistant":
        # Where calls stand by themselves, the text beside them has none.
        text, calls = (text, calls) if calls else split_calls(text)
        text = _REASONING.sub("", text)
    return message.get("role"), text.strip(), calls


def _calls_of(message: Message) -> Iterator[Any]:
    calls = message.get("tool_calls")
    yield from calls if isinstance(calls, list) else ()


def _call(call: Any) -> Any:
    """A call with its arguments read, or what stands in the place of one."""
    return call_of(call) or call


@dataclass(frozen=True)
class Continued:
    """The stored conversation that messages continue: its head, and how many of its messages are kept."""

    name: str
    head: Head | None
    kept: int


def kept_messages(log: Log, incoming: Incoming) -> int | None:
    """How many stored messages the incoming ones continue; None where the stored ones are not their beginning.

    A last reply that the client leaves out is being regenerated: it is not kept. Nor is one of which only the
    beginning is stored: llama-server's files lack what was chosen last, and a stream may end before its reply does.
    """
    stored = [compared(line.message or {}) for line in log.branch()]
    sent = [compared(message) for message in incoming.all]
    if stored and stored == sent[: len(stored)] and len(stored) < len(sent):
        return len(stored)
    if len(stored) > 1 and stored[-1][0] == "assistant" and stored[:-1] == sent:
        return len(stored) - 1
    if stored == sent:
        return len(stored)
    before = len(stored) - 1
    if before > 0 and stored[:-1] == sent[:before] and len(sent) > before and _begins(stored[-1], sent[before]):
        return before
    return None


def _begins(stored: tuple[Any, ...], sent: tuple[Any, ...]) -> bool:
    """Whether a stored reply is the beginning of one that was sent. Both as `compared` gives them."""
    (role, text, calls), (sent_role, sent_text, _) = stored, sent
    return role == sent_role == "assistant" and not calls and bool(text) and str(sent_text).startswith(text)


def continued(store: Store, incoming: Incoming) -> Continued | None:
    """The conversation with their key whose messages they continue, the longest one; None for one of its own (A2)."""
    if not incoming.key or len(incoming.all) < 2:
        return None
    found = []
    for head in _heads_with(store, incoming.key):
        kept = _kept(store, head.name, incoming)
        if kept is not None:
            found.append(Continued(head.name, head, kept))
    return max(found, key=lambda each: (each.kept, each.head.last_turn if each.head else ""), default=None)


def _heads_with(store: Store, key: str) -> Iterator[Head]:
    """The heads of the conversations with this key. An automatic name tells its key: its head need not be read."""
    own = automatic_name(key, 1)
    for name in store.names():
        if is_automatic(name) and name != own and not name.startswith(f"{own}-"):
            continue
        try:
            head = store.read_head(name)
        except StrataError:
            continue
        if head.key == key:
            yield head


def _kept(store: Store, name: str, incoming: Incoming) -> int | None:
    try:
        return kept_messages(store.read_log(name), incoming)
    except StrataError:
        return None


def named(store: Store, name: str, incoming: Incoming, head: Head | None, *, replace: bool) -> Continued | None:
    """The conversation that `-C NAME` means; None where it does not exist yet.

    Raises UsageProblem where the messages are not its own, unless they replace them.
    """
    if name not in store.names():
        return None
    log = store.read_log(name)
    kept = kept_messages(log, incoming)
    if kept is None and not replace:
        raise UsageProblem(
            f"these messages do not continue {name}",
            hint="--replace (what it says now stays as an alternative branch), or another -C NAME",
        )
    return Continued(name, head, shared(log, incoming) if kept is None else kept)


def equal_text(log: Log, incoming: Incoming) -> bool:
    """Whether a conversation says just these messages."""
    return len(log.branch()) == len(incoming.all) == shared(log, incoming)


def shared(log: Log, incoming: Incoming) -> int:
    """How many messages both begin with."""
    count = 0
    for line, message in zip(log.branch(), incoming.all, strict=False):
        if compared(line.message or {}) != compared(message):
            break
        count += 1
    return count


def take_in(chat: Chat, incoming: Incoming, kept: int) -> None:
    """Bring the open conversation to where the messages stand, all but what is said now. Raises StorageFailed."""
    branch: tuple[Line, ...] = chat.opened.branch if chat.opened else ()
    past = len(incoming.history)
    if kept > past and GIVEN in branch[past].marks:
        kept = past  # it stands there as history, and now it is said
    given = incoming.history[min(kept, past) :]
    again = []
    if 0 < kept <= past and _waits(branch[kept - 1]):
        # A line that waits for its reply is none of the history yet, and something else is said now: it is given again.
        kept -= 1
        again = [branch[kept].message or {}]
    if kept < len(branch):
        give(chat, [*again, *given], after=branch[kept - 1].id if kept else None, back=True)
    elif given:
        give(chat, given)
    chat.leave_nothing_out()


def _waits(line: Line) -> bool:
    return (line.message or {}).get("role") != "assistant" and GIVEN not in line.marks

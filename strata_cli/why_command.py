"""`strata inspect NAME --why FILE`: where a prompt leaves a conversation, and why.

Owns the comparison of tokens and the causes that can be told. It loads the vocabulary and the template alone.
"""

import json
import re
from collections.abc import Sequence
from datetime import date
from typing import Any

from .config import Config
from .engine import Template, Vocabulary
from .errors import NotFound, UsageProblem
from .head import Head
from .history import entries
from .models import choose_model
from .names import resolve
from .opened import Opened
from .output import Output
from .prompt import Entry, Prompter, common
from .store import Store

AROUND_TOKENS = 12
DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{1,2} [A-Z][a-z]{2,8} \d{4}|[A-Z][a-z]{2,8} \d{1,2},? \d{4}")


def why(wanted: str, text: str, model: str | None, store: Store, config: Config, out: Output) -> int:
    """Print the first token at which the prompt in `text` leaves the conversation; returns the exit status."""
    from .llama_engine import load_vocabulary

    name = resolve(wanted, store.names())
    opened = Opened(store, name, log=store.read_log(name), head=_head(store, name))
    path = choose_model(model, opened.head, config.settings).path
    vocabulary, template = load_vocabulary(path, log_path=config.places.state / "engine.log")
    stored = opened.log.tokens()
    prompt, cause = prompt_tokens(text, opened, vocabulary, template)
    at = common(stored, prompt)
    found: dict[str, Any] = {
        "conversation": name,
        "at_token": at,
        "stored_tokens": len(stored),
        "prompt_tokens": len(prompt),
        "leaves": at < len(stored),
    }
    if at < len(stored):
        found["before"] = decoded(stored[max(0, at - AROUND_TOKENS) : at], vocabulary)
        found["stored"] = decoded(stored[at : at + AROUND_TOKENS], vocabulary)
        found["prompt"] = decoded(prompt[at : at + AROUND_TOKENS], vocabulary)
        found["cause"] = cause or cause_of(found, opened.log.tokens(), prompt, at, vocabulary)
        out.show(f"{name}: the prompt leaves what was read at token {at:,} of {len(stored):,}: {found['cause']}")
        rows = [["behind", repr(found["before"])], ["stored", repr(found["stored"])], ["prompt", repr(found["prompt"])]]
        out.table(["side", "text"], rows)
    else:
        out.show(f"{name}: the prompt goes on from all {len(stored):,} tokens that were read")
    return out.finish(found)


def _head(store: Store, name: str) -> Head | None:
    try:
        return store.read_head(name)
    except NotFound:
        return None


def prompt_tokens(
    text: str, opened: Opened, vocabulary: Vocabulary, template: Template
) -> tuple[tuple[int, ...], str | None]:
    """The tokens of a JSON list of messages, rendered, or of a prompt's own text; and a cause that is plain already."""
    try:
        messages = json.loads(text)
    except ValueError:
        return tuple(vocabulary.tokenize(text, special=True)), None
    if not isinstance(messages, list) or not all(isinstance(each, dict) and "role" in each for each in messages):
        raise UsageProblem("--why: JSON, but no list of messages", hint='[{"role": "user", "content": "..."}]')
    day = opened.day or date.today()
    known = {json.dumps(dict(e.message), sort_keys=True): e.tokens for e in entries(opened, None, vocabulary)}
    asked = [Entry(each, known.get(json.dumps(each, sort_keys=True))) for each in messages]
    if opened.system and not any(each["role"] == "system" for each in messages):
        asked.insert(0, Entry({"role": "system", "content": opened.system}))
    prompt = Prompter(vocabulary, template).build(asked, tools=opened.tools, day=day)
    if prompt.rewritten is not None:
        return (
            prompt.tokens,
            f"the template rewrites message {prompt.rewritten + 1}: reasoning of earlier turns is dropped",
        )
    return prompt.tokens, None


def decoded(tokens: Sequence[int], vocabulary: Vocabulary) -> str:
    return b"".join(vocabulary.piece(token) or _name(token, vocabulary) for token in tokens).decode(errors="replace")


def _name(token: int, vocabulary: Vocabulary) -> bytes:
    return f"<{token}>".encode()


def cause_of(
    found: dict[str, Any], stored: Sequence[int], prompt: Sequence[int], at: int, vocabulary: Vocabulary
) -> str:
    """The cause where it can be told from the two sides."""
    ours = decoded(stored[max(0, at - 8) : at + 8], vocabulary)
    theirs = decoded(prompt[max(0, at - 8) : at + 8], vocabulary)
    if at == 0:
        return "nothing agrees: another template, another beginning-of-text token or another system prompt"
    if DATE.search(ours) and DATE.search(theirs):
        return "a date in the prompt"
    if decoded(stored[at:], vocabulary) == decoded(prompt[at:], vocabulary):
        return "the same text in other tokens: it was tokenised anew"
    if str(found["stored"]).split() == str(found["prompt"]).split():
        return "white space"
    return "other text"

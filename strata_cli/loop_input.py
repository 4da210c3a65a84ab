"""What comes in on standard input for the loop, without a terminal: text or JSON, a line each.

Owns both forms. What a line does is `repl`.
"""

import json
import sys
from collections.abc import Iterator

from .errors import StrataError, UsageProblem
from .slash import Command, Said, find, read_line

Item = Said | Command | StrataError


def lines() -> Iterator[str]:
    for raw in sys.stdin.buffer:
        yield raw.decode("utf-8", errors="replace").rstrip("\r\n")


def text_item(line: str) -> Item:
    try:
        return read_line(line)
    except StrataError as error:
        return error


def json_item(line: str) -> Item:
    """`{"prompt": TEXT}`, never a command, or `{"command": "/word", "args": [...]}`."""
    try:
        value = json.loads(line)
        if isinstance(value, dict) and isinstance(value.get("prompt"), str):
            return Said(value["prompt"])
        if isinstance(value, dict) and isinstance(value.get("command"), str):
            args = value.get("args", [])
            if isinstance(args, list) and all(isinstance(arg, str) for arg in args):
                return Command(find(value["command"]).word, " ".join(args), tuple(args))
        raise UsageProblem('neither {"prompt": TEXT} nor {"command": WORD, "args": [TEXT, ...]}')
    except ValueError as error:
        return UsageProblem(f"not a line of JSON: {error}")
    except StrataError as error:
        return error

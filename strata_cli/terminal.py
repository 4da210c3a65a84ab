"""Lines typed at a terminal: editing, history, completion of commands.

Owns the prompt_toolkit session. What a line does is `repl`.
"""

import sys
from collections.abc import Iterator

from .conversation import Chat
from .errors import StrataError
from .session import Session
from .slash import Command, Said, read_line


def typed(session: Session, chat: Chat | None) -> Iterator[Said | Command | StrataError]:
    """What the user types, until end of input. Ctrl-C clears the line; on an empty one it says how to leave."""

    from prompt_toolkit import PromptSession
    from prompt_toolkit.output import create_output

    prompt: PromptSession[str] = PromptSession(output=create_output(stdout=sys.stderr))
    session.out.note("/help lists the commands, Ctrl-D leaves")
    while True:
        try:
            line = prompt.prompt("> ")
        except KeyboardInterrupt:
            session.out.note("Ctrl-D or /exit leaves")
            continue
        except EOFError:
            return
        if not line.strip():
            continue
        try:
            yield read_line(line)
        except StrataError as error:
            yield error

"""Letting go of what is open, for a request that goes somewhere else (A3, A5, A6). It never fails the request."""

from ..conversation import Chat
from ..errors import NoRoom, StrataError
from ..session import Session


def leave(session: Session, chat: Chat) -> bool:
    """Park and close what is open; whether its state fits neither memory nor disk, so that it must be read again."""
    stuck = False
    try:
        chat.check_leave()
    except NoRoom as error:
        stuck = True
        session.out.warning(error.message)
    try:
        chat.leave_conversation()
    except StrataError as error:
        session.out.warning(f"the text of what was left is not written yet: {error.message}")
    return stuck

"""Text from models, users and files, made harmless for a terminal. It stays exact in JSON and on disk.

Control characters (C0, DEL, C1), and the bidirectional ones that reorder what is read, become visible: ESC is
shown as `\\x1b`. Newlines and tabs stay. An escape sequence begins with such a character, so that the rest of
it is plain text, also where a sequence is cut between two pieces of a stream.
"""

_KEPT = "\n\t"
_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
_REORDERING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
# Half of a pair, as Python reads a byte that is no UTF-8: no stream could write it.
_LONE_SURROGATES = range(0xD800, 0xE000)

_VISIBLE = {n: f"\\x{n:02x}" for n in _CONTROLS if chr(n) not in _KEPT}
_VISIBLE |= {n: f"\\u{n:04x}" for n in (*_REORDERING, *_LONE_SURROGATES)}
_ONE_LINE = _VISIBLE | {ord(character): " " for character in "\n\t\r\u2028\u2029\x85\v\f"}


def safe_text(text: str) -> str:
    """`text` with its control characters visible; line ends of Windows become newlines."""
    return text.replace("\r\n", "\n").translate(_VISIBLE)


def one_line(text: str) -> str:
    """`text` as one line: line ends and tabs become spaces, other control characters visible."""
    if text.isascii() and text.isprintable():
        return text
    return text.replace("\r\n", "\n").translate(_ONE_LINE)


class SafeStream:
    """`safe_text` for text that arrives in pieces: what `feed` and `end` return is that of the whole."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """The next of the safe text; a carriage return is held back until what follows it is known."""
        text = self._held + piece
        self._held = "\r" if text.endswith("\r") else ""
        return safe_text(text.removesuffix(self._held))

    def end(self) -> str:
        """What was still held back."""
        held, self._held = self._held, ""
        return safe_text(held)

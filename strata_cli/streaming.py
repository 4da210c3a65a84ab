"""A reply's tokens to text, piece by piece.

Owns two rules: half a character is never shown, and nothing of a stop text is. Knows no engine.
"""

import codecs
from collections.abc import Sequence


class ReplyText:
    """Collects the bytes of a reply; `push` gives what can be shown by now, `finish` the rest."""

    def __init__(self, stops: Sequence[str] = ()) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.text = ""
        self.stopped = False

    def push(self, piece: bytes) -> str:
        """Take a token's bytes; returns the text that is certain now."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(piece)
        return self._release(final=False)

    def finish(self) -> str:
        """The text that was held back; an unfinished character becomes one replacement mark."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(b"", final=True)
        return self._release(final=True)

    def _release(self, *, final: bool) -> str:
        places = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if places:
            self.stopped = True
            shown, self._held = self._held[: min(places)], ""
        else:
            keep = 0 if final else self._possible_stop()
            cut = len(self._held) - keep
            shown, self._held = self._held[:cut], self._held[cut:]
        self.text += shown
        return shown

    def _possible_stop(self) -> int:
        """How many characters at the end could be the beginning of a stop text."""
        longest = max((len(stop) for stop in self._stops), default=0)
        for size in range(min(longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0

"""How long a client may take to say what it wants: the head of a request, before anybody can be asked for a key.

Owns that one limit, which uvicorn lacks. Bodies are `guard`'s. Reaches into uvicorn's protocol, which pyproject pins.
"""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 20.0


class PatientProtocol(H11Protocol):
    """Closes a connection whose request's head does not arrive whole within `head_s`."""

    head_s = HEAD_S
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE and (self.cycle is None or self.cycle.response_complete):
            self._expect()
        else:
            self._arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def _expect(self) -> None:
        """A head is on its way: its first byte starts the time, and no later one starts it anew."""
        if self._late is None:
            self._late = self.loop.call_later(self.head_s, self._give_up)

    def _arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if not self.transport.is_closing():
            self.transport.close()

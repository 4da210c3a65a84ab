"""Counts answers by route and status, whoever gives them: the guard's refusals too. An ASGI middleware."""

from collections.abc import Sequence
from typing import Any

from .delivery import Receive, Send
from .guard import App
from .metrics import Tally

OTHER = "other"  # never a path that a client chose: it would grow the table without bound


class Counted:
    """Wraps an application. `paths` as the routes have them."""

    def __init__(self, app: App, tally: Tally, paths: Sequence[str]) -> None:
        self._app, self._tally = app, tally
        self._exact = {path for path in paths if "{" not in path}
        self._begins = {path.partition("{")[0]: path for path in paths if "{" in path}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        async def counting(message: Any) -> None:
            if message["type"] == "http.response.start":
                self._tally.request(self.route_of(scope["path"]), message["status"])
            await send(message)

        await self._app(scope, receive, counting)

    def route_of(self, path: str) -> str:
        """The route that a path means."""
        if path in self._exact:
            return path
        return next((route for begin, route in self._begins.items() if path.startswith(begin)), OTHER)

"""The routes, and what each asks of the worker. Every answer, and every failure as an answer, is made here.

Owns no rule about conversations (`turns`), bodies (`requests`), shapes (`answers`) or who may ask (`guard`).
"""

import asyncio
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..conversation import Chat
from ..errors import NotFound, StrataError
from ..session import Session
from ..turn import TurnResult
from . import slot_files
from .answers import About, chat_body, model_body, models_body, outcome_of, plain_body
from .chunks import ChatChunks, PlainChunks
from .completions import Completed, complete, detokenized, templated, tokenized
from .counted import Counted
from .delivery import ClientGone, EventStream, Feed, Receive, Send, result_of, watch_for
from .guard import Guard
from .metrics import CONTENT_TYPE, Tally, as_text
from .requests import ChatRequest, PlainRequest, read_body, read_chat, read_plain, read_template
from .statuses import BadRequest, error_body, error_headers, status_of
from .tool_calls import ToolText
from .turns import answer
from .worker import ENDING, Flags, Leaving, Worker

Handler = Callable[[Request], Awaitable[Any]]


@dataclass
class Service:
    """What the routes need."""

    session: Session
    worker: Worker
    model: str
    slot_dir: Path | None = None
    tally: Tally = field(default_factory=Tally)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def chat(self) -> Chat:
        """Raises Leaving where it is closed already."""
        if self.session.chat is None:
            raise Leaving(ENDING)
        return self.session.chat

    def about(self, kind: str) -> About:
        return About(f"{kind}-{secrets.token_hex(12)}", int(time.time()), self.model)

    # -- what talks

    async def chat_completions(self, request: Request) -> Any:
        asked = read_chat(read_body(await request.body()))
        about = self.about("chatcmpl")
        tools = ToolText(f"{asked.incoming.key}:{len(asked.incoming.all)}") if asked.reads_calls else None
        if asked.stream:
            return await self._streamed(request, asked, ChatChunks(about, tools, tells_usage=asked.include_usage))
        result = await self._result(request, asked)
        said, calls = result.reply, list[Any]()
        if tools is not None:
            shown = tools.push(said)
            rest, calls = tools.finish()
            said = shown + rest
        return JSONResponse(chat_body(about, said, calls, outcome_of(result)))

    async def completions(self, request: Request) -> Any:
        asked = read_plain(read_body(await request.body()))
        about, echo = self.about("cmpl"), await self._echo(asked)
        if asked.stream:
            return await self._streamed(request, asked, PlainChunks(about, echo, tells_usage=asked.include_usage))
        result = await self._result(request, asked)
        return JSONResponse(plain_body(about, echo + result.text, outcome_of(result)))

    async def _echo(self, asked: PlainRequest) -> str:
        if not asked.asked.echo:
            return ""
        prompt = asked.asked.prompt
        if isinstance(prompt, str):
            return prompt
        body = {"tokens": list(prompt)}
        return str((await self._looked(lambda chat: detokenized(body, chat.engine.vocabulary)))["content"])

    async def _result(self, request: Request, asked: ChatRequest | PlainRequest) -> Any:
        job = self.worker.submit(lambda session, flags: self._do(session, flags, asked, None))
        return await result_of(job, request.receive)

    async def _streamed(self, request: Request, asked: ChatRequest | PlainRequest, chunks: Any) -> EventStream:
        feed = Feed()
        job = self.worker.submit(lambda session, flags: self._do(session, flags, asked, feed))
        return await EventStream(job, feed, chunks, outcome_of).begun(request.receive)

    def _do(
        self, session: Session, flags: Flags, asked: ChatRequest | PlainRequest, feed: Feed | None
    ) -> TurnResult | Completed:
        """The work itself, on the engine's thread. Raises Leaving for what the end of the service broke off."""
        self.tally.waited(flags.waited_s)
        watch = watch_for(flags, feed)
        result: TurnResult | Completed
        if isinstance(asked, ChatRequest):
            result = answer(session, asked, watch, date.today)
            self.tally.turn(result)
        else:
            result = complete(session, asked.asked, watch)
            self._count(result)
        if result.finish == "interrupted":
            raise Leaving(f"{ENDING}: the answer is not complete")
        return result

    def _count(self, result: Completed) -> None:
        read = result.prompt_tokens - result.reused_tokens
        self.tally.read(evaluated=read, reused=result.reused_tokens, generated=result.reply_tokens)

    # -- what only looks

    async def health(self, _: Request) -> Any:
        return JSONResponse({"status": "ok"})

    async def models(self, _: Request) -> Any:
        return JSONResponse(models_body(self.model, self.created, self._facts()))

    async def one_model(self, request: Request) -> Any:
        if request.path_params["model"] != self.model:
            raise NotFound("there is no such model", hint=f"this service has {self.model}")
        return JSONResponse(model_body(self.model, self.created, self._facts()))

    def _facts(self) -> dict[str, Any]:
        engine = self.chat.engine
        return {
            "description": engine.model.description,
            "n_ctx": engine.context_tokens,
            "n_ctx_train": engine.model.trained_tokens,
            "n_vocab": len(engine.vocabulary),
        }

    async def metrics(self, _: Request) -> Any:
        return Response(as_text(self.tally.metrics(self.worker.queue_length)), media_type=CONTENT_TYPE)

    async def tokenize(self, request: Request) -> Any:
        body = read_body(await request.body())
        return JSONResponse(await self._looked(lambda chat: tokenized(body, chat)))

    async def detokenize(self, request: Request) -> Any:
        body = read_body(await request.body())
        return JSONResponse(await self._looked(lambda chat: detokenized(body, chat.engine.vocabulary)))

    async def apply_template(self, request: Request) -> Any:
        messages, tools = read_template(read_body(await request.body()))
        return JSONResponse(await self._looked(lambda chat: templated(chat, messages, tools, date.today())))

    async def _looked(self, look: Callable[[Chat], dict[str, Any]]) -> dict[str, Any]:
        """What only asks the vocabulary need not wait for the engine. Raises Leaving where it is being freed."""

        def looked() -> dict[str, Any]:
            with self.worker.looking:
                return look(self.chat)

        return await asyncio.to_thread(looked)

    # -- slots

    async def slots(self, _: Request) -> Any:
        assert self.chat
        return JSONResponse(slot_files.shown(self.session, busy=self.worker.busy))

    async def slot_action(self, request: Request) -> Any:
        if request.path_params["slot"] != "0":
            raise NotFound("there is no such slot", hint="this service has slot 0")
        data = await request.body()
        work = self._slot_work(request.query_params.getlist("action"), data)
        return JSONResponse((await result_of(self.worker.submit(work), request.receive)).body)

    def _slot_work(self, actions: list[str], data: bytes) -> Callable[[Session, Flags], slot_files.SlotAnswer]:
        if actions == ["erase"]:
            if data:
                read_body(data)
            return lambda session, _: slot_files.erase(session)
        if actions not in (["save"], ["restore"]):
            raise BadRequest("`action` must be save, restore or erase", param="action")
        path = slot_files.slot_path(self.slot_dir, read_body(data).get("filename"))
        if actions == ["save"]:
            return lambda session, flags: slot_files.save(session, path, watch_for(flags))
        return lambda session, _: slot_files.restore(session, path, date.today())


def routes(service: Service) -> dict[str, tuple[str, Handler]]:
    """Every path with its method and its handler."""
    return {
        "/health": ("GET", service.health),
        "/v1/health": ("GET", service.health),
        "/v1/models": ("GET", service.models),
        "/v1/models/{model:path}": ("GET", service.one_model),
        "/v1/chat/completions": ("POST", service.chat_completions),
        "/v1/completions": ("POST", service.completions),
        "/tokenize": ("POST", service.tokenize),
        "/detokenize": ("POST", service.detokenize),
        "/apply-template": ("POST", service.apply_template),
        "/slots": ("GET", service.slots),
        "/slots/{slot}": ("POST", service.slot_action),
        "/metrics": ("GET", service.metrics),
    }


def make_app(service: Service, key: str | None) -> Callable[[Any, Receive, Send], Awaitable[None]]:
    """The whole application: counted, guarded, routed."""
    table = routes(service)
    listed = [Route(path, _answered(handler, service), methods=[method]) for path, (method, handler) in table.items()]
    app = Starlette(routes=listed, exception_handlers={HTTPException: _no_route})
    app.router.redirect_slashes = False
    return Counted(Guard(app, key), service.tally, tuple(table))


def _answered(handler: Handler, service: Service) -> Handler:
    """The handler with its failures as answers."""

    async def answered(request: Request) -> Any:
        try:
            return await handler(request)
        except ClientGone:
            return Response(status_code=499)  # nobody reads it
        except StrataError as error:
            return failed(error)
        except MemoryError:
            return failed(StrataError("there is not enough memory for this request"), status=503)
        except Exception as error:
            fault = fault_of(error)
            service.session.out.warning(fault.message)
            return failed(fault)

    return answered


def fault_of(error: Exception) -> StrataError:
    """A fault of strata, told in one line. Raises it where a developer asked for that."""
    if os.environ.get("STRATA_DEBUG"):
        raise error
    return StrataError(f"a fault in strata: {type(error).__name__}: {error}", hint="STRATA_DEBUG=1 shows where")


def failed(error: StrataError, *, status: int | None = None) -> Response:
    """An error as OpenAI's clients read it."""
    return JSONResponse(error_body(error), status or status_of(error).status, error_headers(error))


async def _no_route(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    told = {404: "there is no such route", 405: "this route takes another method"}.get(error.status_code, error.detail)
    body = {"message": told, "type": "invalid_request_error", "param": None, "code": str(error.detail)}
    headers: Mapping[str, str] | None = error.headers
    return JSONResponse({"error": body}, error.status_code, headers)

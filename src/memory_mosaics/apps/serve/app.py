"""OpenAI's interface to one model: completions, chats, streams, models, health.

    POST /v1/completions    POST /v1/chat/completions    GET /v1/models    GET /v1/models/NAME    GET /health

Every error has OpenAI's shape, {"error": {"message", "type", "param", "code"}}, so that its clients raise what they
raise there.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import torch
from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as AnyHTTPException

from memory_mosaics.apps.serve.answers import Answer, Piece
from memory_mosaics.apps.serve.batches import Busy, Engine, Row, Stopped
from memory_mosaics.apps.serve.gate import Gate, error, told
from memory_mosaics.apps.serve.requests import (
    CHOICES,
    Asked,
    ChatAsked,
    CompletionAsked,
    Limits,
    TooLong,
    first_error,
)
from memory_mosaics.apps.serve.shapes import ChatShape, CompletionShape, Shape
from memory_mosaics.apps.serve.template import Template
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError, one_line

LOOK = 1.0  # seconds between looks at whether a client is still there


class Service:
    """A model with its engine, and what is needed to answer requests for it."""

    def __init__(self, trained: LoadedModel, limits: Limits):
        self.trained, self.limits = trained, limits
        self.template = Template.of(trained.folder)
        self.engine = Engine(
            trained.model, vocabulary=trained.tokenizer.vocabulary, rows=limits.rows, requests=limits.requests
        )
        self.created = int(time.time())
        self.answered = 0

    def check_name(self, name: str | None) -> None:
        if name is not None and name != self.trained.name:
            message = f"there is no model {name[:60]!r} here; there is {self.trained.name!r}"
            raise _Refused(404, message, param="model", code="model_not_found")

    def check(self, asked: Asked, prompts: int = 1) -> None:
        """Refuse what can be refused before any prompt is read."""
        self.check_name(asked.model)
        texts = prompts * (asked.n or 1)
        if texts > CHOICES:
            raise UserError(f"a request may ask for {CHOICES} texts, not {texts}; send several")
        self.engine.check()

    def encode(self, prompt: str | list[int]) -> list[int]:
        """The tokens of a prompt; an empty one begins a new text."""
        if isinstance(prompt, str):
            return self.trained.tokenizer.encode(prompt) or [self.trained.tokenizer.end_of_text]
        wrong = next((token for token in prompt if not 0 <= token < self.trained.tokenizer.vocabulary), None)
        if wrong is not None:
            size = self.trained.tokenizer.vocabulary
            raise UserError(f"prompt: token {wrong} is not among the {size} of this model")
        return prompt

    def begin(self, asked: Asked, prompts: list[list[int]], wanted: int | None, default: int, top: int | None) -> "Job":
        """Queue the texts that are asked for."""
        seed = random.SystemRandom().randrange(2**32) if asked.seed is None else asked.seed
        job = Job(sum(map(len, prompts)))
        lengths = [self.limits.length(len(prompt), wanted, default) for prompt in prompts]
        for prompt, length in zip(prompts, lengths, strict=True):
            tokens = torch.tensor(prompt)
            for _ in range(asked.n or 1):
                number = len(job.rows)
                answer = Answer(self.trained.tokenizer, length, asked.stop or (), job.teller(number))
                row = Row(
                    prompt=tokens,
                    length=length,
                    sampler=asked.sampler,
                    # As `mosaics generate` has it: a seed means the same texts here and there.
                    generator=torch.Generator().manual_seed((seed * 1_000_003 + number) % 2**63),
                    top=top,
                    take=answer.take,
                    fail=job.teller(number),
                )
                job.add(row, answer)
        self.engine.submit(job.rows)
        return job


class Job:
    """A request on its way: its rows, and the pieces that they have told."""

    def __init__(self, prompt_tokens: int):
        self.prompt_tokens = prompt_tokens
        self.rows: list[Row] = []
        self.answers: list[Answer] = []
        self.news: asyncio.Queue[tuple[int, Piece | BaseException]] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()

    def add(self, row: Row, answer: Answer) -> None:
        self.rows.append(row)
        self.answers.append(answer)

    def teller(self, number: int) -> Any:
        """For the thread that decodes: says something about a row to who waits for it here."""

        def tell(news: Piece | BaseException) -> None:
            with suppress(RuntimeError):  # the server is gone
                self.loop.call_soon_threadsafe(self.news.put_nowait, (number, news))

        return tell

    async def pieces(self, request: Request) -> AsyncIterator[tuple[int, Piece]]:
        """The pieces of all rows as they come. Who goes away ends them all."""
        unfinished, looked = len(self.rows), self.loop.time()
        try:
            while unfinished:
                if self.loop.time() > looked + LOOK:
                    if await request.is_disconnected():
                        raise _Gone
                    looked = self.loop.time()
                try:
                    number, news = await asyncio.wait_for(self.news.get(), LOOK)
                except TimeoutError:
                    continue
                if isinstance(news, BaseException):
                    raise news
                yield number, news
                unfinished -= news.finish is not None
        finally:
            for row in self.rows:
                row.ended = True

    @property
    def usage(self) -> dict[str, int]:
        written = sum(answer.count for answer in self.answers)
        total = self.prompt_tokens + written
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": written, "total_tokens": total}


class _Gone(Exception):
    """The client does not wait any more."""


class _Refused(HTTPException):
    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None):
        super().__init__(status, message)
        self.param, self.code = param, code


def build(service: Service, *, key: str | None = None, hosts: tuple[str, ...] | None = None) -> FastAPI:
    """The application. With a `key`, all but /health wants it; `hosts` are the names that it may be called by."""
    app = FastAPI(title="memory-mosaics", docs_url=None, redoc_url=None)  # their pages load scripts from elsewhere
    places = service.limits.places
    per_peer = places // 2 if hosts is None else None  # on a local address all clients have the same one
    app.add_middleware(Gate, key=key, hosts=hosts, most=service.limits.max_body, places=places, per_peer=per_peer)
    trained = service.trained
    card = {"id": trained.name, "object": "model", "created": service.created, "owned_by": "memory-mosaics"}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        if service.engine.stopped:
            raise Stopped("nothing is decoded any more")
        return {"status": "ok", "model": trained.name, "requests": service.engine.load}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        service.check_name(name)
        return card

    @app.post("/v1/completions")
    async def completions(request: Request, asked: CompletionAsked) -> Response:
        service.check(asked, len(asked.prompt))
        prompts = await run_in_threadpool(lambda: [service.encode(prompt) for prompt in asked.prompt])
        job = service.begin(asked, prompts, asked.max_tokens, 16, asked.top)
        return await _answer(service, request, asked, job, CompletionShape(trained.name, len(job.rows)))

    @app.post("/v1/chat/completions")
    async def chat(request: Request, asked: ChatAsked) -> Response:
        service.check(asked)
        prompt = await run_in_threadpool(lambda: service.encode(service.template.fill(asked.messages)))
        wanted = asked.max_completion_tokens or asked.max_tokens
        job = service.begin(asked, [prompt], wanted, service.limits.max_tokens, asked.top)
        return await _answer(service, request, asked, job, ChatShape(trained.name, len(job.rows)))

    @app.exception_handler(AnyHTTPException)
    async def refused(_: Request, wrong: AnyHTTPException) -> JSONResponse:
        more = {"param": wrong.param, "code": wrong.code} if isinstance(wrong, _Refused) else {}
        return error(wrong.status_code, one_line(ValueError(wrong.detail)), **more)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, wrong: RequestValidationError) -> JSONResponse:
        message, param = first_error(wrong.errors())
        return error(400, message, param=param)

    @app.exception_handler(UserError)
    async def impossible(_: Request, wrong: UserError) -> JSONResponse:
        code = "context_length_exceeded" if isinstance(wrong, TooLong) else None
        return error(400, one_line(wrong), code=code)

    @app.exception_handler(Busy)
    async def busy(_: Request, __: Busy) -> JSONResponse:
        return error(429, f"{service.limits.requests} requests are on their way, more cannot wait; come back later")

    @app.exception_handler(_Gone)
    async def gone(_: Request, __: _Gone) -> Response:
        return Response(status_code=499)  # nobody sees it

    @app.exception_handler(Stopped)
    async def stopped(_: Request, wrong: Stopped) -> JSONResponse:
        return error(503, str(wrong))

    @app.exception_handler(Exception)
    async def broken(_: Request, wrong: Exception) -> JSONResponse:
        return error(500, _defect(wrong))

    return app


async def _answer(service: Service, request: Request, asked: Asked, job: Job, shape: Shape) -> Response:
    if asked.stream:
        usage = bool(asked.stream_options and asked.stream_options.include_usage)
        return StreamingResponse(_events(service, request, job, shape, usage), media_type="text/event-stream")
    async for number, piece in job.pieces(request):
        shape.add(number, piece)
    service.answered += 1
    return JSONResponse(shape.whole() | {"usage": job.usage})


async def _events(service: Service, request: Request, job: Job, shape: Shape, usage: bool) -> AsyncIterator[str]:
    """A stream of server-sent events. What goes wrong on the way is the last one."""
    more = {"usage": None} if usage else {}
    try:
        for chunk in shape.begin():
            yield _event(chunk | more)
        async for number, piece in job.pieces(request):
            yield _event(shape.chunk(number, piece) | more)
        if usage:
            yield _event(shape.frame(chunk=True) | {"choices": [], "usage": job.usage})
        service.answered += 1
        yield "data: [DONE]\n\n"
    except _Gone:
        return
    except Stopped as wrong:
        yield _event(told(503, str(wrong)))
    except Exception as wrong:
        yield _event(told(500, _defect(wrong)))


def _defect(wrong: Exception) -> str:
    return f"the server failed: {type(wrong).__name__}: {one_line(wrong, 200)}"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"

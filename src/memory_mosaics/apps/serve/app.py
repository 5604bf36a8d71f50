"""OpenAI's API for one or more models.

POST /v1/completions    POST /v1/chat/completions    GET /v1/models    GET /v1/models/NAME
GET /health    GET /metrics    GET /docs
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, Literal

import torch
from fastapi import FastAPI, Request
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from jinja2 import Environment
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memory_mosaics.apps.serve.engine import Engine, EngineStopped, QueueFull, Row, TokenLogprobs
from memory_mosaics.apps.serve.schemas import (
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    EmittedToken,
    GenerationRequest,
    ResponseFormat,
    TextChunk,
)
from memory_mosaics.apps.server import ApiError, add_error_handlers, error_response
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.config import MAX_SIZE
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.files import read_text
from memory_mosaics.stores import State
from memory_mosaics.text.chat import MAX_TEMPLATE_BYTES, ChatTemplate
from memory_mosaics.text.tokenizer import StreamDecoder, Tokenizer

DEFAULT_CONTEXT = 8192  # tokens, for models without a limit of their own
DISCONNECT_POLL_SECONDS = 1.0
CHAT_TEMPLATE = "chat_template.jinja"  # where Hugging Face keeps it


class TextStream:
    """Turn tokens into chunks of text, up to a stop sequence. Text that may become one is held back."""

    def __init__(self, tokenizer: Tokenizer, length: int, stops: Sequence[str], emit: Callable[[TextChunk], None]):
        self.tokenizer, self.length, self.stops, self.emit = tokenizer, length, stops, emit
        self.decoder = StreamDecoder(tokenizer)
        self.count, self.echoes = 0, False
        self.emitted, self.pending = 0, ""  # the characters emitted, and the text that is not
        self.tokens: list[EmittedToken] = []

    def on_prompt(self, prompt: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> bool:
        """Emit the prompt, with the log-probabilities if there are any; return whether tokens may follow."""
        text, tokens, self.echoes = "", [], True
        for number, token in enumerate(prompt):
            if number == 0 and logprobs is not None:
                tokens.append(EmittedToken(self._text(token), None, None, 0))
            elif logprobs is not None:
                tokens.append(self._emitted(token, logprobs[number - 1], len(text)))
            text += "" if token == self.tokenizer.end_of_text else self.decoder.add(token)
        ends = self.length == 0
        text += self.decoder.flush() if ends else ""
        self.emitted = len(text)
        self.emit(TextChunk(text, tokens, "length" if ends else None))
        return not ends

    def _text(self, token: int) -> str:
        return "" if token == self.tokenizer.end_of_text else self.tokenizer.decode([token])

    def _emitted(self, token: int, logprobs: TokenLogprobs, offset: int) -> EmittedToken:
        top = [(self.tokenizer.decode([index]), logprob) for index, logprob in logprobs.top]
        return EmittedToken(self._text(token), logprobs.sampled, top, offset)

    def on_token(self, token: int, logprobs: TokenLogprobs | None) -> bool:
        """Add a token; return whether more may follow."""
        self.count += 1
        ends = token == self.tokenizer.end_of_text
        if logprobs is not None and (self.echoes or not ends):  # who scores a text counts its tokens
            self.tokens.append(self._emitted(token, logprobs, self.emitted + len(self.pending)))
        self.pending += "" if ends else self.decoder.add(token)
        reason = "stop" if ends else "length" if self.count >= self.length else None
        if reason:
            self.pending += self.decoder.flush()
        found = [at for at in (self.pending.find(stop) for stop in self.stops) if at >= 0]
        if found:
            self.pending, reason = self.pending[: min(found)], "stop"
        self._emit(reason)
        return reason is None

    def _emit(self, reason: Literal["stop", "length"] | None) -> None:
        final = len(self.pending) - (0 if reason else self._possible_stop())
        if not final and not reason:
            return
        text, self.pending = self.pending[:final], self.pending[final:]
        self.emitted += len(text)
        tokens = [token for token in self.tokens if token.offset < self.emitted or (reason and self.echoes)]
        self.tokens = self.tokens[len(tokens) :]
        self.emit(TextChunk(text, tokens, reason))

    def _possible_stop(self) -> int:
        """Return how many of the last characters may be the beginning of a stop sequence."""
        longest = min(len(self.pending), max((len(stop) - 1 for stop in self.stops), default=0))
        ends = (self.pending[-size:] for size in range(longest, 0, -1))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self.stops)), 0)


async def _check_connected(request: Request) -> None:
    if await request.is_disconnected():
        raise ApiError(499, "the client has disconnected")


class Generation:
    """A request in progress: its rows, and a queue with their text that the decoding thread fills."""

    def __init__(self, prompt_tokens: int):
        self.prompt_tokens = prompt_tokens
        self.rows: list[Row] = []
        self.streams: list[TextStream] = []
        self.queue: asyncio.Queue[tuple[int, TextChunk | BaseException]] = asyncio.Queue()
        self.loop = asyncio.get_running_loop()

    def sender(self, index: int) -> Callable[[TextChunk | BaseException], None]:
        """Return a function for the decoding thread that queues a chunk, or an error, of one row."""

        def send(item: TextChunk | BaseException) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                self.loop.call_soon_threadsafe(self.queue.put_nowait, (index, item))

        return send

    async def chunks(self, request: Request) -> AsyncIterator[tuple[int, TextChunk]]:
        """Yield the chunks of all rows as they come. A client that disconnects cancels the rows."""
        unfinished, checked = len(self.rows), self.loop.time()
        try:
            while unfinished:
                if self.loop.time() > checked + DISCONNECT_POLL_SECONDS:
                    await _check_connected(request)
                    checked = self.loop.time()
                try:
                    index, item = await asyncio.wait_for(self.queue.get(), DISCONNECT_POLL_SECONDS)
                except TimeoutError:
                    continue
                if isinstance(item, BaseException):
                    raise item
                yield index, item
                unfinished -= item.finish_reason is not None
        finally:
            for row in self.rows:
                row.finished = True

    @property
    def usage(self) -> dict[str, int]:
        """The number of tokens, as OpenAI reports it."""
        generated = sum(stream.count for stream in self.streams)
        total = self.prompt_tokens + generated
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": generated, "total_tokens": total}


class Service:
    """A model with its engine and chat template, and the limits on requests: tokens, texts and bytes."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        max_tokens: int = 2048,
        context: int | None = None,
        requests: int = 64,
        rows: int = 16,
        max_body: int = 1_000_000,
        state: State | None = None,
    ):
        positions = loaded.model.max_positions
        if positions is not None and (context or 0) > positions:
            raise UserError(f"context must be at most {positions}, the positions of {loaded.folder}, not {context}")
        self.context = (positions or DEFAULT_CONTEXT) if context is None else context
        check_range(1, MAX_SIZE, max_tokens=max_tokens, max_body=max_body)
        check_range(2, MAX_SIZE, context=self.context)
        check_range(1, 100_000, requests=requests)
        check_range(1, 4096, rows=rows)
        self.loaded, self.max_tokens, self.max_body = loaded, max_tokens, max_body
        self.max_concurrent = 2 * requests + 16  # unfinished requests, and as many that are being read or refused
        self.template = load_chat_template(loaded.folder)
        vocabulary = loaded.tokenizer.vocabulary
        self.engine = Engine(loaded.model, vocabulary=vocabulary, max_rows=rows, max_requests=requests, state=state)
        self.totals = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0}  # of requests answered, for /metrics

    @property
    def answered(self) -> int:
        """The number of requests answered."""
        return self.totals["requests"]

    def count(self, request: Request, usage: dict[str, int]) -> None:
        """Count an answered request, and leave its tokens to the log."""
        request.scope["usage"] = {"model": self.loaded.name} | usage
        for name in self.totals:
            self.totals[name] += usage.get(name, 1)

    def encode(self, body: GenerationRequest) -> list[list[int]]:
        """Return the tokens of each prompt; an empty one starts a new text."""
        tokenizer = self.loaded.tokenizer
        prompts = [render_chat(self.template, body.messages)] if isinstance(body, ChatRequest) else body.prompt
        prompts = [
            (tokenizer.encode(one) or [tokenizer.end_of_text]) if isinstance(one, str) else one for one in prompts
        ]
        for token in (token for prompt in prompts for token in prompt):
            if not 0 <= token < tokenizer.vocabulary:
                raise UserError(f"prompt: token {token} is not in the vocabulary of {tokenizer.vocabulary} tokens")
        if unknown := [token for token in body.logit_bias or () if int(token) >= tokenizer.vocabulary]:
            raise UserError(f"logit_bias: token {unknown[0]} is not in the vocabulary of {tokenizer.vocabulary} tokens")
        return prompts

    def start(self, body: GenerationRequest, prompts: list[list[int]]) -> Generation:
        """Queue the texts of a request."""
        seed = random.SystemRandom().randrange(2**32) if body.seed is None else body.seed
        generation = Generation(sum(map(len, prompts)))
        for prompt, length in [(prompt, self._length(body, len(prompt))) for prompt in prompts]:
            for _ in range(body.n or 1):
                index = len(generation.rows)
                send = generation.sender(index)
                stream = TextStream(self.loaded.tokenizer, length, body.stop, send)
                echo = partial(stream.on_prompt, prompt) if getattr(body, "echo", None) else None
                row = Row(
                    prompt=torch.tensor(prompt),
                    length=length,
                    sampler=body.sampler,
                    # As in `mosaics generate`: a seed gives the same texts here and there.
                    generator=torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63),
                    logprobs=body.top_tokens,
                    penalties=body.penalties,
                    on_prompt=echo,
                    on_token=stream.on_token,
                    on_error=send,
                )
                generation.rows.append(row)
                generation.streams.append(stream)
        self.engine.submit(generation.rows)
        return generation

    def _length(self, body: GenerationRequest, prompt: int) -> int:
        """Return how many tokens to generate after a prompt of so many."""
        wanted = body.length or 0
        if body.length == 0 and prompt <= self.context:
            return 0
        if prompt >= self.context or wanted + prompt > self.context:
            requested = f" and you asked for {wanted} more" if wanted else ""
            message = f"the context is {self.context} tokens; your prompt has {prompt}{requested}. Shorten one of them"
            raise ApiError(400, message, code="context_length_exceeded")
        if wanted > self.max_tokens:
            raise UserError(f"max_tokens must be at most {self.max_tokens}, not {wanted}")
        return wanted or min(body.default_length or self.max_tokens, self.max_tokens, self.context - prompt)

    async def respond(self, request: Request, body: GenerationRequest) -> Response:
        """Return the response to a request, once it is complete or as a stream."""
        self.engine.check()  # before the prompts are tokenized
        prompts = await run_in_threadpool(self.encode, body)
        await _check_connected(request)  # else nobody would read the stream, and nothing cancel its rows
        generation = self.start(body, prompts)
        form = ResponseFormat(self.loaded.name, chat=isinstance(body, ChatRequest), stream=bool(body.stream))
        if form.stream:
            usage = bool(body.stream_options and body.stream_options.include_usage)
            return StreamingResponse(self._events(request, generation, form, usage), media_type="text/event-stream")
        chunks: list[list[TextChunk]] = [[] for _ in generation.rows]
        async for index, chunk in generation.chunks(request):
            chunks[index].append(chunk)
        self.count(request, generation.usage)
        choices = [form.choice(index, TextChunk.join(parts)) for index, parts in enumerate(chunks)]
        return JSONResponse(form.response(*choices, usage=generation.usage))

    async def _events(
        self, request: Request, generation: Generation, form: ResponseFormat, usage: bool
    ) -> AsyncIterator[str]:
        """Yield server-sent events. An error on the way is the last one."""
        no_usage = {"usage": None} if usage else {}
        try:
            for index in range(len(generation.rows) if form.chat else 0):
                yield _event(form.response(form.choice(index, TextChunk(""), role="assistant"), **no_usage))
            async for index, chunk in generation.chunks(request):
                yield _event(form.response(form.choice(index, chunk), **no_usage))
            if usage:
                yield _event(form.response(usage=generation.usage))
            self.count(request, generation.usage)
            yield "data: [DONE]\n\n"
        except Exception as error:
            yield f"data: {bytes(error_response(error).body).decode()}\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def load_chat_template(folder: Path) -> ChatTemplate | None:
    """Load the chat template of a checkpoint folder, if there is one."""
    file = folder / CHAT_TEMPLATE
    if not file.exists():
        return None
    try:
        return ChatTemplate(read_text(file, MAX_TEMPLATE_BYTES))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is not a valid chat template: {one_line(error)}") from error


def render_chat(template: ChatTemplate | None, messages: Sequence[ChatMessage]) -> str:
    """Return the text to continue. Without a template it is the messages, with blank lines between them.

    Our models continue texts: they know no roles.
    """
    if template is None:
        return "\n\n".join(message.content for message in messages)
    try:
        return template.render([{"role": message.role, "content": message.content} for message in messages])
    except UserError as error:
        raise UserError(f"the chat template does not accept these messages: {one_line(error)}") from error


class RequestLog:
    """ASGI middleware that appends one JSON object per request to a file: no texts, but their lengths."""

    def __init__(self, app: ASGIApp, file: IO[str]):
        self.app, self.file = app, file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.monotonic(), 0

        async def observe(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, observe)
        finally:
            line = {"time": round(time.time(), 3), "method": scope["method"], "path": scope["path"], "status": status}
            line |= {"seconds": round(time.monotonic() - start, 3)} | scope.get("usage", {})
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


def metrics_text(services: Sequence[Service]) -> str:
    """Return the counts of all models in Prometheus' text format."""
    values = {f"{name}_total": "counter" for name in services[0].totals} | {"requests_unfinished": "gauge"}
    lines = []
    for name, kind in values.items():
        lines.append(f"# TYPE mosaics_{name} {kind}")
        for service in services:
            totals = {f"{name}_total": count for name, count in service.totals.items()}
            value = (totals | {"requests_unfinished": service.engine.unfinished})[name]
            lines.append(f"mosaics_{name}{{model={json.dumps(service.loaded.name)}}} {value}")
    return "\n".join(lines) + "\n"


def docs_page(app: FastAPI, names: Sequence[str], address: str) -> str:
    """Return one page about all requests and their fields, without anything from other hosts."""
    schema = app.openapi()
    template = Environment(autoescape=True).from_string(
        files("memory_mosaics.apps.serve").joinpath("docs.html").read_text("utf-8")
    )
    values = {"paths": schema["paths"], "schemas": schema["components"]["schemas"]}
    return template.render(values, names=names, address=address)


def build_app(*services: Service) -> FastAPI:
    """Build the application; a request that names no model is for the first."""
    app = FastAPI(title="memory-mosaics", docs_url=None, redoc_url=None)  # their pages load scripts from other hosts
    add_error_handlers(app, QueueFull, EngineStopped)
    by_name = {service.loaded.name: service for service in services}
    about = {"object": "model", "created": int(time.time()), "owned_by": "memory-mosaics"}

    def find(name: str | None) -> Service:
        if name is None:
            return services[0]
        if name not in by_name:
            message = f"there is no model {name[:60]!r}; this server has {', '.join(map(repr, by_name))}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return by_name[name]

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Whether all models work, and the number of unfinished requests."""
        if any(service.engine.stopped for service in services):
            raise EngineStopped("the engine has stopped")
        unfinished = sum(service.engine.unfinished for service in services)
        return {"status": "ok", "models": [*by_name], "requests": unfinished}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counts of requests and tokens for Prometheus."""
        return PlainTextResponse(metrics_text(services), media_type="text/plain; version=0.0.4")

    @app.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> Response:
        return HTMLResponse(docs_page(app, [*by_name], str(request.base_url).rstrip("/")))

    @app.get("/", include_in_schema=False)
    @app.get("/v1", include_in_schema=False)
    async def start() -> Response:
        return RedirectResponse("/docs")

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The models."""
        return {"object": "list", "data": [{"id": name} | about for name in by_name]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One model."""
        return {"id": find(name).loaded.name} | about

    @app.post("/v1/completions")
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """Continue a text, a list of texts, or token ids."""
        return await find(body.model).respond(request, body)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request, body: ChatRequest) -> Response:
        """Continue the messages of a chat."""
        return await find(body.model).respond(request, body)

    return app

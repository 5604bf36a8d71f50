"""The language model that is asked: a local one, or an OpenAI-compatible server (vLLM, llama.cpp, `mosaics serve`).

The official openai client connects, authenticates, and reads and writes the wire format. Retries are ours: the client's
have fixed delays, count every 429 as a failed attempt, continue after Ctrl-C, and accept answers that cannot be used.
Lost connections, timeouts, 408, 409, 425, 429, 5xx, and answers that are unreadable, cut off or too long are retried.
Delays double, are randomised, and are at least what the server asks for. A request that the server rejects, or whose
retries are exhausted, is skipped; any other failure ends the run.
"""

import asyncio
import hashlib
import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, fields, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from memory_mosaics.apps.babistories.prompts import Request
from memory_mosaics.config import MAX_SIZE, check_positive
from memory_mosaics.errors import UserError, check_range, one_line, within_memory
from memory_mosaics.files import check_folder, read_json
from memory_mosaics.runtime import find_device
from memory_mosaics.text.chat import ChatTemplate
from memory_mosaics.text.tokenizer import check_tokenizer

SERVER_ONLY = ("retries", "backoff", "timeout", "requests_per_minute", "tokens_per_minute", "stream", "key_variable")
TRANSIENT, REJECTED = {408, 409, 425, 429}, {400, 413, 422}  # status codes; 5xx are transient, others end the run
MAX_CONCURRENCY = 10_000
MAX_TOKENS = 1 << 40  # no answer has more; a server that reports more miscounts
MAX_BACKOFF = 60.0  # seconds between attempts, unless the server asks for more
MAX_RETRY_AFTER = 3600.0  # seconds; a server that asks for more is not waited for
FIRST_RETRIES = 2  # before the first answer: the address may be mistyped
CHARACTERS_PER_TOKEN = 64  # of the requested length that an answer may have; 4 are usual
BODY_LIMIT = 1024, 1 << 16  # bytes per token of the requested length, and overhead: streams frame each token
LIST_LIMIT = 1 << 24  # bytes of the list of models
GROWTH = 0.05  # concurrency gained per answer while the server refuses none
NULL_TEXT = {"content", "refusal"}  # one of them is there, as null or in words, where a filter took the text
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError)
T = TypeVar("T")


@dataclass(frozen=True)
class ModelOptions:
    """The language model to ask, and how.

    Args:
        server: the address of an OpenAI-compatible server, such as http://localhost:8000
        model: without --server the folder of a model on this machine; with it a model's name there
        ask: chat for models that follow instructions, completion for servers without chat, opening to give nothing but
            the opening words, for models that only continue text
        length: maximum number of tokens per answer
        temperature: sampling temperature
        top_p: sample among the most probable tokens that together have this probability
        concurrency: maximum number of requests in flight
        retries: retries of a request that failed
        backoff: seconds before the first retry; doubled for each further one
        timeout: seconds to wait for an answer, or with --stream for its next chunk
        requests_per_minute: maximum number of requests per minute
        tokens_per_minute: maximum number of prompt and completion tokens per minute
        stream: receive answers in chunks
        key_variable: the environment variable that holds the API key
        device: where a model on this machine runs: cuda, mps or cpu; auto takes the first that is available
    """

    server: str | None = None
    model: str | None = None
    ask: Literal["chat", "completion", "opening"] = "chat"
    length: int = 600
    temperature: float = 1.0
    top_p: float = 1.0
    concurrency: int = 8
    retries: int = 6
    backoff: float = 1.0
    timeout: float = 120.0
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    stream: bool = False
    key_variable: str | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.server is None and self.model is None:
            raise UserError("name a --server, such as http://localhost:8000, or a --model on this machine")
        if self.server is None and not Path(str(self.model)).is_dir():
            raise UserError(f"there is no folder {self.model}; name a --server, or a --model on this machine")
        if self.server is not None and not self.server.startswith(("http://", "https://")):
            raise UserError(f"--server must be an address such as http://localhost:8000, not {self.server}")
        defaults = {field.name: field.default for field in fields(self)}
        for name in SERVER_ONLY if self.server is None else ("device",):
            if getattr(self, name) != defaults[name]:
                raise UserError(f"--{name} has no effect {'without' if self.server is None else 'with'} --server")
        check_range(1, MAX_SIZE, length=self.length)
        check_range(1, MAX_CONCURRENCY, concurrency=self.concurrency)
        check_range(0, MAX_SIZE, retries=self.retries, temperature=self.temperature)
        check_positive(self, "backoff", "timeout", "requests_per_minute", "tokens_per_minute")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be in (0, 1], not {self.top_p}")


@dataclass(frozen=True)
class Answer:
    """A text, why it ended ("stop", or "length" if cut off), and its prompt and completion tokens, if known."""

    text: str
    finish_reason: str | None
    usage: tuple[int, int] | None = None


class RunStopped(Exception):
    """There is no answer, and there will be none: the run ends."""


class RequestRejected(Exception):
    """The server rejects this request; a retry would not help."""


class RetriesExhausted(RequestRejected):
    """All attempts of this request failed; another request may succeed."""


class RequestPostponed(Exception):
    """The server serves others instead: the request is to be asked again, when fewer are in flight."""


class TransientError(Exception):
    """A failure that a retry may cure. `wait` is the server's Retry-After in seconds."""

    def __init__(self, message: str, wait: float = 0.0, status: int = 0):
        super().__init__(message)
        self.wait, self.status = wait, status


class RateLimiter:
    """An amount per minute, evenly spread. `correct` adds what an estimate was short of, for the next ones to wait."""

    def __init__(self, per_minute: float | None):
        self.seconds_each = 60.0 / per_minute if per_minute else 0.0
        self.free_at = 0.0

    def take(self, amount: float) -> float:
        """Reserve an amount; returns the seconds to wait for it."""
        start = max(time.monotonic(), self.free_at)
        self.free_at = start + amount * self.seconds_each
        return start - time.monotonic()

    def correct(self, amount: float) -> None:
        self.free_at += amount * self.seconds_each


class ServerClient:
    """An OpenAI-compatible server behind the official client, with rate limits, retries and a limit on answer size.

    `limit` is how many requests the server takes at a time: at most --concurrency, half of those in flight after a 429,
    and slowly more with each answer.
    """

    def __init__(self, options: ModelOptions, stop: asyncio.Event):
        try:
            import openai
        except ImportError:
            raise UserError("asking a server needs openai: pip install 'memory-mosaics[babistories]'") from None
        assert options.server is not None
        self.options, self.stop, self.openai = options, stop, openai
        self.base = options.server.rstrip("/")
        self.base += "" if re.search(r"/v\d+$", self.base) else "/v1"
        key, most = _api_key(options.key_variable), options.concurrency
        # Without --key_variable no key is sent, in particular not the client's default, OPENAI_API_KEY.
        self.headers: dict[str, Any] = {} if key else {"Authorization": openai.Omit()}
        limits = type(openai.DEFAULT_CONNECTION_LIMITS)(max_connections=most, max_keepalive_connections=most)
        hooks: dict[str, Any] = {"response": [self._limit_body]}
        try:
            _ = urlsplit(self.base).port  # ValueError for one out of range
            http = openai.DefaultAsyncHttpxClient(follow_redirects=False, limits=limits, event_hooks=hooks)
            self.client = openai.AsyncOpenAI(
                base_url=self.base, api_key=key or "none", timeout=options.timeout, max_retries=0, http_client=http
            )
        except Exception as error:  # what the client raises for an address depends on its HTTP library
            raise UserError(f"cannot use --server {options.server}: {one_line(error)}") from error
        self.requests, self.tokens = RateLimiter(options.requests_per_minute), RateLimiter(options.tokens_per_minute)
        self.limit, self.in_flight, self.halved_at, self.paused_until = float(most), 0, 0.0, 0.0
        self.mean_tokens = float(options.length)  # tokens per answer, a running mean
        self.model = options.model or ""
        self.retried = self.answered = 0
        # Attempts that the server answered, by request.index; a lost one keeps its key, and is not charged for twice.
        self.refusals: Counter[int] = Counter()

    async def aclose(self) -> None:
        await self.client.close()

    async def find_model(self) -> str:
        """The model that was named, or the only one the server has."""
        try:
            found = await self.with_retries(self._list_models, min(self.options.retries, FIRST_RETRIES))
        except (RunStopped, RequestRejected) as error:
            raise UserError(f"{self.base}/models: {one_line(error)}") from error
        if not self.model:
            if len(found) != 1:
                listed = f"has {', '.join(found[:8])}" if found else "lists no model"
                raise UserError(f"{self.base} {listed}: name one with --model")
            self.model = found[0]
        return self.model

    async def _list_models(self) -> list[str]:
        try:
            response = await self.client.models.with_raw_response.list(extra_headers=self.headers)
        except self.openai.APIStatusError as error:
            if error.status_code in (404, 405, 501) and self.model:
                return []  # some servers have no list
            raise status_error(error) from None
        try:
            return [str(model.id) for model in response.parse().data]
        except UNREADABLE:
            if self.model:
                return []
            raise TransientError(f"its list of models is garbage: {_excerpt(response.text)}") from None

    async def ask(self, request: Request) -> Answer:
        """One answer; `RequestRejected` where this request gets none, `RunStopped` where no other will either.

        A 429 while the server answers others is not a failure of this request: `RequestPostponed`.
        """
        options = self.options
        body: dict[str, Any] = {"model": self.model, "max_tokens": options.length, "temperature": options.temperature}
        body |= {"top_p": options.top_p, "seed": request.seed}
        message = {"role": "user", "content": request.text}
        body |= {"messages": [message]} if options.ask == "chat" else {"prompt": request.prompt}

        async def attempt() -> Answer:
            number = self.refusals[request.index]
            key = hashlib.sha256(json.dumps([request.index, body, number], sort_keys=True).encode()).hexdigest()
            try:
                return await self._attempt(request, body, f"babistories-{key[:32]}")
            except RequestPostponed:
                self.refusals[request.index] += 1
                raise
            except TransientError as error:
                self.refusals[request.index] += error.status != 409  # the server is still processing it
                raise

        return await self.with_retries(attempt, options.retries)

    async def with_retries(self, attempt: Callable[[], Awaitable[T]], retries: int) -> T:
        """Call `attempt` until it succeeds. When the run is to stop, a delay ends at once."""
        failed = 0
        while True:
            try:
                return await attempt()
            except TransientError as problem:
                error = problem
            except (TimeoutError, self.openai.APITimeoutError):
                error = TransientError(f"no answer in {self.options.timeout:g} seconds")
            except self.openai.APIConnectionError as problem:
                error = TransientError(f"connection failed: {one_line(problem.__cause__ or problem, 120)}")
            failed += 1
            tries = f"{failed} {'try' if failed == 1 else 'tries'}"
            if error.wait > MAX_RETRY_AFTER:
                raise RunStopped(f"{one_line(error)}: it asks to wait {error.wait:.0f} seconds")
            if failed > retries:
                raise RetriesExhausted(f"{one_line(error)} ({tries})")
            if self.stop.is_set():
                raise RunStopped(f"{one_line(error)} ({tries})")
            self.retried += 1
            backoff = min(MAX_BACKOFF, self.options.backoff * 2.0 ** min(failed - 1, 60))
            await self._sleep(max(backoff * random.uniform(0.5, 1.0), error.wait * random.uniform(1.0, 1.1)))

    async def _sleep(self, seconds: float) -> None:
        """Sleep, unless the run is to stop."""
        if seconds <= 0:
            return
        try:
            await asyncio.wait_for(self.stop.wait(), seconds)
        except TimeoutError:
            return
        raise RunStopped("stopped")

    async def _attempt(self, request: Request, body: dict[str, Any], key: str) -> Answer:
        """One attempt within the limits."""
        answered, estimate = self.answered, self.mean_tokens
        await self._sleep(self.paused_until - time.monotonic())
        await self._sleep(max(self.requests.take(1.0), self.tokens.take(estimate)))
        sent = time.monotonic()
        self.in_flight += 1
        try:
            answer = await self._send(body, {**self.headers, "Idempotency-Key": key})
        except self.openai.APIStatusError as error:
            problem = status_error(error)
            if isinstance(problem, TransientError) and problem.wait <= MAX_RETRY_AFTER:
                self.paused_until = max(self.paused_until, time.monotonic() + problem.wait)
                if problem.status == 429 and (self.in_flight > 1 or self.answered > answered):
                    self.retried += 1
                    if sent > self.halved_at:  # requests that were sent together count once
                        self.limit, self.halved_at = max(1.0, min(self.limit, self.in_flight) // 2), time.monotonic()
                    raise RequestPostponed from None
            raise problem from None
        finally:
            self.in_flight -= 1
        # About four characters per token, where the server does not count them.
        usage = answer.usage or (len(request.prompt) // 4 + 1, len(answer.text) // 4 + 1)
        self.tokens.correct(sum(usage) - estimate)
        self.answered += 1
        self.limit = min(float(self.options.concurrency), self.limit + max(GROWTH, 1 / self.limit))
        self.mean_tokens += (sum(usage) - self.mean_tokens) / min(self.answered, 100)
        return replace(answer, usage=usage)

    async def _send(self, body: dict[str, Any], headers: dict[str, Any]) -> Answer:
        """The answer of the server, whole, or with --stream in chunks, between which the timeout is measured."""
        api: Any = self.client.chat.completions if "messages" in body else self.client.completions
        if self.options.stream:
            more = {"stream": True, "stream_options": {"include_usage": True}}
            answer = await self._read_stream(await api.create(**body, **more, extra_headers=headers))
        else:
            async with asyncio.timeout(self.options.timeout):
                response = await api.with_raw_response.create(**body, extra_headers=headers)
            try:
                answer = read_answer(response.parse())
            except UNREADABLE:
                raise TransientError(f"garbage in place of an answer: {_excerpt(response.text)}") from None
        if len(answer.text) > CHARACTERS_PER_TOKEN * self.options.length:
            raise self._too_long(f"{len(answer.text):,} characters", f"{CHARACTERS_PER_TOKEN} per token")
        return answer

    async def _read_stream(self, chunks: Any) -> Answer:
        parts, finish, usage, chunk = list[str](), None, None, ""
        async with chunks:
            try:
                async for chunk in chunks:
                    answer = read_answer(chunk, partial=True)
                    parts.append(answer.text)
                    finish, usage = answer.finish_reason or finish, answer.usage or usage
            except self.openai.APIConnectionError:
                raise
            except self.openai.APIError as error:
                raise TransientError(f"an error in place of an answer: {_excerpt(error.message)}") from None
            except UNREADABLE as error:
                garbage = _excerpt(getattr(error, "doc", str(chunk)))  # JSON that cannot be parsed has `doc`
                raise TransientError(f"garbage in place of an answer: {garbage}") from None
        if finish is None:
            raise TransientError(f"half an answer: its stream ended after {len(''.join(parts))} characters")
        return Answer("".join(parts), finish, usage)

    async def _limit_body(self, response: Any) -> None:
        """Read no more of a body, decompressed, than a response may have; the rest of an error message is left out."""
        per_token, overhead = BODY_LIMIT
        is_list, read = response.request.method == "GET", response.aiter_bytes
        limit = LIST_LIMIT if is_list else per_token * self.options.length + overhead

        async def limited(*arguments: Any) -> AsyncIterator[bytes]:
            size = 0
            async with aclosing(read(*arguments)) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > limit and response.status_code != 200:
                        await response.aclose()
                        return
                    if size > limit and is_list:
                        raise TransientError(f"a list of models of more than {limit:,} bytes")
                    if size > limit:
                        raise self._too_long(f"more than {limit:,} bytes", f"{per_token} per token and {overhead:,}")
                    yield chunk

        response.aiter_bytes = limited  # what the client reads by, whole bodies and streams

    def _too_long(self, size: str, allowed: str) -> TransientError:
        asked = f"where --length {self.options.length} was asked for"
        return TransientError(f"an answer of {size} {asked} ({allowed} are read)")


def read_answer(found: Any, *, partial: bool = False) -> Answer:
    """The text of a completion, or of one chunk of a stream; one of `UNREADABLE` where it has none.

    Null in place of a text is an answer: a filter took the text, and the tokens are charged for.
    """
    if error := getattr(found, "error", None):
        raise TransientError(f"an error in place of an answer: {_excerpt(str(error))}")
    usage = _usage(found.usage)
    if partial and not found.choices:
        return Answer("", None, usage)
    choice = found.choices[0]
    message = getattr(choice, "delta", None) or getattr(choice, "message", None) or choice
    text = getattr(message, "content", None)
    text = getattr(choice, "text", None) if text is None else text
    if not partial and not isinstance(text, str) and (text is not None or not NULL_TEXT & message.model_fields_set):
        raise TypeError("no text")
    return Answer(str(text or ""), choice.finish_reason or (None if partial else "unknown"), usage)


def _usage(found: Any) -> tuple[int, int] | None:
    """The tokens of prompt and completion, where they are given as numbers."""
    try:
        read, written = int(found.prompt_tokens), int(found.completion_tokens)
        return (read, written) if 0 <= read < MAX_TOKENS and 0 <= written < MAX_TOKENS else None
    except UNREADABLE:
        return None


def status_error(error: Any) -> Exception:
    """What a status code means: a retry, this request skipped, or the end of the run."""
    body = error.body
    message = body.get("message", body.get("detail", body)) if isinstance(body, dict) else body
    message = f"status {error.status_code}: {_excerpt(str(message or error.response.text))}"
    if error.status_code in TRANSIENT or error.status_code >= 500:
        return TransientError(message, _retry_after(error.response.headers.get("retry-after")), error.status_code)
    return RequestRejected(message) if error.status_code in REJECTED else RunStopped(message)


def _retry_after(value: str | None) -> float:
    """Seconds, given as a number or as a date."""
    try:
        return max(0.0, float(value or 0.0))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value or "").timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0


def _excerpt(text: str) -> str:
    return one_line(ValueError(text), 160) if text.strip() else "nothing"


def _api_key(variable: str | None) -> str | None:
    key = os.environ.get(variable or "")
    if variable and not key:
        raise UserError(f"the environment variable {variable}, named by --key_variable, is not set")
    if key and not key.isascii():
        raise UserError(f"the environment variable {variable} is not an API key: it has characters beyond ASCII")
    return key


class LocalModel:
    """A causal language model of transformers on this machine; all requests in flight are one batch."""

    retried, answered, limit = 0, 0, MAX_CONCURRENCY

    def __init__(self, options: ModelOptions):
        self.batch: list[Request] = []
        self.answers: dict[int, Answer] = {}
        assert options.model is not None
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer

            import memory_mosaics.huggingface  # noqa: F401  registers our models
            from memory_mosaics.checkpoint import newest
        except ImportError:
            raise UserError("a model on this machine needs transformers: pip install 'memory-mosaics[hf]'") from None
        self.options, self.device = options, find_device(options.device)
        folder = Path(options.model)
        folder = folder if (folder / "config.json").exists() else Path(newest(folder))  # of a training run
        try:
            check_folder(folder)
            if (folder / "tokenizer.json").exists():
                layout = read_json(folder / "tokenizer.json")
                check_tokenizer(layout, json.dumps(layout))  # the library may crash, or never end
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left", local_files_only=True)
            model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto")
        except (OSError, ValueError, LookupError, RuntimeError, TypeError, AttributeError, MemoryError) as error:
            raise UserError(f"cannot open {options.model}: {one_line(error)}") from error
        self.model = model.to(self.device).eval()
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        if options.ask == "chat" and not self.tokenizer.chat_template:
            raise UserError(f"{options.model} has no chat template; give --ask completion or opening")
        self.template = ChatTemplate(self.tokenizer.get_chat_template()) if options.ask == "chat" else None

    async def ask(self, request: Request) -> Answer:
        """One answer. The first request of a batch computes those of all; a KeyboardInterrupt meanwhile drops them."""
        self.batch.append(request)
        await asyncio.sleep(0)  # until all others are in the batch
        if self.batch:
            requests, self.batch = self.batch, []
            with suppress(KeyboardInterrupt):
                self.answers.update(zip((each.index for each in requests), self.generate(requests), strict=True))
        if request.index not in self.answers:
            raise asyncio.CancelledError
        return self.answers.pop(request.index)

    async def aclose(self) -> None:
        pass  # there is no connection

    def generate(self, requests: Sequence[Request]) -> list[Answer]:
        """The answers to several requests, as one batch."""
        import torch

        prompts = [self._prompt(request) for request in requests]
        special = self.template is None  # a chat template has the special tokens already
        rows = self.tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=special)
        inputs = {name: rows[name].to(self.device) for name in ("input_ids", "attention_mask")}
        torch.manual_seed(requests[0].seed)
        how: dict[str, Any] = {"max_new_tokens": self.options.length, "do_sample": self.options.temperature > 0}
        if how["do_sample"]:
            how |= {"temperature": self.options.temperature, "top_p": self.options.top_p, "top_k": 0}
        with torch.inference_mode(), within_memory("give a smaller --concurrency"):
            out = self.model.generate(**inputs, pad_token_id=self.tokenizer.pad_token_id, **how)
        written = out[:, rows["input_ids"].shape[1] :].tolist()
        return list(map(self._answer, written, inputs["attention_mask"].sum(1).tolist()))

    def _prompt(self, request: Request) -> str:
        if self.template is None:
            return request.prompt
        tokens = {name: token for name, token in self.tokenizer.special_tokens_map.items() if isinstance(token, str)}
        return self.template.render([{"role": "user", "content": request.text}], **tokens)

    def _answer(self, ids: list[int], read: int) -> Answer:
        ends = self.model.generation_config.eos_token_id
        ends = set(ends) if isinstance(ends, list) else {ends, self.tokenizer.eos_token_id}
        end = next((at for at, token in enumerate(ids) if token in ends), None)
        text = self.tokenizer.decode(ids[:end], skip_special_tokens=True)
        return Answer(text, "length" if end is None else "stop", (read, len(ids) if end is None else end + 1))

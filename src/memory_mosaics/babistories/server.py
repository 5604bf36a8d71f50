"""Answers from an OpenAI-compatible server: vLLM, llama.cpp, Ollama, `mosaics serve`, or one that is paid for.

What passes by itself is asked again: a refused or lost connection, 408, 409, 425, 429 and 5xx, silence, garbage, half
an answer, and one much longer than what was asked for, of which the rest is not read. The waits double, differ at
random, and are at least what the server asks for. After the last try the request is put aside, as one that the server
calls wrong. The rest ends the run. A 429 is no failed try while others are under way or answered: fewer are asked at
once.
"""

import asyncio
import hashlib
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import Any

from memory_mosaics.babistories.pace import Pace, Room
from memory_mosaics.babistories.prompts import Request
from memory_mosaics.babistories.writer import Answer, Stopped, Writer
from memory_mosaics.errors import UserError, one_line

PASSING = {408, 409, 425, 429}
FULL, IN_WORK = 429, 409
MANY = 1 << 40  # tokens: what nobody writes in one answer
LONGEST_WAIT = 60.0  # between tries, unless the server asks for more
AT_FIRST = 2  # retries before the first answer: an address may be mistyped
TOKEN_LIMIT = 64  # characters of an answer per token that was asked for; the usual number is 4
BODY_LIMIT = 1024, 1 << 16  # bytes of a response, per token that was asked for and beside: streams frame each token
LIST_LIMIT = 1 << 24  # bytes of the list of models
PATIENCE = 3600.0  # a server that asks for more is not waited for


class Passing(Exception):
    """What may go by itself. `wait` is how long the server asks to be left alone, `busy` that it works for others."""

    def __init__(self, message: str, wait: float = 0.0, status: int = 0):
        super().__init__(message)
        self.wait, self.status, self.busy = wait, status, False


class Refused(Exception):
    """The server calls this request wrong; asking again would not help."""


class Failed(Refused):
    """All tries of this request failed; another one may work."""


class Server:
    """The connection, its limits, and the model it was asked for."""

    def __init__(self, writer: Writer, stop: asyncio.Event):
        try:
            import httpx
        except ImportError:
            raise UserError("asking a server needs httpx: pip install 'memory-mosaics[babistories]'") from None
        assert writer.server is not None
        self.writer, self.stop, self.httpx = writer, stop, httpx
        self.base = writer.server.rstrip("/")
        self.base += "" if re.search(r"/v\d+$", self.base) else "/v1"
        headers = {"Authorization": f"Bearer {_key(writer.key_variable)}"} if writer.key_variable else {}
        limits = httpx.Limits(max_connections=writer.concurrency, max_keepalive_connections=writer.concurrency)
        try:
            httpx.URL(self.base)
            self.client = httpx.AsyncClient(headers=headers, limits=limits, timeout=writer.timeout)
        except (httpx.InvalidURL, ValueError, UnicodeError) as error:
            raise UserError(f"cannot use --server {writer.server}: {one_line(error)}") from error
        self.requests, self.tokens = Pace(writer.requests_per_minute), Pace(writer.tokens_per_minute)
        self.room, self.quiet_until = Room(writer.concurrency, stop), 0.0
        self.typical = float(writer.length)  # tokens of one answer, learned as they come
        self.model = writer.model or ""
        self.retried = self.answered = 0

    async def find_model(self) -> str:
        """The model that was named, or the only one the server has."""
        try:
            found = await self._patiently(self._models, min(self.writer.retries, AT_FIRST))
        except (Stopped, Refused) as error:
            raise UserError(f"{self.base}/models: {one_line(error)}") from error
        if not self.model:
            if len(found) != 1:
                listed = f"has {', '.join(found[:8])}" if found else "lists no model"
                raise UserError(f"{self.base} {listed}: name one with --model")
            self.model = found[0]
        return self.model

    async def _models(self) -> list[str]:
        async with self.client.stream("GET", f"{self.base}/models") as response:
            content = await self._whole(response, LIST_LIMIT)
        if response.status_code in (404, 405, 501) and self.model:
            return []  # some have no list
        _check(response.status_code, response.headers, content)
        try:
            return [str(model["id"]) for model in json.loads(content)["data"]]
        except (ValueError, LookupError, TypeError):
            if self.model:
                return []
            raise Passing(f"its list of models is garbage: {_excerpt(content.decode(errors='replace'))}") from None

    async def ask(self, request: Request) -> Answer:
        """One answer, after as many tries as are allowed; else the request is `Refused`, or the run `Stopped`."""
        path, body = body_of(request, self.writer, self.model)
        told = 0  # tries that brought something: what is lost on the way keeps its key, and is not charged for twice

        async def attempt() -> Answer:
            nonlocal told
            headers = {"Idempotency-Key": _digest([request.index, path, body, told])}
            try:
                return await self._once(request.prompt, f"{self.base}/{path}", body, headers)
            except (Passing, Refused) as error:
                told += getattr(error, "status", 0) != IN_WORK
                raise

        return await self._patiently(attempt, self.writer.retries)

    async def _patiently(self, attempt: Any, retries: int) -> Any:
        """Try until it works. Waiting ends at once where the run is to stop."""
        failed = 0
        while True:
            try:
                return await attempt()
            except Passing as problem:
                error = problem
            except TimeoutError:
                error = Passing(f"no answer in {self.writer.timeout:g} seconds")
            except self.httpx.RequestError as problem:
                error = Passing(_transport(problem))
            failed += not error.busy
            tries = f"{failed} {'try' if failed == 1 else 'tries'}"
            if error.wait > PATIENCE:
                raise Stopped(f"{one_line(error)}: it asks to wait {error.wait:.0f} seconds")
            if failed > retries:
                raise Failed(f"{one_line(error)} ({tries})")
            if self.stop.is_set():
                raise Stopped(f"{one_line(error)} ({tries})")
            self.retried += 1
            if error.wait:
                self.quiet_until = max(self.quiet_until, time.monotonic() + error.wait)
            backoff = min(LONGEST_WAIT, self.writer.backoff * 2.0 ** max(0, failed - 1)) * random.uniform(0.5, 1.0)
            await self._sleep(max(backoff, error.wait * random.uniform(1.0, 1.1)))

    async def _sleep(self, seconds: float) -> None:
        """Sleep, unless the run is to stop."""
        if seconds <= 0:
            return
        try:
            await asyncio.wait_for(self.stop.wait(), seconds)
        except TimeoutError:
            return
        raise Stopped("stopped")

    async def _once(self, prompt: str, url: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        answered = self.answered
        await self._sleep(self.quiet_until - time.monotonic())
        async with self.room.one() as sent:
            estimate = self.typical
            await self._sleep(max(self.requests.take(1.0), self.tokens.take(estimate)))
            try:
                if self.writer.stream:
                    answer = await self._stream(url, body, headers)
                else:
                    async with (
                        asyncio.timeout(self.writer.timeout),
                        self.client.stream("POST", url, json=body, headers=headers) as response,
                    ):
                        content = await self._whole(response)
                    _check(response.status_code, response.headers, content)
                    answer = read_answer(content)
                if len(answer.text) > TOKEN_LIMIT * self.writer.length:
                    raise self._too_long(f"{len(answer.text):,} characters", f"{TOKEN_LIMIT} per token")
            except Passing as error:
                if error.status == FULL:
                    error.busy = self.room.under_way > 1 or self.answered > answered
                    self.room.halve(sent)
                raise
        answer = answer.counted(prompt)
        self.tokens.correct(sum(answer.tokens) - estimate)
        self.answered += 1
        self.room.grow()
        self.typical += (sum(answer.tokens) - self.typical) / min(self.answered, 100)
        return answer

    async def _stream(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        """The answer piece by piece: the timeout is for silence. Without an end it is half an answer."""
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        parts, finish, tokens = [], None, None
        async with self.client.stream("POST", url, json=body, headers=headers) as response:
            if response.status_code != 200:
                _check(response.status_code, response.headers, await self._whole(response))
            async for line in self._lines(response):
                data = line.removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or data == b"[DONE]":
                    continue
                answer = read_answer(data, partial=True)
                parts.append(answer.text)
                finish, tokens = answer.finish or finish, answer.usage or tokens
        if finish is None:
            raise Passing(f"half an answer: its stream ended after {len(''.join(parts))} characters")
        return Answer("".join(parts), finish, tokens)

    async def _lines(self, response: Any) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._bounded(response):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line
        yield rest

    async def _whole(self, response: Any, limit: int | None = None) -> bytes:
        return b"".join([chunk async for chunk in self._bounded(response, limit)])

    async def _bounded(self, response: Any, limit: int | None = None) -> AsyncIterator[bytes]:
        """The body as it comes, up to what an answer of the length asked for may take; of an error no more is read."""
        per_token, beside = BODY_LIMIT
        limit, size = limit or per_token * self.writer.length + beside, 0
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > limit and response.status_code != 200:
                return
            if size > limit:
                raise self._too_long(f"more than {limit:,} bytes", f"{per_token} per token and {beside:,}")
            yield chunk

    def _too_long(self, size: str, allowed: str) -> Passing:
        return Passing(f"an answer of {size} where --length {self.writer.length} was asked for ({allowed} are read)")

    async def close(self) -> None:
        await self.client.aclose()


def body_of(request: Request, writer: Writer, model: str) -> tuple[str, dict[str, Any]]:
    """Where a request is sent, and what."""
    body: dict[str, Any] = {"model": model, "max_tokens": writer.length, "temperature": writer.temperature}
    body |= {"top_p": writer.top_p, "seed": request.seed}
    if writer.ask == "chat":
        return "chat/completions", body | {"messages": [{"role": "user", "content": request.text}]}
    return "completions", body | {"prompt": request.prompt}


def read_answer(data: bytes, *, partial: bool = False) -> Answer:
    """The text in an answer, or in a piece of one; anything else is garbage."""
    try:
        found = json.loads(data)
        if "error" in found:
            raise Passing(f"an error in place of an answer: {_excerpt(str(found['error']))}")
        tokens = _usage(found.get("usage"))
        if partial and not found["choices"]:
            return Answer("", None, tokens)
        choice = found["choices"][0]
        said = choice["delta"] if "delta" in choice else choice.get("message", choice)
        text = said.get("content", choice.get("text"))
        filtered = "content" in said or "refusal" in said  # null in place of a text: it was read, written and charged
        if not isinstance(text, str) and not partial and not (text is None and filtered):
            raise TypeError("no text")
        return Answer(str(text or ""), choice.get("finish_reason") or (None if partial else "unknown"), tokens)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        raise Passing(f"garbage in place of an answer: {_excerpt(data.decode(errors='replace'))}") from None


def _usage(found: Any) -> tuple[int, int] | None:
    """The tokens read and written, where they are told in numbers."""
    try:
        read, written = int(found["prompt_tokens"]), int(found["completion_tokens"])
        return (read, written) if 0 <= read < MANY and 0 <= written < MANY else None
    except (ValueError, LookupError, TypeError, OverflowError):
        return None


def _check(status: int, headers: Any, content: bytes) -> None:
    """Sort what is not an answer: what passes, what is wrong with this request, what is wrong with all."""
    if status == 200:
        return
    message = f"status {status}: {_excerpt(_message(content.decode(errors='replace')))}"
    if status in PASSING or status >= 500:
        raise Passing(message, _retry_after(headers.get("retry-after")), status)
    raise Refused(message) if status in (400, 413, 422) else Stopped(message)


def _message(text: str) -> str:
    """The words in an error, where it is JSON as usual."""
    try:
        found = json.loads(text)
        error = found.get("error", found.get("detail", found.get("message", text)))
        return str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError, RecursionError):
        return text


def _retry_after(value: str | None) -> float:
    """Seconds, given as such or as a date."""
    try:
        return max(0.0, float(value or 0.0))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value or "").timestamp() - time.time())
    except (ValueError, TypeError):
        return 0.0


def _digest(value: Any) -> str:
    return "babistories-" + hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def _transport(error: Exception) -> str:
    name = re.sub(r"(?<!^)([A-Z])", r" \1", type(error).__name__).lower()
    return f"{name} ({one_line(error, 120)})" if str(error) else name


def _excerpt(text: str) -> str:
    return one_line(ValueError(text), 160) if text.strip() else "nothing"


def _key(variable: str) -> str:
    if not os.environ.get(variable):
        raise UserError(f"the environment variable {variable}, named by --key_variable, is not set")
    return os.environ[variable]

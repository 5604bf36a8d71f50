"""Who writes: a server or a model on this machine, how it is asked, and within which limits."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from memory_mosaics.config import MAX_SIZE
from memory_mosaics.errors import UserError, check_range

OF_SERVERS = ("retries", "backoff", "timeout", "requests_per_minute", "tokens_per_minute", "stream", "key_variable")


class Stopped(Exception):
    """There is no answer, and there will be none: the run ends."""


@dataclass(frozen=True)
class Writer:
    """The language model that is asked.

    Args:
        server: the address of an OpenAI-compatible server, such as http://localhost:8000
        model: without --server the folder of a model on this machine; with it a model's name there
        ask: chat for models that follow instructions, completion for servers without chat, opening to give nothing but
            the opening words, for models that only know how to go on
        length: at most so many tokens for an answer
        temperature: how freely tokens are drawn
        top_p: draw among the fewest most probable tokens that have this probability together
        concurrency: answers that are waited for at the same time
        retries: how often what failed is asked again
        backoff: seconds before the first retry; they double
        timeout: seconds to wait for an answer, or with --stream for its next piece
        requests_per_minute: at most so many requests a minute
        tokens_per_minute: at most so many tokens a minute, read and written
        stream: take answers piece by piece
        key_variable: the environment variable that holds the API key
        device: where a model on this machine runs: cuda, mps or cpu; auto takes the first that is there
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
        without = ("device",) if self.server is not None else OF_SERVERS
        for name in without:
            if getattr(self, name) != defaults[name]:
                raise UserError(f"--{name} has no effect {'with' if self.server is not None else 'without'} --server")
        check_range(1, MAX_SIZE, length=self.length)
        check_range(1, 10_000, concurrency=self.concurrency)
        check_range(0, MAX_SIZE, retries=self.retries, temperature=self.temperature)
        for name in ("backoff", "timeout", "requests_per_minute", "tokens_per_minute"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UserError(f"{name} must be more than 0, not {value}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be in (0, 1], not {self.top_p}")


@dataclass(frozen=True)
class Answer:
    """A text, why it ended ("stop" by itself, "length" cut off), and the tokens read and written, if they were told."""

    text: str
    finish: str | None
    usage: tuple[int, int] | None = None

    @property
    def tokens(self) -> tuple[int, int]:
        return self.usage or (0, 0)

    def counted(self, prompt: str) -> "Answer":
        """The same with tokens estimated, at four characters each, where they were not told."""
        return self if self.usage else Answer(self.text, self.finish, (len(prompt) // 4 + 1, len(self.text) // 4 + 1))

"""What a client may ask for, in OpenAI's words, how much of it, and what is told to who asks for something else."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.config import MAX_SIZE
from memory_mosaics.decoding import Sampler
from memory_mosaics.errors import UserError, check_range, one_line

CONTEXT = 8192  # tokens, where the model itself has no limit
CHOICES = 128  # texts of one request
STOPS = 16
# Fields of OpenAI's interface that ask for what is not here, with the values that ask for nothing.
ABSENT: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
OF_NO_EFFECT = (
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)


class TooLong(UserError):
    """A prompt that cannot be taken as a whole."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Tokens of an answer, of prompt and answer together, requests and rows at a time, bytes of a request."""

    max_tokens: int = 2048
    context: int = CONTEXT
    requests: int = 64
    rows: int = 16
    max_body: int = 1_000_000

    def __post_init__(self) -> None:
        check_range(1, MAX_SIZE, max_tokens=self.max_tokens, max_body=self.max_body)
        check_range(2, MAX_SIZE, context=self.context)
        check_range(1, 100_000, requests=self.requests)
        check_range(1, 4096, rows=self.rows)

    @classmethod
    def of(cls, trained: LoadedModel, *, context: int | None = None, **others: int) -> "Limits":
        """With a context that the model itself can read; None takes all of it."""
        longest = trained.model.max_positions
        if longest is not None and (context or 0) > longest:
            raise UserError(f"context must be at most {longest}, the positions of {trained.folder}, not {context}")
        return cls(context=(longest or CONTEXT) if context is None else context, **others)

    @property
    def places(self) -> int:
        """How many requests may be inside: as many again as are on their way, which are read or refused meanwhile."""
        return 2 * self.requests + 16

    def length(self, prompt: int, wanted: int | None, default: int) -> int:
        """How many tokens may follow a prompt of so many."""
        if prompt >= self.context or (wanted or 0) + prompt > self.context:
            asked = f"; you asked for {wanted} more" if wanted else ""
            room = f"{self.context} tokens, prompt and answer together"
            raise TooLong(f"this server takes {room}; your prompt has {prompt}{asked}. Shorten one of them")
        if (wanted or 0) > self.max_tokens:
            raise UserError(f"max_tokens must be at most {self.max_tokens} here, not {wanted}")
        return wanted or min(default, self.max_tokens, self.context - prompt)


class StreamOptions(BaseModel):
    """Whether a stream ends with the number of tokens."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against eavesdroppers; there is none


class Asked(BaseModel):
    """What completions and chats have in common."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)  # not OpenAI's, but of most servers that speak like it
    seed: int | None = None
    stop: Any = None
    n: int | None = Field(None, ge=1, le=CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _leave_out_what_is_not_here(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            raise ValueError("the body must be a JSON object")
        for name, nothing in ABSENT.items():
            if fields.get(name) is not None and fields[name] not in nothing:
                raise ValueError(f"{name} is not supported by this server")
        return {name: value for name, value in fields.items() if name not in ABSENT and name not in OF_NO_EFFECT}

    @field_validator("stop")
    @classmethod
    def _stops(cls, stop: Any) -> list[str]:
        stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
        if not isinstance(stops, list) or len(stops) > STOPS or not all(isinstance(s, str) and s for s in stops):
            raise ValueError(f"it should be a text, or a list of at most {STOPS}, none of them empty")
        return stops

    @property
    def sampler(self) -> Sampler:
        temperature = 1.0 if self.temperature is None else float(self.temperature)
        return Sampler(temperature=temperature, top_k=self.top_k, top_p=self.top_p)


class CompletionAsked(Asked):
    """A body of /v1/completions."""

    prompt: Any = ""
    logprobs: int | None = Field(None, ge=0, le=5)

    @field_validator("prompt")
    @classmethod
    def _prompts(cls, prompt: Any) -> list[str | list[int]]:
        """A text, token ids, or a list of either: always as a list."""
        prompts = [prompt] if isinstance(prompt, str) or _is_ids(prompt) else prompt
        good = isinstance(prompts, list) and prompts and all(isinstance(each, str) or _is_ids(each) for each in prompts)
        if not good:
            raise ValueError("it should be a text, a list of token ids, or a list of such")
        return prompts

    @property
    def top(self) -> int | None:
        return self.logprobs


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: str
    content: Any = ""

    @field_validator("content")
    @classmethod
    def _text(cls, content: Any) -> str:
        """A text, or parts that are texts: always as one."""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        good = isinstance(parts, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in parts)
        if not good or not all(isinstance(part.get("text"), str) for part in parts):
            raise ValueError("it should be a text, or a list of parts that are texts")
        return "".join(part["text"] for part in parts)


class ChatAsked(Asked):
    """A body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @property
    def top(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def first_error(errors: Any) -> tuple[str, str | None]:
    """What pydantic found first, on one line, and which field it is in."""
    error = errors[0]
    place = [str(part) for part in error["loc"] if part != "body"]
    kind, reason = error["type"], str(error["msg"]).removeprefix("Value error, ")
    if kind == "json_invalid":
        return f"the body is not JSON: {one_line(ValueError(error.get('ctx', {}).get('error', reason)))}", None
    if kind == "extra_forbidden":
        return f"there is no field {place[-1][:60]!r} here", place[-1]
    if kind == "missing" and not place:
        return "the body is empty; it should be a JSON object", None
    name = ".".join(place)
    return (f"{name}: " if name else "") + one_line(ValueError(reason)), name or None


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(each) is int for each in prompt)

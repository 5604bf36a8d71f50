"""OpenAI's completions and chat completions: the requests that are accepted, and the JSON of responses."""

import json
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from memory_mosaics.apps.serve.engine import Penalties
from memory_mosaics.decoding import Sampler

MAX_CHOICES = 128  # texts of one request
MAX_STOPS = 16
# Fields of OpenAI's API that are ignored, and those for what this server does not do, with the values that do not ask
# for it.
FIELDS: dict[str, Any] = json.loads(files("memory_mosaics.apps.serve").joinpath("fields.json").read_text("utf-8"))


class StrictModel(BaseModel):
    """JSON with the fields of a subclass and no others, each of exactly its type."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(StrictModel):
    """Whether a stream ends with the number of tokens."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against eavesdroppers; there is none


class CommonRequest(StrictModel):
    """The fields that completions and chat completions have in common."""

    default_length: ClassVar[int | None] = None  # of a text, in tokens; None is as many as allowed

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=1)  # not OpenAI's, but of most servers with its API, as is min_p
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: Any = Field(None, validate_default=True)
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _remove_fields_without_effect(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            raise ValueError("the body must be a JSON object")
        for name, values in FIELDS["unsupported"].items():
            if fields.get(name) is not None and fields[name] not in values:
                raise ValueError(f"{name} is not supported by this server")
        removed = {*FIELDS["unsupported"], *FIELDS["ignored"]}
        return {name: value for name, value in fields.items() if name not in removed}

    @field_validator("stop")
    @classmethod
    def _stop_as_list(cls, stop: Any) -> list[str]:
        stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
        if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
            raise ValueError(f"must be a string or a list of at most {MAX_STOPS} strings, none of them empty")
        return stops

    @model_validator(mode="after")
    def _check_stream_options(self) -> "CommonRequest":
        if self.stream_options and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    @field_validator("logit_bias")
    @classmethod
    def _check_bias(cls, bias: dict[str, float] | None) -> dict[str, float] | None:
        if bias and not all(token.isdecimal() and abs(value) <= 100 for token, value in bias.items()):
            raise ValueError("must have token ids as names and values from -100 to 100")
        return bias

    @property
    def penalties(self) -> Penalties | None:
        """What is added to the logits, if anything."""
        bias = {int(token): value for token, value in (self.logit_bias or {}).items()}
        presence, frequency = self.presence_penalty or 0.0, self.frequency_penalty or 0.0
        return Penalties(bias=bias, presence=presence, frequency=frequency) if bias or presence or frequency else None

    @property
    def sampler(self) -> Sampler:
        """How tokens are sampled."""
        temperature = 1.0 if self.temperature is None else float(self.temperature)
        return Sampler(temperature=temperature, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p)

    @property
    def length(self) -> int | None:
        """The tokens to generate, if the request has a number of them."""
        return self.max_tokens


class CompletionRequest(CommonRequest):
    """The body of /v1/completions."""

    default_length = 16

    prompt: Any = Field("", validate_default=True)
    max_tokens: int | None = Field(None, ge=0)
    logprobs: int | None = Field(None, ge=0, le=5)
    echo: bool | None = None

    @field_validator("prompt")
    @classmethod
    def _prompt_as_list(cls, prompt: Any) -> list[str | list[int]]:
        prompts = [prompt] if _is_prompt(prompt) else prompt
        if not isinstance(prompts, list) or not prompts or not all(map(_is_prompt, prompts)):
            raise ValueError("must be a string, a list of token ids, or a list of these")
        return prompts

    @model_validator(mode="after")
    def _check_choices(self) -> "CompletionRequest":
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens may be 0 only with echo")
        choices = (self.n or 1) * len(self.prompt)
        if choices > MAX_CHOICES:
            raise ValueError(f"a request may ask for at most {MAX_CHOICES} texts, not {choices}; send several requests")
        return self

    @property
    def top_tokens(self) -> int | None:
        """How many of the most probable tokens to return with each token; None returns no log-probabilities."""
        return self.logprobs


class ChatMessage(StrictModel):
    """One message of a chat. Other fields, such as `name`, are ignored."""

    model_config = ConfigDict(extra="ignore")

    role: str
    content: Any = ""

    @field_validator("content")
    @classmethod
    def _content_as_text(cls, content: Any) -> str:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        if not isinstance(parts, list) or not all(
            isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
            for part in parts
        ):
            raise ValueError("must be a string or a list of text parts")
        return "".join(part["text"] for part in parts)


class ChatRequest(CommonRequest):
    """The body of /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @model_validator(mode="after")
    def _check_lengths_and_logprobs(self) -> "ChatRequest":
        if self.max_tokens and self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens are the same; send one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def length(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def top_tokens(self) -> int | None:
        """As in CompletionRequest."""
        return (self.top_logprobs or 0) if self.logprobs else None


def _is_prompt(value: Any) -> bool:
    ids = isinstance(value, list) and bool(value) and all(type(each) is int for each in value)
    return ids or isinstance(value, str)


GenerationRequest = CompletionRequest | ChatRequest


@dataclass(frozen=True)
class EmittedToken:
    """A token with its log-probability, the most probable tokens with theirs, and its position in the text.

    The first token of a prompt has neither.
    """

    text: str
    logprob: float | None
    top: list[tuple[str, float]] | None
    offset: int


@dataclass(frozen=True)
class TextChunk:
    """Text of one choice, its tokens if log-probabilities are wanted, and why it ends, if it does."""

    text: str
    tokens: list[EmittedToken] = field(default_factory=list)
    finish_reason: Literal["stop", "length"] | None = None

    @classmethod
    def join(cls, chunks: "Sequence[TextChunk]") -> "TextChunk":
        """Return several chunks as one."""
        tokens = [token for chunk in chunks for token in chunk.tokens]
        return cls("".join(chunk.text for chunk in chunks), tokens, chunks[-1].finish_reason)


class ResponseFormat:
    """The JSON of one response of a model, whole or as the events of a stream."""

    def __init__(self, model: str, *, chat: bool, stream: bool):
        self.chat, self.stream = chat, stream
        kind = "text_completion" if not chat else "chat.completion.chunk" if stream else "chat.completion"
        name = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        self.head = {"id": name, "created": int(time.time()), "model": model, "object": kind}

    def response(self, *choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """Return a whole response, or one event of a stream."""
        return {**self.head, "choices": list(choices), **fields}

    def choice(self, index: int, chunk: TextChunk, **role: str) -> dict[str, Any]:
        """Return a chunk as one of the choices. The first event of a chat's choice has the `role`."""
        content: dict[str, Any] = {"text": chunk.text}
        if self.chat and self.stream:
            content = {"delta": role | ({"content": chunk.text} if role or chunk.text else {})}
        elif self.chat:
            content = {"message": {"role": "assistant", "content": chunk.text, "refusal": None}}
        logprobs = self._logprobs(chunk.tokens) if chunk.tokens else None
        return {"index": index, **content, "logprobs": logprobs, "finish_reason": chunk.finish_reason}

    def _logprobs(self, tokens: Sequence[EmittedToken]) -> dict[str, Any]:
        if self.chat:
            tops = [{"top_logprobs": [_token(*top) for top in token.top or ()]} for token in tokens]
            rows = [_token(token.text, token.logprob or 0.0) | top for token, top in zip(tokens, tops, strict=True)]
            return {"content": rows, "refusal": None}
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [None if token.top is None else dict(token.top) for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }


def _token(text: str, logprob: float) -> dict[str, Any]:
    complete = "\ufffd" not in text  # a token may end within a character
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if complete else None}

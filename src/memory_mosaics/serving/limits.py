"""What a server takes on at most."""

from dataclasses import dataclass, replace

from memory_mosaics.errors import UserError
from memory_mosaics.trained import Trained

CONTEXT = 8192  # tokens, where the model itself has no limit


class TooLong(UserError):
    """A prompt that cannot be taken as a whole."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Tokens of an answer, of prompt and answer together, requests and rows at a time, bytes of a request."""

    max_tokens: int = 2048
    context: int | None = None
    requests: int = 64
    rows: int = 16
    max_body: int = 1_000_000

    def __post_init__(self) -> None:
        for name, least in {"max_tokens": 1, "context": 2, "requests": 1, "rows": 1, "max_body": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"{name} must be at least {least}, not {value}")

    def of(self, trained: Trained) -> "Limits":
        """With what the model itself can read."""
        longest = trained.model.longest
        if longest is not None and (self.context or 0) > longest:
            raise UserError(f"context must be at most {longest}, the positions of {trained.folder}, not {self.context}")
        return replace(self, context=self.context or longest or CONTEXT)

    def length(self, prompt: int, wanted: int | None, default: int) -> int:
        """How many tokens may follow a prompt of so many."""
        context = self.context or CONTEXT
        if prompt >= context or (wanted or 0) + prompt > context:
            asked = f"; you asked for {wanted} more" if wanted else ""
            told = f"this server takes {context} tokens, prompt and answer together; your prompt has {prompt}{asked}"
            raise TooLong(f"{told}. Shorten one of them")
        if (wanted or 0) > self.max_tokens:
            raise UserError(f"max_tokens must be at most {self.max_tokens} here, not {wanted}")
        return wanted or min(default, self.max_tokens, context - prompt)

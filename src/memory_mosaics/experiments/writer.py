"""Texts of a trained model: piece by piece or many at once, and the same again with the same seed."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.config import MAX_SIZE
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.generation import PLAIN, Draw, beam_search, generate, stream
from memory_mosaics.shapes import Float, Int
from memory_mosaics.text.tokenizer import StreamDecoder

ROWS = 16  # texts that are written side by side


@dataclass(frozen=True, kw_only=True)
class OwnDraw(Draw):
    """Draws with random numbers of each row's own, so that a text does not depend on those written beside it."""

    generators: Sequence[torch.Generator] = ()

    def noise(
        self, logits: Float[Tensor, "B vocabulary"], generator: torch.Generator | None
    ) -> Float[Tensor, "B vocabulary"]:
        return torch.stack([torch.empty(logits.shape[1]).exponential_(generator=own) for own in self.generators])


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is wanted: texts of at most `length` tokens, `count` a prompt, drawn with a seed or found with beams."""

    length: int = 200
    draw: Draw = PLAIN
    beams: int | None = None
    seed: int = 0
    count: int = 1
    compiled: bool = False

    def __post_init__(self) -> None:
        check_range(1, MAX_SIZE, length=self.length)
        check_range(1, 1_000_000, count=self.count)
        check_range(1, 1024, beams=self.beams)
        if self.beams is not None and self.count > 1:
            raise UserError(f"beams find one text for each prompt, not {self.count}; leave out --beams or --count")
        if self.beams is not None and (self.draw.top_k is not None or self.draw.top_p is not None):
            raise UserError("beams take the most probable text: leave out --top_k and --top_p, or --beams")


class Writer:
    """Writes texts with a model. The text with number n of a seed is the same alone or beside others."""

    def __init__(self, trained: LoadedModel, wish: Wish):
        self.trained, self.wish, self.written = trained, wish, 0
        self._cut = 0  # texts that ended with the model's positions

    def encode(self, prompt: str) -> Int[Tensor, " T"]:
        """The prompt's tokens; an empty one is the end of what was before."""
        tokens = self.trained.tokenizer.encode(prompt) or [self.trained.tokenizer.end_of_text]
        longest = self.trained.model.max_positions
        if longest is not None and len(tokens) >= longest:
            raise UserError(
                f"{prompt[:30]!r}... has {len(tokens)} tokens, and {self.trained.name} has learned positions for "
                f"{longest}: nothing could follow; shorten it"
            )
        return torch.tensor(tokens)

    def as_it_comes(self, prompt: str) -> Iterator[str]:
        """The pieces of one text. Nothing that is not a whole letter."""
        decoder = StreamDecoder(self.trained.tokenizer)
        draw = self._own([self.written])
        self.written += 1
        tokens, count = self.encode(prompt), 0
        for (token,) in stream(self.trained.model, [tokens], draw=draw, **self._how):
            if int(token) == self.trained.tokenizer.end_of_text:
                break
            count += 1
            yield decoder.add(int(token))
        self._look(tokens, count)
        yield decoder.flush()

    def together(self, prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The texts of all prompts, `count` each, in batches."""
        rows = [(prompt, self.encode(prompt)) for prompt in prompts for _ in range(self.wish.count)]
        for batch in self._batches(rows):
            numbers = range(self.written, self.written + len(batch))
            self.written += len(batch)
            tokens = [tokens for _, tokens in batch]
            if self.wish.beams is not None:
                texts = beam_search(self.trained.model, tokens, beams=self.wish.beams, **self._how)
            else:
                texts = generate(self.trained.model, tokens, draw=self._own(numbers), **self._how)
            for (prompt, tokens), text, number in zip(batch, texts, numbers, strict=True):
                self._look(tokens, len(text))
                yield self.record(prompt, self.trained.tokenizer.decode(text.tolist()), number)

    def ran_out(self) -> str:
        """A line about the texts since the last time that had to end with the model's positions, if there are any."""
        cut, self._cut = self._cut, 0
        end = "1 text ends there, before its" if cut == 1 else f"{cut} texts end there, before their"
        positions = f"{self.trained.name} has learned positions for {self.trained.model.max_positions}"
        return f"{positions}: {end} {self.wish.length} tokens" if cut else ""

    def _look(self, prompt: Int[Tensor, " T"], count: int) -> None:
        """Whether a text of so many tokens came to the last position, after which one more is predicted."""
        longest = self.trained.model.max_positions
        self._cut += longest is not None and longest - len(prompt) < count < self.wish.length

    @property
    def _how(self) -> dict[str, Any]:
        """What drawing and searching are told alike."""
        end = self.trained.tokenizer.end_of_text
        return {"length": self.wish.length, "end": end, "compiled": self.wish.compiled}

    def record(self, prompt: str, text: str, number: int) -> dict[str, Any]:
        """A line of the file: what was asked, what came, and what it takes to have it again."""
        how = {"beams": self.wish.beams} if self.wish.beams is not None else {"seed": self.wish.seed, "number": number}
        return {"prompt": prompt, "text": text, "model": self.trained.name, **how}

    def _own(self, numbers: Iterable[int]) -> OwnDraw:
        """The way to draw, with the random numbers that belong to the seed and to each text."""
        seeds = ((self.wish.seed * 1_000_003 + number) % 2**63 for number in numbers)
        draw = self.wish.draw
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return OwnDraw(temperature=draw.temperature, top_k=draw.top_k, top_p=draw.top_p, generators=generators)

    def _batches(self, rows: list[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
        """As many rows as fit. Where positions are a table, a short prompt must not pay for a long one beside it."""
        longest = self.trained.model.max_positions
        full = longest is not None and max((len(tokens) for _, tokens in rows), default=0) + self.wish.length > longest
        size = 1 if full else max(1, ROWS // (self.wish.beams or 1))
        return (rows[start : start + size] for start in range(0, len(rows), size))


@contextmanager
def a_compiler() -> Iterator[None]:
    """Where torch.compile cannot do its work, as on a machine without a C++ compiler, say so."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise UserError(f"--compile does not work here: {one_line(error, 160)}; leave it out") from error
        raise

"""Text from a model, one token at a time. Knows ids, not text.

    stream         the tokens of each step as they come
    generate       whole continuations, drawn (`Draw`: greedy, temperature, top-k, top-p)
    beam_search    the most probable continuations found with a few candidates kept

reader.py has what reads prompts and chosen tokens. Nothing waits for the device but who looks at a token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from memory_mosaics.language_model import LanguageModel
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.reader import Reader
from memory_mosaics.shapes import Float, Int

LOOK = 16  # steps between looks at whether all rows have ended: each waits for the device


@dataclass(frozen=True, kw_only=True)
class Draw:
    """How the next token is chosen: the most probable (temperature 0), or at random among the probable ones."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"temperature must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}")

    def __call__(
        self, logits: Float[Tensor, "B vocabulary"], generator: torch.Generator | None = None
    ) -> Int[Tensor, " B"]:
        """One token a row. Random numbers are drawn where the generator lives, so that a seed means one text."""
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        shares = self.allowed(self.cooled(logits)).softmax(dim=-1)
        noise = self.noise(logits, generator).to(logits.device)
        return (shares / noise).argmax(dim=-1)  # argmax of p / Exp(1) falls on i with probability p_i

    def noise(
        self, logits: Float[Tensor, "B vocabulary"], generator: torch.Generator | None
    ) -> Float[Tensor, "B vocabulary"]:
        """Exponential random numbers, one a logit."""
        where = logits.device if generator is None else generator.device
        return torch.empty(logits.shape, device=where).exponential_(generator=generator)

    def cooled(self, logits: Float[Tensor, "B vocabulary"]) -> Float[Tensor, "B vocabulary"]:
        """Divided by the temperature, the largest at zero: however cold, it stays finite."""
        logits = at_least_fp32(logits)
        return (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature

    def allowed(self, logits: Float[Tensor, "B vocabulary"]) -> Float[Tensor, "B vocabulary"]:
        """The `top_k` largest, and of those the fewest that make up `top_p`; the others at -inf."""
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            largest, order = logits.sort(dim=-1, descending=True)
            shares = largest.softmax(dim=-1)
            beyond = shares.cumsum(dim=-1) - shares >= self.top_p
            beyond[:, 0] = False  # the most probable stays, however small top_p
            logits = logits.masked_fill(torch.zeros_like(beyond).scatter(1, order, beyond), -torch.inf)
        return logits


GREEDY, PLAIN = Draw(temperature=0.0), Draw()


def stream(
    model: LanguageModel,
    prompts: Sequence[Int[Tensor, " _"]],
    length: int,
    *,
    draw: Draw = PLAIN,
    end: int | None = None,
    generator: torch.Generator | None = None,
    compiled: bool = False,
) -> Iterator[Int[Tensor, " B"]]:
    """At most `length` times one token of each row. A row that has drawn `end` repeats it; when all have, it is over.

    A model with a table of positions stops where its longest prompt comes to the end of the table.
    """
    reader = Reader(model, prompts, compiled=compiled)
    length = reader.at_most(length)
    reader.reserve(length)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=reader.device)
    for step in range(1, length + 1):
        tokens = draw(reader.logits, generator)
        if end is not None:
            tokens = tokens.masked_fill(ended, end)
            ended |= tokens == end
        yield tokens
        look = step % LOOK == 0 or reader.device.type == "cpu"
        if step == length or (end is not None and look and bool(ended.all())):
            return
        reader.read(tokens)


def generate(
    model: LanguageModel,
    prompts: Sequence[Int[Tensor, " _"]],
    length: int,
    *,
    draw: Draw = PLAIN,
    end: int | None = None,
    generator: torch.Generator | None = None,
    compiled: bool = False,
) -> list[Int[Tensor, " _"]]:
    """At most `length` tokens that continue each prompt, up to but without the token `end`."""
    steps = list(stream(model, prompts, length, draw=draw, end=end, generator=generator, compiled=compiled))
    rows = torch.stack(steps, dim=1).cpu() if steps else torch.zeros(len(prompts), 0, dtype=torch.long)
    return [_until(row, end) for row in rows]


def beam_search(
    model: LanguageModel,
    prompts: Sequence[Int[Tensor, " _"]],
    length: int,
    *,
    beams: int = 2,
    end: int | None = None,
    length_penalty: float = 1.0,
    compiled: bool = False,
) -> list[Int[Tensor, " _"]]:
    """The best continuation of each prompt among those met while keeping its `beams` most probable beginnings.

    Best is the highest log-probability divided by the number of tokens to the power of `length_penalty`.
    """
    if beams < 1:
        raise ValueError(f"beams must be at least 1, not {beams}")
    reader = Reader(model, prompts, compiled=compiled)
    reader.repeat(beams)
    length = reader.at_most(length)
    reader.reserve(length)
    searches = [_Beams(beams, end, length_penalty) for _ in prompts]
    scores = torch.full((len(prompts), beams), -torch.inf, device=reader.device)
    scores[:, 0] = 0.0  # all beams of a prompt begin alike: one speaks for them
    for step in range(1, length + 1):
        logs = at_least_fp32(reader.logits).log_softmax(dim=-1).unflatten(0, scores.shape) + scores[..., None]
        best = logs.flatten(1).topk(min(2 * beams, logs[0].numel()), dim=-1)
        found = zip(searches, best.values.tolist(), best.indices.tolist(), strict=True)
        kept = [search.keep(*candidates, vocabulary=logs.shape[-1]) for search, *candidates in found]
        if step == length or all(search.done for search in searches):
            break
        rows = torch.tensor([row * beams + beam for row, alive in enumerate(kept) for _, beam, _ in alive])
        tokens = torch.tensor([token for alive in kept for _, _, token in alive])
        scores = torch.tensor([[score for score, _, _ in alive] for alive in kept], device=reader.device)
        reader.reorder(rows.to(reader.device))
        reader.read(tokens.to(reader.device))
    return [search.best() for search in searches]


class _Beams:
    """The beams of one prompt: those that go on, and those that have ended."""

    def __init__(self, beams: int, end: int | None, length_penalty: float):
        self.beams, self.end, self.penalty = beams, end, length_penalty
        self.alive: list[tuple[float, list[int]]] = [(0.0, [])] * beams
        self.ended: list[tuple[float, list[int]]] = []
        self.kept: list[tuple[float, int, int]] = []

    def keep(self, scores: list[float], places: list[int], *, vocabulary: int) -> list[tuple[float, int, int]]:
        """Of candidates, best first, those that go on: score, the beam they continue, token."""
        if self.done:  # what goes on beside it changes nothing any more
            return self.kept
        alive, kept = [], []
        for rank, (score, place) in enumerate(zip(scores, places, strict=True)):
            beam, token = divmod(place, vocabulary)
            text = self.alive[beam][1]
            if token == self.end:
                if rank < self.beams:  # an end counts when it is among the best
                    self.ended.append((self._mean(score, len(text) + 1), text))
            elif len(kept) < self.beams:
                alive.append((score, [*text, token]))
                kept.append((score, beam, token))
        while len(kept) < self.beams:  # a vocabulary smaller than the beams
            alive.append((-torch.inf, self.alive[0][1]))
            kept.append((-torch.inf, 0, 0))
        self.alive, self.kept = alive, kept
        self.ended = sorted(self.ended, key=lambda hypothesis: -hypothesis[0])[: self.beams]
        return kept

    @property
    def done(self) -> bool:
        """Whether nothing alive can still be better than what has ended, as things stand."""
        score, text = self.alive[0]
        return len(self.ended) == self.beams and self._mean(score, len(text)) <= self.ended[-1][0]

    def best(self) -> Int[Tensor, " N"]:
        alive = [(self._mean(score, len(text)), text) for score, text in self.alive]
        return torch.tensor(max(self.ended + alive, key=lambda hypothesis: hypothesis[0])[1], dtype=torch.long)

    def _mean(self, score: float, length: int) -> float:
        return score / max(length, 1) ** self.penalty


def _until(tokens: Int[Tensor, " N"], end: int | None) -> Int[Tensor, " M"]:
    ends = (tokens == end).nonzero() if end is not None else tokens[:0]
    return tokens[: int(ends[0])] if len(ends) else tokens

"""Generate tokens and text with a language model.

Decoder          one decoding step at a time, as CUDA graphs on CUDA
Sampler          how the next token is chosen: greedy, temperature, top-k, top-p
stream           the tokens of each step as they are sampled
generate         whole continuations
beam_search      the most probable continuations found with a few candidates
TextGenerator    text to text with a loaded model, reproducible by seed
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, log
from typing import Any, ClassVar
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.config import MAX_SIZE
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.ops.common import at_least_fp32, double_dtype
from memory_mosaics.runtime import capture
from memory_mosaics.scales import fold_for_inference
from memory_mosaics.shapes import Float, Int
from memory_mosaics.stores import GrowingStore, State, map_state, select_rows, state_tensors, stores_of, tokens_at_once
from memory_mosaics.text.tokenizer import StreamDecoder

INITIAL_CAPACITY = 2048  # tokens reserved at once; beyond, the capacity doubles
CAPACITY_MULTIPLE = 256  # capacities are rounded up to it, so that one captured step serves many lengths
MAX_CACHED_GRAPHS = 4  # idle captured steps kept per model
CHECK_INTERVAL = 16  # steps between checks whether all rows have ended: each check waits for the device
MAX_BATCH = 16  # texts that a TextGenerator generates side by side


class Decoder:
    """A model that has read prompts and decodes one token per row at a time.

    Prompts are processed in parallel. Then the state is copied into tensors of a fixed capacity, so that every step
    does the same work on the same tensors: on CUDA it is captured once as a graph and replayed. Captured steps are
    kept with the model for the next Decoder of the same batch size and capacity.
    """

    logits: Float[Tensor, "B vocabulary"]  # of the next token

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Int[Tensor, " _"]],
        *,
        compiled: bool = False,
        state: State | None = None,
    ):
        """Prompts of different lengths are left-padded. `compiled` fuses each step by torch.compile.

        `state` is that of one row, in which every row starts: prompts are then of one length. It decides about the
        stores: bounded ones stay bounded, and their steps are not captured.
        """
        if state is not None and len({len(prompt) for prompt in prompts}) > 1:
            raise ValueError("prompts that continue a state must be of one length: padding cannot come in between")
        if not prompts or any(len(prompt) == 0 for prompt in prompts):
            raise ValueError("a prompt must have at least one token: there is nothing to predict from")
        self.graphs = DecodeGraphCache.of(model)
        self.model = model = self.graphs.model
        self.device = model.embedding.weight.device
        self.block_fn = self.graphs.compiled_block(one_row=len(prompts) == 1) if compiled else None
        self.replay: Callable[[], None] | None = None
        self.release: Callable[[], None] = lambda: None
        lengths = [len(prompt) for prompt in prompts]
        tokens = pad_sequence([row.to(self.device) for row in prompts], batch_first=True, padding_side="left")
        ago = torch.arange(max(lengths), 0, -1, device=self.device)
        mask = None if min(lengths) == max(lengths) else ago <= torch.tensor(lengths, device=self.device)[:, None]
        self.num_tokens, self.capacity = tokens.shape[1], 0
        if state is not None:
            self.num_tokens += next((x.keys.shape[1] for x in stores_of(state) if isinstance(x, GrowingStore)), 0)
            state = map_state(lambda tensor: tensor.expand(len(prompts), *tensor.shape[1:]), state)
        with torch.no_grad():
            features, self.state = model.features(model.embedding(tokens), state, mask)
            self.logits = model.logits(features[:, -1])
        self.tokens = tokens[:, -1:].clone()

    def step(self, tokens: Int[Tensor, " B"]) -> Float[Tensor, "B vocabulary"]:
        """Return the logits after one more token of each row. The next call overwrites them."""
        self._grow(self.num_tokens + 1)
        self.tokens.copy_(tokens[:, None])
        if self.replay is None:
            with torch.no_grad():
                if self.device.type == "cuda" and self.capacity:
                    self._capture()
                else:
                    self._forward()
        if self.replay is not None:
            self.replay()
        self.num_tokens += 1
        return self.logits

    def reserve(self, tokens: int) -> int:
        """Reserve capacity for so many more tokens, at most INITIAL_CAPACITY at once.

        Return how many can follow: fewer where learned positions end. The token after the last position is predicted.
        """
        if self.model.max_positions is not None:
            tokens = min(tokens, self.model.max_positions - self.num_tokens + 1)
        self._grow(min(self.num_tokens + tokens, max(self.num_tokens + 1, INITIAL_CAPACITY)))
        return tokens

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Let row b continue row rows[b]: in place while the number of rows stays the same."""
        if len(rows) == len(self.logits) and self.capacity:
            map_state(lambda tensor: tensor.copy_(tensor.index_select(0, rows)), self.state)
            self.logits.copy_(self.logits.index_select(0, rows))
        else:
            self.state = map_state(lambda tensor: select_rows(tensor, rows), self.state)
            self.logits, self.tokens = self.logits.index_select(0, rows), self.tokens.index_select(0, rows)
            self.replay = None  # captured with other tensors

    def _grow(self, tokens: int) -> None:
        if self.num_tokens >= self.graphs.peek and tokens > self.capacity and tokens_at_once(self.state) == inf:
            self.capacity = -(-max(tokens, 2 * self.capacity) // CAPACITY_MULTIPLE) * CAPACITY_MULTIPLE
            self.state = self.model.to_fixed_capacity(self.state, self.capacity)
            self.replay = None  # captured with other tensors

    def _capture(self) -> None:
        """Reuse an idle captured step of the same shapes, or capture one."""
        mine = (self.tokens, self.state, self.logits)
        key = str([(tensor.shape, tensor.dtype) for tensor in state_tensors(mine)])
        key += str((self.block_fn is None, torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")))
        idle = self.graphs.idle
        if (number := next((i for i, step in enumerate(idle) if step[0] == key), None)) is None:
            tensors, self.replay = mine, _capture_step(self._forward, self.state)
        else:
            _, tensors, self.replay = idle[number]
            del idle[number]
            _overwrite(tensors, mine)
        self.tokens, self.state, self.logits = tensors
        self.release()  # the one in use before
        self.release = finalize(self, idle.append, (key, tensors, self.replay))

    def _forward(self) -> None:
        """Process self.tokens. Logits change in place, and so does the state once it has a fixed capacity."""
        features, state = self.model.features(self.model.embedding(self.tokens), self.state, block_fn=self.block_fn)
        self.logits.copy_(self.model.logits(features[:, -1]))
        if self.capacity:
            _overwrite(self.state, state)
        else:
            self.state = state


class DecodeGraphCache:
    """A model folded for inference and its idle captured steps, valid while its parameters do not change.

    A captured step is a key, the tensors that the step reads and writes, and the replay of its CUDA graph.
    """

    caches: ClassVar[WeakKeyDictionary[nn.Module, "DecodeGraphCache"]] = WeakKeyDictionary()

    def __init__(self, model: LanguageModel, fingerprint: tuple):
        self.model, self.fingerprint = fold_for_inference(model).eval(), fingerprint
        self.peek = max(getattr(module, "peek", 0) for module in model.modules())  # shapes change before so many tokens
        self.idle: deque[tuple[str, Any, Callable[[], None]]] = deque(maxlen=MAX_CACHED_GRAPHS)
        self.compiled: dict[bool, Callable[..., Any]] = {}  # for one row and for more

    @classmethod
    def of(cls, model: LanguageModel) -> "DecodeGraphCache":
        """Return the cache of `model`, a new one if its parameters have changed."""
        fingerprint, cache = _fingerprint(model), cls.caches.get(model)
        if cache is None or cache.fingerprint != fingerprint:
            cache = cls.caches[model] = cls(model, fingerprint)
        return cache

    def compiled_block(self, *, one_row: bool) -> Callable[..., Any]:
        """Return the compiled forward of a block. With one row the products are matrix-vector: only there does
        searching for the best kernel of each pay off.
        """
        if one_row not in self.compiled:
            options: Any = {"coordinate_descent_tuning": True} if one_row else None
            self.compiled[one_row] = torch.compile(nn.Module.__call__, dynamic=False, options=options)
        return self.compiled[one_row]


@torch.no_grad()
def _fingerprint(model: LanguageModel) -> tuple:
    """Return what changes when training changes parameters: their addresses, autograd's version counters, and their
    sums, since fused optimizers, replayed graphs and inference tensors do not count versions.
    """
    weights = list(model.parameters())
    versions = [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]
    sums = [weight.sum(dtype=torch.promote_types(weight.dtype, torch.float32)) for weight in weights]
    device = weights[0].device
    return *versions, *torch.stack([each.to(device, double_dtype(device)) for each in sums]).tolist()


def _overwrite(old: Any, new: Any) -> None:
    """Copy one state over another where a step has not done so in place: one call per dtype."""
    by_dtype: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for before, after in zip(state_tensors(old), state_tensors(new), strict=True):
        if before.data_ptr() != after.data_ptr() and before.numel():
            by_dtype.setdefault(before.dtype, []).append((before, after))
    for pairs in by_dtype.values():
        torch._foreach_copy_([before for before, _ in pairs], [after for _, after in pairs])


def _capture_step(step: Callable[[], None], state: Any) -> Callable[[], None]:
    """Return a CUDA graph of `step` to replay. Warming up leaves the state unchanged."""
    before = map_state(torch.clone, state)
    # Autocast's cached weights would be freed when the graph is replayed.
    uncached = torch.autocast("cuda", enabled=torch.is_autocast_enabled("cuda"), cache_enabled=False)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), uncached:
        for _ in range(2):
            step()
            _overwrite(state, before)
    torch.cuda.current_stream().wait_stream(stream)
    with uncached:
        return capture(step)


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """How the next token is chosen: the most probable (temperature 0), or at random among the probable ones."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise UserError(f"temperature must be 0 or more, not {self.temperature}")
        check_range(1, inf, top_k=self.top_k)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be in (0, 1], not {self.top_p}")
        check_range(0, 1, min_p=self.min_p)

    def __call__(
        self,
        logits: Float[Tensor, "B vocabulary"],
        generator: torch.Generator | Sequence[torch.Generator] | None = None,
    ) -> Int[Tensor, " B"]:
        """Return one token per row. With a generator per row, on the CPU, a row does not depend on those beside it.

        Random numbers are drawn on the generator's device, so that a seed means the same text on every device.
        """
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        logits = at_least_fp32(logits)
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature  # finite at any temperature
        probabilities = self.top_k_top_p(logits).softmax(dim=-1)
        if isinstance(generator, Sequence):
            noise = torch.stack([torch.empty(logits.shape[1]).exponential_(generator=each) for each in generator])
        else:
            device = logits.device if generator is None else generator.device
            noise = torch.empty(logits.shape, device=device).exponential_(generator=generator)
        return (probabilities / noise.to(logits.device)).argmax(dim=-1)  # argmax_i of p_i / Exp(1) is i with p_i

    def top_k_top_p(self, logits: Float[Tensor, "B vocabulary"]) -> Float[Tensor, "B vocabulary"]:
        """Keep the `top_k` largest logits, of those the fewest that reach `top_p`, and of those all that are at least
        `min_p` times as probable as the most probable; set the others to -inf.
        """
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        if self.top_p is not None and self.top_p < 1:
            largest, order = logits.sort(dim=-1, descending=True)
            probabilities = largest.softmax(dim=-1)
            excluded = probabilities.cumsum(dim=-1) - probabilities >= self.top_p
            excluded[:, 0] = False  # the most probable stays, however small top_p
            logits = logits.masked_fill(torch.zeros_like(excluded).scatter(1, order, excluded), -torch.inf)
        if self.min_p:
            logits = logits.masked_fill(logits < logits.amax(dim=-1, keepdim=True) + log(self.min_p), -torch.inf)
        return logits


GREEDY, RANDOM = Sampler(temperature=0.0), Sampler()


def stream(
    model: LanguageModel,
    prompts: Sequence[Int[Tensor, " _"]],
    length: int,
    *,
    sampler: Sampler = RANDOM,
    eos: int | None = None,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    compiled: bool = False,
    state: State | None = None,
) -> Iterator[Int[Tensor, " B"]]:
    """Yield at most `length` times one token per row. A row that has ended repeats `eos`, until all have ended.

    A model with learned positions stops where its longest prompt reaches the last position. With a `state`, such as
    that of a memory file, all rows continue it.
    """
    decoder = Decoder(model, prompts, compiled=compiled, state=state)
    length = decoder.reserve(length)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=decoder.device)
    for step in range(1, length + 1):
        tokens = sampler(decoder.logits, generator)
        if eos is not None:
            tokens = tokens.masked_fill(ended, eos)
            ended |= tokens == eos
        yield tokens
        check = step % CHECK_INTERVAL == 0 or decoder.device.type == "cpu"
        if step == length or (eos is not None and check and bool(ended.all())):
            return
        decoder.step(tokens)


def generate(
    model: LanguageModel, prompts: Sequence[Int[Tensor, " _"]], length: int, *, eos: int | None = None, **options: Any
) -> list[Int[Tensor, " _"]]:
    """Return at most `length` tokens that continue each prompt, without `eos` and what follows it.

    The options are those of `stream`.
    """
    steps = list(stream(model, prompts, length, eos=eos, **options))
    rows = torch.stack(steps, dim=1).cpu() if steps else torch.zeros(len(prompts), 0, dtype=torch.long)
    ends = [(row == eos).nonzero() if eos is not None else row[:0] for row in rows]
    return [row[: int(end[0])] if len(end) else row for row, end in zip(rows, ends, strict=True)]


def beam_search(
    model: LanguageModel,
    prompts: Sequence[Int[Tensor, " _"]],
    length: int,
    *,
    beams: int = 2,
    eos: int | None = None,
    length_penalty: float = 1.0,
    compiled: bool = False,
    state: State | None = None,
) -> list[Int[Tensor, " _"]]:
    """Return the best continuation of each prompt found by keeping its `beams` most probable candidates at each step.

    The score is the log-probability divided by the number of tokens to the power of `length_penalty`.
    """
    if beams < 1:
        raise ValueError(f"beams must be at least 1, not {beams}")
    decoder = Decoder(model, prompts, compiled=compiled, state=state)
    decoder.select(torch.arange(len(prompts), device=decoder.device).repeat_interleave(beams))
    length = decoder.reserve(length)
    searches = [_BeamSearch(beams, eos, length_penalty) for _ in prompts]
    scores = torch.full((len(prompts), beams), -torch.inf, device=decoder.device)
    scores[:, 0] = 0.0  # the beams of a prompt are equal at first: only one may produce candidates
    for step in range(1, length + 1):
        logs = at_least_fp32(decoder.logits).log_softmax(dim=-1).unflatten(0, scores.shape) + scores[..., None]
        best = logs.flatten(1).topk(min(2 * beams, logs[0].numel()), dim=-1)
        for search, *candidates in zip(searches, best.values.tolist(), best.indices.tolist(), strict=True):
            search.update(*candidates, vocabulary=logs.shape[-1])
        if step == length or all(search.done for search in searches):
            break
        rows = torch.tensor([row * beams + beam for row, one in enumerate(searches) for _, beam, _ in one.active])
        tokens = torch.tensor([tokens[-1] for search in searches for _, _, tokens in search.active])
        scores = torch.tensor([[score for score, _, _ in search.active] for search in searches], device=decoder.device)
        decoder.select(rows.to(decoder.device))
        decoder.step(tokens.to(decoder.device))
    return [search.best() for search in searches]


class _BeamSearch:
    """The beams of one prompt: active ones (score, the beam continued, tokens) and finished ones (score, tokens)."""

    def __init__(self, beams: int, eos: int | None, length_penalty: float):
        self.beams, self.eos, self.length_penalty = beams, eos, length_penalty
        self.active: list[tuple[float, int, list[int]]] = [(0.0, 0, [])] * beams
        self.finished: list[tuple[float, list[int]]] = []

    def update(self, scores: list[float], indices: list[int], *, vocabulary: int) -> None:
        """Continue with the best of the candidates, which are given best first."""
        if self.done:  # still decoded beside the other prompts, without effect
            return
        active = []
        for rank, (score, index) in enumerate(zip(scores, indices, strict=True)):
            beam, token = divmod(index, vocabulary)
            tokens = self.active[beam][2]
            if token == self.eos:
                if rank < self.beams:  # an end counts when it is among the best
                    self.finished.append((self._normalize(score, len(tokens) + 1), tokens))
            elif len(active) < self.beams:
                active.append((score, beam, [*tokens, token]))
        missing = self.beams - len(active)  # where the vocabulary is smaller than the number of beams
        self.active = active + [(-torch.inf, 0, [*self.active[0][2], 0])] * missing
        self.finished = sorted(self.finished, key=lambda hypothesis: -hypothesis[0])[: self.beams]

    @property
    def done(self) -> bool:
        """Whether no active beam can still, at its present length, be better than the finished ones."""
        score, _, tokens = self.active[0]
        return len(self.finished) == self.beams and self._normalize(score, len(tokens)) <= self.finished[-1][0]

    def best(self) -> Int[Tensor, " N"]:
        active = [(self._normalize(score, len(tokens)), tokens) for score, _, tokens in self.active]
        return torch.tensor(max(self.finished + active, key=lambda hypothesis: hypothesis[0])[1], dtype=torch.long)

    def _normalize(self, score: float, length: int) -> float:
        return score / max(length, 1) ** self.length_penalty


@dataclass(frozen=True, kw_only=True)
class GenerationParams:
    """At most `length` tokens, `count` texts per prompt, sampled with a seed or found by beam search."""

    length: int = 200
    sampler: Sampler = RANDOM
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
        if self.beams is not None and (self.sampler.top_k is not None or self.sampler.top_p is not None):
            raise UserError("beams take the most probable text: leave out --top_k and --top_p, or --beams")


class TextGenerator:
    """Generates texts with a loaded model. Text number n of a seed is the same alone or beside others.

    All texts continue `state`, such as that of a memory file, if it is given.
    """

    def __init__(self, trained: LoadedModel, params: GenerationParams, *, state: State | None = None):
        self.trained, self.params = trained, params
        self.num_texts = 0  # generated so far
        self._num_truncated = 0  # texts that ended with the model's positions
        # The arguments that `stream`, `generate` and `beam_search` have in common.
        end = trained.tokenizer.end_of_text
        self._options: Any = {"length": params.length, "eos": end, "compiled": params.compiled, "state": state}

    def encode(self, prompt: str) -> Int[Tensor, " T"]:
        """Return the prompt's tokens; an empty one is the end-of-text token."""
        tokens = self.trained.tokenizer.encode(prompt) or [self.trained.tokenizer.end_of_text]
        max_positions = self.trained.model.max_positions
        if max_positions is not None and len(tokens) >= max_positions:
            raise UserError(
                f"{prompt[:30]!r}... has {len(tokens)} tokens, and {self.trained.name} has learned positions for "
                f"{max_positions}: nothing could follow; shorten it"
            )
        return torch.tensor(tokens)

    def stream(self, prompt: str) -> Iterator[str]:
        """Yield one text piece by piece, never part of a character."""
        decoder = StreamDecoder(self.trained.tokenizer)
        generators = self._generators([self.num_texts])
        self.num_texts += 1
        tokens, count = self.encode(prompt), 0
        sampling = {"sampler": self.params.sampler, "generator": generators}
        for (token,) in stream(self.trained.model, [tokens], **sampling, **self._options):
            if int(token) == self.trained.tokenizer.end_of_text:
                break
            count += 1
            yield decoder.add(int(token))
        self._count_truncated(tokens, count)
        yield decoder.flush()

    def generate(self, prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield the record of each text, `count` per prompt, generated in batches."""
        rows = [(prompt, self.encode(prompt)) for prompt in prompts for _ in range(self.params.count)]
        most = max((len(tokens) for _, tokens in rows), default=0) + self.params.length
        # One row where padding a short prompt would cost it some of the learned positions.
        # One row, too, after a state: padding cannot come between it and a prompt.
        alone = self._options["state"] is not None or most > (self.trained.model.max_positions or inf)
        size = 1 if alone else max(1, MAX_BATCH // (self.params.beams or 1))
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            numbers = range(self.num_texts, self.num_texts + len(batch))
            self.num_texts += len(batch)
            tokens = [tokens for _, tokens in batch]
            if self.params.beams is not None:
                texts = beam_search(self.trained.model, tokens, beams=self.params.beams, **self._options)
            else:
                sampling = {"sampler": self.params.sampler, "generator": self._generators(numbers)}
                texts = generate(self.trained.model, tokens, **sampling, **self._options)
            for (prompt, tokens), text, number in zip(batch, texts, numbers, strict=True):
                self._count_truncated(tokens, len(text))
                yield self.record(prompt, self.trained.tokenizer.decode(text.tolist()), number)

    def record(self, prompt: str, text: str, number: int) -> dict[str, Any]:
        """Return a text with its prompt and what it takes to reproduce it."""
        params = self.params
        how = {"beams": params.beams} if params.beams is not None else {"seed": params.seed, "number": number}
        return {"prompt": prompt, "text": text, "model": self.trained.name, **how}

    def truncation_message(self) -> str:
        """Return a line about the texts since the last call that ended with the model's positions, "" if none did."""
        count, self._num_truncated = self._num_truncated, 0
        end = "1 text ends there, before its" if count == 1 else f"{count} texts end there, before their"
        positions = f"{self.trained.name} has learned positions for {self.trained.model.max_positions}"
        return f"{positions}: {end} {self.params.length} tokens" if count else ""

    def _count_truncated(self, prompt: Int[Tensor, " T"], length: int) -> None:
        """Count a text that reached the last position, after which one more token is predicted."""
        max_positions = self.trained.model.max_positions
        self._num_truncated += max_positions is not None and max_positions - len(prompt) < length < self.params.length

    def _generators(self, numbers: Sequence[int]) -> list[torch.Generator]:
        seeds = ((self.params.seed * 1_000_003 + number) % 2**63 for number in numbers)
        return [torch.Generator().manual_seed(seed) for seed in seeds]


@contextmanager
def compiler_errors() -> Iterator[None]:
    """Report a failing torch.compile, such as on a machine without a C++ compiler, in one line."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise UserError(f"--compile does not work here: {one_line(error, 160)}; leave it out") from error
        raise

"""Rows decoded side by side are those decoded alone, whenever they come and go."""

import threading
from contextlib import contextmanager
from functools import cache

import pytest
import torch

from memory_mosaics import LanguageModel, LanguageModelConfig, indexed_store, memory_mosaic, transformer
from memory_mosaics.apps.serve.engine import Batch, Engine, EngineStopped, QueueFull, Row
from memory_mosaics.bounded_stores import StorePolicy
from memory_mosaics.decoding import GREEDY, Sampler, generate
from mixers_under_contract import MIXERS
from waiting import HANG, until

VOCABULARY = 50


@cache
def model_of(kind: str) -> LanguageModel:
    torch.manual_seed(0)
    size = {"width": 32, "blocks": 2, "heads": 2, "vocabulary": VOCABULARY, "context": 48}
    model = LanguageModel(memory_mosaic(**size) if kind == "mosaic" else transformer(position=kind, **size))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.dim() > 1 else None
    return model


class Writing:
    """A row that keeps what it is told."""

    def __init__(self, prompt, length: int, sampler: Sampler = GREEDY, *, seed: int = 0, top: int | None = None):
        self.tokens, self.logprobs, self.done, self.error = [], [], threading.Event(), None
        self.length = length
        how = {"sampler": sampler, "generator": torch.Generator().manual_seed(seed), "logprobs": top}
        self.row = Row(
            prompt=torch.as_tensor(prompt), length=length, on_token=self.on_token, on_error=self.on_error, **how
        )

    def on_token(self, token, logprobs):
        self.tokens.append(token)
        self.logprobs.append(logprobs)
        if len(self.tokens) == self.length:
            self.done.set()
        return len(self.tokens) < self.length

    def on_error(self, error):
        self.error = error
        self.done.set()

    def result(self):
        assert self.done.wait(HANG)
        if self.error:
            raise self.error
        return self.tokens


@contextmanager
def engine_of(model, **limits):
    engine = Engine(model, vocabulary=VOCABULARY, **limits)
    try:
        yield engine
    finally:
        engine.stop()


def alone(model, prompt, length, sampler=GREEDY, seed=0):
    return _alone(model, tuple(map(int, prompt)), length, sampler, seed)


@cache  # several tests compare with the same texts
def _alone(model, prompt, length, sampler, seed):
    generators = [torch.Generator().manual_seed(seed)]
    return generate(model, [torch.tensor(prompt)], length, sampler=sampler, generator=generators)[0].tolist()


def as_on_cuda(rows: int) -> int:
    return 1 << (rows - 1).bit_length() if rows else 0


@pytest.mark.parametrize("kind", ["mosaic", "mosaic, slots in powers of two", "learned", "rotary", "alibi"])
def test_rows_come_and_go(kind, monkeypatch):
    if kind.endswith("two"):
        monkeypatch.setattr(Batch, "_size", lambda self, rows: as_on_cuda(rows))
    kind = kind.split(",")[0]
    model, numbers = model_of(kind), torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, VOCABULARY, (size,), generator=numbers) for size in (1, 7, 3, 20, 2, 11, 30, 5)]
    lengths, samplers = (1, 9, 14, 4, 11, 6, 18, 2), (GREEDY, Sampler(temperature=0.7, top_p=0.9), Sampler(top_k=5))
    rows = [
        Writing(prompt, length, samplers[i % 3], seed=i)
        for i, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    batch = Batch(model, [rows[0].row, rows[1].row], VOCABULARY)
    for row in rows[2:]:
        batch.step()
        assert batch.merge(Batch(model, [row.row], VOCABULARY))
        assert len(batch.slots) == batch._size(len(batch.live)) == len(batch.decoder.logits)
    while batch.live:
        batch.step()
    for i, (row, prompt) in enumerate(zip(rows, prompts, strict=True)):
        assert row.tokens == alone(model, prompt, lengths[i], samplers[i % 3], i), i


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_is_served(name):
    """Those whose states cannot lie side by side take turns."""
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(vocabulary=VOCABULARY, width=32, blocks=1, sequence_mixer=MIXERS[name]))
    rows = [Writing(range(1, 2 + size), length) for size, length in ((6, 5), (0, 7), (3, 3), (13, 1))]
    with engine_of(model) as engine:
        for row in rows:
            engine.submit([row.row])
        for row in rows:
            assert row.result() == alone(model, row.row.prompt, row.length)


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_an_engine_answers_everybody(rows):
    model = model_of("mosaic")
    with engine_of(model, max_rows=rows) as engine:
        asked = [[Writing([i, 2 * i], 1 + i % 4) for i in range(first, first + 3)] for first in range(0, 24, 3)]
        for request in asked:
            engine.submit([writing.row for writing in request])
        for writing in (writing for request in asked for writing in request):
            assert writing.result() == alone(model, writing.row.prompt, writing.length)
        until(lambda: engine.unfinished == 0)  # the last token is told before its row ends


def test_requests_take_turns():
    order, queued = [], threading.Event()

    def writing(name: str) -> Writing:
        """One token, told when all are queued."""
        writing = Writing([1], 1)
        writing.row.on_token = lambda token, logprobs: (
            (queued.wait(HANG) and order.append(name)) or writing.on_token(token, logprobs)
        )
        return writing

    with engine_of(model_of("mosaic"), max_rows=1) as engine:
        requests = [[writing(name) for _ in range(count)] for name, count in (("first", 1), ("many", 5), ("one", 1))]
        for request in requests:
            engine.submit([each.row for each in request])
        queued.set()
        for each in (each for request in requests for each in request):
            each.result()
    assert order[:3] == ["first", "many", "one"]


def test_too_many_requests_are_refused_and_a_row_that_nobody_wants_leaves():
    with engine_of(model_of("mosaic"), max_requests=2) as engine:
        long = [Writing([1], 100_000) for _ in range(2)]
        for writing in long:
            engine.submit([writing.row])
        with pytest.raises(QueueFull):
            engine.submit([Writing([1], 1).row])
        long[0].row.finished = True
        late = Writing([1], 3)
        engine.submit([late.row])
        assert len(late.result()) == 3
        until(lambda: engine.unfinished == 1)
    with pytest.raises(EngineStopped):
        long[1].result()
    with pytest.raises(EngineStopped):
        engine.submit([Writing([1], 1).row])


def test_what_goes_wrong_with_some_is_not_for_others():
    model = model_of("learned")
    with engine_of(model) as engine:
        beyond, fine = Writing([1] * 60, 5), Writing([1], 5)  # 48 positions
        engine.submit([beyond.row, fine.row])
        with pytest.raises(ValueError, match="learned positions"):
            beyond.result()
        assert len(fine.result()) == 5


def test_rows_of_much_larger_capacity_stay_apart():
    model = model_of("mosaic")
    short, long = (
        Batch(model, [Writing([1], 5).row], VOCABULARY),
        Batch(model, [Writing([1] * 3000, 5).row], VOCABULARY),
    )
    assert not short.merge(long)


def test_a_long_row_that_has_left_releases_its_capacity():
    model = model_of("mosaic")
    batch = Batch(model, [Writing([1] * 200, 3).row, Writing([1], 3).row], VOCABULARY)
    assert batch.counts == [200, 200]
    batch = Batch(model, [Writing([1] * 200, 2).row], VOCABULARY)
    batch.merge(Batch(model, [Writing([1], 9).row], VOCABULARY))
    for _ in range(3):
        batch.step()
    assert batch.decoder.num_tokens == 4


def test_the_most_probable_tokens():
    model = model_of("mosaic")
    with engine_of(model) as engine:
        writing = Writing([1, 2], 4, top=3)
        engine.submit([writing.row])
        tokens = writing.result()
    logs = model(torch.tensor([[1, 2, *tokens[:-1]]]))[0][0, 1:].detach().log_softmax(dim=-1)
    for token, logprobs, expected in zip(tokens, writing.logprobs, logs, strict=True):
        assert logprobs.sampled == pytest.approx(float(expected[token]), abs=1e-4)
        assert [index for index, _ in logprobs.top] == expected.topk(3).indices.tolist()


@pytest.mark.parametrize("store", ["exact", "lru:30", "indexed:1000:6"])
def test_rows_continue_a_state(store, monkeypatch):
    """Of a text that the model has read, as if each prompt came after it."""
    monkeypatch.setattr(indexed_store, "FIRST", 20)
    model, policy = model_of("mosaic"), StorePolicy.parse(store)
    text, prompts = torch.arange(45), [torch.tensor([3, 1, 4]), torch.tensor([1, 5, 9, 2, 6])]
    with torch.no_grad():
        _, state = model(text[None], model.empty_state(policy))
    engine = Engine(model, vocabulary=VOCABULARY, state=state)
    try:
        rows = [Writing(prompt, 8) for prompt in prompts]
        engine.submit([each.row for each in rows])
        for prompt, row in zip(prompts, rows, strict=True):
            whole = [torch.cat([text, prompt])]
            (wanted,) = generate(model, whole, 8, sampler=GREEDY, state=model.empty_state(policy))
            assert row.result() == wanted.tolist()
    finally:
        engine.stop()

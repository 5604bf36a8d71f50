"""Stores with an index: exact where all lists are read, else within their bounds, however the pairs came."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize
from torch.testing import assert_close

from memory_mosaics import LanguageModel, indexed_store, memory_mosaic, preset
from memory_mosaics.bounded_stores import BoundedStore, StorePolicy
from memory_mosaics.decoding import GREEDY, beam_search, generate
from memory_mosaics.errors import UserError
from memory_mosaics.indexed_store import IndexedStore, IndexPolicy
from memory_mosaics.memory import AssociativeMemory
from memory_mosaics.mixers.attention import AttentionConfig
from memory_mosaics.ops import indexed_recall
from memory_mosaics.ops.recall import dot_product, gaussian
from memory_mosaics.stores import GrowingStore, Visibility, stores_of

SIZES = {"width": 32, "blocks": 2, "heads": 4, "vocabulary": 50, "context": 64}
ALL, FEW = "indexed:1000:6", "indexed:1:45"


@pytest.fixture(autouse=True)
def _index_early(monkeypatch):
    monkeypatch.setattr(indexed_store, "FIRST", 40)
    monkeypatch.setattr(indexed_store, "LEAST", 16)
    monkeypatch.setattr(indexed_recall, "SAMPLES", 2)


def sample(seed, *shape):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def memory_of(keys, values, policy=FEW, kernel=dot_product, sharpness=8.0, cuts=()):
    memory = AssociativeMemory(sharpness, kernel=kernel, policy=policy)
    edges = [0, *sorted(cuts), keys.shape[-2]]
    for start, stop in pairwise(edges):
        memory.store(keys[..., start:stop, :], values[..., start:stop, :])
    return memory


def v1() -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(memory_mosaic(**SIZES)).eval()


def v2() -> LanguageModel:
    """With short-term heads, delays, gated keys and beta(n)."""
    torch.manual_seed(0)
    return LanguageModel(replace(preset("memory-mosaic-v2-tiny"), vocabulary=50, blocks=2)).eval()


def windowed() -> LanguageModel:
    """All heads see the last 12 pairs, which are never in an index."""
    torch.manual_seed(0)
    config = memory_mosaic(**SIZES)
    mixer = replace(config.sequence_mixer, visibility=Visibility(window=12))
    return LanguageModel(replace(config, sequence_mixer=mixer)).eval()


def read(model, tokens, policy, parts=(), mask=None):
    """Logits, and the state, of a text read in parts of these lengths and a last one."""
    state, found = model.empty_state(StorePolicy.parse(policy)), []
    sizes = [*parts, tokens.shape[1] - sum(parts)]
    masks = [None] * len(sizes) if mask is None else mask.split(sizes, dim=1)
    with torch.no_grad():
        for part, real in zip(tokens.split(sizes, dim=1), masks, strict=True):
            logits, state = model(part, state, real)
            found.append(logits)
    return torch.cat(found, dim=1), state


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    pairs=st.integers(1, 300),
    cuts=st.lists(st.integers(0, 300), max_size=4),
    beta=st.sampled_from([0.0, 1.0, 10.0, 50.0]),
    kernel=st.sampled_from([dot_product, gaussian]),
    lists=st.sampled_from([1, 7, 45]),
)
def test_every_answer_is_within_its_bound(seed, pairs, cuts, beta, kernel, lists):
    """And exact where all lists are read; bounds that guarantee nothing are marked."""
    keys, values, queries = sample(seed, 2, pairs, 5), 3 * sample(seed + 1, 2, pairs, 3), sample(seed + 2, 2, 7, 5)
    exact = memory_of(keys, values, "exact", kernel, beta).retrieve(queries)
    options = {"kernel": kernel, "sharpness": beta, "cuts": [min(cut, pairs) for cut in cuts]}
    every = memory_of(keys, values, f"indexed:1000:{lists}", **options)
    assert len(every) == every.count == pairs
    assert_close(every.retrieve(queries), exact, rtol=1e-3, atol=1e-4)
    answers, bounds, guaranteed = memory_of(keys, values, f"indexed:1:{lists}", **options).retrieve_with_bounds(queries)
    assert ((answers - exact).norm(dim=-1) <= bounds + 1e-5).all()
    assert (guaranteed == (bounds <= 3 + 1e-5)).all()
    assert answers.shape == (2, 7, 3)
    assert bounds.shape == (2, 7)


def test_few_lists_are_not_all_and_some_answers_have_no_guarantee():
    keys, values, queries = sample(0, 800, 16), sample(1, 800, 3), sample(2, 50, 16)
    exact = memory_of(keys, values, "exact", sharpness=50.0).retrieve(queries)
    found = memory_of(keys, values, "indexed:1:60", sharpness=50.0).retrieve_with_bounds(queries)
    assert not torch.allclose(found.answers, exact, atol=1e-2)
    assert not found.guaranteed.all()
    alone = memory_of(keys[:30], values[:30]).retrieve_with_bounds(queries)
    assert alone.guaranteed.all()
    assert (alone.bounds == 0).all()


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_saved_and_loaded_it_is_the_same(leading, tmp_path):
    keys, values, queries = sample(0, *leading, 150, 4), sample(1, *leading, 150, 3), sample(2, *leading, 5, 4)
    for count in (20, 150):
        memory = memory_of(keys[..., :count, :], values[..., :count, :])
        memory.save(tmp_path / "memory")
        again = AssociativeMemory(8.0, kernel=dot_product)
        again.load(tmp_path / "memory")
        assert again.policy == memory.policy == IndexPolicy(read=1, lists=45)
        assert_close(again.retrieve_with_bounds(queries), memory.retrieve_with_bounds(queries), rtol=0, atol=0)
        again.to_memory()
        again.store(keys, values)
        memory.store(keys, values)
        assert_close(again.retrieve(queries), memory.retrieve(queries), rtol=0, atol=0)
        assert_close(again.keys, torch.cat([keys[..., :count, :], keys], dim=-2))


def test_merging_is_storing_together():
    keys, values, queries = sample(0, 150, 4), sample(1, 150, 3), sample(2, 5, 4)
    first, later = memory_of(keys[:90], values[:90], ALL), memory_of(keys[90:], values[90:], ALL)
    first.merge(later)
    assert len(first) == 150
    assert_close(first.keys, keys)
    assert_close(first.values, values)
    assert_close(first.retrieve(queries), memory_of(keys, values, "exact").retrieve(queries))
    with pytest.raises(ValueError, match="does not merge"):
        first.merge(memory_of(keys, values, "exact"))


@pytest.mark.parametrize("build", [v1, v2, windowed])
def test_a_model_that_reads_all_lists_is_exact(build):
    """At every position, with two rows, in chunks, and token by token at last."""
    model, tokens = build(), torch.randint(50, (2, 200))
    logits, state = read(model, tokens, ALL, parts=[1, 100, 70] + [1] * 20)
    with torch.no_grad():
        exact, _ = model(tokens)
    assert_close(logits, exact, rtol=1e-3, atol=1e-4)
    assert all(store.num_indexed > 100 and store.complete == 199 for store in stores_of(state))


@pytest.mark.parametrize("build", [v1, v2])
def test_a_text_in_parts_leaves_the_same_store(build):
    model, tokens = build(), torch.randint(50, (1, 150))
    whole, state = read(model, tokens, FEW)
    with torch.no_grad():
        exact, _ = model(tokens)
    assert not torch.allclose(whole, exact, atol=1e-4)
    logits, in_parts = read(model, tokens, FEW, parts=[1, 60, 3, 1, 1, 50])
    assert_close(logits, whole, rtol=1e-3, atol=1e-4)
    for one, other in zip(stores_of(state), stores_of(in_parts), strict=True):
        assert one.num_indexed == other.num_indexed > 50
        assert_close(one.indexed.starts, other.indexed.starts)
        assert_close(one.indexed.times, other.indexed.times)


def test_a_padded_row_beside_another_is_the_row_alone():
    model, tokens = v1(), torch.randint(50, (1, 120))
    padded = torch.cat([torch.zeros(1, 30, dtype=torch.long), tokens], dim=1)
    both, mask = torch.cat([padded, torch.randint(50, (1, 150))]), torch.ones(2, 150, dtype=torch.bool)
    mask[0, :30] = False
    logits, state = read(model, both, ALL, mask=mask)
    with torch.no_grad():
        alone, _ = model(tokens)
        assert_close(logits[:1, 30:], alone, rtol=1e-3, atol=1e-4)
        more = torch.randint(50, (2, 9))
        continued, _ = model(more, state)
        alone, _ = model(torch.cat([tokens, more[:1]], dim=1))
    assert_close(continued[:1], alone[:, 120:], rtol=1e-3, atol=1e-4)
    for store in stores_of(state):
        exact = store.exact()
        assert_close(exact.key_padding_mask[:, : mask.shape[1]], mask)


def test_rows_with_other_padding_have_as_many_lists(monkeypatch):
    """The number of lists grows with that of pairs: at the same step in every row, whatever is padding."""
    monkeypatch.setattr(indexed_store, "default_lists", lambda pairs: pairs // 10)
    mask = torch.ones(2, 300, dtype=torch.bool)
    mask[0, :30] = False
    tokens = torch.randint(50, (2, 300))
    _, state = read(v1(), tokens, "indexed:1000", parts=(60, 60, 60, 60), mask=mask)
    assert next(iter(stores_of(state))).indexed.counts.shape[2] > 10


@pytest.mark.parametrize("build", [v1, v2])
def test_weights_are_those_of_all_pairs(build):
    """In the order of the lists, with the time of each pair."""
    model, tokens = build(), torch.randint(50, (1, 121))
    mixer, norm = model.blocks[0].sequence_mixer, model.blocks[0].sequence_norm
    with torch.no_grad():
        x = norm(model.embedding(tokens))
        state = read(model, tokens[:, :118], FEW)[1][1][0]
        retrieval, _ = mixer.prepare_retrieval(x[:, 118:], state)
        exact, _ = mixer.prepare_retrieval(x)
        weights, answers = retrieval.weights_and_answers([-3, -1])
        expected, expected_answers = exact.weights_and_answers([-3, -1])
    times = retrieval.pairs.without_index().stored.times[:, :, :, None].permute(0, 2, 3, 1)
    assert_close(torch.zeros_like(expected).scatter(3, times.expand_as(weights), weights), expected)
    assert_close(answers, expected_answers)


@pytest.mark.parametrize("policy", [ALL, FEW])
def test_rows_that_continue_a_state_share_its_index(policy):
    """Sampled side by side and by beam search, without a change to the state."""
    model, text, prompt = v1(), torch.randint(50, (1, 100)), torch.randint(50, (6,))
    _, state = read(model, text, policy)
    before = [store.newest.keys.clone() for store in stores_of(state)]
    options = {"length": 30, "eos": None, "sampler": GREEDY}
    (alone,) = generate(model, [prompt], state=state, **options)
    for row in generate(model, [prompt, prompt], state=state, **options):
        assert_close(row, alone)
    search = {"length": 30, "eos": None, "beams": 3}
    beams = beam_search(model, [prompt], state=state, **search)
    if policy == ALL:
        whole = torch.cat([text[0], prompt])
        assert_close(alone, generate(model, [whole], **options)[0])
        assert_close(beams, beam_search(model, [whole], **search))
    for store, keys in zip(stores_of(state), before, strict=True):
        assert_close(store.newest.keys, keys, rtol=0, atol=0)


def test_stores_become_others():
    _, state = read(v1(), torch.randint(50, (1, 100)), FEW)
    store = next(iter(stores_of(state)))
    exact = store.exact()
    assert isinstance(exact, GrowingStore)
    visibility = v1().blocks[0].sequence_mixer.visibility
    again = IndexedStore.of(IndexPolicy(lists=3), exact, visibility)
    assert again.indexed.counts.shape == (1, 4, 3)
    assert_close(again.exact().keys, exact.keys)
    assert_close(IndexedStore.of(IndexPolicy(lists=4), again, visibility).exact().values, exact.values)
    window = BoundedStore.of(StorePolicy(kind="window", capacity=20), store, visibility)
    assert_close(window.keys[:, -5:], exact.keys[:, -5:])


def test_a_state_with_an_index_is_saved(tmp_path):
    _, state = read(v1(), torch.randint(50, (1, 100)), FEW)
    torch.save(state, tmp_path / "state")
    again = torch.load(tmp_path / "state", weights_only=True)
    for one, other in zip(stores_of(state), stores_of(again), strict=True):
        assert one.policy == other.policy
        assert_close(one[1:], other[1:])


@pytest.mark.parametrize("text", ["indexed", "indexed:16", "indexed:16:1000"])
def test_policies_are_written_as_they_are_read(text):
    policy = StorePolicy.parse(text)
    assert str(policy) == text
    assert isinstance(policy, IndexPolicy)


@pytest.mark.parametrize("text", ["indexed:", "indexed:0", "indexed:4:0", "indexed:4:4:4", "indexed:a", "indexes"])
def test_other_policies_are_refused(text):
    with pytest.raises(UserError, match="indexed"):
        StorePolicy.parse(text)


def test_what_an_index_cannot_hold_is_refused():
    keys, values = sample(0, 9, 4), sample(1, 9, 3)
    with pytest.raises(UserError, match="keys of norm 1, and one has 2"):
        memory_of(2 * keys, values)
    with pytest.raises(ValueError, match="kernels dot_product and gaussian"):
        memory_of(keys, values, kernel=lambda queries, keys, sharpness: (queries, keys))
    with pytest.raises(UserError, match="takes no store"):
        AttentionConfig(heads=2).build(8).empty_state(IndexPolicy())

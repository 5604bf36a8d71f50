import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize
from torch.testing import assert_close

from memory_mosaics import LanguageModel, memory_mosaic, preset, transformer
from memory_mosaics.bounded_stores import POLICIES, BoundedStore, StorePolicy
from memory_mosaics.errors import UserError
from memory_mosaics.evaluation import token_losses
from memory_mosaics.memory import AssociativeMemory
from memory_mosaics.ops.recall import dot_product, gaussian, recall_with_lse
from memory_mosaics.ops.recall import merge as merge_answers
from memory_mosaics.stores import GrowingStore, Visibility, stores_of, tokens_at_once

seeds, sizes = st.integers(0, 2**31), st.integers(1, 40)
kinds = pytest.mark.parametrize("kind", POLICIES)
SIZES = {"width": 32, "blocks": 2, "heads": 4, "vocabulary": 50, "context": 64}


def sample(seed, *shape):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def model(**changes) -> LanguageModel:
    built = LanguageModel(memory_mosaic(**SIZES)).eval()
    mixer = replace(built.config.sequence_mixer, **changes)
    return LanguageModel(replace(built.config, sequence_mixer=mixer)).eval()


@settings(max_examples=15)
@given(seed=seeds, pairs=sizes, kind=st.sampled_from(POLICIES), kernel=st.sampled_from([gaussian, dot_product]))
def test_below_its_bound_a_store_is_exact(seed, pairs, kind, kernel):
    keys, values, queries = sample(seed, 2, pairs, 5), sample(seed + 1, 2, pairs, 3), sample(seed + 2, 2, 4, 5)
    exact, bounded = AssociativeMemory(7.0, kernel=kernel), AssociativeMemory(7.0, kernel=kernel, policy=f"{kind}:40")
    for memory in (exact, bounded):
        memory.store(keys[:, :1], values[:, :1])
        memory.store(keys[:, 1:], values[:, 1:])
    assert len(bounded) == bounded.count == pairs
    assert_close(bounded.retrieve(queries), exact.retrieve(queries))


@settings(max_examples=15)
@given(seed=seeds, first=sizes, second=sizes, kind=st.sampled_from(("exact", *POLICIES)))
def test_merging_is_storing_together_and_the_log_sum_exp_of_both(seed, first, second, kind):
    policy = kind if kind == "exact" else f"{kind}:64"
    memories = [AssociativeMemory(5.0, kernel=dot_product, policy=policy) for _ in range(3)]
    parts = [
        (sample(seed, first, 5), sample(seed + 1, first, 3)),
        (sample(seed + 2, second, 5), sample(seed + 3, second, 3)),
    ]
    for memory, pairs in zip(memories, parts, strict=False):
        memory.store(*pairs)
        memories[2].store(*pairs)
    queries = sample(seed + 4, 6, 5)
    answers = [recall_with_lse(5 * queries[None, :, None], *(x[None, :, None] for x in pairs)) for pairs in parts]
    memories[0].merge(memories[1])
    assert len(memories[0]) == memories[0].count == first + second
    assert_close(memories[0].retrieve(queries), memories[2].retrieve(queries))
    assert_close(memories[0].retrieve(queries), merge_answers(*answers)[0][0, :, 0])


@settings(max_examples=10)
@given(seed=seeds, kind=st.sampled_from(POLICIES), cuts=st.lists(st.integers(0, 150), max_size=5))
def test_a_store_does_not_depend_on_how_the_pairs_came(seed, kind, cuts):
    keys, values = sample(seed, 150, 4), sample(seed + 1, 150, 3)
    once, parts = (AssociativeMemory(3.0, kernel=dot_product, policy=f"{kind}:16") for _ in range(2))
    once.store(keys, values)
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 150], strict=True):
        parts.store(keys[start:stop], values[start:stop])
    assert len(once) == len(parts) < 32
    for one, other in zip(once.pairs[1:], parts.pairs[1:], strict=True):
        assert_close(one, other)


@kinds
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_saving_is_not_saving(kind, leading, tmp_path):
    memory, again = (AssociativeMemory(3.0, kernel=dot_product, policy=f"{kind}:16") for _ in range(2))
    pairs = sample(0, *leading, 150, 4), sample(1, *leading, 150, 3)
    memory.store(*pairs)
    memory.save(tmp_path / "memory")
    again.load(tmp_path / "memory")
    queries = sample(2, *leading, 5, 4)
    assert_close(again.retrieve(queries), memory.retrieve(queries), rtol=0, atol=0)
    again.to_memory()
    for each in (memory, again):  # evicts again
        each.store(pairs[0][..., :9, :], pairs[1][..., :9, :])
    assert_close(again.retrieve(queries), memory.retrieve(queries), rtol=0, atol=0)


def kept(kind, keys, values, uses=()):
    memory = AssociativeMemory(50.0, kernel=dot_product, policy=kind)
    memory.store(keys[:24], values[:24])
    for query in uses:
        memory.retrieve(query[None])
    memory.store(keys[24:], values[24:])
    return memory, memory.pairs.times[0, :, 0].tolist()


def test_what_is_kept():
    keys, values = sample(0, 32, 8), sample(1, 32, 3)
    assert kept("window:16", keys, values)[1] == list(range(16, 32))
    assert kept("sinks:16", keys, values)[1] == [0, 1, 2, 3, *range(20, 32)]
    assert kept("lru:16", keys, values)[1] == list(range(16, 32)), "nothing was used"
    assert kept("lru:16", keys, values, uses=[keys[5]])[1] == [5, *range(17, 32)]
    sampled, times = kept("reservoir:16", keys, values)
    assert len(times) == 16
    assert min(times) < 16 < max(times)
    assert sampled.count == 32
    for kind in ("merge:16", "kmeans:16"):
        merged, _ = kept(kind, keys, values)
        assert len(merged) == 16
        assert merged.count == 32


def test_a_window_counts_and_sees_the_newest_pairs_only():
    keys, values = sample(0, 40, 4), sample(1, 40, 3)
    memory, newest = AssociativeMemory(lambda n: n / 4, policy="window:32"), AssociativeMemory(8.0)
    memory.store(keys, values)
    newest.store(keys[8:], values[8:])
    assert (len(memory), memory.count) == (40, 32)
    assert_close(memory.retrieve(keys[:5]), newest.retrieve(keys[:5]))


def test_equal_pairs_are_merged_without_loss():
    """Their mass counts in the answer as the pairs did, and so it does in beta(n)."""
    keys, values = sample(0, 10, 4), sample(1, 10, 3)
    copies = torch.randint(10, (200,), generator=torch.Generator().manual_seed(2))
    sharpness = lambda n: 1 + n / 100  # noqa: E731
    stores = ("exact", "merge:32", "kmeans:32")
    exact, *others = (AssociativeMemory(sharpness, kernel=dot_product, policy=kind) for kind in stores)
    for memory in (exact, *others):
        memory.store(keys[copies], values[copies])
    for merging in others:
        assert len(merging) < 64 < len(exact) == exact.count == merging.count
        assert_close(merging.retrieve(keys), exact.retrieve(keys), rtol=1e-4, atol=1e-5)


def test_clusters_of_a_whole_text_are_those_of_its_keys():
    """In one pass over all pairs, not as they came: 20 groups of unequal sizes, in 150 slots."""
    centres, group = sample(0, 20, 16), torch.arange(20).repeat_interleave(20 + 10 * (torch.arange(20) % 4))
    keys = normalize(centres[group] + 0.02 * sample(1, len(group), 16), dim=-1)[None, :, None]
    values = centres[group][None, :, None] + 0.1 * sample(2, 1, len(group), 1, 16)
    store = GrowingStore(keys, values, torch.ones(1, 0, dtype=torch.bool))
    few = BoundedStore.of(StorePolicy(kind="kmeans", capacity=150), store, (Visibility(),))
    assert few.keys.shape[1] == 150
    assert few.mass.sum() == len(group)
    nearest = (few.keys[0, :, 0] @ centres.T).max(dim=-1)
    assert nearest.values.min() > 0.99, "no cluster is of two groups"
    found = torch.zeros(20).index_add(0, nearest.indices, few.mass[0, :, 0])
    assert_close(found, group.bincount().float(), msg="every group has its mass")
    means = torch.zeros(20, 16).index_add(0, nearest.indices, few.values[0, :, 0] * few.mass[0, :, 0, None])
    wanted = torch.zeros(20, 16).index_add(0, group, values[0, :, 0])
    assert_close(means, wanted)
    again = BoundedStore.of(StorePolicy(kind="kmeans", capacity=150), store, (Visibility(),))
    for one, other in zip(few[1:], again[1:], strict=True):
        assert one.equal(other), "seeded"


def test_a_reservoir_is_a_uniform_sample():
    times = []
    for seed in range(20):
        keys = sample(seed, 1, 1000, 2)
        store = BoundedStore.empty(StorePolicy(kind="reservoir", capacity=100), keys[..., None, :], keys[..., None, :])
        store = store._replace(now=torch.tensor([1000 * seed])).extend(keys[..., None, :], keys[..., None, :])
        times.append(store.times[0, :100, 0] - 1000 * seed)
        assert_close(store.mass.sum(), torch.tensor(1000.0))
    counts = torch.cat(times).float().histc(bins=4, min=0, max=1000)
    assert (counts - 500).abs().max() < 60, counts  # 3 standard deviations


@kinds
def test_a_model_below_the_bound_reads_exactly(kind):
    built, tokens = model(), torch.randint(50, (2, 70))
    with torch.no_grad():
        exact, _ = built(tokens)
        bounded, state = built(tokens, built.empty_state(StorePolicy(kind=kind, capacity=70)))
    assert_close(bounded, exact)
    assert tokens_at_once(state) <= 70


@kinds
@pytest.mark.parametrize("name", ["v1", "v2"])
def test_a_text_in_parts_is_read_as_at_once(kind, name):
    """With evictions in between, and v2's groups of heads, delays and beta(n)."""
    built = (
        model()
        if name == "v1"
        else LanguageModel(replace(preset("memory-mosaic-v2-tiny"), vocabulary=50, blocks=2)).eval()
    )
    tokens = torch.randint(50, (2, 100))
    with torch.no_grad():
        exact, _ = built(tokens)
        whole, _ = built(tokens, built.empty_state(StorePolicy(kind=kind, capacity=24)))
        parts, state = [], built.empty_state(StorePolicy(kind=kind, capacity=24))
        for part in tokens.split([1, 1, 40, 3, 25, 30], dim=1):
            logits, state = built(part, state)
            parts.append(logits)
    assert_close(torch.cat(parts, dim=1), whole, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(whole, exact, atol=1e-3)
    for store in stores_of(state):
        assert store.values.shape[1] < 48
        total = store.mass[:, : store.values.shape[1]].sum(dim=1)
        assert kind not in ("merge", "reservoir", "kmeans") or name == "v2" or (total.round() == 99).all()


def test_a_window_store_is_a_window():
    torch.manual_seed(0)
    built = model()
    torch.manual_seed(0)
    within = model(visibility=Visibility(window=20))
    within.load_state_dict(built.state_dict())
    tokens = torch.randint(50, (2, 100))
    with torch.no_grad():
        bounded, _ = built(tokens, built.empty_state(StorePolicy(kind="window", capacity=20)))
        assert_close(bounded, within(tokens)[0])


@kinds
def test_a_padded_row_keeps_the_pairs_of_the_row_alone(kind):
    """Where both evict at once: padding takes no pair's place."""
    built, tokens = model(), torch.randint(50, (1, 48))
    padded = torch.cat([torch.zeros(1, 8, dtype=torch.long), tokens], dim=1)
    mask = torch.arange(56)[None] >= 8
    policy = StorePolicy(kind=kind, capacity=50)
    with torch.no_grad():
        alone, _ = built(tokens, built.empty_state(policy))
        beside, state = built(padded, built.empty_state(policy), mask)
        assert_close(beside[:, 8:], alone)
        _, state = built(torch.randint(50, (1, 45)), state)
    for store in stores_of(state):
        assert (store.mass == 0).sum() <= (16 if kind == "merge" else 0), "merged pairs halve the padding each time"


def test_losses_of_a_long_text_are_those_of_its_parts():
    built, tokens = model(), torch.randint(50, (1, 1101))
    state = built.empty_state(StorePolicy(kind="window", capacity=2000))
    streamed = token_losses(built, tokens[:, :-1], tokens[:, 1:], state=state)
    assert_close(streamed, token_losses(built, tokens[:, :-1], tokens[:, 1:]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "text", ["lru", "lru:", "lru:0", "lru:-1", "lru:1e3", "window:1_000", "sinks:4", "fifo:10", ""]
)
def test_other_stores_are_refused(text):
    with pytest.raises(UserError, match="store"):
        StorePolicy.parse(text)


def test_models_without_memories_and_too_long_delays_are_refused():
    with pytest.raises(UserError, match="attention"):
        LanguageModel(transformer(**SIZES)).empty_state(StorePolicy(kind="lru", capacity=8))
    built = model(visibility=Visibility(delay=9))
    with pytest.raises(UserError, match="delay of 9"):
        built(torch.zeros(1, 3, dtype=torch.long), built.empty_state(StorePolicy(kind="lru", capacity=8)))


@pytest.mark.slow
@kinds
def test_a_long_text_is_read_in_bounded_memory(kind):
    """Beyond that of 2,048 tokens there are only fragments of the allocator; all pairs and times would be 74 MiB."""
    script = Path(__file__).parent / "measure_reading_memory.py"
    command = [sys.executable, str(script), f"{kind}:512", "50000"]
    assert float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) < 20, "MiB"


def test_a_bounded_state_is_saved(tmp_path):
    built = model()
    with torch.no_grad():
        _, state = built(torch.randint(50, (1, 30)), built.empty_state(StorePolicy(kind="lru", capacity=8)))
    torch.save(state, tmp_path / "state")
    again = torch.load(tmp_path / "state", weights_only=True)
    for one, other in zip(stores_of(state), stores_of(again), strict=True):
        assert one.policy == other.policy
        assert_close(one[1:], other[1:])

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from memory_mosaics.errors import UserError
from memory_mosaics.extractors import GatedAverageConfig, Linear, LinearConfig, TapsConfig
from memory_mosaics.memory import (
    AssociativeMemory,
    Combine,
    ContextualMemory,
    ContextualMemoryConfig,
    PersistentMemoryConfig,
    contextual_retrieval,
)
from memory_mosaics.mixers.attention import AttentionConfig
from memory_mosaics.models import v2_memories
from memory_mosaics.ops.recall import dot_product, gaussian
from memory_mosaics.scales import AdaptiveSharpness, AdaptiveSharpnessConfig, Scale
from memory_mosaics.stores import Pairs, Retrieval, Visibility, VisiblePairs

seeds = st.integers(0, 2**31)
counts = st.integers(1, 12)
kernels = pytest.mark.parametrize("kernel", [gaussian, dot_product])


def sample(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@kernels
@settings(max_examples=25)
@given(seed=seeds, pairs=counts)
def test_the_order_of_storing_does_not_matter(kernel, seed, pairs):
    keys, values, query = sample(seed, pairs, 3), sample(seed + 1, pairs, 2), sample(seed + 2, 4, 3)
    one, other = AssociativeMemory(2.0, kernel=kernel), AssociativeMemory(2.0, kernel=kernel)
    order = torch.randperm(pairs)
    one.store(keys, values)
    for i in order:  # and neither does storing one by one
        other.store(keys[i : i + 1], values[i : i + 1])
    assert len(one) == len(other) == pairs
    assert_close(one.retrieve(query), other.retrieve(query), rtol=1e-4, atol=1e-4)


@settings(max_examples=25)
@given(seed=seeds, copies=counts)
def test_duplicate_keys_average(seed, copies):
    key, values = sample(seed, 1, 3), sample(seed + 1, copies, 2)
    memory = AssociativeMemory(5.0)
    memory.store(key.expand(copies, -1), values)
    assert_close(memory.retrieve(key), values.mean(dim=0, keepdim=True), rtol=1e-4, atol=1e-5)


@kernels
def test_an_empty_memory_answers_zero(kernel):
    memory = AssociativeMemory(1.0, kernel=kernel)
    assert len(memory) == 0
    assert (memory.retrieve(torch.randn(2, 5, 3)) == 0).all()
    memory.store(torch.empty(2, 0, 3), torch.empty(2, 0, 7))
    assert memory.retrieve(torch.randn(2, 5, 3)).shape == (2, 5, 7)
    assert (memory.retrieve(torch.randn(2, 5, 3)) == 0).all()


@settings(max_examples=25)
@given(seed=seeds, pairs=counts)
def test_both_forms_agree_on_unit_keys(seed, pairs):
    keys = torch.nn.functional.normalize(sample(seed, pairs, 3), dim=-1)
    query = torch.nn.functional.normalize(sample(seed + 1, 4, 3), dim=-1)
    distance, product = AssociativeMemory(3.0), AssociativeMemory(6.0, kernel=dot_product)
    for memory in (distance, product):
        memory.store(keys, sample(seed + 2, pairs, 2))
    assert_close(distance.retrieve(query), product.retrieve(query), rtol=1e-4, atol=1e-4)


def test_batch_dimensions_are_separate_memories():
    keys, values, query = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 6), torch.randn(2, 3, 7, 4)
    together = AssociativeMemory(1.5)
    together.store(keys, values)
    answers = together.retrieve(query)
    assert answers.shape == (2, 3, 7, 6)
    for i in range(2):
        for j in range(3):
            alone = AssociativeMemory(1.5)
            alone.store(keys[i, j], values[i, j])
            assert_close(alone.retrieve(query[i, j]), answers[i, j])


def test_a_sharp_memory_returns_what_was_stored():
    keys, values = torch.randn(20, 4), torch.randn(20, 3)
    memory = AssociativeMemory(1e4)
    memory.store(keys, values)
    assert_close(memory.retrieve(keys), values)


def test_retrieval_is_equation_2():
    keys, values, query = torch.randn(6, 3) * 4, torch.randn(6, 2), torch.randn(3) * 4
    memory = AssociativeMemory(0.3)
    memory.store(keys, values)
    weights = torch.tensor([math.exp(-0.3 * float((query - k).square().sum())) for k in keys])
    assert_close(memory.retrieve(query[None])[0], (weights[:, None] * values).sum(0) / weights.sum())


def test_the_answer_converges_to_the_conditional_expectation():
    """V = sin(3K) + noise, K uniform: the mean error falls as n grows with beta = sqrt(n), the footnote's bandwidth."""
    generator = torch.Generator().manual_seed(0)
    query = torch.linspace(-0.9, 0.9, 101)[:, None]
    errors = []
    for pairs in (100, 1_000, 10_000, 100_000):
        memory = AssociativeMemory(math.sqrt)
        keys = torch.rand(8, pairs, 1, generator=generator) * 2 - 1  # eight samples, averaged below
        memory.store(keys, torch.sin(3 * keys) + 0.5 * torch.randn(keys.shape, generator=generator))
        errors.append(float((memory.retrieve(query.expand(8, -1, -1)) - torch.sin(3 * query)).abs().mean()))
    assert all(later < 0.8 * earlier for earlier, later in pairwise(errors)), errors
    assert errors[-1] < 0.03, errors


def test_storing_the_wrong_shape_names_both():
    memory = AssociativeMemory(1.0)
    with pytest.raises(ValueError, match=r"\(3, 2\).*\(4, 2\)"):
        memory.store(torch.zeros(3, 2), torch.zeros(4, 2))
    memory.store(torch.zeros(3, 2), torch.zeros(3, 2))
    with pytest.raises(ValueError, match=r"keys \(1, 5\).*stored keys \(3, 2\)"):
        memory.store(torch.zeros(1, 5), torch.zeros(1, 2))


def test_retrieving_with_the_wrong_shape_names_both():
    memory = AssociativeMemory(1.0)
    memory.store(torch.zeros(5, 3), torch.zeros(5, 2))
    with pytest.raises(ValueError, match=r"keys \(2, 1\).*stored keys \(5, 3\)"):
        memory.retrieve(torch.zeros(2, 1))
    with pytest.raises(ValueError, match="not pairs of vectors"):
        AssociativeMemory(1.0).store(torch.zeros(3), torch.zeros(3))


def test_the_memory_keeps_what_it_was_given():
    keys, values = torch.randn(5, 3), torch.randn(5, 2)
    memory = AssociativeMemory(1.0)
    memory.store(keys, values)
    query = keys.clone()
    before = memory.retrieve(query)
    values.zero_()
    keys.zero_()
    assert_close(memory.retrieve(query), before)
    assert before.abs().sum() > 0


def test_far_keys_are_distinguished():
    """Distances between large keys are small differences of large numbers."""
    keys, values = torch.rand(5000, 2) * 100, torch.randn(5000, 1)
    query = torch.rand(20, 2) * 100
    memory = AssociativeMemory(100.0)
    memory.store(keys, values)
    weights = (-100 * (query[:, None].double() - keys.double()).square().sum(-1)).softmax(-1)
    assert_close(memory.retrieve(query), (weights @ values.double()).float(), rtol=1e-5, atol=1e-5)


def test_sharpness_can_be_trained():
    sharpness = torch.tensor(2.0, requires_grad=True)
    memory = AssociativeMemory(sharpness)
    memory.store(torch.randn(5, 3), torch.randn(5, 2))
    memory.retrieve(torch.randn(4, 3)).sum().backward()
    assert sharpness.grad is not None
    assert sharpness.grad != 0


def test_gradients_flow_to_what_was_stored():
    keys, values = torch.randn(5, 3, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    memory = AssociativeMemory(1.0)
    memory.store(keys, values)
    memory.retrieve(torch.randn(4, 3)).sum().backward()
    assert keys.grad is not None
    assert values.grad is not None
    assert keys.grad.abs().sum() > 0


def test_a_contextual_memory_is_an_associative_memory_that_stores_as_it_reads():
    """Figure 1, step by step: answer k_T, then see x_{T+1}, then store (k_T, v_T)."""
    layer = ContextualMemoryConfig(heads=2).build(8).eval()
    x = torch.randn(1, 9, 8)
    keys, _ = layer.key(x)
    values, _ = layer.value(x)  # one fewer: the last waits for its future
    assert values.shape[1] == keys.shape[1] - 1
    answers = torch.zeros(1, 9, 2, 4)
    for head in range(2):
        memory = AssociativeMemory(float(layer.sharpness()[head].detach()), kernel=dot_product)
        for t in range(9):
            answers[0, t, head] = memory.retrieve(keys[0, t : t + 1, head])[0]
            if t < 8:
                memory.store(keys[0, t : t + 1, head], values[0, t : t + 1, head])
    assert_close(layer(x)[0], layer.combine(answers), rtol=1e-5, atol=1e-5)


def test_a_contextual_memory_is_equation_7():
    mixer = ContextualMemoryConfig(heads=2).build(8).double()
    x = torch.randn(3, 9, 8, dtype=torch.float64)
    keys, values = mixer.key(x)[0], mixer.value(x)[0]
    values = torch.cat([values, torch.zeros_like(values[:, :1])], dim=1)  # the last is not complete, and not used
    expected = mixer.combine(contextual_retrieval(keys, values, mixer.sharpness()))
    assert_close(mixer(x)[0], expected, rtol=1e-10, atol=1e-10)


def test_a_persistent_memory_is_an_associative_memory_of_trained_pairs():
    layer = PersistentMemoryConfig(heads=2, slots=7, memories=3).build(8).eval()
    x = torch.randn(2, 5, 8)
    keys, _ = layer.key(x)
    answers = torch.zeros(2, 5, 2, 4)
    for head in range(2):
        for stored_keys, stored_values in zip(layer.keys, layer.values, strict=True):
            memory = AssociativeMemory(float(layer.sharpness()[head].detach()), kernel=dot_product)
            memory.store(stored_keys[:, head], stored_values[:, head])
            answers[:, :, head] += memory.retrieve(keys[:, :, head].reshape(-1, 4)).view(2, 5, 4) / 3
    assert_close(layer(x)[0], layer.combine(answers), rtol=1e-5, atol=1e-5)


def drop_factors(answers, weights):
    """What dropout has multiplied the weight of each pair by (B H T N), if value i is unit vector i; NaN if unseen."""
    answers = answers.transpose(1, 2)
    return torch.where(weights > 0, answers / weights, torch.nan)


@pytest.mark.parametrize("context", [True, False])
def test_dropout_of_pairs_drops_them_for_all_queries_of_a_row(context):
    torch.manual_seed(0)
    queries, values = torch.randn(3, 9, 2, 8), torch.eye(8)[:, None].repeat(3, 1, 2, 1)
    pairs = Pairs(queries[:, :8], values, seen=(VisiblePairs(causal_offset=0),))
    retrieval = Retrieval(queries, pairs, 0.3, queries_are_keys=context)
    factors = drop_factors(retrieval.answers(0.5, "pairs"), retrieval.weights())
    last = factors[:, :, -1:]
    assert_close(factors, torch.where(factors.isnan(), torch.nan, last.expand_as(factors)), equal_nan=True)
    assert set(last.round(decimals=4).unique().tolist()) == {0.0, 2.0}
    assert last.flatten(0, 2).std(dim=0).min() > 0  # other pairs in every row and head
    each = drop_factors(retrieval.answers(0.5, "weights"), retrieval.weights())
    assert (each[:, :, 7] - each[:, :, 8])[..., :7].abs().max() > 1


def test_dropout_of_pairs_drops_other_slots_for_each_part_of_the_tokens():
    torch.manual_seed(0)
    layer = PersistentMemoryConfig(heads=2, slots=8, dropout_of="pairs").build(16, dropout=0.5)
    layer.values.data = torch.eye(8)[None, :, None].repeat(1, 1, 2, 1)
    answers, x = [], torch.randn(2, 32, 16)
    layer.combine.register_forward_pre_hook(lambda _, inputs: answers.append(inputs[0].flatten(0, 1)[None]))
    layer(x)
    factors = drop_factors(answers[0], layer.prepare_retrieval(x)[0].weights())[0].round(decimals=4)
    parts = factors.unflatten(1, (4, 16))  # of 64 tokens
    assert (parts == parts[:, :, :1]).all()
    assert set(parts.unique().tolist()) == {0.0, 2.0}
    assert parts[:, :, 0].flatten(0, 1).unique(dim=0).shape[0] == 8


def test_dropout_of_pairs_that_drops_nothing_is_none(monkeypatch):
    layer = PersistentMemoryConfig(heads=2, slots=7, memories=3, dropout_of="pairs").build(16, dropout=0.5)
    monkeypatch.setattr("torch.nn.functional.dropout", lambda x, rate: x)
    x = torch.randn(2, 6, 16)
    assert_close(layer(x)[0], layer.eval()(x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", [ContextualMemoryConfig(heads=2), PersistentMemoryConfig(heads=2, slots=7)])
def test_the_sharpest_memory_answers_in_half_precision(config):
    layer = config.build(8).eval()
    layer.sharpness.set(torch.full((2,), 4e9))
    with torch.autocast("cpu", dtype=torch.float16):
        assert layer(torch.randn(1, 5, 8))[0].isfinite().all()


def test_a_unit_takes_any_parts():
    """As in the three moons: linear keys and values, a fixed sharpness."""
    layer = ContextualMemory(
        key=Linear(6, 3, head_width=2),
        value=Linear(6, 3, head_width=2, peek=1),
        sharpness=50.0,
        combine=Combine(6, 3, head_width=2),
    )
    y, _ = layer(torch.randn(2, 10, 6))
    assert y.shape == (2, 10, 6)
    assert (y[:, 0] == 0).all()


def test_a_value_must_predict_and_a_key_must_not():
    parts = {"sharpness": Scale(1, initial=1.0), "combine": Combine(4, 1, head_width=4)}
    now, ahead = Linear(4, 1, head_width=4), Linear(4, 1, head_width=4, peek=1)
    with pytest.raises(ValueError, match="at least 1 step ahead"):
        ContextualMemory(key=now, value=now, **parts)
    with pytest.raises(ValueError, match="peek 1"):
        ContextualMemory(key=ahead, value=ahead, **parts)
    for config in (
        AttentionConfig(heads=1, key=LinearConfig(peek=1)),
        PersistentMemoryConfig(heads=1, slots=2, key=TapsConfig()),
    ):
        with pytest.raises(ValueError, match="a key cannot depend"):
            config.build(4)


def test_a_width_that_does_not_split_is_named():
    with pytest.raises(ValueError, match="width 10 does not split into 4 heads"):
        ContextualMemoryConfig(heads=4).build(10)


def test_a_saved_state_holds_only_itself(tmp_path):
    """A state is not a view into what was read: its file has the size of its numbers."""
    layer = ContextualMemoryConfig(heads=2).build(8)
    _, state = layer(torch.randn(1, 5000, 8))
    torch.save(state[:2], tmp_path / "small")
    assert (tmp_path / "small").stat().st_size < 4000


def test_adaptive_sharpness_is_a_function_of_the_visible_pairs():
    sharpness = AdaptiveSharpness(2, b_0=3.0, b_1=2.0, alpha=0.5)
    assert_close(sharpness(torch.tensor([[0.0], [1.0], [4.0], [100.0]]))[:, 0], torch.tensor([5.0, 5.0, 7.0, 23.0]))
    mixer = ContextualMemoryConfig(heads=2, sharpness=AdaptiveSharpnessConfig()).build(8).double()
    x = torch.randn(2, 7, 8, dtype=torch.float64)
    beta = mixer.prepare_retrieval(x)[0].sharpness
    assert_close(beta, mixer.sharpness(torch.arange(7.0).double()[:, None]))  # before time t there are t pairs
    mask = torch.tensor([[True] * 7, [False] * 3 + [True] * 4])
    padded = mixer.prepare_retrieval(x, None, mask)[0].sharpness
    assert_close(padded[1, 3:], beta[:4])
    keys, values = mixer.key(x)[0], mixer.value(x)[0]
    values = torch.cat([values, torch.zeros_like(values[:, :1])], dim=1)
    assert_close(mixer(x)[0], mixer.combine(contextual_retrieval(keys, values, beta)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("time", [2, 7])
def test_a_function_of_the_number_of_pairs_is_a_sharpness(time):
    """One beta for all heads at each time, even if there are as many heads as times."""
    mixer = ContextualMemoryConfig(heads=2).build(8)
    del mixer.sharpness
    mixer.sharpness = lambda pairs: (1 + pairs).sqrt()
    beta = mixer.prepare_retrieval(torch.randn(2, time, 8))[0].sharpness
    assert_close(beta, (1 + torch.arange(float(time))).sqrt()[:, None].expand(time, 2))


@pytest.mark.parametrize(("delay", "window"), [(1, 3), (4, None), (2, 5), (1, 200)])
def test_visibility_is_a_mask_of_pairs(delay, window):
    """At a length of several blocks of queries, against the softmax over the whole matrix of scores."""
    mixer = ContextualMemoryConfig(heads=2, visibility=Visibility(delay=delay, window=window)).build(8).double()
    x = torch.randn(2, 300, 8, dtype=torch.float64)
    retrieval, _ = mixer.prepare_retrieval(x)
    i, t = torch.arange(299), torch.arange(300)[:, None]
    seen = (i <= t - delay) & (True if window is None else i > t - delay - window)
    beta = mixer.sharpness()[:, None]
    scores = torch.einsum("bthd,bnhd->bhtn", beta * retrieval.queries, retrieval.pairs.keys)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(dim=-1).nan_to_num(0.0)
    assert_close(retrieval.weights(), weights)
    assert_close(retrieval.answers(), torch.einsum("bhtn,bnhv->bthv", weights, retrieval.pairs.values))
    assert_close(retrieval.pairs.visible_counts(300), seen.sum(dim=-1).double())


def test_groups_of_heads_are_memories_side_by_side():
    """Two memories of other visibility, each with its heads, are one with all their heads."""
    groups = (Visibility(window=9), Visibility(delay=4))
    parts = {"key": GatedAverageConfig(), "sharpness": AdaptiveSharpnessConfig(), "head_width": 3}
    both = ContextualMemoryConfig(heads=4, **parts, visibility=groups).build(8).double()
    x = torch.randn(2, 50, 8, dtype=torch.float64)
    whole, _ = both.prepare_retrieval(x)
    for number, (visibility, part) in enumerate(zip(groups, whole.groups(), strict=True)):
        alone = ContextualMemoryConfig(heads=4, **parts, visibility=visibility).build(8).double()
        alone.load_state_dict(both.state_dict())
        expected, _ = alone.prepare_retrieval(x)
        heads = slice(2 * number, 2 * number + 2)
        assert_close(whole.answers()[:, :, heads], expected.answers()[:, :, heads])
        assert_close(part.answers(), expected.answers()[:, :, heads])
        assert_close(whole.weights()[:, heads], expected.weights()[:, heads])
        assert_close(whole.sharpness[:, heads], expected.sharpness[:, heads])
    assert both.combine.map.weight.shape == (8, 12)
    assert both.memory_info().sees == ["the last 9 pairs"] * 2 + ["pairs 4 or more steps ago"] * 2


@pytest.mark.parametrize(
    ("delay", "window", "words"),
    [
        (0, None, "all pairs up to its own"),
        (1, None, "all earlier pairs"),
        (3, None, "pairs 3 or more steps ago"),
        (0, 4, "the last 4 pairs up to its own"),
        (1, 4, "the last 4 pairs"),
        (3, 4, "pairs 3 to 6 steps ago"),
    ],
)
def test_what_a_head_sees_in_words(delay, window, words):
    assert str(Visibility(delay=delay, window=window)) == words


@pytest.mark.parametrize("config", [ContextualMemoryConfig, AttentionConfig])
def test_heads_that_do_not_split_into_groups_are_named(config):
    with pytest.raises(UserError, match="4 heads do not split into 3 groups, one for each visibility"):
        config(heads=4, visibility=(Visibility(), Visibility(window=2), Visibility(window=3)))


def test_the_delay_is_drawn_in_training_and_fixed_otherwise():
    visibility = (Visibility(window=9), Visibility(delay=4, train_delay=(4, 12)))
    config = ContextualMemoryConfig(heads=2, sharpness=AdaptiveSharpnessConfig(), visibility=visibility)
    mixer, x, drawn = config.build(8).double().train(), torch.randn(2, 40, 8, dtype=torch.float64), []
    for seed in range(40):
        torch.manual_seed(seed)
        retrieval, _ = mixer.prepare_retrieval(x)
        delay = 4 + int(retrieval.pairs.seen[1].shift)
        fixed = replace(config, visibility=(visibility[0], Visibility(delay=delay))).build(8).double()
        fixed.load_state_dict(mixer.state_dict())
        expected, _ = fixed.prepare_retrieval(x)
        assert_close(retrieval.sharpness, expected.sharpness)
        assert_close(retrieval.weights(), expected.weights())
        assert_close(retrieval.answers(), expected.answers())
        torch.manual_seed(seed)
        assert_close(mixer(x)[0], fixed(x)[0])
        drawn.append(delay)
    assert set(drawn) == set(range(4, 13))
    assert mixer.eval().prepare_retrieval(x)[0].pairs.seen[1].causal_offset == 1 - 4


@pytest.mark.parametrize("capped", [False, True])
def test_memory_mosaics_v2_is_the_formulas_of_its_paper(capped):
    """Transcribed head by head and step by step: gated keys, mixed values, beta(n), short and long memories.

    If `capped`, each of b_0, b_1, alpha and the norm of values is beyond its cap in one head.
    """
    d, heads, window, delay = 8, 2, 5, 3
    memories = v2_memories(heads=heads, width=d, context=48)
    config = replace(memories, visibility=(Visibility(window=window - 1), Visibility(delay=delay)))
    mixer = config.build(d).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, mean=parameter.ndim == 1, std=0.5)
    b_0, b_1, alpha = mixer.sharpness.b_0.theta, mixer.sharpness.b_1.theta, mixer.sharpness.alpha
    a_psi = mixer.combine.scale.theta
    with torch.no_grad():
        a_psi.abs_()  # as printed, e^min(|theta|, 15): the same where theta is positive
        if capped:
            b_0[0], b_1[1], a_psi[2], alpha[3] = 10.5, 10.5, 15.5, -1.3
    width, T = d // heads, 14
    x = torch.randn(T, d, dtype=torch.float64)
    W_phi, W_g, W_lambda = mixer.key.map.weight.split([2 * d, 2 * heads, 2 * heads])
    answers, found_betas = [], mixer.prepare_retrieval(x[None])[0].sharpness
    for h in range(2 * heads):
        rows = slice(h * width, (h + 1) * width)
        keys, average = [], torch.zeros(width, dtype=torch.float64)
        for t in range(T):
            average = (W_g[h] @ x[t]).exp() * (W_phi[rows] @ x[t]) + (-(W_lambda[h] @ x[t]).abs()).exp() * average
            keys.append(average / average.norm())
        raw, gamma = x @ mixer.value.map.weight[rows].T, mixer.value.gamma[h]
        mixed = [gamma * raw[t] + (1 - gamma) * raw[t + 1] for t in range(T - 1)]
        values = [a_psi[h].abs().clamp(max=15).exp() * v / v.norm() for v in mixed]
        found = []
        for t in range(T):
            seen = range(max(0, t - window + 1), t) if h < heads else range(max(0, t - delay + 1))
            if len(seen) == 0:
                found.append(torch.zeros(width, dtype=torch.float64))
                continue
            beta = b_1[h].clamp(max=10).exp() * len(seen) ** alpha[h].abs().clamp(max=1) + b_0[h].clamp(max=10).exp()
            assert_close(found_betas[t, h], beta)  # the answers of sharp memories hardly depend on it
            scores = torch.stack([beta * keys[t] @ keys[i] for i in seen])
            weights = (scores - scores.max()).exp()  # which no number overflows
            found.append(sum(w * values[i] for w, i in zip(weights / weights.sum(), seen, strict=True)))
        answers.append(torch.stack(found))
    expected = torch.cat(answers, dim=-1) @ mixer.combine.map.weight.T
    y = mixer(x[None])[0][0]
    assert_close(y, expected, rtol=1e-9, atol=1e-9)
    weight, parameters = torch.randn_like(y), list(mixer.parameters())
    ours, theirs = (torch.autograd.grad((each * weight).sum(), parameters) for each in (y, expected))
    assert_close(ours, theirs, rtol=1e-8, atol=1e-8)

"""Recall from an index: every answer within its bound, exact where all pairs are read, in any order of inserting."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from memory_mosaics.ops import indexed_recall
from memory_mosaics.ops.indexed_recall import Index, OtherPairs
from memory_mosaics.ops.recall import recall_with_lse

EVERYTHING = {"tolerance": 0.0, "more": 10**6}


def problem(*, pairs=400, clusters=8, noise=0.3, seed=0, width=5):
    """Keys in clusters, values that depend on them, and queries of which some are far from all keys."""
    draws = torch.Generator().manual_seed(seed)
    centres = torch.randn(clusters, width, generator=draws)
    points = centres[torch.randint(clusters, (pairs + 5,), generator=draws)]
    keys = F.normalize(points + noise * torch.randn(pairs + 5, width, generator=draws), dim=-1)
    queries = torch.cat([keys[pairs:], F.normalize(torch.randn(5, width, generator=draws), dim=-1)])
    values = 3 * keys[:pairs, :3] + torch.randn(pairs, 3, generator=draws)
    return keys[:pairs], values, queries


def exact(keys, values, queries, sharpness):
    """The definition in float64."""
    q, k, v = (x.double()[None, :, None] for x in (queries, keys, values))
    beta = torch.as_tensor(sharpness, dtype=torch.float64).expand(len(queries))[:, None]
    answers, lse = recall_with_lse(q, k, v, beta)
    return answers[0, :, 0], lse[0, :, 0]


@pytest.fixture(autouse=True)
def _few_samples(monkeypatch):
    monkeypatch.setattr(indexed_recall, "SAMPLES", 3)


@settings(max_examples=40, deadline=None)
@given(
    pairs=st.integers(17, 400),
    clusters=st.integers(1, 40),
    noise=st.sampled_from([0.0, 0.01, 0.3, 3.0]),
    beta=st.sampled_from([0.0, 0.1, 1.0, 10.0, 50.0, 500.0]),
    read=st.integers(0, 3),
    more=st.integers(0, 5),
    seed=st.integers(0, 2**16),
)
def test_every_answer_is_within_its_bound(pairs, clusters, noise, beta, read, more, seed):
    keys, values, queries = problem(pairs=pairs, clusters=clusters, noise=noise, seed=seed)
    index = Index.build(keys, values, lists=1 + seed % 20)
    found = index.answers(queries, beta, read=read, more=more)
    error = (found.answers.double() - exact(keys, values, queries, beta)[0]).norm(dim=1)
    assert (error <= found.bounds).all()
    assert not found.bounds.isnan().any()
    assert_close(index.value_norm, values.double().norm(dim=1).max())
    assert (found.guaranteed == (found.bounds <= index.value_norm)).all()


def test_a_bound_counts_what_has_not_been_read_in_the_total_too():
    """However large the unread weight can be, it only pulls the answer towards its own values."""
    keys, values, queries = problem(pairs=2000, noise=3.0, clusters=1, width=20)
    index = Index.build(keys, values, lists=4)
    for beta, most in ((10.0, 1.5), (50.0, 2.5)):
        found = index.answers(queries, beta, read=0, more=0)
        assert ((found.answers.double() - exact(keys, values, queries, beta)[0]).norm(dim=1) <= found.bounds).all()
        assert (found.bounds / index.value_norm).median() < most  # it was 350 and more without


@pytest.mark.parametrize("beta", [0.0, 1.0, 10.0, 200.0])
def test_where_all_pairs_are_read_the_answer_is_exact(beta):
    keys, values, queries = problem()
    index = Index.build(keys, values, lists=12)
    found = index.answers(queries, beta, read=12, **EVERYTHING)
    answers, lse = exact(keys, values, queries, beta)
    assert (found.pairs_read == len(keys)).all()
    assert (found.bounds / index.value_norm).max() < 3e-3
    assert_close(found.answers.double(), answers, rtol=1e-4, atol=1e-4)
    assert_close(found.lse.double(), lse, rtol=1e-4, atol=1e-4)


def test_a_tolerance_of_zero_reads_all_that_matters():
    keys, values, queries = problem()
    index = Index.build(keys, values, lists=12)
    found = index.answers(queries, 10.0, read=0, **EVERYTHING)
    assert_close(found.answers.double(), exact(keys, values, queries, 10.0)[0], rtol=1e-4, atol=1e-4)
    assert (found.bounds / index.value_norm).max() < 3e-3


def test_lists_of_one_repeated_key_need_not_be_read():
    keys, values, queries = problem(clusters=10, noise=0.0)
    index = Index.build(keys, values, lists=200)
    found = index.answers(queries, 5.0, read=0)
    assert (found.pairs_read == 0).all()
    assert (found.bounds / index.value_norm).max() < 0.03
    assert_close(found.answers.double(), exact(keys, values, queries, 5.0)[0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("beta", [1.0, 10.0, 50.0])
def test_more_samples_are_nearer_and_those_of_all_pairs_exact(beta, monkeypatch):
    keys, values, queries = problem(pairs=2000, clusters=30)
    answers, _ = exact(keys, values, queries, beta)
    errors = []
    for samples in (1, 30, 2000):
        monkeypatch.setattr(indexed_recall, "SAMPLES", samples)
        found = Index.build(keys, values, lists=40).answers(queries, beta, read=0, more=0)
        error = (found.answers.double() - answers).norm(dim=1)
        assert (error <= found.bounds).all()
        errors.append(error.median())
    assert errors[0] > 2 * errors[1] > 2 * errors[2]
    assert errors[2] < 1e-4


def test_a_smaller_tolerance_is_kept_by_reading_more():
    keys, values, queries = problem(pairs=2000, clusters=30, noise=0.1)
    index = Index.build(keys, values, lists=60)
    loose, tight = (index.answers(queries, 30.0, tolerance=tolerance, read=0, more=40) for tolerance in (0.5, 0.01))
    assert (tight.pairs_read >= loose.pairs_read).all()
    assert tight.pairs_read.sum() > loose.pairs_read.sum()
    assert (tight.bounds[:5] / index.value_norm).median() < 0.02
    assert tight.pairs_read.float().mean() < 1000


@settings(max_examples=20, deadline=None)
@given(
    cuts=st.lists(st.integers(40, 300), min_size=1, max_size=6),
    padding=st.booleans(),
    beta=st.sampled_from([1.0, 10.0, 50.0]),
    seed=st.integers(0, 2**16),
)
def test_pairs_are_added_in_any_order_and_in_any_parts(cuts, padding, beta, seed):
    """Beside pairs that have been read elsewhere, and padding, which counts for nothing."""
    keys, values, queries = problem(pairs=320, seed=seed)
    order = torch.randperm(320, generator=torch.Generator().manual_seed(seed))
    edges = [0, *sorted(cuts), 300]
    times = torch.arange(300)
    stored = torch.ones(320, dtype=torch.bool)
    if padding:
        times[:7], stored[order[:7]] = -1 - times[:7], False
    index = None
    for start, end in pairwise(edges):
        some = keys[order[start:end]], values[order[start:end]], times[start:end]
        index = Index.build(*some, lists=9) if index is None else index.extended(*some, lists=9)
    assert sorted(index.times.tolist()) == sorted(times.tolist())
    assert int(index.counts.sum()) == 300 - 7 * padding
    rest = order[300:]
    given = recall_with_lse(*(x[None, :, None] for x in (beta * queries, keys[rest], values[rest])))
    others = OtherPairs(given[0][0, :, 0], given[1][0, :, 0], float(values[rest].norm(dim=1).max()))
    answers, lse = exact(keys[stored], values[stored], queries, beta)
    found = index.answers(queries, beta, read=9, others=others, **EVERYTHING)
    assert_close(found.answers.double(), answers, rtol=1e-3, atol=1e-4)
    assert_close(found.lse.double(), lse, rtol=1e-3, atol=1e-4)
    found = index.answers(queries, beta, read=1, more=0, others=others)
    assert ((found.answers.double() - answers).norm(dim=1) <= found.bounds).all()


def test_an_index_is_clustered_again_when_it_has_doubled():
    keys, values, _ = problem(pairs=320)
    index = Index.build(keys[:40], values[:40], lists=5)
    clustered = [40]
    for start in range(40, 320, 40):
        some = slice(start, start + 40)
        index = index.extended(keys[some], values[some], torch.arange(start, start + 40), lists=5 + start // 40)
        clustered.append(int(index.clustered))
    assert clustered == [40, 80, 80, 160, 160, 160, 160, 320]
    assert len(index.counts) == 12


def test_keys_in_bfloat16_are_of_norm_1_within_the_slack():
    keys, values, queries = (x.bfloat16() for x in problem())
    index = Index.build(keys, values, lists=20)
    assert index.keys.dtype == torch.bfloat16
    assert index.slack > 1e-3
    found = index.answers(queries, 10.0, read=2, more=0)
    error = (found.answers.double() - exact(keys, values, queries, 10.0)[0]).norm(dim=1)
    assert (error <= found.bounds).all()
    assert error.median() < 0.1


def test_sharpness_may_differ_by_query():
    keys, values, queries = problem()
    betas = torch.linspace(0.5, 60, len(queries))
    index = Index.build(keys, values, lists=20)
    together = index.answers(queries, betas)
    alone = torch.cat([index.answers(q[None], beta.item()).answers for q, beta in zip(queries, betas, strict=True)])
    assert_close(together.answers, alone, rtol=1e-4, atol=1e-4)


def test_without_queries_there_are_no_answers():
    keys, values, _ = problem()
    found = Index.build(keys, values, lists=3).answers(keys[:0], 4.0)
    assert found.answers.shape == (0, 3)
    assert found.guaranteed.shape == (0,)


def test_what_an_index_cannot_hold_is_refused():
    keys, values, queries = problem()
    with pytest.raises(ValueError, match="norm 1"):
        Index.build(2 * keys, values, lists=3)
    with pytest.raises(ValueError, match="norm 1"):
        Index.build(keys, values, lists=20).answers(queries * torch.nan)
    with pytest.raises(ValueError, match="NaN or Inf"):
        Index.build(keys, values * torch.inf, lists=3)
    with pytest.raises(ValueError, match="between 0 and 500"):
        Index.build(keys, values, lists=20).answers(queries, 501.0)

"""Recall from an index: every answer within its bound, exact where all pairs are read, in any order of inserting."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from memory_mosaics.ops.indexed_recall import Index
from memory_mosaics.ops.recall import recall_with_lse

EVERYTHING = {"tolerance": 0.0, "many": 10**6}


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
def _few_pending(monkeypatch):
    monkeypatch.setattr(Index, "MIN_PENDING", 16)


@settings(max_examples=40, deadline=None)
@given(
    pairs=st.integers(17, 400),
    clusters=st.integers(1, 40),
    noise=st.sampled_from([0.0, 0.01, 0.3, 3.0]),
    beta=st.sampled_from([0.0, 0.1, 1.0, 10.0, 50.0, 500.0]),
    few=st.integers(0, 3),
    many=st.integers(0, 5),
    seed=st.integers(0, 2**16),
)
def test_every_answer_is_within_its_bound(pairs, clusters, noise, beta, few, many, seed):
    keys, values, queries = problem(pairs=pairs, clusters=clusters, noise=noise, seed=seed)
    index = Index(keys, values, lists=1 + seed % 20)
    found = index.answer(queries, beta, few=few, many=many)
    error = (found.answers.double() - exact(keys, values, queries, beta)[0]).norm(dim=1)
    assert (error <= found.bounds * index.value_norm).all()
    assert not found.bounds.isnan().any()
    assert (found.guaranteed == (found.bounds <= 1)).all()


@pytest.mark.parametrize("beta", [0.0, 1.0, 10.0, 200.0])
def test_where_all_pairs_are_read_the_answer_is_exact(beta):
    keys, values, queries = problem()
    found = Index(keys, values, lists=12).answer(queries, beta, few=12, **EVERYTHING)
    answers, lse = exact(keys, values, queries, beta)
    assert (found.pairs_read == len(keys)).all()
    assert found.bounds.max() < 3e-3
    assert_close(found.answers.double(), answers, rtol=1e-4, atol=1e-4)
    assert_close(found.lse.double(), lse, rtol=1e-4, atol=1e-4)


def test_a_tolerance_of_zero_reads_all_that_matters():
    keys, values, queries = problem()
    found = Index(keys, values, lists=12).answer(queries, 10.0, few=0, **EVERYTHING)
    assert_close(found.answers.double(), exact(keys, values, queries, 10.0)[0], rtol=1e-4, atol=1e-4)
    assert found.bounds.max() < 3e-3


def test_lists_of_one_repeated_key_need_not_be_read():
    keys, values, queries = problem(clusters=10, noise=0.0)
    found = Index(keys, values, lists=200).answer(queries, 5.0, few=0)
    assert (found.pairs_read == 0).all()
    assert found.bounds.max() < 0.03
    assert_close(found.answers.double(), exact(keys, values, queries, 5.0)[0], rtol=1e-3, atol=1e-3)


def test_a_smaller_tolerance_is_kept_by_reading_more():
    keys, values, queries = problem(pairs=2000, clusters=30, noise=0.1)
    index = Index(keys, values, lists=60)
    loose, tight = (index.answer(queries, 30.0, tolerance=tolerance, few=0, many=40) for tolerance in (0.5, 0.01))
    assert (tight.pairs_read >= loose.pairs_read).all()
    assert tight.pairs_read.sum() > loose.pairs_read.sum()
    assert tight.bounds[:5].median() < 0.02
    assert tight.pairs_read.float().mean() < 1000


@settings(max_examples=20, deadline=None)
@given(cuts=st.lists(st.integers(0, 300), max_size=6), seed=st.integers(0, 2**16))
def test_pairs_are_inserted_in_any_order_and_in_any_parts(cuts, seed):
    keys, values, queries = problem(pairs=300, seed=seed)
    order = torch.randperm(len(keys), generator=torch.Generator().manual_seed(seed))
    index = Index(keys[:0], values[:0])
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), 300], strict=True):
        index.insert(keys[order[start:end]], values[order[start:end]])
    assert len(index) == 300
    assert len(index.pending_keys) <= Index.MIN_PENDING
    all_lists = len(index.lists.counts)
    found = index.answer(queries, 8.0, few=all_lists, **EVERYTHING)
    assert_close(found.answers.double(), exact(keys, values, queries, 8.0)[0], rtol=1e-4, atol=1e-4)
    stored = torch.cat([index.lists.keys, index.pending_keys])
    assert_close(stored.sort(dim=0).values, keys.sort(dim=0).values)


def test_an_index_is_clustered_again_when_it_has_doubled():
    keys, values, _ = problem(pairs=320)
    index = Index(keys[:40], values[:40])
    lists = [len(index.lists.counts)]
    for start in range(40, 320, 40):
        index.insert(keys[start : start + 40], values[start : start + 40])
        lists.append(len(index.lists.counts))
    assert lists[-1] > lists[0]
    assert index.clustered == 320


def test_state_is_all_there_is():
    keys, values, queries = problem()
    index = Index(keys[:390], values[:390], lists=7)
    index.insert(keys[390:], values[390:])
    again = Index.from_state({name: x.clone() for name, x in index.state().items()})
    assert len(again) == len(index) == 400
    assert len(again.pending_keys) == 10
    assert_close(again.answer(queries, 20.0), index.answer(queries, 20.0), rtol=0, atol=0)
    again.insert(keys, values)
    assert len(again) == 800
    assert again.wanted == 7


def test_sharpness_may_differ_by_query():
    keys, values, queries = problem()
    betas = torch.linspace(0.5, 60, len(queries))
    index = Index(keys, values)
    together = index.answer(queries, betas)
    alone = torch.cat([index.answer(q[None], beta.item()).answers for q, beta in zip(queries, betas, strict=True)])
    assert_close(together.answers, alone, rtol=1e-4, atol=1e-4)


def test_an_empty_index_answers_zero():
    found = Index(torch.zeros(0, 5), torch.zeros(0, 3)).answer(F.normalize(torch.ones(2, 5), dim=1), 4.0)
    assert_close(found.answers, torch.zeros(2, 3))
    assert (found.lse == -torch.inf).all()
    assert (found.bounds == 0).all()


def test_what_an_index_cannot_hold_is_refused():
    keys, values, queries = problem()
    with pytest.raises(ValueError, match="norm 1"):
        Index(2 * keys, values)
    with pytest.raises(ValueError, match="norm 1"):
        Index(keys, values).answer(queries * torch.nan)
    with pytest.raises(ValueError, match="NaN or Inf"):
        Index(keys, values * torch.inf)
    with pytest.raises(ValueError, match="between 0 and 500"):
        Index(keys, values).answer(queries, 501.0)

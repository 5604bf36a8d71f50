from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from triton_forms import AWKWARD, DEVICE, KERNELS, TOLERANCE, assert_same, check_registration, needs_kernels

from memory_mosaics.ops import recall as module
from memory_mosaics.ops.recall import dot_product, gaussian, merge, recall, recall_with_lse, reference, splits

FEW_TOLERANCE = TOLERANCE | {torch.float16: 1e-3}
B, H = 2, 2


def problem(time, pairs, *, batch=2, heads=3, width=8, value_width=8):
    queries = torch.randn(batch, time, heads, width, requires_grad=True)
    keys = torch.randn(batch, pairs, heads, width, requires_grad=True)
    values = torch.randn(batch, pairs, heads, value_width, requires_grad=True)
    sharpness = torch.linspace(0.3, 2.0, heads, requires_grad=True)
    return queries, keys, values, sharpness


class Ops(TorchDispatchMode):
    """The names of all ops that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def padding(batch, pairs):
    """Row 0 is whole; every later row has one more third of padding at the left."""
    missing = torch.arange(batch)[:, None] * max(pairs // 3, 1)
    return torch.arange(pairs) >= missing


def gradients(loss, inputs):
    """Zero, not nothing, where the loss does not depend on an input."""
    if not loss.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    found = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)]


def check(inputs, *, tolerance=1e-4, **options):
    """Values and gradients of both forms against the definition."""
    slow, _ = reference(*inputs, **options)
    weights = torch.randn_like(slow)
    wanted = gradients((slow * weights).sum(), inputs)
    for fast in (recall(*inputs, **options), recall_with_lse(*inputs, **options)[0]):
        assert_close(fast, slow, rtol=tolerance, atol=tolerance)
        assert_close(gradients((fast * weights).sum(), inputs), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("time", AWKWARD)
@pytest.mark.parametrize("causal_offset", [0, 1, -2], ids=["contextual", "attention", "peek-3"])
def test_causal_recall_is_the_definition(time, causal_offset):
    check(problem(time, time), causal_offset=causal_offset)


@pytest.mark.parametrize("options", [{"causal_offset": 41}, {"causal_offset": 41, "window": 7}, {}])
@pytest.mark.parametrize("time", [1, 2, 63, 130])
def test_heads_that_share_pairs_are_the_definition(time, options):
    queries, keys, values, _ = problem(time, 40 + time, heads=2)
    queries = torch.randn(2, time, 6, 8, requires_grad=True)
    sharpness = torch.linspace(0.3, 2.0, 6, requires_grad=True)
    inputs = queries, keys, values, sharpness
    slow, _ = reference(*inputs, **options)
    fast, weights = recall(*inputs, **options), torch.randn_like(slow)
    assert_close(fast, slow, rtol=1e-4, atol=1e-4)
    wanted, found = (gradients((y * weights).sum(), inputs) for y in (slow, fast))
    assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    if "window" not in options:
        assert_close(recall_with_lse(*inputs, **options)[0], slow, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("time", [1, 2, 63, 130])
def test_recall_with_pairs_from_earlier_is_the_definition(time):
    check(problem(time, 40 + time), causal_offset=40)


@pytest.mark.parametrize("time", [1, 2, 63, 130])
@pytest.mark.parametrize("causal_offset", [0, 5, None])
def test_padding_counts_for_nothing(time, causal_offset):
    pairs = time + 5 if causal_offset else max(time, 3)
    check(problem(time, pairs, batch=3), causal_offset=causal_offset, key_padding_mask=padding(3, pairs))


@pytest.mark.parametrize("pairs", AWKWARD)
def test_recall_over_fixed_pairs_is_the_definition(pairs):
    check(problem(7, pairs))


@pytest.mark.parametrize(("width", "value_width"), [(8, 3), (3, 8), (1, 1)])
def test_keys_and_values_may_have_different_widths(width, value_width):
    check(problem(20, 20, width=width, value_width=value_width), causal_offset=0)


@settings(max_examples=60)
@given(
    time=st.integers(0, 20),
    pairs=st.integers(0, 20),
    causal_offset=st.none() | st.integers(-3, 20),
    batch=st.integers(1, 3),
    padded=st.booleans(),
)
def test_any_shape(time, pairs, causal_offset, batch, padded):
    causal_offset = None if causal_offset is None else min(causal_offset, 1 + max(pairs - time, 0))
    pairs = pairs if causal_offset is None else max(pairs, causal_offset + time)
    inputs = problem(time, pairs, batch=batch)
    options = {"causal_offset": causal_offset, "key_padding_mask": padding(batch, pairs) if padded else None}
    slow, slow_lse = reference(*inputs, **options)
    assert_close(recall(*inputs, **options), slow, rtol=1e-4, atol=1e-5)
    for gradients_wanted in (True, False):  # two ways to the same numbers
        with torch.set_grad_enabled(gradients_wanted):
            answers, lse = recall_with_lse(*inputs, **options)
        assert_close(answers, slow, rtol=1e-4, atol=1e-5)
        assert_close(lse, slow_lse, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("time", AWKWARD)
@pytest.mark.parametrize(("window", "delay"), [(1, 1), (5, 1), (5, 0), (64, 1), (70, 9), (200, 64), (2000, 3)])
def test_a_window_is_that_of_the_definition_in_values_and_gradients(time, window, delay):
    inputs = problem(time, time, batch=1 if time == 1000 else 2, heads=2, width=4)
    options = {"causal_offset": 1 - delay, "window": window}
    found, (expected, _) = recall(*inputs, **options), reference(*inputs, **options)
    assert_close(found, expected, rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(found)
    slow, fast = (gradients((answers * weight).sum(), inputs) for answers in (expected, found))
    assert_close(fast, slow, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("time", "pairs", "options"), [(3, 40, {}), (1, 40, {}), (200, 100, {"causal_offset": 0})])
def test_a_window_of_more_or_fewer_pairs_than_queries(time, pairs, options):
    inputs = problem(time, pairs)
    for window in (7, 64):
        given = options | {"window": window, "key_padding_mask": padding(2, pairs)}
        for each in (given, options | {"window": window}):
            assert_close(recall(*inputs, **each), reference(*inputs, **each)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("time", [1, 2, 63, 130])
@pytest.mark.parametrize(("causal_offset", "pairs"), [(0, 0), (-4, 0), (1, 0), (40, 40)])
@pytest.mark.parametrize("options", [{}, {"window": 7}, {"key_padding_mask": True}])
def test_a_shift_is_that_of_the_definition_in_values_and_gradients(time, causal_offset, pairs, options):
    """A memory that starts empty, attention, and one that holds 40 pairs already."""
    inputs = problem(time, time + pairs)
    options = {"causal_offset": causal_offset, "max_shift": 60} | options
    if "key_padding_mask" in options:
        options["key_padding_mask"] = padding(2, time + pairs)
    for shift in (0, 1, 17, 60):
        options["shift"] = torch.tensor(shift)
        found, (expected, _) = recall(*inputs, **options), reference(*inputs, **options)
        assert_close(found, expected, rtol=1e-4, atol=1e-5)
        weight = torch.randn_like(found)
        slow, fast = (gradients((answers * weight).sum(), inputs) for answers in (expected, found))
        assert_close(fast, slow, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("lengths", [(20, 20), (20, 13), (0, 0), (-3, -3)], ids=str)
@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("padded", [False, True])
def test_one_query_reads_the_stored_pairs_of_a_fixed_capacity(lengths, window, padded):
    queries, keys, values, sharpness = (x.detach() for x in problem(1, 32))
    mask = padding(2, 32) if padded else torch.ones(2, 32, dtype=torch.bool)
    options = {"lengths": torch.tensor(lengths), "window": window, "key_padding_mask": mask}
    found = recall(queries, keys, values, sharpness, **options)
    for row, length in enumerate(lengths):
        start = 0 if window is None else max(length - window, 0)
        one = slice(row, row + 1), slice(start, max(length, 0))
        expected, _ = reference(queries[row : row + 1], keys[one], values[one], sharpness, key_padding_mask=mask[one])
        assert_close(found[row : row + 1], expected)


@pytest.mark.parametrize("steps", [-13, -2, 0, 3, 20])
@pytest.mark.parametrize("time", [1, 9, 30])
def test_moved_steps_are_read_once_there_and_back(steps, time):
    x = torch.randn(2, 9, 3, 4, dtype=torch.float64, requires_grad=True)
    moved = module._Moved.apply(x, torch.tensor(steps), time)
    for t in range(time):
        assert_close(moved[:, t], x[:, t - steps] if 0 <= t - steps < 9 else torch.zeros_like(x[:, 0]))
    assert torch.autograd.gradcheck(lambda x: module._Moved.apply(x, torch.tensor(steps), time), x)
    with Ops() as ops:
        moved.sum().backward()
    assert "index_select" in ops.names
    assert not ops.names & {"index_add", "index_add_", "scatter_add", "scatter_add_", "index_put_", "_index_put_impl_"}


def test_a_window_takes_memory_linear_in_time(monkeypatch):
    """No kernel sees more than two chunks of pairs."""
    seen = []
    attend = module._attend
    monkeypatch.setattr(
        module, "_attend", lambda q, k, *rest, **named: seen.append(k.shape) or attend(q, k, *rest, **named)
    )
    recall(*problem(1000, 1000), causal_offset=0, window=100)
    assert [shape[1] for shape in seen] == [100, 200]


def test_a_window_over_pairs_that_end_before_the_last_query_takes_the_kernel(monkeypatch):
    """A memory whose last value has not come: one pair fewer than queries."""
    monkeypatch.setattr(module, "_in_blocks", None)
    inputs = problem(300, 299)
    options = {"causal_offset": 0, "window": 7}
    assert_close(recall(*inputs, **options), reference(*inputs, **options)[0], rtol=1e-4, atol=1e-5)


def test_blocks_of_queries_do_not_show(monkeypatch):
    inputs = problem(50, 50)
    whole = recall_with_lse(*inputs, causal_offset=0)
    monkeypatch.setattr(module, "BLOCK", 7)
    assert_close(recall_with_lse(*inputs, causal_offset=0), whole)
    assert_close(
        recall(*inputs, causal_offset=0, key_padding_mask=padding(2, 50)),
        reference(*inputs, causal_offset=0, key_padding_mask=padding(2, 50))[0],
    )


def test_empty_memory_answers_zero_with_zero_gradients():
    inputs = problem(4, 4)
    nothing = torch.zeros(2, 4, dtype=torch.bool)
    for answers in (
        recall(*inputs, causal_offset=0, key_padding_mask=nothing),
        recall_with_lse(*inputs, causal_offset=0, key_padding_mask=nothing)[0],
    ):
        assert_close(answers, torch.zeros_like(answers))
        assert all((gradient == 0).all() for gradient in gradients(answers.sum(), inputs))


def test_gradients_flow_through_the_log_sum_exp():
    inputs = problem(30, 30)
    key_padding_mask = padding(2, 30)
    slow, fast = (
        form(*inputs, causal_offset=0, key_padding_mask=key_padding_mask)[1].clamp(min=-1e3)
        for form in (reference, recall_with_lse)
    )
    assert_close(gradients(fast.sum(), inputs[:2]), gradients(slow.sum(), inputs[:2]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [2, 4])
@pytest.mark.parametrize("batch", [1, 2])
def test_queries_in_several_rows_find_the_same(rows, batch):
    inputs = [torch.randn(batch, length, 3, 8, requires_grad=True) for length in (20, 7, 7)]
    weight = torch.randn(batch, 20, 3, 8)

    def found(rows):
        answers = module._attend_in_rows(*inputs, dropout=0.0, rows=rows)
        return answers, *torch.autograd.grad((answers * weight).sum(), inputs)

    for one, several in zip(found(1), found(rows), strict=True):
        assert_close(several, one)


@pytest.mark.parametrize("cuts", [(0,), (13,), (0, 13, 13, 30), (30,)])
def test_merged_memories_answer_as_one(cuts):
    queries, keys, values, sharpness = problem(9, 30)
    edges = [0, *cuts, 30]
    parts = [recall_with_lse(queries, keys[:, a:b], values[:, a:b], sharpness) for a, b in pairwise(edges)]
    assert_close(merge(*parts), reference(queries, keys, values, sharpness), rtol=1e-4, atol=1e-5)


def test_merging_nothing_is_nothing():
    queries, keys, values, sharpness = problem(4, 4)
    empty = recall_with_lse(queries, keys[:, :0], values[:, :0], sharpness)
    answers, lse = merge(empty, empty)
    assert (answers == 0).all()
    assert (lse == -torch.inf).all()


@pytest.mark.parametrize("shape", [(3,), (10, 3), (2, 10, 3)])
def test_sharpness_may_change_with_head_time_and_row(shape):
    queries, keys, values, _ = problem(10, 10)
    sharpness = torch.rand(shape) * 3
    by_hand = queries * sharpness[..., None]
    assert_close(
        recall(queries, keys, values, sharpness, causal_offset=0), reference(by_hand, keys, values, causal_offset=0)[0]
    )


def test_dropout_drops_the_right_share_and_keeps_the_mean():
    queries, keys, values, sharpness = problem(200, 200)
    torch.manual_seed(1)
    answers = torch.stack([recall(queries, keys, values, sharpness, causal_offset=0, dropout=0.3) for _ in range(200)])
    whole = recall(queries, keys, values, sharpness, causal_offset=0)
    assert (answers[0] - whole).abs().max() > 0.05
    assert (answers.mean(dim=0) - whole)[:, 20:].abs().mean() < 0.03
    alone = answers[:, :, 1]  # one stored pair: it is either forgotten or scaled by 1 / 0.7
    assert 0.25 < (alone == 0).float().mean() < 0.35


def test_dropout_draws_the_same_weights_again_in_the_backward_pass():
    queries, keys, values, sharpness = problem(300, 300)
    answers = recall(queries, keys, values, sharpness, causal_offset=0, dropout=0.5)
    (gradient,) = torch.autograd.grad(answers.sum(), values)
    assert_close((gradient * values).sum(), answers.sum(), rtol=1e-4, atol=1e-3)  # answers are linear in the values


def test_gaussian_kernel_is_equation_2():
    queries, keys = torch.randn(4, 5, 3) * 3 + 100, torch.randn(4, 6, 3) * 3 + 100
    query, key = gaussian(queries.double(), keys.double(), 0.7)
    weights = torch.softmax(query @ key.transpose(-1, -2), dim=-1)
    distances = torch.cdist(queries.double(), keys.double())
    assert_close(weights, torch.softmax(-0.7 * distances.square(), dim=-1))


def test_on_unit_keys_equation_2_is_equation_3_with_twice_the_sharpness():
    queries = torch.nn.functional.normalize(torch.randn(5, 3), dim=-1)
    keys = torch.nn.functional.normalize(torch.randn(6, 3), dim=-1)
    far, near = (torch.softmax(q @ k.T, -1) for q, k in (gaussian(queries, keys, 4.0), dot_product(queries, keys, 8.0)))
    assert_close(far, near)


@pytest.mark.parametrize("form", [recall, recall_with_lse])
def test_gradients_are_those_of_small_differences(form):
    inputs = [tensor.detach().double().requires_grad_() for tensor in problem(5, 6, batch=1, heads=2, width=3)]
    assert torch.autograd.gradcheck(lambda *x: form(*x, causal_offset=2), inputs)


def strided(rows: int, steps: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Every other head of some of a tensor with more of everything; nothing around it is a number."""
    around = torch.full((rows + 1, steps + 7, 2 * H, width + 5), torch.nan, device=DEVICE, dtype=dtype)
    view = around[1:, 3 : steps + 3, ::2, :width]
    view.copy_(torch.randn(rows, steps, H, width))
    return view


def few_problem(queries: int, pairs: int, *, dtype=torch.float32, width=16, value_width=32) -> dict[str, torch.Tensor]:
    return dict(
        queries=strided(B, queries, width, dtype),
        keys=strided(B, pairs, width, dtype),
        values=strided(B, pairs, value_width, dtype),
        sharpness=torch.linspace(0.2, 2, H, device=DEVICE),
    )


def marks(pairs: int) -> torch.Tensor:
    """Which pairs are key_padding_mask: a row without any, and one that begins and ends with some that are not."""
    key_padding_mask = torch.rand(B, 2 * pairs, device=DEVICE)[:, ::2] < 0.7
    key_padding_mask[0] = False
    key_padding_mask[1, : pairs // 4] = key_padding_mask[1, pairs - pairs // 3 :] = False
    return key_padding_mask


def answer(queries, keys, values, sharpness=None, key_padding_mask=None, lengths=None) -> torch.Tensor:
    """By the kernels for few queries, or where they do not run by the PyTorch form."""
    if KERNELS:
        return torch.ops.memory_mosaics.recall_few(queries, keys, values, sharpness, key_padding_mask, lengths)
    with torch.no_grad():
        return recall(
            queries,
            keys,
            values,
            1.0 if sharpness is None else sharpness,
            key_padding_mask=key_padding_mask,
            lengths=lengths,
        )


def expected_answer(queries, keys, values, sharpness=None, key_padding_mask=None, lengths=None) -> torch.Tensor:
    seen = torch.ones(keys.shape[:2], dtype=torch.bool, device=DEVICE) if key_padding_mask is None else key_padding_mask
    seen = seen if lengths is None else seen & (torch.arange(keys.shape[1], device=DEVICE) < lengths[:, None])
    answers, _ = reference(queries, keys, values, 1.0 if sharpness is None else sharpness, key_padding_mask=seen)
    return answers.to(queries.dtype)


def check_few(dtype=torch.float32, **given) -> torch.Tensor:
    found = answer(**given)
    assert_same([found], [expected_answer(**given)], FEW_TOLERANCE[dtype])
    return found


@pytest.fixture(params=[0, 132], ids=["one split", "many splits"])
def processors(request, monkeypatch):
    monkeypatch.setattr(module, "multiprocessors", lambda _: request.param)
    return request.param


few = pytest.mark.parametrize("queries", [1, 5, 33, 64])


@pytest.mark.usefixtures("processors")
class TestTriton:
    @few
    @pytest.mark.parametrize("dtype", FEW_TOLERANCE, ids=str)
    def test_all_pairs(self, queries, dtype):
        check_few(dtype, **few_problem(queries, 150, dtype=dtype))

    @few
    def test_marked_pairs(self, queries):
        found = check_few(**few_problem(queries, 150), key_padding_mask=marks(150))
        assert found[0].abs().max() == 0 < found[1].abs().min()

    @pytest.mark.parametrize("queries", [1, 33])
    @pytest.mark.parametrize("count", [(0, 1), (64, 150), (130, 999)], ids=str)
    def test_counted_pairs(self, queries, count):
        given, count = few_problem(queries, 150), torch.tensor(count, device=DEVICE)
        check_few(**given, lengths=count)
        check_few(**given, lengths=count, key_padding_mask=~marks(150))

    @needs_kernels
    @pytest.mark.parametrize("queries", [1, 5])
    def test_what_lies_beyond_the_count_is_never_read(self, queries):
        given, count = few_problem(queries, 150), torch.tensor([20, 99], device=DEVICE)
        beyond = torch.arange(150, device=DEVICE) >= count[:, None]
        expected = answer(**given, lengths=count)
        given["keys"][beyond] = given["values"][beyond] = torch.nan
        assert_close(answer(**given, lengths=count), expected, rtol=0, atol=0)

    @pytest.mark.parametrize("queries", [1, 5])
    @pytest.mark.parametrize("dtype", FEW_TOLERANCE, ids=str)
    def test_odd_widths(self, queries, dtype):
        check_few(dtype, **few_problem(queries, 100, dtype=dtype, width=19, value_width=16))

    @pytest.mark.parametrize("queries", [1, 20])
    @pytest.mark.parametrize(("width", "value_width"), [(64, 64), (128, 128), (131, 128)])
    def test_wide_heads(self, queries, width, value_width):
        check_few(
            **few_problem(queries, 100, width=width, value_width=value_width), lengths=torch.tensor([90, 30]).to(DEVICE)
        )

    @pytest.mark.parametrize("queries", [1, 5])
    @pytest.mark.parametrize("pairs", [1, 2, 63, 64, 65])
    def test_few_pairs(self, queries, pairs):
        given = few_problem(queries, pairs)
        check_few(**given | dict(sharpness=None))
        check_few(**given, key_padding_mask=torch.ones(B, pairs, dtype=torch.bool, device=DEVICE))

    @pytest.mark.parametrize("queries", [1, 5])
    def test_pairs_shared_by_all_rows(self, queries):
        given = few_problem(queries, 200)
        shared = {name: given[name][:1].expand(B, -1, -1, -1) for name in ("keys", "values")}
        check_few(**given | shared)

    @pytest.mark.parametrize("queries", [1, 5])
    def test_scores_far_from_zero(self, queries):
        given = few_problem(queries, 200)
        given["sharpness"] = torch.tensor([-300.0, 300.0], device=DEVICE)
        found, expected = answer(**given), expected_answer(**given)
        assert_close(found, expected, rtol=1e-3, atol=1e-3)

    def test_nothing_stored(self):
        given = few_problem(3, 0)
        assert recall(**given).abs().max() == 0

    @needs_kernels
    @pytest.mark.parametrize("options", [(None, None), (marks(50), torch.tensor([3, 40]))], ids=["all", "some"])
    def test_registration(self, options):
        given = [*few_problem(3, 50).values(), *(x if x is None else x.to(DEVICE) for x in options)]
        check_registration("recall_few", *given)

    @needs_kernels
    def test_compiled_whole(self):
        given = [*few_problem(3, 50).values(), marks(50), None]
        op = torch.ops.memory_mosaics.recall_few
        assert_close(torch.compile(op, fullgraph=True, backend="aot_eager")(*given), op(*given))


@pytest.mark.parametrize("change", [{}, dict(width=257), dict(dtype=torch.float64)], ids=str)
def test_triton_is_for_some_dtypes_and_widths(change, monkeypatch):
    called = []
    monkeypatch.setattr(module, "_recall_few", lambda queries, *_: called.append(queries) or queries)
    with torch.no_grad():
        recall(**few_problem(**dict(queries=2, pairs=9, value_width=16) | change))
    assert bool(called) == (KERNELS and not change)


@pytest.mark.parametrize(
    ("programs", "pairs", "tile", "expected"),
    [(12, 2048, 1, 32), (12, 8192, 1, 88), (768, 8192, 1, 2), (12, 2688, 16, 42), (12, 2688, 64, 22), (9999, 64, 1, 1)],
)
def test_triton_splits_fill_the_device(programs, pairs, tile, expected):
    assert splits(programs, pairs, tile, 64, torch.device("cpu")) == expected


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
@few
def test_captured_once_and_replayed_as_the_memory_fills(queries):
    given, count = (
        few_problem(queries, 2000, dtype=torch.bfloat16, width=64, value_width=64),
        torch.zeros(B).long().cuda(),
    )
    answer(**given, lengths=count)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = answer(**given, lengths=count)
    for filled in ([1, 2], [500, 63], [2000, 1999]):
        count.copy_(torch.tensor(filled))
        graph.replay()
        assert_same([found], [expected_answer(**given, lengths=count)], FEW_TOLERANCE[torch.bfloat16])


def test_two_ways_to_say_what_is_visible_are_refused():
    x = torch.randn(1, 1, 2, 4)
    with pytest.raises(ValueError, match="causal_offset and lengths both say which pairs are visible"):
        recall(x, x, x, causal_offset=1, lengths=torch.tensor([1]))

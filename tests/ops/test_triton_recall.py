"""Recall by few queries: the Triton form against its definition. `test_triton.py` says how kernels are interpreted."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_triton import DEVICE, INTERPRETED, _poisoned, assert_same  # noqa: F401 (a fixture; and mends the interpreter)
from torch.testing import assert_close

from memory_mosaics.ops.recall import reference as definition
from memory_mosaics.ops.triton import recall
from memory_mosaics.ops.triton.recall import in_torch, recall_few, splits

TOLERANCE = {torch.float32: 1e-5 if DEVICE == "cpu" else 1e-4, torch.float16: 1e-3, torch.bfloat16: 5e-3}
B, H = 2, 2


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(INTERPRETED or DEVICE == "cuda", reason="the kernels are tested in this process")
def test_kernels_under_the_interpreter():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", "-k", "TestForm"]
    environment = {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    run = subprocess.run([*command, __file__], capture_output=True, text=True, env=os.environ | environment, cwd=root)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]


def strided(rows: int, steps: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Every other head of some of a tensor with more of everything; nothing around it is a number."""
    around = torch.full((rows + 1, steps + 7, 2 * H, width + 5), torch.nan, device=DEVICE, dtype=dtype)
    view = around[1:, 3 : steps + 3, ::2, :width]
    view.copy_(torch.randn(rows, steps, H, width))
    return view


def problem(queries: int, pairs: int, *, dtype=torch.float32, width=16, value_width=32) -> dict[str, torch.Tensor]:
    return dict(
        queries=strided(B, queries, width, dtype),
        keys=strided(B, pairs, width, dtype),
        values=strided(B, pairs, value_width, dtype),
        sharpness=torch.linspace(0.2, 2, H, device=DEVICE),
    )


def marks(pairs: int) -> torch.Tensor:
    """Which pairs are real: a row without any, and one that begins and ends with some that are not."""
    real = torch.rand(B, 2 * pairs, device=DEVICE)[:, ::2] < 0.7
    real[0] = False
    real[1, : pairs // 4] = real[1, pairs - pairs // 3 :] = False
    return real


def reference(queries, keys, values, sharpness=None, real=None, count=None) -> torch.Tensor:
    """The definition, query by query in float32."""
    seen = torch.ones(keys.shape[:2], dtype=torch.bool, device=DEVICE) if real is None else real
    seen = seen if count is None else seen & (torch.arange(keys.shape[1], device=DEVICE) < count[:, None])
    answers, _ = definition(queries, keys, values, 1.0 if sharpness is None else sharpness, real=seen)
    return answers.to(queries.dtype)


def check(dtype=torch.float32, **given) -> torch.Tensor:
    found, expected = recall_few(**given), reference(**given)
    assert_same([found], [expected], TOLERANCE[dtype])
    return found


@pytest.fixture(params=[0, 132], ids=["one split", "many splits"])
def processors(request, monkeypatch):
    monkeypatch.setattr(recall, "multiprocessors", lambda _: request.param)
    return request.param


few = pytest.mark.parametrize("queries", [1, 5, 33, 64])


@pytest.mark.usefixtures("processors")
class TestForm:
    """Outside of the interpreter, on a CPU, this is the plain torch form of the op."""

    @few
    @pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
    def test_all_pairs(self, queries, dtype):
        check(dtype, **problem(queries, 150, dtype=dtype))

    @few
    def test_marked_pairs(self, queries):
        found = check(**problem(queries, 150), real=marks(150))
        assert found[0].abs().max() == 0 < found[1].abs().min()

    @pytest.mark.parametrize("queries", [1, 33])
    @pytest.mark.parametrize("count", [(0, 1), (64, 150), (130, 999)], ids=str)
    def test_counted_pairs(self, queries, count):
        given, count = problem(queries, 150), torch.tensor(count, device=DEVICE)
        check(**given, count=count)
        check(**given, count=count, real=~marks(150))

    @pytest.mark.parametrize("queries", [1, 5])
    def test_what_lies_beyond_the_count_is_never_read(self, queries):
        given, count = problem(queries, 150), torch.tensor([20, 99], device=DEVICE)
        beyond = torch.arange(150, device=DEVICE) >= count[:, None]
        expected = recall_few(**given, count=count)
        if not (INTERPRETED or DEVICE == "cuda"):
            pytest.skip("plain torch reads everything")
        given["keys"][beyond] = given["values"][beyond] = torch.nan
        assert_close(recall_few(**given, count=count), expected, rtol=0, atol=0)

    @pytest.mark.parametrize("queries", [1, 5])
    @pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
    def test_odd_widths(self, queries, dtype):
        check(dtype, **problem(queries, 100, dtype=dtype, width=19, value_width=16))

    @pytest.mark.parametrize("queries", [1, 20])
    @pytest.mark.parametrize(("width", "value_width"), [(64, 64), (128, 128), (131, 128)])
    def test_wide_heads(self, queries, width, value_width):
        check(**problem(queries, 100, width=width, value_width=value_width), count=torch.tensor([90, 30]).to(DEVICE))

    @pytest.mark.parametrize("queries", [1, 5])
    @pytest.mark.parametrize("pairs", [1, 2, 63, 64, 65])
    def test_few_pairs(self, queries, pairs):
        given = problem(queries, pairs)
        check(**given | dict(sharpness=None))
        check(**given, real=torch.ones(B, pairs, dtype=torch.bool, device=DEVICE))

    @pytest.mark.parametrize("queries", [1, 5])
    def test_pairs_shared_by_all_rows(self, queries):
        given = problem(queries, 200)
        shared = {name: given[name][:1].expand(B, -1, -1, -1) for name in ("keys", "values")}
        check(**given | shared)

    @pytest.mark.parametrize("queries", [1, 5])
    def test_scores_far_from_zero(self, queries):
        given = problem(queries, 200)
        given["sharpness"] = torch.tensor([-300.0, 300.0], device=DEVICE)
        found, expected = recall_few(**given), reference(**given)
        assert_close(found, expected, rtol=1e-3, atol=1e-3)

    @few
    def test_plain_torch_gives_the_same(self, queries):
        given = problem(queries, 150) | dict(real=marks(150), count=torch.tensor([10, 99], device=DEVICE))
        assert_close(in_torch(*given.values()), recall_few(**given), rtol=1e-4, atol=1e-5)

    def test_nothing_stored(self):
        assert recall_few(**problem(3, 0)).abs().max() == 0


@pytest.mark.parametrize("change", [dict(width=257), dict(dtype=torch.float64)], ids=str)
def test_what_the_kernels_do_not_take(change, monkeypatch):
    monkeypatch.setattr(recall, "runs_kernels", lambda _: True)
    with pytest.raises(ValueError, match="the kernel takes"):
        recall_few(**problem(**dict(queries=2, pairs=9) | change))


@pytest.mark.parametrize(
    ("programs", "pairs", "tile", "expected"),
    [(12, 2048, 1, 32), (12, 8192, 1, 88), (768, 8192, 1, 2), (12, 2688, 16, 42), (12, 2688, 64, 22), (9999, 64, 1, 1)],
)
def test_splits_fill_the_device(programs, pairs, tile, expected):
    assert splits(programs, pairs, tile, 64, torch.device("cpu")) == expected


@pytest.mark.skipif(INTERPRETED, reason="checks the registration, not the kernels")
@pytest.mark.parametrize("options", [(None, None), (marks(50), torch.tensor([3, 40]))], ids=["all", "some"])
def test_op_is_well_registered(options):
    given = [*problem(3, 50).values(), *(x if x is None else x.to(DEVICE) for x in options)]
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    torch.library.opcheck(torch.ops.memory_mosaics.recall_few.default, given, test_utils=checks)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter does not compile")
def test_compiled_whole():
    given = [*problem(3, 50).values(), marks(50), None]
    op = torch.ops.memory_mosaics.recall_few
    assert_close(torch.compile(op, fullgraph=True, backend="aot_eager")(*given), op(*given))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a CUDA device")
@few
def test_recorded_once_and_replayed_as_the_memory_fills(queries):
    given, count = problem(queries, 2000, dtype=torch.bfloat16, width=64, value_width=64), torch.zeros(B).long().cuda()
    recall_few(**given, count=count)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = recall_few(**given, count=count)
    for filled in ([1, 2], [500, 63], [2000, 1999]):
        count.copy_(torch.tensor(filled))
        graph.replay()
        assert_same([found], [reference(**given, count=count)], TOLERANCE[torch.bfloat16])

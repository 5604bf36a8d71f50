"""The contract of every mixer: y, state = mixer(x, state=None, mask=None)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memory_mosaics.config import from_plain, to_plain
from memory_mosaics.language_model import LanguageModelConfig, map_state
from mixers_under_contract import MIXERS, WIDTH
from waiting import HANG

HERE = Path(__file__).parent


@pytest.fixture(params=MIXERS, ids=[name.replace(" ", "-") for name in MIXERS])
def config(request):
    return MIXERS[request.param]


@pytest.fixture(params=[False, True], ids=["", "bias"])
def mixer(request, config):
    mixer = config.build(WIDTH, bias=request.param).eval()
    for name, parameter in mixer.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return mixer


def stream(mixer, x, size, mask=None):
    """`size` tokens at a time."""
    state, steps = None, []
    masks = [None] * len(x.split(size, dim=1)) if mask is None else mask.split(size, dim=1)
    for x_t, mask_t in zip(x.split(size, dim=1), masks, strict=True):
        y, state = mixer(x_t, state, mask_t)
        steps.append(y)
    return torch.cat(steps, dim=1), state


def test_the_future_does_not_leak(mixer):
    x = torch.randn(2, 12, WIDTH)
    changed = torch.cat([x[:, :7], torch.randn(2, 5, WIDTH)], dim=1)
    assert_close(mixer(changed)[0][:, :7], mixer(x)[0][:, :7])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_stream_equals_all_at_once(mixer, size):
    x = torch.randn(2, 13, WIDTH)
    y, state = mixer(x)
    streamed, end = stream(mixer, x, size)
    assert_close(streamed, y, rtol=1e-5, atol=1e-5)
    assert_close(end, state, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("start", [0, 1, 2, 5])
def test_a_stream_in_room_equals_all_at_once(config, start):
    mixer = config.build(WIDTH).eval()
    if not hasattr(mixer, "to_fixed_capacity"):
        pytest.skip("its state does not grow")
    x = torch.randn(2, 8, WIDTH)
    with torch.no_grad():
        y, state = mixer(x[:, :start])
        state, steps = mixer.to_fixed_capacity(state, 10), [y]
        for x_t in x[:, start:].split(1, dim=1):
            y, state = mixer(x_t, state)
            steps.append(y)
        assert_close(torch.cat(steps, dim=1), mixer(x)[0], rtol=1e-5, atol=1e-5)
        with pytest.raises(ValueError, match="one token at a time, not 2"):
            mixer(x[:, :2], state)


def test_2000_tokens_streamed_equal_2000_at_once(config):
    """One at a time at the start and at the end, and in chunks of odd sizes between."""
    mixer = config.build(WIDTH).eval()
    x, state, steps = torch.randn(1, 2000, WIDTH), None, []
    with torch.no_grad():
        for x_t in x.split([*[1] * 150, *[61] * 20, *[7] * 70, *[1] * 140], dim=1):
            y, state = mixer(x_t, state)
            steps.append(y)
        assert_close(torch.cat(steps, dim=1), mixer(x)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1, 4, 17])
def test_a_left_padded_row_equals_the_row_alone(mixer, size):
    rows = [torch.randn(1, n, WIDTH) for n in (17, 9, 1)]
    x = torch.cat([torch.cat([torch.randn(1, 17 - row.shape[1], WIDTH), row], dim=1) for row in rows])
    mask = torch.arange(17) >= torch.tensor([[0], [8], [16]])
    y, state = stream(mixer, x, size, mask)
    more, next_x = [], torch.randn(3, 1, WIDTH)
    for i, row in enumerate(rows):
        alone, alone_state = mixer(row)
        assert_close(y[i : i + 1, -row.shape[1] :], alone, rtol=1e-5, atol=1e-5)
        more.append(mixer(next_x[i : i + 1], alone_state)[0])
    assert_close(mixer(next_x, state)[0], torch.cat(more), rtol=1e-5, atol=1e-5)


def test_right_padding_changes_nothing_before_it(mixer):
    x = torch.randn(2, 9, WIDTH)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    assert_close(mixer(x, None, mask)[0][1, :6], mixer(x[1:, :6])[0][0])


def test_a_state_is_tensors_with_the_batch_first(mixer):
    x = torch.randn(3, 6, WIDTH)
    _, state = mixer(x)
    assert all(tensor.shape[0] == 3 for tensor in state)
    order = torch.tensor([2, 0, 0])
    picked = map_state(lambda tensor: tensor.index_select(0, order), state)
    next_x = torch.randn(3, 1, WIDTH)
    assert_close(mixer(next_x[order], picked)[0], mixer(next_x, state)[0][order])


def test_states_and_weights_survive_a_file(mixer, config, tmp_path):
    x = torch.randn(2, 5, WIDTH)
    y, state = mixer(x)
    torch.save((mixer.state_dict(), map_state(torch.detach, state)), tmp_path / "file")
    weights, loaded_state = torch.load(tmp_path / "file", weights_only=True)
    other = config.build(WIDTH, bias="bias" in str(list(weights))).eval()
    other.load_state_dict(weights)
    assert_close(other(x)[0], y)
    assert_close(other(x, loaded_state)[0], mixer(x, state)[0])


def test_the_plain_form_of_a_configuration_reads_back(config):
    whole = LanguageModelConfig(vocabulary=5, width=WIDTH, blocks=1, sequence_mixer=config)
    assert from_plain(LanguageModelConfig, json.loads(json.dumps(to_plain(whole)))) == whole


def loud(mixer):
    """Weights that make the answers large beside what is added to them, so that a relative error means something."""
    for module in mixer.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=1.0 if isinstance(module, torch.nn.Embedding) else WIDTH**-0.5)
    return mixer


def test_bfloat16_is_finite_and_near(mixer):
    x = torch.randn(2, 30, WIDTH)
    exact = loud(mixer)(x)[0]
    y, state = mixer.bfloat16()(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert y.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in state)
    assert (y.float() - exact).abs().mean() < 0.03 * exact.abs().mean()


def test_autocast_is_near(config):
    mixer = loud(config.build(WIDTH)).eval()
    x = torch.randn(2, 30, WIDTH)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = mixer(x)[0]
    exact = mixer(x)[0]
    assert (y.float() - exact).abs().mean() < 0.03 * exact.abs().mean()


def test_half_precision_is_finite_however_sharp(mixer):
    if hasattr(mixer, "sharpness"):
        mixer.sharpness.set(torch.full_like(mixer.sharpness.theta, 2e5))
    x = torch.randn(2, 30, WIDTH)
    assert not mixer.half()(x.half())[0].isnan().any()


def test_gradients_reach_every_parameter(mixer):
    loud(mixer)(torch.randn(2, 10, WIDTH))[0].square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        cancels = "key.map.bias" in name and hasattr(mixer, "query")  # one score more for all keys changes no weight
        assert parameter.grad.abs().sum() > 1e-3 or cancels, name


def test_an_empty_call_changes_nothing(mixer):
    x = torch.randn(2, 6, WIDTH)
    _, state = mixer(x)
    y, same = mixer(x[:, :0], state)
    assert y.shape == (2, 0, WIDTH)
    assert_close(same, state)


def test_no_rows_give_no_rows(mixer):
    y, state = mixer(torch.randn(0, 6, WIDTH))
    assert y.shape == (0, 6, WIDTH)
    assert mixer(torch.randn(0, 1, WIDTH), state)[0].shape == (0, 1, WIDTH)


def test_double_precision_is_kept(mixer):
    mixer, x = mixer.double(), torch.randn(2, 9, WIDTH, dtype=torch.float64)
    y = mixer(x)[0]
    assert y.dtype == torch.float64
    for size in (1, 2, 5):
        assert_close(stream(mixer, x, size)[0], y, rtol=1e-10, atol=1e-10)


class NothingNarrow(TorchDispatchMode):
    """Refuses every op whose result has less than double precision."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            assert not isinstance(tensor, torch.Tensor) or tensor.dtype not in NARROW, f"{func} gave {tensor.dtype}"
        return result


NARROW = (torch.float32, torch.bfloat16, torch.float16, torch.complex64)


def test_double_precision_is_double_in_every_op(mixer):
    mixer, x = mixer.double(), torch.randn(2, 20, WIDTH, dtype=torch.float64)
    mask = torch.arange(20) >= torch.tensor([[0], [8]])
    with NothingNarrow():
        for given in (None, mask):
            state = mixer(x, None, given)[1]
            mixer(x[:, :1], state)[0].square().sum().backward()
        state = mixer(x[:, :1])[1]
        mixer(x, state)[0].square().sum().backward()
        if hasattr(mixer, "to_fixed_capacity"):
            with torch.no_grad():
                mixer(x[:, :1], mixer.to_fixed_capacity(mixer(x)[1], 24))


def test_gradients_in_double_precision_are_those_of_differences(mixer):
    """By numerical differences, which single precision anywhere on the way would spoil."""
    loud(mixer).double()
    names, weights = zip(*mixer.named_parameters(), strict=True)
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64, requires_grad=True)

    def answer(x, *weights):
        return torch.func.functional_call(mixer, dict(zip(names, weights, strict=True)), (x,))[0]

    assert torch.autograd.gradcheck(answer, (x, *weights), fast_mode=True)


def test_dropout_is_for_training_only(config):
    x = torch.randn(2, 40, WIDTH)
    mixer = config.build(WIDTH, dropout=0.5)
    plain = config.build(WIDTH)
    plain.load_state_dict(mixer.state_dict())
    assert_close(mixer.eval()(x)[0], plain(x)[0])
    first, second = mixer.train()(x)[0], mixer(x)[0]
    if isinstance(getattr(mixer, "dropout", None), float):
        assert not torch.allclose(first, second)
    assert first.isfinite().all()


CODE_IS_MADE_FOR = ["contextual memory"]  # and for a language model of memories; all mixers are traced and run


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiled_gives_the_same_numbers(backend, tmp_path):
    """In a process of its own: the shape checks that tests switch on are not there for the compiler to trace."""
    names = CODE_IS_MADE_FOR if backend == "inductor" else list(MIXERS)
    quickly = {"AOT_INDUCTOR_DEBUG_COMPILE": "1"}  # what the compiler writes is compiled, but not optimised
    environment = os.environ | {"PYTHONPATH": str(HERE), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)} | quickly
    again = [[]] if backend == "inductor" else []  # the language model once more, from the compiler's cache
    for checked in [names, *again]:
        run = subprocess.run(
            [sys.executable, str(HERE / "check_compiled.py"), backend, *checked],
            env=environment,
            capture_output=True,
            text=True,
            timeout=2 * HANG,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        assert run.stdout.splitlines()[-1] == f"{len(checked)} mixers and a language model agree", run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1], ids=["", "dropout"])
@pytest.mark.parametrize("name", ["contextual memory", "persistent memory", "attention", "attention, alibi"])
def test_training_memory_grows_linearly_with_time(name, dropout):
    """Peak memory of a forward and backward pass in a fresh process, beyond what a short sequence takes."""
    every_tensor_to_the_system = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed does not linger in the process
    run = subprocess.run(
        [sys.executable, str(HERE / "measure_peak_memory.py"), name, str(dropout), "2048", "4096"],
        env=os.environ | {"PYTHONPATH": str(HERE)} | every_tensor_to_the_system,
        capture_output=True,
        text=True,
        check=True,
    )
    short, long = map(float, run.stdout.split())
    square = 4 * 4096**2 / 2**20  # MiB of one T x T tensor of one head in float32
    assert long < square, (short, long)
    assert long < 2.3 * short, (short, long)

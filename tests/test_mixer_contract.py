"""The contract of every mixer: y, state = mixer(x, state=None, mask=None)."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memory_mosaics.config import MixerConfig, from_plain, to_plain
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.scales import Scale
from memory_mosaics.stores import GrowingStore
from memory_mosaics.testing import CHECKS, amplify, build_mixer, check_mixer, stream
from mixers_under_contract import MIXERS, WIDTH
from waiting import HANG

HERE = Path(__file__).parent


@pytest.fixture(params=MIXERS, ids=[name.replace(" ", "-") for name in MIXERS])
def config(request):
    return MIXERS[request.param]


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["", "bias"])
def bias(request):
    return request.param


@pytest.fixture
def mixer(config, bias):
    return build_mixer(config, WIDTH, bias)


def test_a_state_of_fixed_capacity_takes_one_token_at_a_time(config):
    mixer, x = config.build(WIDTH), torch.randn(2, 2, WIDTH)
    state = mixer(x)[1]
    if any(isinstance(part, GrowingStore) for part in state):
        with pytest.raises(ValueError, match="one token at a time, not 2"):
            mixer(x, mixer.to_fixed_capacity(state, 10))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_contract(config, bias, check):
    check(config, width=WIDTH, bias=bias)


class Faulty(torch.nn.Module):
    """A running sum of W x that breaks the contract in one way."""

    def __init__(self, width, fault):
        super().__init__()
        self.map, self.fault = torch.nn.Linear(width, width, bias=False), fault
        self.idle = torch.nn.Parameter(torch.zeros(width)) if fault == "unused parameter" else None

    def forward(self, x, state=None, mask=None):
        y = self.map(x if mask is None or self.fault == "padding counts" else x * mask[..., None])
        if self.fault == "narrow":
            y = y.float()
        total = y.cumsum(1) + (0 if state is None or self.fault == "no memory" else state[0][:, None])
        last = total[:, -1] if x.shape[1] or state is None else state[0]
        if self.fault == "looks ahead":
            total = total.flip(1)
        if self.fault == "state grows":
            return total, (last, total if state is None else torch.cat([state[1], total], dim=1))
        return total.to(x.dtype), (last[None] if self.fault == "batch second" else last,)


@dataclass(frozen=True)
class FaultyConfig(MixerConfig):
    fault: str = "none"

    def build(self, width, *, dropout=0.0, bias=False):
        return Faulty(width, self.fault)


FAULTS = {
    "looks ahead": "causality",
    "no memory": "streaming",
    "padding counts": "left_padding",
    "state grows": "fixed_capacity",
    "batch second": "streaming",
    "narrow": "float64",
    "unused parameter": "gradients",
}


@pytest.mark.parametrize(("fault", "check"), FAULTS.items(), ids=FAULTS)
def test_a_faulty_mixer_is_refused_by_the_check_of_its_fault(fault, check):
    with pytest.raises(AssertionError, match=rf"fault='{fault}'\) fails the check '{check}' \(bias=False\): ."):
        check_mixer(FaultyConfig(fault))


def test_check_mixer_draws_from_a_generator_of_its_own():
    torch.manual_seed(3)
    expected = torch.rand(())
    torch.manual_seed(3)
    check_mixer(FaultyConfig())
    assert torch.rand(()) == expected


ONE_BY_ONE = [*[1] * 150, *[61] * 20, *[7] * 70, *[1] * 140]
IN_CHUNKS = [*[1] * 3, *[61] * 30, *[7] * 20, *[1] * 27]


@pytest.mark.parametrize(
    "sizes", [IN_CHUNKS, pytest.param(ONE_BY_ONE, marks=pytest.mark.slow)], ids=["in chunks", "one by one"]
)
def test_2000_tokens_streamed_equal_2000_at_once(config, sizes):
    """One at a time at the start and at the end, and in chunks of odd sizes between."""
    mixer = config.build(WIDTH).eval()
    x = torch.randn(1, 2000, WIDTH)
    with torch.no_grad():
        streamed, _ = stream(mixer, x, sizes)
        assert_close(streamed, mixer(x)[0], rtol=1e-4, atol=1e-4)


def test_the_plain_form_of_a_configuration_reads_back(config):
    whole = LanguageModelConfig(vocabulary=5, width=WIDTH, blocks=1, sequence_mixer=config)
    assert from_plain(LanguageModelConfig, json.loads(json.dumps(to_plain(whole)))) == whole


def test_half_precision_is_finite_however_sharp(mixer):
    for module in mixer.sharpness.modules() if hasattr(mixer, "sharpness") else ():
        if isinstance(module, Scale):
            module.set(torch.full_like(module.theta, 2e5))
    x = torch.randn(2, 30, WIDTH)
    assert not mixer.half()(x.half())[0].isnan().any()


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
    amplify(mixer).double()
    names, weights = zip(*mixer.named_parameters(), strict=True)
    x = torch.randn(2, 6, WIDTH, dtype=torch.float64, requires_grad=True)

    def answer(x, *weights):
        return torch.func.functional_call(mixer, dict(zip(names, weights, strict=True)), (x,))[0]

    assert torch.autograd.gradcheck(answer, (x, *weights), fast_mode=True)


PATHS = os.pathsep.join([str(HERE), *sys.path])  # the package of this process, and what lies beside this file
CODE_IS_MADE_FOR = ["contextual memory"]  # and for a language model of memories; all mixers are traced and run


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiled_gives_the_same_numbers(backend, tmp_path):
    """In a process of its own: the shape checks that tests switch on are not there for the compiler to trace."""
    names = CODE_IS_MADE_FOR if backend == "inductor" else list(MIXERS)
    quickly = {"AOT_INDUCTOR_DEBUG_COMPILE": "1"}  # what the compiler writes is compiled, but not optimised
    environment = os.environ | {"PYTHONPATH": PATHS, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)} | quickly
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
@pytest.mark.parametrize(
    "name",
    ["contextual memory", "contextual memory, short and long", "persistent memory", "attention", "attention, alibi"],
)
def test_training_memory_grows_linearly_with_time(name, dropout):
    """Peak memory of a forward and backward pass in a fresh process, beyond what a short sequence takes."""
    every_tensor_to_the_system = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed does not linger in the process
    run = subprocess.run(
        [sys.executable, str(HERE / "measure_peak_memory.py"), name, str(dropout), "2048", "4096"],
        env=os.environ | {"PYTHONPATH": PATHS} | every_tensor_to_the_system,
        capture_output=True,
        text=True,
        check=True,
    )
    short, long = map(float, run.stdout.split())
    square = 4 * 4096**2 / 2**20  # MiB of one T x T tensor of one head in float32
    assert long < square, (short, long)
    assert long < 2.3 * short, (short, long)

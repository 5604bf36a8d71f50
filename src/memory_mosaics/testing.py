"""The contract of a mixer, `y, state = mixer(x, state=None, mask=None)`, as checks to run on any mixer.

    from memory_mosaics.testing import check_mixer

    check_mixer(MyMixerConfig())

`CHECKS` has them by name, to make one test of each. They compare on the CPU in float32 unless they say otherwise, and
raise AssertionError.
"""

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing import assert_close

from memory_mosaics.config import MixerConfig
from memory_mosaics.documents import read_documents
from memory_mosaics.stores import map_state, state_tensors

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
CAPACITY = 10  # pairs, in the check of states of fixed capacity


def build_mixer(config: MixerConfig, width: int, bias: bool) -> Any:
    """A mixer in evaluation mode whose biases are not zero."""
    mixer = config.build(width, bias=bias).eval()
    for name, parameter in mixer.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter)
    return mixer


def amplify(mixer: nn.Module) -> nn.Module:
    """Draw matrices so large that outputs are of order one and a relative error means something."""
    for module in mixer.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=1.0 if isinstance(module, nn.Embedding) else module.in_features**-0.5)
    return mixer


def stream(mixer: nn.Module, x: Tensor, sizes: int | list[int], mask: Tensor | None = None) -> tuple[Tensor, tuple]:
    """The outputs for x read `sizes` tokens at a time, and the last state."""
    state, outputs = None, []
    chunks = x.split(sizes, dim=1)
    masks = [None] * len(chunks) if mask is None else mask.split(sizes, dim=1)
    for x_t, mask_t in zip(chunks, masks, strict=True):
        y, state = mixer(x_t, state, mask_t)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state or ()


def check_causality(config: MixerConfig, *, width: int, bias: bool) -> None:
    """No output depends on a later input."""
    mixer, x = build_mixer(config, width, bias), torch.randn(2, 12, width)
    changed = torch.cat([x[:, :7], torch.randn(2, 5, width)], dim=1)
    assert_close(mixer(changed)[0][:, :7], mixer(x)[0][:, :7])


def check_streaming(config: MixerConfig, *, width: int, bias: bool) -> None:
    """One token at a time, or a few, gives the outputs and the state of all at once."""
    mixer, x = build_mixer(config, width, bias), torch.randn(2, 13, width)
    expected = mixer(x)
    for size in (1, 2, 5):
        assert_close(stream(mixer, x, size), expected, **CLOSE)


def check_fixed_capacity(config: MixerConfig, *, width: int, bias: bool) -> None:
    """A mixer whose state grows continues from one of fixed capacity, one token at a time, as decoding does."""
    mixer, x = build_mixer(config, width, bias), torch.randn(2, 8, width)
    if not hasattr(mixer, "to_fixed_capacity"):
        before, after = ([part.shape for part in state_tensors(mixer(x[:, :time])[1])] for time in (7, 8))
        assert before == after, f"its state grows, from {before} to {after}; give it a method to_fixed_capacity"
        return
    with torch.no_grad():
        for start in (0, 1, 2, 5):
            y, state = mixer(x[:, :start])
            state, outputs = mixer.to_fixed_capacity(state, CAPACITY), [y]
            for x_t in x[:, start:].split(1, dim=1):
                y, state = mixer(x_t, state)
                outputs.append(y)
            assert_close(torch.cat(outputs, dim=1), mixer(x)[0], **CLOSE)


def check_left_padding(config: MixerConfig, *, width: int, bias: bool) -> None:
    """A left-padded row has the outputs of the row alone, and continues as it does."""
    mixer, lengths = build_mixer(config, width, bias), (17, 9, 1)
    rows, next_x = [torch.randn(1, n, width) for n in lengths], torch.randn(3, 1, width)
    x = torch.cat(
        [torch.cat([torch.randn(1, 17 - n, width), row], dim=1) for n, row in zip(lengths, rows, strict=True)]
    )
    mask = torch.arange(17) >= 17 - torch.tensor(lengths)[:, None]
    for size in (1, 4, 17):
        y, state = stream(mixer, x, size, mask)
        following = []
        for i, row in enumerate(rows):
            alone, alone_state = mixer(row)
            assert_close(y[i : i + 1, -row.shape[1] :], alone, **CLOSE)
            following.append(mixer(next_x[i : i + 1], alone_state)[0])
        assert_close(mixer(next_x, state)[0], torch.cat(following), **CLOSE)


def check_right_padding(config: MixerConfig, *, width: int, bias: bool) -> None:
    """Padding on the right changes nothing before it."""
    mixer, x = build_mixer(config, width, bias), torch.randn(2, 9, width)
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    assert_close(mixer(x, None, mask)[0][1, :6], mixer(x[1:, :6])[0][0])


def check_documents(config: MixerConfig, *, width: int, bias: bool) -> None:
    """Documents that share a row have the outputs of each alone, at once and in chunks, and the last one continues."""
    mixer, x, next_x = build_mixer(config, width, bias), torch.randn(3, 17, width), torch.randn(3, 1, width)
    begins = [[0], [0, 5, 6], [0, 9, 16]]
    starts = torch.stack([torch.isin(torch.arange(17), torch.tensor(each)) for each in begins])
    expected, following = [], []
    for i, row in enumerate(begins):
        alone = [mixer(x[i : i + 1, first:end]) for first, end in zip(row, [*row[1:], 17], strict=True)]
        expected.append(torch.cat([y for y, _ in alone], dim=1))
        following.append(mixer(next_x[i : i + 1], alone[-1][1])[0])
    for size in (1, 4, 17):
        state, outputs = None, []
        for x_t, starts_t in zip(x.split(size, dim=1), starts.split(size, dim=1), strict=True):
            y, state = read_documents(mixer, x_t, state, starts=starts_t)
            outputs.append(y)
        assert_close(torch.cat(outputs, dim=1), torch.cat(expected), **CLOSE)
        assert_close(mixer(next_x, state)[0], torch.cat(following), **CLOSE)


def check_empty_input(config: MixerConfig, *, width: int, bias: bool) -> None:
    """No tokens leave the state as it is; no rows give no rows."""
    mixer, x = build_mixer(config, width, bias), torch.randn(2, 6, width)
    _, state = mixer(x)
    y, same = mixer(x[:, :0], state)
    assert y.shape == (2, 0, width), y.shape
    assert_close(same, state)
    y, state = mixer(x[:0])
    assert y.shape == (0, 6, width), y.shape
    assert mixer(x[:0, :1], state)[0].shape == (0, 1, width)


def check_batch_first_states(config: MixerConfig, *, width: int, bias: bool) -> None:
    """A state is a tuple of tensors, and of such tuples, whose rows can be reordered."""
    mixer, x, next_x = build_mixer(config, width, bias), torch.randn(3, 6, width), torch.randn(3, 1, width)
    _, state = mixer(x)
    assert all(tensor.shape[0] == 3 for tensor in state_tensors(state))
    order = torch.tensor([2, 0, 0])
    reordered = map_state(lambda tensor: tensor.index_select(0, order), state)
    assert_close(mixer(next_x[order], reordered)[0], mixer(next_x, state)[0][order])


def check_save_and_load(config: MixerConfig, *, width: int, bias: bool) -> None:
    """Weights and states survive torch.save."""
    mixer, x, file = build_mixer(config, width, bias), torch.randn(2, 5, width), io.BytesIO()
    y, state = mixer(x)
    torch.save((mixer.state_dict(), map_state(Tensor.detach, state)), file)
    file.seek(0)
    weights, loaded_state = torch.load(file, weights_only=True)
    other = config.build(width, bias=bias).eval()
    other.load_state_dict(weights)
    assert_close(other(x)[0], y)
    assert_close(other(x, loaded_state)[0], mixer(x, state)[0])


def check_float64(config: MixerConfig, *, width: int, bias: bool) -> None:
    """In float64 streaming is exact to 1e-10: nothing on the way has less precision."""
    mixer, x = build_mixer(config, width, bias).double(), torch.randn(2, 9, width, dtype=torch.float64)
    y = mixer(x)[0]
    assert y.dtype == torch.float64, y.dtype
    for size in (1, 2, 5):
        assert_close(stream(mixer, x, size)[0], y, rtol=1e-10, atol=1e-10)


def check_bfloat16(config: MixerConfig, *, width: int, bias: bool) -> None:
    """Outputs and states are finite and near those of float32, by autocast and with weights in bfloat16."""
    mixer, x = amplify(build_mixer(config, width, bias)), torch.randn(2, 30, width)
    expected = mixer(x)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = mixer(x)[0]
    y, state = mixer.bfloat16()(x.bfloat16())
    assert y.dtype == torch.bfloat16, y.dtype
    assert all(tensor.isfinite().all() for tensor in state_tensors((y, state)))
    for found in (cast, y):
        assert (found.float() - expected).abs().mean() < 0.03 * expected.abs().mean()


def check_float16(config: MixerConfig, *, width: int, bias: bool) -> None:
    """Outputs are finite."""
    y = build_mixer(config, width, bias).half()(torch.randn(2, 30, width).half())[0]
    assert y.dtype == torch.float16, y.dtype
    assert y.isfinite().all()


def check_gradients(config: MixerConfig, *, width: int, bias: bool) -> None:
    """A gradient reaches every parameter that the output depends on, and there is no other."""
    mixer, x = amplify(build_mixer(config, width, bias)), torch.randn(2, 10, width)
    y = mixer(x)[0]
    y.square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        assert parameter.grad.isfinite().all(), f"the gradient of {name} contains NaN or Inf"
        if parameter.grad.abs().sum() < 1e-3:  # as that of a bias common to all keys, which a softmax cancels
            with torch.no_grad():
                parameter.add_(1.0)
                assert_close(mixer(x)[0], y, **CLOSE, msg=f"{name} has no gradient, but the output depends on it")
                parameter.sub_(1.0)


def check_dropout(config: MixerConfig, *, width: int, bias: bool) -> None:
    """Dropout acts in training only."""
    mixer, plain = config.build(width, dropout=0.5, bias=bias), config.build(width, bias=bias)
    x = torch.randn(2, 40, width)
    plain.load_state_dict(mixer.state_dict())
    assert_close(mixer.eval()(x)[0], plain.eval()(x)[0])
    first, second = mixer.train()(x)[0], mixer(x)[0]
    assert first.isfinite().all()
    if isinstance(getattr(mixer, "dropout", None), float):
        assert not torch.allclose(first, second), "dropout=0.5 drops nothing"


# By name, in this order; `check_compile` takes longer.
CHECKS: dict[str, Callable[..., None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}


def check_compile(config: MixerConfig, *, width: int, bias: bool, backend: str = "aot_eager") -> None:
    """torch.compile(fullgraph=True) gives the same outputs, states and gradients: alone, padded, from a state.

    torch.export gives the same outputs and states, at the length of its example.

    With "inductor", which takes minutes, what training a model does not cover: padding, and a step without gradients.
    """
    mixer = config.build(width, bias=bias)
    torch.compiler.reset()
    compiled = torch.compile(mixer, fullgraph=True, backend=backend)
    x, mask = torch.randn(2, 40, width), torch.arange(40) >= torch.tensor([[0], [9]])
    with torch.no_grad():
        state = mixer(x)[1]
    cases = ((x, None, None), (x, None, mask), (x[:, :1], state, None))

    def run(function: Callable[..., tuple[Tensor, tuple]], inputs: tuple) -> tuple:
        torch.manual_seed(0)  # of what is drawn in training
        y, state = function(*inputs)
        parameters = list(mixer.parameters()) if torch.is_grad_enabled() else []
        gradients = torch.autograd.grad(y.square().sum(), parameters, allow_unused=True) if parameters else ()
        return y, state, [gradient for gradient in gradients if gradient is not None]

    for inputs in cases[1:] if backend == "inductor" else cases:
        with torch.set_grad_enabled(backend != "inductor" or inputs[1] is None):
            assert_close(run(compiled, inputs), run(mixer, inputs), rtol=1e-4, atol=1e-4)
    if backend != "inductor":
        mixer.eval()
        with torch.no_grad():
            assert_close(torch.export.export(mixer, (x,)).module()(x), mixer(x), rtol=1e-4, atol=1e-4)


def check_mixer(config: MixerConfig, *, width: int = 32, seed: int = 0, compile: bool = False) -> None:
    """Run every check, with and without biases, and with `compile` that of torch.compile too, which takes longer."""
    checks = CHECKS | ({"compile": check_compile} if compile else {})
    with torch.random.fork_rng(devices=[]):
        for name, check in checks.items():
            for bias in (False, True):
                torch.manual_seed(seed)
                try:
                    check(config, width=width, bias=bias)
                except Exception as error:
                    raise AssertionError(f"{config} fails the check {name!r} (bias={bias}): {error}") from error

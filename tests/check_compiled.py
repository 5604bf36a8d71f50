"""torch.compile(fullgraph=True) against the eager numbers. Arguments: the compiler's backend, then names of mixers.

Values and gradients of each mixer, from a state and with padding too, then of a language model whose lengths change,
which the code made for the first must serve. With inductor, a mixer is compiled for what the language model does not
do: padding, and one token from a state without gradients.
"""

import sys

import torch
from torch._inductor import config as inductor
from torch.testing import assert_close

from memory_mosaics.language_model import LanguageModel, next_token_loss
from memory_mosaics.models import memory_mosaic, transformer
from mixers_under_contract import MIXERS, WIDTH

BACKEND, *NAMES = sys.argv[1:]


def numbers(mixer, x, state, mask):
    y, new_state = mixer(x, state, mask)
    if not torch.is_grad_enabled():
        return y, new_state
    gradients = torch.autograd.grad(y.square().sum(), list(mixer.parameters()), allow_unused=True)
    return y, new_state, [g for g in gradients if g is not None]


def check_mixer(config):
    mixer = config.build(WIDTH)
    compiled = torch.compile(mixer, fullgraph=True, backend=BACKEND)
    x, mask = torch.randn(2, 40, WIDTH), torch.arange(40) >= torch.tensor([[0], [9]])
    _, state = mixer(x)
    state = tuple(tensor.detach() for tensor in state)
    cases = ((x, None, None), (x, None, mask), (x[:, :1], state, None))
    for inputs in cases[1:] if BACKEND == "inductor" else cases:
        with torch.set_grad_enabled(BACKEND != "inductor" or inputs[1] is None):
            assert_close(numbers(compiled, *inputs), numbers(mixer, *inputs), rtol=1e-4, atol=1e-4)


def check_model(config):
    model = LanguageModel(config)

    def loss_of(tokens):
        return next_token_loss(model(tokens[:, :-1])[0], tokens[:, 1:])

    compiled = torch.compile(loss_of, fullgraph=True, backend=BACKEND)
    for length in (100, 77):
        tokens = torch.randint(0, 50, (2, length))
        torch._dynamo.mark_dynamic(tokens, 1)  # code for one length only is an error
        found, wanted = (torch.autograd.grad(f(tokens), list(model.parameters())) for f in (compiled, loss_of))
        assert_close(found, wanted, rtol=1e-3, atol=1e-4)


for name in NAMES:
    torch.manual_seed(0)
    torch.compiler.reset()
    check_mixer(MIXERS[name])
    print(name, flush=True)
torch.compiler.reset()
inductor.cpp.simdlen = 1  # with lengths that change, most of the time would go into the choice of vectors
build = memory_mosaic if BACKEND == "inductor" else transformer
check_model(build(width=32, blocks=1, heads=4, vocabulary=50, context=128))
print(f"{len(NAMES)} mixers and a language model agree")

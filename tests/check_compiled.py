"""torch.compile(fullgraph=True) of every mixer: values, gradients, a step from a state, a padded call."""

import torch
from torch.testing import assert_close

from mixers_under_contract import MIXERS, WIDTH


def numbers(mixer, x, state, mask):
    y, new_state = mixer(x, state, mask)
    gradients = torch.autograd.grad(y.square().sum(), list(mixer.parameters()), allow_unused=True)
    return y, new_state, [g for g in gradients if g is not None]


for name, config in MIXERS.items():
    torch.manual_seed(0)
    torch.compiler.reset()
    mixer = config.build(WIDTH)
    compiled = torch.compile(mixer, fullgraph=True)
    x, mask = torch.randn(2, 40, WIDTH), torch.arange(40) >= torch.tensor([[0], [9]])
    _, state = mixer(x)
    state = tuple(tensor.detach() for tensor in state)
    for inputs in ((x, None, None), (x, None, mask), (x[:, :1], state, None)):
        assert_close(numbers(compiled, *inputs), numbers(mixer, *inputs), rtol=1e-4, atol=1e-4)
    print(name, flush=True)
print(f"{len(MIXERS)} mixers agree")

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
from memory_mosaics.testing import check_compile
from mixers_under_contract import MIXERS, WIDTH

BACKEND, *NAMES = sys.argv[1:]


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
    check_compile(MIXERS[name], width=WIDTH, bias=False, backend=BACKEND)
    print(name, flush=True)
torch.compiler.reset()
inductor.cpp.simdlen = 1  # with lengths that change, most of the time would go into the choice of vectors
build = memory_mosaic if BACKEND == "inductor" else transformer
check_model(build(width=32, blocks=1, heads=4, vocabulary=50, context=128))
print(f"{len(NAMES)} mixers and a language model agree")

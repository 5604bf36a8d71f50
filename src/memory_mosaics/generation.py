"""Text from a model, one token at a time on its state. Knows ids, not text."""

import torch
from torch import Tensor

from memory_mosaics.language_model import LanguageModel
from memory_mosaics.shapes import Int


@torch.no_grad()
def sample(
    model: LanguageModel,
    prompt: Int[Tensor, " T"],
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    end: int | None = None,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " N"]:
    """At most `length` tokens that continue the prompt, up to but without the token `end`. Temperature 0 is greedy.

    A model with a table of positions stops where the table ends.
    """
    length = length if model.longest is None else min(length, model.longest - len(prompt))
    device = model.embedding.weight.device
    training = model.training
    model.eval()
    tokens, state = prompt[None].to(device), None
    continuation: list[int] = []
    while len(continuation) < length:
        logits, state = model(tokens, state)
        token = _draw(logits[0, -1].float().cpu(), temperature, top_k, generator)
        if token == end:
            break
        continuation.append(token)
        tokens = torch.tensor([[token]], device=device)
    model.train(training)
    return torch.tensor(continuation, dtype=torch.long)


def _draw(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> int:
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], float("-inf"))
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))

"""What RegBench gives to predictors that need no training: a scale to read a model's scores by.

An in-context n-gram predicts from what followed the last n - 1 letters earlier in the same sequence. A model with the
scores of order 1 knows the letters of a language and no more; order 2 is what induction over one letter gives.

    order       1    2    3    4    uniform
    accuracy  .48  .83  .93  .95        .10
    distance  .62  .33  .26  .27        .90
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from memory_mosaics.errors import UserError
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.tasks.regbench import IGNORED, PADDING, SEPARATOR, VOCABULARY, Scores, Sequences, compare

ORDERS = 4
V = len(VOCABULARY)


def anchors(sequences: Sequences, *, size: int = 16) -> dict[str, Scores]:
    """The scores of all predictors here. The uniform one has no favourite: its accuracy is that of a random token."""
    found = {"uniform": Scores()} | {f"{order}-gram": Scores() for order in range(1, ORDERS + 1)}
    by_length = (sequences.tokens != PADDING).sum(axis=1).argsort().tolist()  # so that little padding is counted over
    for portion in sequences.portions(size):
        numbers = by_length[portion.start : portion.stop]
        legal = sequences.legal(numbers)
        legal = legal[:, : int(legal.any(dim=-1).sum(dim=1).max())]
        inputs = sequences.at(numbers).inputs[:, : legal.shape[1]]
        for name, probabilities in zip(found, [uniform(inputs), *ngrams(inputs, ORDERS)], strict=True):
            found[name] += compare(probabilities, legal)
    positions, distance = found["uniform"].positions, found["uniform"].distance
    return found | {"uniform": Scores(positions, positions - distance, distance)}


def uniform(inputs: Int[Tensor, "B T"]) -> Float[Tensor, "B T vocabulary"]:
    """Every token as likely as any other, padding and separator included."""
    return torch.full((*inputs.shape, V), 1 / V, device=inputs.device)


def ngrams(inputs: Int[Tensor, "B T"], highest: int) -> list[Float[Tensor, "B T vocabulary"]]:
    """The probabilities of the next token by the counts of this sequence so far, for all orders from 1 to the highest.

    A letter seen after the context c, the last n - 1 letters, has the probability count(c letter) / count(c), where
    count(c) includes the c at hand and those at the end of strings. What is left goes to the letters not seen after c
    but elsewhere, in proportion to the estimate of the next lower order. The first letters of a string have blanks
    before them. Where all letters were seen after c, the rest is nobody's and the probabilities sum to less than 1.
    """
    if not 1 <= highest <= ORDERS:
        raise UserError(f"the order of an n-gram must be 1 to {ORDERS}, not {highest}")
    text = F.pad(inputs, (1, 0), value=SEPARATOR)  # the first string begins like all others
    letters = F.one_hot(text, V)[:, :, 1:SEPARATOR].float()
    following = F.pad(letters[:, 1:], (0, 0, 0, 1))
    times = letters.cumsum(dim=1)
    estimates = [times / times.sum(dim=-1, keepdim=True).clamp(min=1)]
    for length in range(1, highest):
        context = _contexts(text, length).int()
        again = (context[:, :, None] == context[:, None, :]).float().tril_()  # (B, now, then)
        followed = again @ following - following  # what follows now is not known yet
        seen = followed / again.sum(dim=-1, keepdim=True)
        others = estimates[-1].where((times > 0) & (followed == 0), 0)
        left = (1 - seen.sum(dim=-1, keepdim=True)) / others.sum(dim=-1, keepdim=True).clamp(min=1e-30)
        estimates.append(seen + left * others)
    return [F.pad(estimate[:, 1:], (1, 1)) for estimate in estimates]


def _contexts(text: Int[Tensor, "B T"], length: int) -> Int[Tensor, "B T"]:
    """The last letters of the string under way, at each position, as one number. Blanks, where it is shorter, are 0."""
    number, inside = torch.zeros_like(text), torch.ones_like(text, dtype=torch.bool)
    for back in range(length):
        token = F.pad(text, (back, 0), value=SEPARATOR)[:, : text.shape[1]]
        inside = inside & (token != SEPARATOR)
        number = number * V + token.where(inside, 0)
    return number


def oracle_loss(targets: Int[Tensor, "B T"], legal: Bool[Tensor, "B T vocabulary"]) -> Float[Tensor, ""]:
    """The cross-entropy of one who knows the automata, in nats a target: no model can do better."""
    return legal.sum(dim=-1)[targets != IGNORED].float().log().mean()

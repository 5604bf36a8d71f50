"""How many operations training takes, counted from the model: what MFU divides by."""

from torch import nn

from memory_mosaics.language_model import LanguageModel
from memory_mosaics.memory import ContextualMemory, PersistentMemory
from memory_mosaics.mixers.attention import Attention
from memory_mosaics.mixers.lstm import LSTM


def training_flops(model: LanguageModel, time: int) -> float:
    """Operations of the forward and backward pass for one token of a sequence of `time` tokens.

    A number of a matrix is multiplied and added once forward and twice backward: 6 a token. So is a number of a
    persistent slot, for every query is compared with every stored key and takes its share of every stored value. A
    pair that a query sees in its context has 2 W numbers, key and value, over all heads: 12 W.

    Only what the mathematics asks for counts: not what is masked, nor what a kernel computes again, nor norms, leaky
    averages and the optimiser, which are linear in the width. Of recurrences and long convolutions it is the matrices.
    """
    return 6 * matrices(model) + 12 * model.config.width * pairs_seen(model, time)


def matrices(model: LanguageModel) -> int:
    """Numbers of all matrices and slots. An embedding is a table, and counts where it is the output matrix too."""
    linear = sum(module.weight.numel() for module in model.modules() if isinstance(module, nn.Linear))
    linear += sum(
        weight.numel()
        for module in model.modules()
        if isinstance(module, LSTM)
        for weight in module.parameters()
        if weight.ndim == 2
    )
    slots = sum(
        module.keys.numel() + module.values.numel()
        for module in model.modules()
        if isinstance(module, PersistentMemory)
    )
    return linear + slots + (model.output.numel() if model.head is None else 0)


def pairs_seen(model: LanguageModel, time: int) -> float:
    """Stored pairs that a query sees in its context: the mean over time, the sum over layers."""
    seen = 0.0
    for module in model.modules():
        if isinstance(module, ContextualMemory | Attention):
            ahead = module.value.peek if isinstance(module, ContextualMemory) else 0
            last = max(time - ahead, 0)  # query t sees t + 1 - ahead pairs
            seen += last * (last + 1) / 2 / time
    return seen

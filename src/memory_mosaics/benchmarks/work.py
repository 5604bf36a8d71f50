"""What one block of a model computes and keeps per token, counted from its parts without allocating or computing.

A block runs forward once on the meta device. Matrix products are counted by their shapes as they are dispatched, and
retrievals, of memories of any kind and of attention, by the pairs that their queries see. Saved are the tensors that
autograd keeps for the backward pass and that a product, a retrieval or an extractor has read or written: what lies
between is computed again by a compiled model.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memory_mosaics import stores
from memory_mosaics.config import to_plain
from memory_mosaics.extractors import Extractor, LeakyAverage
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig, weight_count, weight_shapes, without_state
from memory_mosaics.ops.contextual_recall import MAX_LENGTH

PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # the argument that is the left factor
ENOUGH = 256  # tokens: a mixer that retrieves nothing does the same for each, perhaps one after the other
HALF = 2  # bytes of a number in 16 bits
RESIDUAL = 4  # bytes of the residual stream, in float32


@dataclass(frozen=True)
class Recall:
    """One retrieval: forward operations per token, pairs that a query sees on average, and what it reads."""

    flops: float
    pairs: float
    head_width: int
    persistent: bool


@dataclass(frozen=True)
class Work:
    """Per token and block: forward operations of products, retrievals, numbers from extractors, bytes saved."""

    config: LanguageModelConfig
    parameters: int
    block_parameters: int
    matrices: int  # of these, those in products, which are cast to 16 bits
    products: float
    matrix_products: float  # of these, those with matrices of weights: not those inside recurrences and convolutions
    recalls: tuple[Recall, ...]
    extractors: dict[str, float]
    saved: float
    mixer: str  # the sequence mixer and its positions, as in `Rates.mixers`

    @property
    def head_flops(self) -> float:
        """Forward operations of the output matrix per token."""
        return 2.0 * self.config.width * self.config.vocabulary

    @property
    def training_flops(self) -> float:
        """Operations of the forward and backward pass per token, without what is computed again."""
        return self._training_flops(self.products)

    @property
    def model_flops(self) -> float:
        """The same of what the mathematics requires: of recurrences and long convolutions, their matrices only."""
        return self._training_flops(self.matrix_products)

    def _training_flops(self, products: float) -> float:
        block = products + sum(recall.flops for recall in self.recalls)
        return 3 * (self.config.blocks * block + self.head_flops)


class _Counter(TorchDispatchMode):
    """Counts products, and remembers which tensors they read and write."""

    def __init__(self, weights: Iterable[Tensor]) -> None:
        super().__init__()
        self.flops = self.matrix_flops = 0.0
        self.weights = {_storage(weight): weight for weight in weights}  # and what is computed from weights alone
        self.modules: list[nn.Module] = []  # that run now, the innermost last
        self.recalls: list[Recall] = []
        self.extractors: dict[str, float] = {}
        self.kept: dict[int, Tensor] = {}  # by storage: saved by autograd, or by a retrieval
        self.edges: dict[int, Tensor] = {}  # read or written by a product, a retrieval or an extractor

    def edge(self, *tensors: Tensor, saved: bool = False) -> None:
        for tensor in tensors:
            self.edges[_storage(tensor)] = self.keep(tensor) if saved else tensor

    def keep(self, tensor: Tensor) -> Tensor:
        return self.kept.setdefault(_storage(tensor), tensor)

    def numbers(self, tensors: dict[int, Tensor], *, weights: bool) -> int:
        """Count the numbers of those of the tensors that products, retrievals and extractors read or write."""
        chosen = [one for key, one in tensors.items() if key in self.edges and (key in self.weights) is weights]
        return sum(one.untyped_storage().nbytes() // one.element_size() for one in chosen)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        first = PRODUCTS.get(func.overloadpacket.__name__)
        inside = self.modules[-1] if self.modules else None
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if isinstance(output, Tensor) and all(_storage(each) in self.weights for each in tensors):
            self.weights.setdefault(_storage(output), output)
        if first is not None and not isinstance(inside, Extractor):  # an average over time has kernels of its own
            left, right = args[first : first + 2]
            flops = 2.0 * output.numel() * left.shape[-1]
            self.flops += flops
            if output.ndim == 2 and (_storage(left) in self.weights) != (_storage(right) in self.weights):
                self.matrix_flops += flops
            self.edge(left, right)
            outer = self.modules[-2] if len(self.modules) > 1 else None
            if not isinstance(outer, LeakyAverage):  # whose backward pass needs the keys and not what was averaged
                self.edge(output)
        return output

    def recall(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        sharpness: Any = 1.0,
        *,
        causal_offset: int | None = None,
        window: int | None = None,
        copies: bool = True,
        **_: Any,
    ) -> Tensor:
        """Count a retrieval and return answers that nobody computed. Queries that are keys are shifted `copies`."""
        B, T, H, D = queries.shape
        pairs, persistent = keys.shape[1], causal_offset is None
        ends = [pairs] * T if causal_offset is None else [min(max(t + causal_offset, 0), pairs) for t in range(T)]
        seen = sum(ends if window is None else (min(end, window) for end in ends)) / T
        self.recalls.append(Recall(2.0 * B * H * T * seen * (D + values.shape[-1]), seen, D, persistent))
        answers = queries.new_empty(B, T, H, values.shape[-1]).requires_grad_() * 1
        self.edge(keys, values, answers, saved=True)
        self.edge(queries.clone() if copies and _storage(queries) == _storage(keys) else queries, saved=True)
        return answers

    def contextual_recall(self, keys: Tensor, values: Tensor, sharpness: Any = 1.0) -> Tensor:
        """The same where the queries are the keys, without a copy of them where there is a kernel."""
        fused = keys.shape[1] <= MAX_LENGTH.get(keys.shape[-1], 0)
        return self.recall(keys, keys, values, causal_offset=0, copies=not fused)

    def leave(self, module: nn.Module, output: Any) -> None:
        self.modules.pop()
        if isinstance(module, Extractor):
            name = type(module).__name__
            self.extractors[name] = self.extractors.get(name, 0.0) + output[0].numel()
            self.edge(output[0])


@contextmanager
def _hooked(counter: _Counter, model: nn.Module) -> Iterator[None]:
    hooks: list[Any] = []
    for module in model.modules():
        hooks.append(module.register_forward_pre_hook(lambda module, _: counter.modules.append(module)))
        hooks.append(module.register_forward_hook(lambda module, _, output: counter.leave(module, output)))
    ops = {name: getattr(stores, name) for name in ("recall", "contextual_recall")}
    for name in ops:
        setattr(stores, name, getattr(counter, name))
    try:
        with counter, torch.autograd.graph.saved_tensors_hooks(counter.keep, lambda tensor: tensor):
            yield
    finally:
        for name, op in ops.items():
            setattr(stores, name, op)
        for hook in hooks:
            hook.remove()


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


@lru_cache(maxsize=256)
def count_work(config: LanguageModelConfig) -> Work:
    """Count the work of training a model on sequences of its context."""
    if config.context > ENOUGH:
        short = count_work(replace(config, context=ENOUGH))
        if all(recall.persistent for recall in short.recalls):
            return replace(short, config=config, parameters=weight_count(config))
    W = config.width
    N = config.context * (W // config.context + 1)  # tokens, of more than one row where fewer would be few for a matrix
    with torch.device("meta"):
        model, x = LanguageModel(replace(config, blocks=1)).train(), torch.zeros(N // config.context, config.context, W)
        counter = _Counter(model.parameters())
        with _hooked(counter, model):
            without_state(model.blocks[0], x.requires_grad_(), None, None)
    mixers = 1 + (config.channel_mixer is not None)
    dropout = config.dropout if config.residual_dropout is None else config.residual_dropout
    # The block's input in float32, what all mixers but the last add to it in 16 bits, a mask of dropout for each.
    residual = W * (RESIDUAL + HALF * (mixers - 1) + (mixers if dropout else 0))
    shapes = weight_shapes(replace(config, blocks=1))
    block = sum(prod(shape) for name, shape in shapes.items() if name.startswith("blocks.0."))
    mixer = to_plain(config)["sequence_mixer"]
    return Work(
        config=config,
        parameters=sum(map(prod, shapes.values())) + (config.blocks - 1) * block,
        block_parameters=block,
        matrices=counter.numbers(counter.weights, weights=True),
        products=counter.flops / N,
        matrix_products=counter.matrix_flops / N,
        recalls=tuple(replace(recall, flops=recall.flops / N) for recall in counter.recalls),
        extractors={name: numbers / N for name, numbers in counter.extractors.items()},
        saved=HALF * counter.numbers(counter.kept, weights=False) / N + residual,
        mixer=" ".join(filter(None, (mixer["part"], (mixer.get("position") or {}).get("part")))),
    )

"""One language model for every architecture: embedding, blocks, logits.

A block is norm, sequence mixer, norm, channel mixer, each with a residual (figure 6 of the paper). In a Memory Mosaic
the mixers are contextual and persistent memories, in GPT-2 attention and a feed-forward network; nothing else differs.
The model has the contract of its parts: `logits, state = model(tokens, state=None, mask=None)`. With `starts`, True at
the first token of each document, it reads the documents of a row apart (documents.py).
"""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from functools import lru_cache, partial
from math import inf, prod
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memory_mosaics.config import (
    MixerConfig,
    NormConfig,
    Part,
    PositiveInt,
    check_choices,
    check_sizes,
    from_plain,
    part,
)
from memory_mosaics.documents import read_documents
from memory_mosaics.errors import UserError, check_range, within_memory
from memory_mosaics.norms import LayerNormConfig
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.ops.cross_entropy import linear_cross_entropy
from memory_mosaics.runtime import check_memory
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.stores import Inputs, Mask, Outputs, RetrievalMixer, State, Store, tokens_at_once

MAX_BLOCKS = 4096  # building a block takes milliseconds at any size
GAIN = 0.025 * 384**0.5  # of matrices without a norm after them: tuned at width 384, docs/LOG.md

BlockFn = Callable[..., tuple[Tensor, Any]]  # of a block and its inputs x, state and mask
Init = Literal["default", "as-built", "pytorch", "gpt2", "gpt2-channel", "authors", "v2"]


@part("language_model")
class LanguageModelConfig(Part):
    """The parts and sizes of a model, checked before anything is built."""

    vocabulary: PositiveInt
    width: PositiveInt
    blocks: PositiveInt
    sequence_mixer: MixerConfig
    channel_mixer: MixerConfig | None = None
    positions: MixerConfig | None = None
    context: PositiveInt = 512  # training length; a Memory Mosaic accepts longer sequences
    dropout: float = 0.0  # of the weights of attention and memories, and of what each mixer adds to the residual
    residual_dropout: float | None = None  # of what each mixer adds, where it differs from `dropout`
    embedding_dropout: float = 0.0
    bias: bool = False
    tied: bool = True  # the embedding is also the output matrix
    norm_placement: Literal["pre", "post"] = "pre"  # "post": the residual, too, is the normalised x
    block: Literal["residual", "bare"] = "residual"  # "bare": the sequence mixer alone, without norm and residual
    norm: NormConfig = LayerNormConfig()  # of the blocks, and of the output unless that has another
    output_norm: NormConfig | None = None
    init: Init = "default"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(1, MAX_BLOCKS, blocks=self.blocks)
        check_choices(self)
        check_sizes(self)
        for name in ("dropout", "residual_dropout", "embedding_dropout"):
            if not 0 <= (getattr(self, name) or 0) < 1:
                raise ValueError(f"{name} must be in [0, 1), not {getattr(self, name)}")
        if self.block == "bare":
            unused = {"channel_mixer": None, "residual_dropout": None, "norm_placement": "pre"}
            for name, without in unused.items():
                if getattr(self, name) != without:
                    raise ValueError(f"a bare block has no {name.replace('_', ' ')}; leave it out")

    def build(self) -> "LanguageModel":
        return LanguageModel(self)


class Block(nn.Module):
    """x + sequence mixer, then x + channel mixer, each on a norm of x. State: the two mixers' states.

    With post-norm x itself is normalised first, norm(x) + mixer(norm(x)), so that every sum but the last has a norm
    after it; the last has the model's. A bare block is its sequence mixer: no norm, no residual, no channel mixer.
    """

    def __init__(self, config: LanguageModelConfig):
        super().__init__()
        build: dict[str, Any] = {"dropout": config.dropout, "bias": config.bias}
        norm = partial(config.norm.build, config.width, bias=config.bias)
        self.sequence_norm = norm() if config.block == "residual" else None
        self.sequence_mixer = config.sequence_mixer.build(config.width, **build)
        self.channel_norm = self.channel_mixer = None
        if config.channel_mixer is not None:
            self.channel_norm = norm()
            self.channel_mixer = config.channel_mixer.build(config.width, **build)
        self.dropout = config.dropout if config.residual_dropout is None else config.residual_dropout
        self.post_norm = config.norm_placement == "post"

    def forward(self, x: Inputs, state: State | None = None, mask: Mask = None) -> Outputs:
        sequence_state, channel_state = state or (None, None)
        x, sequence_state = self._mix(self.sequence_mixer, self.sequence_norm, x, sequence_state, mask)
        if self.channel_mixer is None:
            return x, (sequence_state, ())
        x, channel_state = self._mix(self.channel_mixer, self.channel_norm, x, channel_state, mask)
        return x, (sequence_state, channel_state)

    def _mix(self, mixer: nn.Module, norm: nn.Module | None, x: Tensor, state: State | None, mask: Mask) -> Outputs:
        if norm is None:  # a bare block
            return mixer(x, state, mask)
        normed = norm(x)
        y, new_state = mixer(normed, state, mask)
        return (normed if self.post_norm else x) + F.dropout(y, self.dropout, self.training), new_state


class LanguageModel(nn.Module):
    """Logits of the next token. State: that of the positions, then one per block."""

    init_roles: ClassVar = {"head": "embedding"}

    def __init__(self, config: LanguageModelConfig):
        super().__init__()
        self.config = config
        has_values = torch.get_default_device().type != "meta"
        if has_values:
            _check_memory(config)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.positions = config.positions.build(config.width) if config.positions else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.norm = (config.output_norm or config.norm).build(config.width, bias=config.bias)
        self.head = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        self.gradient_checkpointing = False  # recompute each block in the backward pass: more time, less memory
        self._gradient_checkpointing_func: Callable[..., Any] = partial(checkpoint, use_reentrant=False)
        if config.init != "as-built" and has_values:
            initialise(self)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        state: tuple | None = None,
        mask: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Float[Tensor, "B T vocabulary"], tuple]:
        features, state = self.features(self.embedding(tokens), state, mask, starts=starts)
        return self.logits(features), state

    def features(
        self,
        x: Inputs,
        state: State | None = None,
        mask: Tensor | None = None,
        *,
        starts: Tensor | None = None,
        keep_state: bool = True,
        block_fn: BlockFn | None = None,
    ) -> Outputs:
        """From embeddings to the input of the output matrix; `block_fn(block, x, state, mask)` runs each block.

        Without `keep_state`, documents that start within a row leave no state, which saves reading the last ones twice.
        """
        for name, given in (("mask", mask), ("starts", starts)):
            if given is not None and (given.dtype != torch.bool or given.shape != x.shape[:2]):
                raise ValueError(f"{name} must be {tuple(x.shape[:2])} bool, not {tuple(given.shape)} {given.dtype}")
        if starts is not None:
            if state is not None and tokens_at_once(state) < inf:
                raise ValueError("a bounded store does not forget at the start of a document: leave out starts")
            read = partial(self.features, block_fn=block_fn)
            # Processes that share a model wait for each other's calls.
            sharded = hasattr(next(self.blocks.parameters(), None), "full_tensor")
            return read_documents(read, x, state, mask, starts=starts, keep_state=keep_state, by_length=not sharded)
        first = []
        while state is not None and x.shape[1] > (some := tokens_at_once(state)):  # stores are evicted in between
            near = None if mask is None else mask[:, :some]
            features, state = self._features(x[:, :some], state, near, block_fn)
            first.append(features)
            x, mask = x[:, some:], None if mask is None else mask[:, some:]
        features, state = self._features(x, state, mask, block_fn)
        return (torch.cat([*first, features], dim=1) if first else features), state

    def _features(self, x: Inputs, state: State | None, mask: Tensor | None, block_fn: BlockFn | None) -> Outputs:
        position_state, *block_states = state or (None,) * (1 + len(self.blocks))
        if self.positions is not None:
            x, position_state = self.positions(x, position_state, mask)
        x = F.dropout(x, self.config.embedding_dropout, self.training)
        states: list[Any] = [position_state or ()]
        block_fn = self.run_block if block_fn is None else block_fn
        for block, block_state in zip(self.blocks, block_states, strict=True):
            x, block_state = block_fn(block, x, block_state, mask)
            states.append(block_state)
        return self.norm(x), tuple(states)

    def loss(
        self,
        inputs: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"],
        *,
        starts: Bool[Tensor, "B T"] | None = None,
        block_fn: BlockFn | None = None,
    ) -> Float[Tensor, ""]:
        """Mean cross-entropy of a batch, without states; on CUDA without ever storing all logits."""
        features, _ = self.features(self.embedding(inputs), starts=starts, keep_state=False, block_fn=block_fn)
        return linear_cross_entropy(features.flatten(0, 1), self.output, targets.flatten())

    def run_block(self, block: nn.Module, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        """Apply a block, with gradient checkpointing if enabled."""
        recompute = self.gradient_checkpointing and self.training
        return (self._gradient_checkpointing_func if recompute else nn.Module.__call__)(block, x, state, mask)

    def empty_state(self, store: Store | None) -> State | None:
        """A state that has read nothing, for memories that store their pairs in such a store; None: all, exactly."""
        if store is None:
            return None
        mixers: list[Any] = [block.sequence_mixer for block in self.blocks]
        for mixer in mixers:
            if not isinstance(mixer, RetrievalMixer):
                raise UserError(
                    f"{type(mixer).__name__} has no memories; a store is for the contextual ones of a model"
                )
        return (), *((mixer.empty_state(store), None) for mixer in mixers)

    def to_fixed_capacity(self, state: tuple, capacity: int) -> tuple:
        """The same state with a fixed capacity of tokens, to continue one token at a time in place."""

        def fixed(mixer: Any, state: State) -> State:  # the state of some mixers does not grow
            return mixer.to_fixed_capacity(state, capacity) if hasattr(mixer, "to_fixed_capacity") else state

        states = []
        for block, (sequence_state, channel_state) in zip(self.blocks, state[1:], strict=True):
            states.append((fixed(block.sequence_mixer, sequence_state), fixed(block.channel_mixer, channel_state)))
        return state[0], *states

    @property
    def max_positions(self) -> int | None:
        """The largest sequence length, or None without a limit."""
        return getattr(self.positions, "max_positions", None)

    def logits(self, features: Float[Tensor, "*B W"]) -> Float[Tensor, "*B vocabulary"]:
        return F.linear(features, self.output)

    @property
    def output(self) -> Float[Tensor, "vocabulary W"]:
        """The output matrix."""
        return self.embedding.weight if self.head is None else self.head.weight


def weight_shapes(config: LanguageModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of a model's weights by name, from one block on the meta device."""
    with torch.device("meta"), within_memory("the model is too large for any machine"):
        first = LanguageModel(replace(config, blocks=1)).state_dict()
    shapes = {}
    for name, tensor in first.items():
        copies = range(config.blocks) if name.startswith("blocks.0.") else (0,)
        shapes |= {name.replace("blocks.0.", f"blocks.{block}.", 1): tuple(tensor.shape) for block in copies}
    return shapes


def weight_count(config: LanguageModelConfig) -> int:
    """Number of parameters of a model, without building it."""
    return (_cached_weight_count if _is_fixed(config) else _count_weights)(config)


def _is_fixed(config: Any) -> bool:
    """Whether all parts are of this package: those of a user may change, or build another module, under one name."""
    parts = [value for value in vars(config).values() if is_dataclass(value)]
    return type(config).__module__.startswith("memory_mosaics.") and all(map(_is_fixed, parts))


def _count_weights(config: LanguageModelConfig) -> int:
    return sum(map(prod, weight_shapes(config).values()))


# Counting takes as long as building a small model does, and it is done several times for each.
_cached_weight_count = lru_cache(maxsize=1024)(_count_weights)


def _check_memory(config: LanguageModelConfig) -> None:
    """Raise an error if the weights do not fit into memory, before any is allocated."""
    try:
        count = weight_count(config)
    except UserError:
        raise
    except Exception:  # parts that do not fit together or cannot be built on the meta device: building raises the error
        return
    what = f"a model of {count:,} parameters"
    check_memory(what, count * torch.get_default_dtype().itemsize, torch.get_default_device())


def without_state(block: nn.Module, x: Tensor, state: None, mask: None) -> tuple[Tensor, tuple]:
    """A `block_fn` that computes no state of the block."""
    return block(x)[0], ()


def last_hidden_state(
    model: Any, tokens: Int[Tensor, "B T"], starts: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, "B T width"]:
    """Return the input of the output matrix for a batch of whole texts, without states."""
    options = {} if starts is None else {"starts": starts, "keep_state": False}
    return model.features(model.embedding(tokens), **options, block_fn=without_state)[0]


def next_token_loss(logits: Float[Tensor, "B T vocabulary"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean cross-entropy in nats over targets other than -100, which PyTorch ignores."""
    return F.cross_entropy(at_least_fp32(logits.flatten(0, 1)), targets.flatten())


@contextmanager
def mixer_inputs(model: LanguageModel) -> Iterator[list[tuple[int, str, RetrievalMixer, tuple]]]:
    """Within, collect the inputs of every mixer that retrieves: block number, "sequence" or "channel", the mixer, and
    its inputs x, state and mask.
    """
    inputs, hooks = [], []
    for number, block in enumerate(model.blocks):
        for kind in ("sequence", "channel"):
            mixer = getattr(block, f"{kind}_mixer")
            if isinstance(mixer, RetrievalMixer):
                see = lambda mixer, given, number=number, kind=kind: inputs.append((number, kind, mixer, given))  # noqa: E731
                hooks.append(mixer.register_forward_pre_hook(see))
    try:
        yield inputs
    finally:
        for hook in hooks:
            hook.remove()


Roles = dict[Any, str]  # by module
TORCH_ROLES = {nn.Linear: "hidden", nn.Embedding: "embedding"}  # of PyTorch's modules, unless their owner declares one
MATRICES = ("hidden", "normalised", "residual", "embedding")


def initialise(model: LanguageModel) -> None:
    """Draw a model's initial values: the default ones, then those of the scheme that its config names.

    Modules set in their own `reset_parameters` what depends on nothing but themselves. What depends on the whole model
    they declare by role in `init_roles`, for themselves ("") or for modules they hold: a map before a norm is
    "normalised", one whose output is added to the residual "residual", any other "hidden". A module whose values depend
    on its depth has `reset_at_depth(layer, layers)`. docs/LOG.md has what was tried.
    """
    declared: Roles = {}
    for module in model.modules():
        own = (role for kind, role in TORCH_ROLES.items() if isinstance(module, kind))
        declared.setdefault(module, next(own, ""))
        for name, role in getattr(module, "init_roles", {}).items():
            declared[getattr(module, name) if name else module] = role
    roles = {module: declared[module] for module in model.modules()}
    for scheme in dict.fromkeys(("default", model.config.init)):
        SCHEMES[scheme](model, roles)
    for layer, block in enumerate(model.blocks):
        for module in block.modules():
            if hasattr(module, "reset_at_depth"):
                module.reset_at_depth(layer, len(model.blocks))  # type: ignore[operator]


def _default(model: LanguageModel, roles: Roles) -> None:
    """Matrices have standard deviation gain / sqrt(inputs). The gain is 1 before a norm, as in the authors' code, and
    about a half elsewhere: 0.018 at GPT-2's width, where GPT-2 has 0.02. Embeddings and the output matrix have 0.02 at
    any width, and so have residual maps, divided by sqrt(2 blocks) since their outputs add up.
    """
    residual = 0.02 / (2 * len(model.blocks)) ** 0.5
    for module, role in roles.items():
        if role in ("slots", "taps"):
            module.reset_parameters()
        elif role in MATRICES:
            inputs = module.weight.shape[1]
            stds = {"hidden": GAIN / inputs**0.5, "normalised": 1 / inputs**0.5, "residual": residual}
            nn.init.normal_(module.weight, std=stds.get(role, 0.02))
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)


def _pytorch(model: LanguageModel, roles: Roles) -> None:
    """PyTorch's own matrices and embeddings, as in Bietti et al. 2023."""
    for module, role in roles.items():
        if role in MATRICES:
            module.reset_parameters()


def _gpt2(model: LanguageModel, roles: Roles, *, scale_sequence_mixers: bool = True) -> None:
    """All matrices 0.02, residual maps divided by sqrt(2 blocks), as in RegBench's baselines."""
    mixers: list[Any] = [] if scale_sequence_mixers else [block.sequence_mixer for block in model.blocks]
    unscaled = {module for mixer in mixers for module in mixer.modules()}
    for module, role in roles.items():
        if role in MATRICES:
            scaled = role == "residual" and module not in unscaled
            nn.init.normal_(module.weight, std=0.02 / (2 * len(model.blocks)) ** 0.5 if scaled else 0.02)


def _authors(model: LanguageModel, roles: Roles) -> None:
    """The authors' for RegBench, which memorise less than this library's: slots of unit norm, matrices 1/sqrt(inputs),
    divided by sqrt(blocks) where they are residual maps; beta is e^2, other scales are e^-1/2.
    """
    module: Any
    for module, role in roles.items():
        if role in MATRICES:
            depth = len(model.blocks) ** 0.5 if role == "residual" else 1
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5 / depth)
        elif role == "slots":
            for slots in (module.keys, module.values):
                nn.init.normal_(slots, std=slots.shape[-1] ** -0.5)
        elif role in ("sharpness", "scale"):
            module.set(torch.full_like(module.theta, math.e**2 if role == "sharpness" else math.e**-0.5))


def _v2(model: LanguageModel, roles: Roles) -> None:
    """Those of Memory Mosaics v2: normal, clipped at three standard deviations, which are 1 / sqrt(2 width) for
    embeddings and the output, divided in block l by sqrt(l + 1), and 1 / sqrt(2 hidden (l + 1)) after the hidden units.
    """
    width, fans = model.config.width, {}
    for layer, block in enumerate(model.blocks):
        hidden = set(block.channel_mixer.modules()) if isinstance(block.channel_mixer, nn.Module) else set()
        for module in block.modules():
            last: Any = module if module in hidden and roles[module] == "residual" else None
            fans[module] = width if last is None else last.weight.shape[1], layer + 1
    module: Any
    for module, role in roles.items():
        if role in MATRICES:
            fan, depth = fans.get(module, (width, 1))
            std = (2 * fan * depth) ** -0.5
            nn.init.trunc_normal_(module.weight, std=std, a=-3 * std, b=3 * std)


SCHEMES: dict[str, Callable[[LanguageModel, Roles], None]] = {
    "default": _default,
    "pytorch": _pytorch,
    "gpt2": _gpt2,
    "gpt2-channel": partial(_gpt2, scale_sequence_mixers=False),
    "authors": _authors,
    "v2": _v2,
}


def parameter_count(model: LanguageModel) -> dict[str, int]:
    """Parameters by part, and in total."""
    parts = {"embedding": 0, "positions": 0, "sequence mixers": 0, "channel mixers": 0, "norms": 0, "head": 0}
    for name, parameter in model.named_parameters():
        mixer = re.search(r"\.(sequence|channel)_mixer\.", name)
        kind = f"{mixer[1]} mixers" if mixer else "norms" if "norm" in name else name.split(".")[0]
        parts[kind] += parameter.numel()
    return parts | {"total": sum(parts.values())}


def config_from_plain(plain: dict[str, Any]) -> LanguageModelConfig:
    """The inverse of `to_plain`; raises ValueError on an unknown field or part."""
    return from_plain(LanguageModelConfig, plain)

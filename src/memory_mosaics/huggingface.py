"""Hugging Face adapter: one configuration, one cache and one model class for every architecture.

Importing this module registers the Auto classes. Then `AutoModelForCausalLM.from_pretrained(folder)` loads what
`memory_mosaics.checkpoint.save` wrote, `memory_mosaics.checkpoint.load` loads what `save_pretrained` wrote, and
`generate`, `pipeline` and `Trainer` work as with any other model.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache
from transformers.configuration_utils import PreTrainedConfig
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import can_return_tuple

from memory_mosaics.checkpoint import MODEL_TYPE, check_weight_files, read_config, weight_files
from memory_mosaics.config import to_plain
from memory_mosaics.errors import CheckpointError
from memory_mosaics.files import check_manifest
from memory_mosaics.language_model import (
    LanguageModel,
    LanguageModelConfig,
    config_from_plain,
    mixer_inputs,
    weight_shapes,
)
from memory_mosaics.models import preset
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.parameters import fp32_parameter_names
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.stores import RetrievalMixer, map_state

PADDING_GAP = "a row has padding between its tokens, and its memory would take it for a token; pad at the left"
LOSS_KWARGS = ("num_items_in_batch", "shift_labels", "ignore_index")  # Trainer passes the first
NO_OP_KWARGS = {"is_causal": True, "output_router_logits": False}  # transformers passes them; the model always does so
AttentionMask = Int[Tensor, "B columns"] | Bool[Tensor, "B columns"]


@no_type_check  # by jaxtyping, which does not see that the __init__ made by Hugging Face takes further keywords
class MosaicConfig(PreTrainedConfig):
    """A LanguageModelConfig as a dictionary: `MosaicConfig(language_model=to_plain(preset("memory-mosaic-12")))`.

    An unknown field or part is an error. Hugging Face's names of the sizes (`hidden_size`, ...) can be read.
    """

    model_type = MODEL_TYPE
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - Hugging Face wants a list

    language_model: dict[str, Any] = field(default_factory=lambda: to_plain(preset("memory-mosaic-tiny")))
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        misplaced = sorted(kwargs.keys() & LanguageModelConfig.__dataclass_fields__.keys())
        if misplaced:
            raise ValueError(f"{misplaced[0]!r} is a field of MosaicConfig.language_model, not of MosaicConfig itself")
        if isinstance(self.language_model, LanguageModelConfig):
            self.language_model = to_plain(self.language_model)
        self.language_model = to_plain(self.language_model_config)
        if kwargs.get("attn_implementation") is None:
            kwargs["attn_implementation"] = "eager"  # any other would forbid output_attentions
        super().__post_init__(**kwargs)

    @property
    def language_model_config(self) -> LanguageModelConfig:
        """The configuration that the model is built from."""
        return config_from_plain(self.language_model)

    @property
    def vocab_size(self) -> int:
        return self.language_model["vocabulary"]

    @vocab_size.setter
    def vocab_size(self, size: int) -> None:
        self.language_model = to_plain(replace(self.language_model_config, vocabulary=size))

    @property
    def hidden_size(self) -> int:
        return self.language_model["width"]

    @property
    def num_hidden_layers(self) -> int:
        return self.language_model["blocks"]

    @property
    def max_position_embeddings(self) -> int:
        return self.language_model["context"]


class MosaicCache(Cache):
    """The state of a LanguageModel and the padding of the tokens it has processed.

    It cannot be cropped to an earlier time: leaky averages of keys do not store their past.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.reset()

    def reset(self) -> None:
        self.state: tuple | None = None
        self.length = 0  # tokens processed, including padding
        self.left_padded = False  # some row starts with padding
        self.right_padded = False  # some row ends with padding

    def __len__(self) -> int:
        return 1  # layers; with none, `if cache` would be False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # unlimited

    @property
    def is_initialized(self) -> bool:
        return self.state is not None

    @property
    def is_croppable(self) -> bool:
        return False

    def crop(self, tokens_to_remove: int) -> NoReturn:
        raise ValueError("a MosaicCache cannot forget its last tokens; read the shorter text again without a cache")

    def reorder_cache(self, beam_idx: Int[Tensor, " rows"]) -> None:
        self._map(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_select_indices(self, indices: Int[Tensor, " rows"]) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def _map(self, function: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state = map_state(function, self.state)

    def advance(self, state: tuple, time: int) -> None:
        self.state, self.length = state, self.length + time

    def new_token_mask(self, attention_mask: AttentionMask | None, time: int) -> Bool[Tensor, "B T"] | None:
        """Return which of `time` new tokens are real; None if no row starts with padding, which is the fast path.

        Padding at the end needs no mask, since no earlier token sees it, but then no token can follow.
        """
        if self.right_padded:
            raise ValueError(PADDING_GAP)
        if attention_mask is None:
            return None
        if time > 1 or not self.length:  # a single new token is a generated one: no need to wait for the device
            self._check_mask(attention_mask, time)
        return attention_mask[:, -time:] != 0 if self.left_padded else None

    def _check_mask(self, attention_mask: AttentionMask, time: int) -> None:
        if attention_mask.ndim != 2 or attention_mask.shape[1] not in (time, self.length + time):
            shape = tuple(attention_mask.shape)
            raise ValueError(f"attention_mask has shape {shape}, but {self.length + time} tokens have been read")
        real = attention_mask != 0
        ended = (real[:, :-1] & ~real[:, 1:]).any(dim=1)
        if bool((ended & real[:, -1]).any()):
            raise ValueError(PADDING_GAP)
        self.right_padded = bool(ended.any())
        self.left_padded = self.left_padded or not bool(real[:, 0].all())


class MosaicForCausalLM(PreTrainedModel, GenerationMixin):
    """A LanguageModel with the interface of Hugging Face. All weights are those of `language_model`."""

    config: MosaicConfig
    config_class = MosaicConfig
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # and nothing else: `recall` chooses the kernel
    _is_stateful = True  # refuses assisted generation, which crops the cache
    _no_split_modules = ["Block"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012

    def __init__(self, config: MosaicConfig):
        super().__init__(config)
        self.language_model = LanguageModel(config.language_model_config)
        exact = {name.rpartition(".")[2] for name in fp32_parameter_names(self.language_model)}
        self._keep_in_fp32_modules_strict = [rf"\.{name}$" for name in sorted(exact)]
        self.loss_function = causal_loss
        self.post_init()

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """Load as any model does, but refuse a damaged checkpoint or one whose weights are not those of the model.

        `ignore_mismatched_sizes=True` loads the weights that fit; the others are initialised.
        """
        lenient, given = kwargs.get("ignore_mismatched_sizes", False), kwargs.get("state_dict") is not None
        if pretrained_model_name_or_path is not None and not given:
            folder = Path(pretrained_model_name_or_path) / (kwargs.get("subfolder") or "")
            _check_folder(folder, kwargs, lenient=lenient)
        return_report = kwargs.pop("output_loading_info", False)
        kwargs["output_loading_info"] = True
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        model, report = loaded
        if not (lenient or given):
            for kind in ("missing_keys", "unexpected_keys"):
                if names := sorted(report[kind]):
                    where = f"{pretrained_model_name_or_path}: {kind.replace('_', ' ')} {', '.join(names[:3])}"
                    raise CheckpointError(f"{where}; ignore_mismatched_sizes=True takes what fits")
        return (model, report) if return_report else model

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: AttentionMask | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Int[Tensor, " kept"] = 0,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits, the loss if labels are given, and the cache; a given cache is always updated.

        `output_hidden_states`: the input of each block, then that of the output matrix (after the last norm), as in
        GPT-2. `output_attentions`: per block the retrieval weights (B, heads, T, S) of the T new tokens on all S tokens
        so far, without dropout. A row sums to 1, or is 0 where the memory is empty.

        Other keywords may be None, those of the loss (`num_items_in_batch`, `shift_labels`, `ignore_index`), or values
        that describe what the model does anyway, such as the `position_ids` of the mask; others are a ValueError.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if not isinstance(past_key_values, MosaicCache | None):
            kind = type(past_key_values).__name__
            raise ValueError(f"past_key_values must be a MosaicCache, not a {kind}; leave it out to start a new one")
        x = self.language_model.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        cache = MosaicCache() if past_key_values is None else past_key_values
        loss_kwargs = _check_kwargs(kwargs, cache, attention_mask, x)
        mask = cache.new_token_mask(attention_mask, x.shape[1])
        hidden: list[Tensor] = []
        return_hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return_weights = self.config.output_attentions if output_attentions is None else output_attentions
        block_fn = partial(self._run_block, hidden) if return_hidden else None
        with self._mixer_inputs() if return_weights else nullcontext([]) as inputs:
            features, state = self.language_model.features(x, cache.state, mask, block_fn=block_fn)
        length = cache.length + x.shape[1]

        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.language_model.logits(features[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **loss_kwargs)

        output = CausalLMOutputWithPast(loss=loss, logits=logits)  # type: ignore[arg-type]
        if use_cache is None:
            use_cache = self.config.use_cache and labels is None and not self.training
        if use_cache or past_key_values is not None:
            cache.advance(state, x.shape[1])
            output.past_key_values = cache
        if return_hidden:
            output.hidden_states = (*hidden, features)  # type: ignore[assignment]
        if return_weights:  # zero for the last tokens, whose pairs are not complete yet
            found = (
                mixer.prepare_retrieval(*given)[0].weights() for _, kind, mixer, given in inputs if kind == "sequence"
            )
            output.attentions = tuple(F.pad(weights, (0, length - weights.shape[-1])) for weights in found)  # type: ignore[assignment]
        return output

    def _run_block(self, hidden: list[Tensor], block: nn.Module, *inputs: Any) -> tuple[Tensor, Any]:
        hidden.append(inputs[0])
        return self.language_model.run_block(block, *inputs)

    def _mixer_inputs(self) -> AbstractContextManager[list[tuple[int, str, Any, tuple]]]:
        for number, block in enumerate(self.language_model.blocks):
            mixer = block.sequence_mixer
            if not isinstance(mixer, RetrievalMixer) or mixer.memory_info().lookahead is None:
                what = f"{type(mixer).__name__}, the sequence mixer of block {number}"
                raise ValueError(f"output_attentions: {what}, has no weights of tokens; memories and attention have")
        return mixer_inputs(self.language_model)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]
        if generation_config.use_cache:
            model_kwargs.setdefault("past_key_values", MosaicCache())

    def get_input_embeddings(self) -> nn.Embedding:
        return self.language_model.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:  # type: ignore[override]
        self.language_model.embedding = value
        self.language_model.config = replace(self.language_model.config, vocabulary=value.num_embeddings)

    def get_output_embeddings(self) -> nn.Linear | None:
        """Return the output matrix if it is a weight of its own; None if it is tied to the embedding."""
        return self.language_model.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.language_model.head = new_embeddings

    def init_weights(self) -> None:
        """Do nothing: a LanguageModel initialises itself."""

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """After loading, initialise the weights that the checkpoint lacks."""
        weights = self.language_model.named_parameters()
        missing = {name: weight for name, weight in weights if not getattr(weight, "_is_hf_initialized", False)}
        if missing:
            new = LanguageModel(self.language_model.config).state_dict()
            for name, weight in missing.items():
                weight.copy_(new[name])


def _check_folder(folder: Path, kwargs: dict[str, Any], *, lenient: bool) -> None:
    """Check a local checkpoint against its manifest, and the headers of its weights against the configuration."""
    if not folder.is_dir():
        return
    check_manifest(folder, ["config.json", "generation_config.json"])
    stored = any((folder / f"model.safetensors{end}").exists() for end in ("", ".index.json"))
    elsewhere = any(kwargs.get(name) for name in ("variant", "gguf_file", "key_mapping", "quantization_config"))
    if not stored or elsewhere or kwargs.get("use_safetensors") is False:
        return
    if lenient:
        check_manifest(folder, [file.name for file in weight_files(folder)])
        return
    config = kwargs.get("config")
    language_model_config = config.language_model_config if isinstance(config, MosaicConfig) else read_config(folder)
    check_weight_files(folder, weight_shapes(language_model_config))


def causal_loss(
    logits: Tensor,
    labels: Tensor | None,
    vocab_size: int,
    shift_labels: Tensor | None = None,
    ignore_index: int = -100,
    **kwargs: Any,
) -> Tensor:
    """Return Hugging Face's causal loss, but in float64 for float64 logits: its own is always float32."""
    if shift_labels is None:
        shift_labels = F.pad(cast(Tensor, labels), (0, 1), value=ignore_index)[..., 1:]
    wanted = shift_labels.flatten().to(logits.device)
    return fixed_cross_entropy(at_least_fp32(logits).view(-1, vocab_size), wanted, ignore_index=ignore_index, **kwargs)


def _check_kwargs(
    kwargs: dict[str, Any], cache: MosaicCache, attention_mask: AttentionMask | None, x: Float[Tensor, "B T W"]
) -> dict[str, Any]:
    """Return the keywords of the loss. Refuse all others that the model would ignore."""
    first, time = cache.length, x.shape[1]
    for name, value in kwargs.items():
        if value is None or name in LOSS_KWARGS or (name in NO_OP_KWARGS and value is NO_OP_KWARGS[name]):
            continue
        if name == "position_ids":
            _check_positions(value, cache, attention_mask, x)
        elif name == "cache_position":
            if value.tolist() != list(range(first, first + time)):
                raise ValueError(f"cache_position must be {first} to {first + time - 1}, the tokens after the cache's")
        elif name != "token_type_ids" or bool((value != 0).any()):
            other = " other than 0" if name == "token_type_ids" else ""
            raise ValueError(f"MosaicForCausalLM has no use for {name}{other} and would ignore it; leave it out")
    return {name: kwargs[name] for name in LOSS_KWARGS if kwargs.get(name) is not None}


def _check_positions(
    given: Tensor, cache: MosaicCache, attention_mask: AttentionMask | None, x: Float[Tensor, "B T W"]
) -> None:
    """Refuse positions that do not count the real tokens of each row. Those of padding may be anything."""
    rows, time = x.shape[:2]
    if given.ndim not in (1, 2) or given.shape[-1] != time or given.shape[:-1] not in ((), (1,), (rows,)):
        raise ValueError(f"position_ids have shape {tuple(given.shape)}, but the tokens {(rows, time)}")
    real = torch.ones(1, time, device=given.device) if attention_mask is None else attention_mask.to(given.device) != 0
    if real.ndim != 2:
        return  # refused where the mask is used
    if cache.left_padded and real.shape[1] == time:
        raise ValueError("position_ids after a padded cache need an attention_mask of all tokens; leave them out")
    seen = cache.length if real.shape[1] == time else 0
    wrong = (given != (seen + real.cumsum(dim=1) - 1)[:, -time:].long()) & (real[:, -time:] != 0)
    if bool(wrong.any()):
        if bool(real.all()) and bool((given[..., 1:] < given[..., :-1]).any()):
            raise ValueError(
                "position_ids start again within a row, but packed documents would see each other; pad them"
            )
        raise ValueError("position_ids are not those of the attention_mask, which the model uses; leave them out")


AutoConfig.register(MODEL_TYPE, MosaicConfig, exist_ok=True)
AutoModelForCausalLM.register(MosaicConfig, MosaicForCausalLM, exist_ok=True)

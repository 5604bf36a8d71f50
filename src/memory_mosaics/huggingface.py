"""Hugging Face adapter: one configuration, one cache and five model classes for every architecture.

    MosaicForCausalLM                   the language model
    MosaicModel                         its last hidden states (AutoModel)
    MosaicForSequenceClassification     a label or a reward for each sequence
    MosaicForTokenClassification        a label for each token
    MosaicForQuestionAnswering          where the answer in a text starts and ends

Importing this module registers the Auto classes. Then `AutoModelForCausalLM.from_pretrained(folder)` loads what
`memory_mosaics.checkpoint.save` wrote, `memory_mosaics.checkpoint.load` loads what `save_pretrained` wrote, and
`generate`, `pipeline` and `Trainer` work as with any other model, and so do PEFT and TRL's trainers, which may pack
documents. A checkpoint has a file that imports this module: `from_pretrained(folder, trust_remote_code=True)` needs no
import.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, NoReturn, cast, no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor, nn

try:
    import transformers  # noqa: F401
except ImportError:
    raise ImportError("this needs transformers: pip install 'memory-mosaics[hf]'") from None
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    GenerationConfig,
    GenerationMixin,
)
from transformers.cache_utils import Cache
from transformers.configuration_utils import PreTrainedConfig
from transformers.loss.loss_utils import fixed_cross_entropy
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import can_return_tuple

from memory_mosaics.bounded_stores import EXACT, StorePolicy
from memory_mosaics.checkpoint import (
    AUTO_MAP,
    HUB_CODE,
    HUB_FILE,
    MODEL_TYPE,
    check_weight_files,
    read_config,
    weight_files,
)
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
from memory_mosaics.models import architecture_name, preset
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.parameters import fp32_parameter_names
from memory_mosaics.shapes import Bool, Float, Int
from memory_mosaics.stores import RetrievalMixer, map_state, select_rows

PADDING_GAP = "a row has padding between its tokens, and its memory would take it for a token; pad at the left"
LOSS_KWARGS = ("num_items_in_batch", "shift_labels", "ignore_index")  # Trainer passes the first
PACKING_KWARGS = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")  # beside position_ids
NO_OP_KWARGS = {"is_causal": True, "output_router_logits": False}  # transformers passes them; the model always does so
MODEL_CARD = """---
library_name: transformers
tags: [memory-mosaics]
---
# {name}

{parameters} parameters: {sizes}. Its code is the Python package memory-mosaics.

```python
# pip install 'memory-mosaics[hf]'
from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained("NAME", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("NAME")
```
"""
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
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        misplaced = sorted(kwargs.keys() & LanguageModelConfig.__dataclass_fields__.keys())
        if misplaced:
            raise ValueError(f"{misplaced[0]!r} is a field of MosaicConfig.language_model, not of MosaicConfig itself")
        if isinstance(self.language_model, LanguageModelConfig):
            self.language_model = to_plain(self.language_model)
        self.language_model = to_plain(self.language_model_config)
        if kwargs.get("attn_implementation") is None:
            kwargs["attn_implementation"] = "eager"  # any other would forbid output_attentions
        super().__post_init__(**{"auto_map": AUTO_MAP} | kwargs)

    def to_dict(self) -> dict[str, Any]:
        register_with_peft()  # which looks up the default targets for this dictionary's model_type
        return super().to_dict()

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
    def num_attention_heads(self) -> int | None:
        """Heads of the sequence mixer; None if it has none."""
        return self.language_model["sequence_mixer"].get("heads")

    @property
    def max_position_embeddings(self) -> int:
        return self.language_model["context"]

    @property
    def tie_word_embeddings(self) -> bool:
        return self.language_model["tied"]

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Do nothing: a checkpoint holds no copy of this file, but one that imports it."""


class MosaicCache(Cache):
    """The state of a LanguageModel and the padding of the tokens it has processed.

    It cannot be cropped to an earlier time: leaky averages of keys do not store their past. `store` is what contextual
    memories keep: "exact", "indexed", or a bounded store, `generate(..., past_key_values=MosaicCache("lru:4096"))`.
    """

    def __init__(self, store: str = EXACT) -> None:
        super().__init__(layers=[])
        self.policy = StorePolicy.parse(store)
        self.reset()

    def reset(self) -> None:
        self.state: tuple | None = None
        self.length = 0  # tokens processed, including padding
        self.left_padded = False  # some row starts with padding
        self.right_padded = False  # some row ends with padding
        self.document_start: int | Tensor = 0  # real tokens of each row, (B, 1), before its last document

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
        self._map(lambda tensor: select_rows(tensor, beam_idx.to(tensor.device)))

    def batch_select_indices(self, indices: Int[Tensor, " rows"]) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def _map(self, function: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state = map_state(function, self.state)
        if isinstance(self.document_start, Tensor):
            self.document_start = function(self.document_start)

    def advance(self, state: tuple, time: int, document_start: int | Tensor) -> None:
        self.state, self.length, self.document_start = state, self.length + time, document_start

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


class MosaicPreTrainedModel(PreTrainedModel):
    """What the classes have in common."""

    config: MosaicConfig
    config_class = MosaicConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # and nothing else: `recall` chooses the kernel
    _is_stateful = True  # refuses assisted generation, which crops the cache
    _no_split_modules = ["Block"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _new_weights = ()  # those that a checkpoint of a language model lacks
    # The losses of Hugging Face's heads are means over a batch, which Trainer then averages.
    accepts_loss_kwargs = False

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """Load as any model does, but refuse a damaged checkpoint or one whose weights are not those of the model.

        `ignore_mismatched_sizes=True` loads the weights that fit; the others are initialised.
        """
        lenient, given = kwargs.get("ignore_mismatched_sizes", False), kwargs.get("state_dict") is not None
        if pretrained_model_name_or_path is not None and not given:
            folder = Path(pretrained_model_name_or_path) / (kwargs.get("subfolder") or "")
            _check_folder(folder, kwargs, cls.__name__, lenient=lenient or bool(cls._new_weights))
        return_report = kwargs.pop("output_loading_info", False)
        kwargs["output_loading_info"] = True
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *model_args, **kwargs)
        model, report = loaded
        if not (lenient or given):
            other_class = cls.__name__ not in (model.config.architectures or ())
            new = cls._new_weights if other_class and {*cls._new_weights} <= {*report["missing_keys"]} else ()
            for kind in ("missing_keys", "unexpected_keys"):
                if names := sorted({*report[kind]} - {*new}):
                    where = f"{pretrained_model_name_or_path}: {kind.replace('_', ' ')} {', '.join(names[:3])}"
                    raise CheckpointError(f"{where}; ignore_mismatched_sizes=True takes what fits")
        return (model, report) if return_report else model

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Write a checkpoint with a model card, unless there is one, and the file that imports this module."""
        folder = Path(save_directory)
        if folder.is_dir() or not folder.exists():  # Hugging Face reports any other
            folder.mkdir(parents=True, exist_ok=True)
            (folder / HUB_FILE).write_text(HUB_CODE, encoding="utf-8")
            if not (folder / "README.md").exists():
                (folder / "README.md").write_text(model_card(self), encoding="utf-8")
        super().save_pretrained(save_directory, *args, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Do nothing: a checkpoint holds no copy of this file, but one that imports it."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> nn.Embedding:
        return self.base_model.language_model.embedding  # type: ignore[return-value]

    def set_input_embeddings(self, value: nn.Embedding) -> None:  # type: ignore[override]
        language_model: Any = self.base_model.language_model
        language_model.embedding = value
        language_model.config = replace(language_model.config, vocabulary=value.num_embeddings)

    def init_weights(self) -> None:
        """Do nothing: a LanguageModel initialises itself."""

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """After loading, initialise the weights that the checkpoint lacks."""
        missing = {
            name: weight for name, weight in self.named_parameters() if not getattr(weight, "_is_hf_initialized", False)
        }
        if missing:
            new = type(self)(self.config).state_dict()
            for name, weight in missing.items():
                weight.copy_(new[name])


class MosaicModel(MosaicPreTrainedModel):
    """A LanguageModel without its output matrix: the last hidden states. All weights are those of `language_model`."""

    def __init__(self, config: MosaicConfig):
        super().__init__(config)
        self.language_model = LanguageModel(config.language_model_config)
        exact = {name.rpartition(".")[2] for name in fp32_parameter_names(self.language_model)}
        self._keep_in_fp32_modules_strict = [rf"\.{name}$" for name in sorted(exact)]
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: AttentionMask | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Return the input of the output matrix, and the cache; a given cache is always updated.

        `output_hidden_states`: the input of each block, then that of the output matrix (after the last norm), as in
        GPT-2. `output_attentions`: per block the retrieval weights (B, heads, T, S) of the T new tokens on all S tokens
        so far, without dropout. A row sums to 1, or is 0 where the memory is empty.

        A row may hold several documents, which are read apart: `position_ids` start again at 0 with each, or the
        `attention_mask` has another number for each. Other keywords may be None, or values that describe what the model
        does anyway; others are a ValueError.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        if not isinstance(past_key_values, MosaicCache | None):
            kind = type(past_key_values).__name__
            raise ValueError(f"past_key_values must be a MosaicCache, not a {kind}; leave it out to start a new one")
        x = self.language_model.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        cache = MosaicCache() if past_key_values is None else past_key_values
        _check_kwargs(kwargs, cache, x.shape[1])
        starts, document_start = _document_starts(kwargs.get("position_ids"), attention_mask, cache, x)
        mask = cache.new_token_mask(attention_mask, x.shape[1])
        hidden: list[Tensor] = []
        return_hidden = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return_weights = self.config.output_attentions if output_attentions is None else output_attentions
        if return_hidden or return_weights:
            if starts is not None:
                raise ValueError(
                    "output_hidden_states and output_attentions are of one document per row; pad them instead"
                )
            if cache.policy is not None:
                raise ValueError(
                    f"output_hidden_states and output_attentions need a cache of all pairs, not {cache.policy}"
                )
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        keep_state = use_cache or past_key_values is not None
        options: Any = {"starts": starts, "keep_state": keep_state}
        block_fn = partial(self._run_block, hidden) if return_hidden else None
        with self._mixer_inputs() if return_weights else nullcontext([]) as inputs:
            before = self.language_model.empty_state(cache.policy) if cache.state is None else cache.state
            features, state = self.language_model.features(x, before, mask, **options, block_fn=block_fn)
        length = cache.length + x.shape[1]

        output = BaseModelOutputWithPast(last_hidden_state=features)  # type: ignore[arg-type]
        if keep_state:
            cache.advance(state, x.shape[1], document_start)
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
            if not isinstance(mixer, RetrievalMixer) or mixer.memory_info().peek is None:
                what = f"{type(mixer).__name__}, the sequence mixer of block {number}"
                raise ValueError(f"output_attentions: {what}, has no weights of tokens; memories and attention have")
        return mixer_inputs(self.language_model)


class MosaicForCausalLM(MosaicModel, GenerationMixin):
    """A LanguageModel with the interface of Hugging Face."""

    accepts_loss_kwargs = True  # `num_items_in_batch`

    def __init__(self, config: MosaicConfig):
        super().__init__(config)
        self.loss_function = causal_loss

    @can_return_tuple
    def forward(  # type: ignore[override]
        self,
        input_ids: Int[Tensor, "B T"] | None = None,
        attention_mask: AttentionMask | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Float[Tensor, "B T W"] | None = None,
        labels: Int[Tensor, "B T"] | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Int[Tensor, " kept"] = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits, the loss if labels are given, and what `MosaicModel` returns beside the hidden states.

        Further keywords are those of `MosaicModel` and of the loss (`num_items_in_batch`, `shift_labels`,
        `ignore_index`).
        """
        loss_kwargs = {name: value for name in LOSS_KWARGS if (value := kwargs.pop(name, None)) is not None}
        if use_cache is None and labels is not None:
            use_cache = False
        kwargs |= {"past_key_values": past_key_values, "inputs_embeds": inputs_embeds, "use_cache": use_cache}
        found: Any = super().forward(input_ids, attention_mask, **kwargs, return_dict=True)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits, loss = self.language_model.logits(found.last_hidden_state[:, kept]), None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1], **loss_kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,  # type: ignore[arg-type]
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)  # type: ignore[misc]
        if generation_config.use_cache:
            model_kwargs.setdefault("past_key_values", MosaicCache())

    @wraps(cast(Any, GenerationMixin).prepare_inputs_for_generation)  # transformers looks its parameters up
    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Return the keywords of a step of `generate`, which leaves the tokenizer of `stop_strings` among them."""
        kwargs.pop("tokenizer", None)
        return super().prepare_inputs_for_generation(*args, **kwargs)  # type: ignore[misc]

    @property
    def base_model(self) -> MosaicModel:
        """The model without its output matrix: another view of the same modules."""
        view = MosaicModel.__new__(MosaicModel)
        view.__dict__ |= {name: value for name, value in self.__dict__.items() if name != "forward"}  # TRL replaces it
        return view

    def get_output_embeddings(self) -> nn.Module:
        """Return the module of the output matrix: the embedding, if the two are tied."""
        if self.language_model.head is not None:
            return self.language_model.head
        self.language_model.embedding.bias = None  # type: ignore[assignment]  # TRL reads it, as of a linear map
        return self.language_model.embedding

    def set_output_embeddings(self, new_embeddings: Any) -> None:
        if new_embeddings is not self.language_model.embedding:
            self.language_model.head = new_embeddings


class MosaicForSequenceClassification(GenericForSequenceClassification, MosaicPreTrainedModel):
    """A MosaicModel and a linear map from its last real token to labels: classifiers and reward models."""

    _new_weights = ("score.weight",)


class MosaicForTokenClassification(GenericForTokenClassification, MosaicPreTrainedModel):
    """A MosaicModel and an affine map from each of its hidden states to labels. They depend on earlier tokens alone."""

    _new_weights = ("score.weight", "score.bias")


class MosaicForQuestionAnswering(GenericForQuestionAnswering, MosaicPreTrainedModel):
    """A MosaicModel and an affine map from each of its hidden states to the start and the end of an answer."""

    _new_weights = ("qa_outputs.weight", "qa_outputs.bias")
    get_input_embeddings = cast(Any, MosaicPreTrainedModel.get_input_embeddings)
    set_input_embeddings = cast(Any, MosaicPreTrainedModel.set_input_embeddings)


def _check_folder(folder: Path, kwargs: dict[str, Any], wanted: str, *, lenient: bool) -> None:
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
    check_weight_files(folder, weight_shapes(language_model_config), wanted)


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


def _check_kwargs(kwargs: dict[str, Any], cache: MosaicCache, time: int) -> None:
    """Refuse keywords that the model would ignore."""
    first, positions = cache.length, kwargs.get("position_ids")
    for name, value in kwargs.items():
        if value is None or name == "position_ids" or (name in NO_OP_KWARGS and value is NO_OP_KWARGS[name]):
            continue
        if name == "cache_position":
            if value.tolist() != list(range(first, first + time)):
                raise ValueError(f"cache_position must be {first} to {first + time - 1}, the tokens after the cache's")
        elif name in PACKING_KWARGS and positions is not None:
            starts = positions.flatten() == 0
            ends = F.pad(starts.nonzero().flatten(), (0, 1), value=len(starts))
            known = {"cu": ends, "max": ends.diff().amax(), "seq": starts.cumsum(dim=0) - 1}[name.partition("_")[0]]
            if torch.as_tensor(value).flatten().tolist() != known.flatten().tolist():
                raise ValueError(f"{name} describes other documents than position_ids, which the model uses")
        elif name != "token_type_ids" or bool((value != 0).any()):
            other = " other than 0" if name == "token_type_ids" else ""
            raise ValueError(f"MosaicForCausalLM has no use for {name}{other} and would ignore it; leave it out")


def _document_starts(
    positions: Tensor | None, attention_mask: AttentionMask | None, cache: MosaicCache, x: Float[Tensor, "B T W"]
) -> tuple[Bool[Tensor, "B T"] | None, int | Tensor]:
    """Return where documents start, None if at most with the rows, and what is then `document_start` of the cache.

    A document starts at position 0, or where the mask has the next of several numbers. Positions that do not count the
    real tokens of each document are refused; those of padding may be anything.
    """
    rows, time = x.shape[:2]
    numbers = x.new_ones(rows, time) if attention_mask is None else attention_mask.to(x.device)
    if positions is None and (attention_mask is None or time == 1):  # a single new token is a generated one
        return None, cache.document_start
    if numbers.ndim != 2 or numbers.shape[1] not in (time, cache.length + time):
        return None, cache.document_start  # refused where the mask is used
    real, whole = numbers != 0, numbers.shape[1] == time
    count = (cache.length * whole + real.cumsum(dim=1) - 1)[:, -time:]  # real tokens before each
    starts = F.pad((numbers[:, 1:] != numbers[:, :-1]) & real[:, 1:] & real[:, :-1], (1, 0))[:, -time:]
    real = real[:, -time:]
    if positions is not None:
        if (
            positions.ndim not in (1, 2)
            or positions.shape[-1] != time
            or positions.shape[:-1] not in ((), (1,), (rows,))
        ):
            raise ValueError(f"position_ids have shape {tuple(positions.shape)}, but the tokens {(rows, time)}")
        if cache.left_padded and whole:
            raise ValueError("position_ids after a padded cache need an attention_mask of all tokens; leave them out")
        positions = positions.to(x.device)
        starts = starts | (positions == 0) & real
    last = torch.arange(time, device=x.device).where(starts, -1).cummax(dim=1).values
    before = torch.where(last < 0, cache.document_start, count.gather(1, last.clamp(min=0)))
    if positions is not None and bool(((positions != count - before) & real).any()):
        raise ValueError("position_ids are not those of the attention_mask, which the model uses; leave them out")
    return (starts, before[:, -1:]) if bool((starts & (count > 0)).any()) else (None, cache.document_start)


def register_with_peft() -> None:
    """Make all linear maps the default targets of LoRA, if PEFT is in use."""
    if "peft" in sys.modules:
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

        TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.setdefault(MODEL_TYPE, "all-linear")


def model_card(model: MosaicPreTrainedModel) -> str:
    """Return a README.md for a hub: what the model is, and how it is loaded. Data and limits are for you to add."""
    config = model.config.language_model_config
    return MODEL_CARD.format(
        name=architecture_name(config),
        parameters=f"{sum(weight.numel() for weight in model.parameters()):,}",
        sizes=f"{config.blocks} blocks of width {config.width}, {config.vocabulary:,} tokens, context {config.context}",
        auto=next(auto for auto, name in AUTO_MAP.items() if name.endswith(f".{type(model).__name__}")),
    )


AutoConfig.register(MODEL_TYPE, MosaicConfig, exist_ok=True)
AutoModel.register(MosaicConfig, MosaicModel, exist_ok=True)
AutoModelForCausalLM.register(MosaicConfig, MosaicForCausalLM, exist_ok=True)
AutoModelForSequenceClassification.register(MosaicConfig, MosaicForSequenceClassification, exist_ok=True)
AutoModelForTokenClassification.register(MosaicConfig, MosaicForTokenClassification, exist_ok=True)
AutoModelForQuestionAnswering.register(MosaicConfig, MosaicForQuestionAnswering, exist_ok=True)

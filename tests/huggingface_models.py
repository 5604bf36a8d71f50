"""Small models in the classes of Hugging Face, and batches for them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from memory_mosaics import LanguageModelConfig, llama, memory_mosaic, memory_mosaic_v2, to_plain, transformer
from memory_mosaics.huggingface import MosaicConfig, MosaicForCausalLM

SIZE: dict[str, Any] = {"width": 16, "blocks": 2, "heads": 2, "vocabulary": 48, "context": 64}
CONFIGS: dict[str, LanguageModelConfig] = {
    "mosaic": memory_mosaic(slots=8, **SIZE),
    "v2": memory_mosaic_v2(**SIZE),
    "learned": transformer(position="learned", **SIZE),
    "rotary": transformer(position="rotary", **SIZE),
    "alibi": transformer(position="alibi", **SIZE),
    "llama, grouped queries": llama(key_value_heads=1, **SIZE),
}
SAVED: dict[str, LanguageModelConfig] = CONFIGS | {
    "mosaic untied, biased": replace(CONFIGS["mosaic"], tied=False, bias=True),
    "learned untied, biased": replace(CONFIGS["learned"], tied=False, bias=True),
    "mosaic, post-norm": replace(CONFIGS["mosaic"], norm_placement="post"),
}
every_architecture = pytest.mark.parametrize("name", CONFIGS)
every_saved = pytest.mark.parametrize("name", SAVED)
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}


def huggingface_model(config: LanguageModelConfig) -> MosaicForCausalLM:
    """A model with weights large enough that its predictions depend on what it has read."""
    model = MosaicForCausalLM(MosaicConfig(language_model=to_plain(config))).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.add_(torch.randn_like(weight) * (0.05 if weight.ndim == 1 else 1.0 if "blocks" in name else 0.4))
    return model


def tokens(*shape: int) -> Tensor:
    return torch.randint(1, SIZE["vocabulary"], shape)


def left_padded(rows: list[Tensor]) -> dict[str, Tensor]:
    """One batch of rows of different lengths. The padding is not the token 0 only, lest that be what hides it."""
    longest = max(len(row) for row in rows)
    ids = torch.stack([torch.cat([tokens(longest - len(row)), row]) for row in rows])
    mask = torch.stack([torch.arange(longest) >= longest - len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask.long()}


def same_weights(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)

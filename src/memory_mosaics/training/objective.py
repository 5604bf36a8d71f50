"""What training minimises, and the optimiser that does it."""

from typing import Any

import torch
from torch import Tensor, nn

from memory_mosaics.language_model import (
    LanguageModel,
    LanguageModelConfig,
    weight_count,
    without_state,
)
from memory_mosaics.ops.cross_entropy import linear_cross_entropy
from memory_mosaics.parameters import groups
from memory_mosaics.shapes import Float, Int
from memory_mosaics.training.recipe import Schedule, Training


class Objective(nn.Module):
    """The mean loss of a batch. Compiled, its blocks share one compilation."""

    def __init__(self, model: LanguageModel, *, compiled: bool = False):
        super().__init__()
        self.model = model
        self.through = torch.compile(without_state, dynamic=False) if compiled else None

    def forward(self, inputs: Int[Tensor, "B T"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        features, _ = self.model.features(self.model.embedding(inputs), through=self.through)
        return linear_cross_entropy(features.flatten(0, 1), self.model.output, targets.flatten())


def memory_needed(config: LanguageModelConfig, *, batch: int, micro: int, shards: int = 1, logits: bool = True) -> int:
    """The bytes that a training process needs at the very least.

    These are the float32 weights, with gradients and moments split over `shards` processes; the tokens of its part of a
    batch and their targets; and for each token of `micro` sequences at once the inputs of both mixers of every block in
    16 bits and, where the loss keeps the `logits`, these and their gradients in float32.
    """
    count = weight_count(config)
    weights = 4 * count + 3 * 4 * count // shards
    per_token = 2 * 2 * config.blocks * config.width + (2 * 4 * config.vocabulary if logits else 0)
    return weights + 2 * 8 * batch * config.context + micro * config.context * per_token


def optimiser(model: LanguageModel, training: Training) -> torch.optim.AdamW:
    """AdamW, with weight decay on matrices only."""
    decay = training.weight_decay
    return adamw_of(groups(model, weight_decay=decay, decayed=lambda weight: weight.dim() >= 2), betas=training.betas)


def adamw_of(groups: list[dict[str, Any]], *, betas: tuple[float, float]) -> torch.optim.AdamW:
    """AdamW of such groups. Its state is there from the beginning, to be loaded into."""
    weight = groups[0]["params"][0]
    recordable = weight.is_cuda and not hasattr(weight, "full_tensor")  # then what changes between steps is a tensor
    for group in groups:
        group["lr"] = torch.zeros((), device=weight.device) if recordable else 0.0
    adamw = torch.optim.AdamW(groups, lr=0.0, betas=betas, fused=True, capturable=recordable)
    for weight in (weight for group in adamw.param_groups for weight in group["params"]):
        first, second = (torch.zeros_like(weight, requires_grad=False) for _ in range(2))
        adamw.state[weight] = {"step": torch.zeros((), device=weight.device), "exp_avg": first, "exp_avg_sq": second}
    return adamw


def moments(model: LanguageModel, adamw: torch.optim.AdamW) -> dict[str, Tensor]:
    """The optimiser's memory of each parameter, by name; the same tensors, to save or to load into."""
    return {
        f"{kind}.{name}": adamw.state[weight][kind]
        for name, weight in model.named_parameters()
        for kind in ("exp_avg", "exp_avg_sq")
    }


def set_steps(adamw: torch.optim.AdamW, steps: int) -> None:
    """Tell the optimiser how many steps its moments hold."""
    for state in adamw.state.values():
        state["step"].fill_(steps)


def set_rate(adamw: torch.optim.AdamW, rate: float) -> None:
    """The learning rate of the next step, or the largest that a group bears."""
    for group in adamw.param_groups:
        own = min(rate, group.get("largest_rate", rate))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def take_step(adamw: torch.optim.AdamW, training: Schedule) -> Tensor:
    """Clip the gradients and move; returns the norm that they had."""
    weights = [weight for group in adamw.param_groups for weight in group["params"]]
    norm: Any = torch.nn.utils.clip_grad_norm_(weights, training.clip)
    adamw.step()
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

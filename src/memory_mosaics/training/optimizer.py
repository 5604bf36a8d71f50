"""AdamW with the learning rates and weight decays that the modules of a model ask for."""

from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from memory_mosaics.language_model import LanguageModelConfig, weight_count
from memory_mosaics.parameters import param_groups
from memory_mosaics.training.config import Training


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


def adamw(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """AdamW, with weight decay on matrices or on all parameters whose modules allow it. Its state is there from the
    beginning, to be loaded into.
    """
    decayed = lambda weight: training.decay_all or weight.dim() >= 2  # noqa: E731
    found = param_groups(model, weight_decay=training.weight_decay, decayed=decayed)
    weight = found[0]["params"][0]
    capturable = weight.is_cuda and not hasattr(weight, "full_tensor")  # then what changes between steps is a tensor
    for group in found:
        group["lr"] = torch.zeros((), device=weight.device) if capturable else 0.0
    optimizer = torch.optim.AdamW(found, lr=0.0, betas=training.betas, fused=True, capturable=capturable)
    for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
        first, second = (torch.zeros_like(weight, requires_grad=False) for _ in range(2))
        moments = {"step": torch.zeros((), device=weight.device), "exp_avg": first, "exp_avg_sq": second}
        optimizer.state[weight] = moments
    return optimizer


def moments(model: nn.Module, optimizer: torch.optim.AdamW) -> dict[str, Tensor]:
    """The optimiser's memory of each parameter, by name; the same tensors, to save or to load into."""
    return {
        f"{kind}.{name}": optimizer.state[weight][kind]
        for name, weight in model.named_parameters()
        for kind in ("exp_avg", "exp_avg_sq")
    }


def set_steps(optimizer: torch.optim.AdamW, steps: int) -> None:
    """Tell the optimiser how many steps its moments hold."""
    for state in optimizer.state.values():
        state["step"].fill_(steps)


def set_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    """The learning rate of the next step, or the largest that a group bears."""
    for group in optimizer.param_groups:
        own = min(rate, group.get("max_lr", rate))
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def take_step(optimizer: torch.optim.AdamW, training: Training) -> Tensor:
    """Clip the gradients and move; returns the norm that they had."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    norm: Any = torch.nn.utils.clip_grad_norm_(weights, inf if training.clip is None else training.clip)
    optimizer.step()
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

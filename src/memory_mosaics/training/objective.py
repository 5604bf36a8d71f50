"""What training minimises, and the optimiser that does it."""

from typing import Any

import torch
from torch import Tensor, nn

from memory_mosaics.checkpoint import KEEP_IN_FLOAT32
from memory_mosaics.language_model import LanguageModel, next_token_loss, without_state
from memory_mosaics.ops.triton.cross_entropy import linear_cross_entropy
from memory_mosaics.shapes import Float, Int
from memory_mosaics.training.recipe import Training


class Objective(nn.Module):
    """The mean loss of a batch. Compiled, its blocks share one compilation."""

    def __init__(self, model: LanguageModel, *, compiled: bool = False):
        super().__init__()
        self.model = model
        self.through = torch.compile(without_state, dynamic=False) if compiled else None

    def forward(self, inputs: Int[Tensor, "B T"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        features, _ = self.model.features(self.model.embedding(inputs), through=self.through)
        if features.is_cuda:
            return linear_cross_entropy(features.flatten(0, 1), self.model.output, targets.flatten())
        return next_token_loss(self.model.logits(features), targets)


def optimiser(model: LanguageModel, training: Training) -> torch.optim.AdamW:
    """AdamW, with weight decay on matrices only. Its state is there from the beginning, to be loaded into."""
    decayed, free = [], []
    for name, weight in model.named_parameters():
        matrix = weight.dim() >= 2 and name.rsplit(".", 1)[-1] not in KEEP_IN_FLOAT32
        (decayed if matrix else free).append(weight)
    groups = [{"params": decayed, "weight_decay": training.weight_decay}, {"params": free, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    weight = groups[0]["params"][0]
    recordable = weight.is_cuda and not hasattr(weight, "full_tensor")  # then what changes between steps is a tensor
    rate = torch.zeros((), device=weight.device) if recordable else 0.0
    adamw = torch.optim.AdamW(groups, lr=rate, betas=training.betas, fused=True, capturable=recordable)
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
    """The learning rate of the next step."""
    for group in adamw.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def take_step(adamw: torch.optim.AdamW, training: Training) -> Tensor:
    """Clip the gradients and move; returns the norm that they had."""
    weights = [weight for group in adamw.param_groups for weight in group["params"]]
    norm: Any = torch.nn.utils.clip_grad_norm_(weights, training.clip)
    adamw.step()
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

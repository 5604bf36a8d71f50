"""How each parameter is trained and stored, declared by the module that owns it.

A module declares `param_specs`, keyed by the names of its own parameters:

    class DiagonalSSM(nn.Module):
        param_specs: ClassVar = {"A_log_real": SLOW, "A_imag": SLOW, "log_dt": SLOW}

Optimisers build their parameter groups from it, and half-precision checkpoints keep some parameters in float32.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import nn


@dataclass(frozen=True)
class ParamSpec:
    """Weight decay, largest learning rate, and whether the parameter stays in float32 when the model is cast."""

    decay: bool = True
    max_lr: float = inf
    keep_fp32: bool = False


DEFAULT = ParamSpec()
NO_DECAY = ParamSpec(decay=False)
SENSITIVE = ParamSpec(decay=False, keep_fp32=True)  # scales, decays, mixing coefficients: small changes matter
SLOW = ParamSpec(decay=False, keep_fp32=True, max_lr=1e-3)  # decays that a recurrence applies at every step


def named_param_specs(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, ParamSpec]]:
    """Yield the name, the parameter and its spec, in the order of `named_parameters`."""
    declared: dict[str, ParamSpec] = {}
    for prefix, module in model.named_modules():
        for name, spec in getattr(module, "param_specs", {}).items():
            declared[f"{prefix}.{name}" if prefix else name] = spec
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]  # a ParameterList is declared as one
        yield name, parameter, declared.get(name, declared.get(owner, DEFAULT))


def fp32_parameter_names(model: nn.Module) -> set[str]:
    """Return the names of the parameters that stay at least in float32."""
    return {name for name, _, spec in named_param_specs(model) if spec.keep_fp32}


def param_groups(
    model: nn.Module, *, weight_decay: float, decayed: Callable[[nn.Parameter], bool] = lambda _: True
) -> list[dict[str, Any]]:
    """Return optimiser groups by weight decay and largest learning rate; only the `decayed` have weight decay."""
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for _, parameter, spec in named_param_specs(model):
        decay = weight_decay if spec.decay and decayed(parameter) else 0.0
        group = {"params": [], "weight_decay": decay, "max_lr": spec.max_lr}
        groups.setdefault((decay, spec.max_lr), group)["params"].append(parameter)
    return list(groups.values())

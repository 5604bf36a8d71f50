"""What is special about a parameter, said by the module that has it and not by its name in a trainer.

A module declares `rules`, by the names of its own parameters:

    class DiagonalSSM(nn.Module):
        rules: ClassVar = {"A_log_real": SLOW, "A_imag": SLOW, "log_dt": SLOW}

Optimisers take their groups from it, checkpoints in half precision what has to stay in single.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Rule:
    """How a parameter is trained and kept: without weight decay, slowly, in float32 where matrices have less."""

    decay: bool = True
    largest_rate: float = inf  # no learning rate above it
    exact: bool = False


ORDINARY = Rule()
UNDECAYED = Rule(decay=False)
SENSITIVE = Rule(decay=False, exact=True)  # scales, decays, mixing coefficients: few, and a little changes a lot
SLOW = Rule(decay=False, exact=True, largest_rate=1e-3)  # what a recurrence decays by, over and over


def rules_of(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Rule]]:
    """Every parameter with its name and its rule, in the order of `named_parameters`."""
    declared: dict[str, Rule] = {}
    for prefix, module in model.named_modules():
        for name, rule in getattr(module, "rules", {}).items():
            declared[f"{prefix}.{name}" if prefix else name] = rule
    for name, parameter in model.named_parameters():
        owner = name.rpartition(".")[0]  # a list of parameters is declared as one
        yield name, parameter, declared.get(name, declared.get(owner, ORDINARY))


def exact_names(model: nn.Module) -> set[str]:
    """The parameters that stay in float32 at least."""
    return {name for name, _, rule in rules_of(model) if rule.exact}


def groups(
    model: nn.Module, *, weight_decay: float, decayed: Callable[[nn.Parameter], bool] = lambda _: True
) -> list[dict[str, Any]]:
    """The parameters as an optimiser wants them: what is `decayed`, rules permitting, and what learns more slowly."""
    found: dict[tuple[float, float], dict[str, Any]] = {}
    for _, parameter, rule in rules_of(model):
        decay = weight_decay if rule.decay and decayed(parameter) else 0.0
        group = {"params": [], "weight_decay": decay, "largest_rate": rule.largest_rate}
        found.setdefault((decay, rule.largest_rate), group)["params"].append(parameter)
    return list(found.values())

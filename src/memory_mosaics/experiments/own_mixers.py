"""Mixers of your own, by their dotted path: `my_package.MyMixerConfig`. docs/adding_a_mixer.md says what one is."""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from memory_mosaics.config import MixerConfig
from memory_mosaics.errors import UserError, did_you_mean, one_line
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.models import has_heads

Found = TypeVar("Found")


class OwnMixer(NamedTuple):
    """A mixer, given by the number of heads, which it need not have."""

    label: str
    config: Callable[[int], MixerConfig]
    has_heads: bool


def find_architecture(name: str, known: Mapping[str, Found], own: Callable[[OwnMixer], Found] | None = None) -> Found:
    """Return one that is known by its name, or what `own` makes of a mixer of your own."""
    if name in known:
        return known[name]
    if own is not None and "." in name:
        return own(own_mixer(name))
    dotted = " (your own has a dotted path: my_package.MyMixerConfig)" if own else ""
    raise UserError(f"no architecture {name!r}; {did_you_mean(name, known)}{dotted}")


def own_mixer(path: str) -> OwnMixer:
    """Import a configuration, or the class of one."""
    found = _import_config(path)
    headed = has_heads(found)

    def config(heads: int) -> MixerConfig:
        given = {"heads": heads} if headed else {}
        return found(**given) if isinstance(found, type) else replace(found, **given)  # type: ignore[type-var]

    return OwnMixer(path.rpartition(".")[2].removesuffix("Config"), config, headed)


def _import_config(path: str) -> Any:
    module, _, name = path.rpartition(".")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as for a script in this folder
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except Exception as error:  # it may do anything
        raise UserError(f"architecture {path} cannot be imported: {one_line(error)}") from error
    if not (isinstance(found, MixerConfig) or (isinstance(found, type) and issubclass(found, MixerConfig))):
        raise UserError(f"architecture {path} is not a MixerConfig: {found!r}; docs/adding_a_mixer.md says how")
    return found


def fingerprint(path: str) -> str:
    """Return a hash of the file that a mixer of your own is written in: another one is another mixer."""
    found = _import_config(path)
    module = sys.modules[(found if isinstance(found, type) else type(found)).__module__]
    return sha256(Path(str(module.__file__)).read_bytes()).hexdigest()[:16]


@torch.no_grad()
def check_own_mixer(name: str, config: Callable[[], LanguageModelConfig]) -> None:
    """Refuse a model that fails, whose logits have another shape, or whose answers depend on what follows."""
    try:
        model = config().build().eval()
        noise = torch.Generator().manual_seed(1)
        for weight in model.parameters():  # a gate that is initialised with zeros would hide what is behind it
            weight.add_(torch.randn(weight.shape, generator=noise) * 0.02)
        vocabulary, time, seen = model.config.vocabulary, 24, 15
        tokens = torch.randint(1, vocabulary, (3, time), generator=torch.Generator().manual_seed(0))
        others = torch.cat([tokens[:, :seen], tokens[:, seen:].flip(1)], dim=1)
        logits, changed = (model(text)[0] for text in (tokens, others))
    except Exception as error:  # it may do anything
        raise UserError(f"{name}: {one_line(error)}; docs/adding_a_mixer.md says what a mixer is") from error
    if logits.shape != (3, time, vocabulary):
        raise UserError(f"{name} gives answers of shape {tuple(logits.shape)}; docs/adding_a_mixer.md says of which")
    if not (logits.isfinite().all() and changed.isfinite().all()):
        raise UserError(f"{name} gives answers that contain NaN or Inf with its initial values")
    if not torch.allclose(logits[:, :seen], changed[:, :seen], rtol=1e-3, atol=1e-4):
        raise UserError(f"{name} looks ahead: its answer to a token changes with the tokens that follow")

"""A mixer of your own, by its dotted path: found, tried before anything is trained, and known again."""

import importlib
import os
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from memory_mosaics.config import MixerConfig
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.tasks.regbench import VOCABULARY


def imported(path: str) -> Any:
    """The configuration of that name, or a class of them."""
    module, _, name = path.rpartition(".")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as for a script that lies here
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except Exception as error:  # it may do anything
        raise UserError(f"architecture {path} cannot be imported: {one_line(error)}") from error
    if not (isinstance(found, MixerConfig) or (isinstance(found, type) and issubclass(found, MixerConfig))):
        raise UserError(f"architecture {path} is no MixerConfig, but {found!r}; docs/adding_a_mixer.md says how")
    return found


def fingerprint(path: str) -> str:
    """Of the file that its configuration is written in: another one is another mixer."""
    found = imported(path)
    module = sys.modules[(found if isinstance(found, type) else type(found)).__module__]
    return sha256(Path(str(module.__file__)).read_bytes()).hexdigest()[:16]


@torch.no_grad()
def tried(name: str, build: Callable[[], LanguageModel], *, time: int = 24, seen: int = 15) -> None:
    """What a model says of some tokens: as many logits as there should be, and nothing of what follows."""
    tokens = torch.randint(1, len(VOCABULARY), (3, time), generator=torch.Generator().manual_seed(0))
    others = torch.cat([tokens[:, :seen], tokens[:, seen:].flip(1)], dim=1)
    try:
        model = build().eval()
        logits, changed = (model(text)[0] for text in (tokens, others))
    except Exception as error:  # it may do anything
        raise UserError(f"{name}: {one_line(error)}; docs/adding_a_mixer.md says what a mixer is") from error
    if logits.shape != (3, time, len(VOCABULARY)):
        raise UserError(f"{name} gives answers of shape {tuple(logits.shape)}; docs/adding_a_mixer.md says of which")
    if logits.isfinite().all() and not torch.allclose(logits[:, :seen], changed[:, :seen], rtol=1e-3, atol=1e-4):
        raise UserError(f"{name} looks ahead: what it says of a token changes with the tokens that follow")

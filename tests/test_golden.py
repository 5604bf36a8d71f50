"""A refactor changes no digit: the losses of twenty steps are stored, and compared on every change.

Where they must change, `python tests/test_golden.py` writes them anew, in a commit that says why and does nothing else.
"""

import json
from pathlib import Path

import pytest
import torch

from memory_mosaics.language_model import LanguageModel, next_token_loss
from memory_mosaics.presets import memory_mosaic, transformer

FILE = Path(__file__).parent / "golden" / "losses.json"
SMALL = {"width": 32, "blocks": 2, "heads": 4, "vocabulary": 64, "context": 48}
MODELS = {
    "memory mosaic": memory_mosaic(**SMALL, slots=112),
    "transformer, learned": transformer(**SMALL),
    "transformer, rotary": transformer(position="rotary", **SMALL),
    "transformer, alibi": transformer(position="alibi", **SMALL),
}


def losses(name: str) -> list[float]:
    """Twenty steps of AdamW on a text that repeats itself after 16 tokens."""
    torch.manual_seed(0)
    model = LanguageModel(MODELS[name])
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for _ in range(20):
        tokens = torch.randint(0, 64, (8, 16)).repeat(1, 3)
        loss = next_token_loss(model(tokens[:, :-1])[0], tokens[:, 1:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(round(loss.item(), 6))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_what_they_were(name):
    assert losses(name) == pytest.approx(json.loads(FILE.read_text())[name], abs=2e-4)


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: losses(name) for name in MODELS}, indent=1) + "\n")

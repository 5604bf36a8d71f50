from typing import ClassVar

import pytest
import torch
from torch import nn

from memory_mosaics import LanguageModel, checkpoint, memory_mosaic
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.mixers.state_space import MambaConfig, S4DConfig
from memory_mosaics.parameters import ParamSpec, fp32_parameter_names, named_param_specs, param_groups
from memory_mosaics.training.config import Training
from memory_mosaics.training.trainer import adamw, set_learning_rate

SLOW = ParamSpec(decay=False, max_lr=0.01, keep_fp32=True)


class Special(nn.Module):
    param_specs: ClassVar = {"slow": SLOW, "several": ParamSpec(decay=False)}

    def __init__(self):
        super().__init__()
        self.slow = nn.Parameter(torch.ones(3))
        self.several = nn.ParameterList([torch.ones(2, 2), torch.ones(2)])
        self.ordinary = nn.Linear(2, 2)


def model(mixer):
    return LanguageModel(LanguageModelConfig(vocabulary=9, width=8, blocks=1, sequence_mixer=mixer))


def test_modules_declare_rules_of_their_own_parameters():
    found = {name: spec for name, _, spec in named_param_specs(nn.Sequential(Special(), nn.Linear(2, 2)))}
    assert found["0.slow"] == SLOW
    assert found["0.several.0"] == found["0.several.1"] == ParamSpec(decay=False)
    assert found["0.ordinary.weight"] == found["1.weight"] == ParamSpec()
    assert fp32_parameter_names(Special()) == {"slow"}


def test_groups_hold_every_parameter_once():
    special = Special()
    found = param_groups(special, weight_decay=0.1, decayed=lambda weight: weight.dim() > 1)
    kinds = {(group["weight_decay"], group["max_lr"]): len(group["params"]) for group in found}
    assert kinds == {(0.0, 0.01): 1, (0.0, float("inf")): 3, (0.1, float("inf")): 1}


def test_a_rate_is_no_larger_than_a_group_bears():
    optimizer = adamw(Special(), Training(decay_all=True))
    for rate in (0.1, 1e-3):
        set_learning_rate(optimizer, rate)
        assert {group["max_lr"]: group["lr"] for group in optimizer.param_groups} == {
            0.01: min(rate, 0.01),
            float("inf"): rate,
        }


def test_a_language_models_matrices_decay_and_nothing_else():
    built = model(S4DConfig())
    names = {weight: name.rpartition(".")[2] for name, weight in built.named_parameters()}
    optimizer = adamw(built, Training(weight_decay=0.5))
    decayed = {names[w] for group in optimizer.param_groups if group["weight_decay"] for w in group["params"]}
    assert decayed == {"weight", "C"}
    mosaic = LanguageModel(memory_mosaic(width=8, blocks=1, heads=2, vocabulary=9))
    decays = {name.rpartition(".")[2]: spec.decay for name, _, spec in named_param_specs(mosaic)}
    assert {name for name, decay in decays.items() if not decay} == {"theta", "rate", "taps"}


@pytest.mark.parametrize(
    ("mixer", "exact"),
    [(S4DConfig(), {"A_log_real", "A_imag", "log_dt"}), (MambaConfig(), {"A_log", "dt_offset"})],
    ids=["s4d", "mamba"],
)
def test_in_half_precision_what_recurrences_decay_by_stays_exact(mixer, exact, tmp_path):
    folder = checkpoint.save(model(mixer), tmp_path / "run")
    loaded = checkpoint.load(folder, dtype=torch.bfloat16)
    kept = {name.rpartition(".")[2] for name, w in loaded.named_parameters() if w.dtype == torch.float32}
    assert kept == exact
    assert torch.isfinite(loaded(torch.randint(0, 9, (2, 5)))[0]).all()


def test_hugging_face_keeps_them_too(tmp_path):
    transformers = pytest.importorskip("transformers")
    import memory_mosaics.huggingface  # noqa: F401

    folder = checkpoint.save(model(S4DConfig()), tmp_path / "run")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    kept = {name.rpartition(".")[2] for name, w in loaded.named_parameters() if w.dtype == torch.float32}
    assert kept == {"A_log_real", "A_imag", "log_dt"}

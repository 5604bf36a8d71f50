"""The architectures are the published ones: sizes, initial values, and what is live in them."""

import math

import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.experiments.regbench_models import ARCHITECTURES, architecture
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.parameters import named_param_specs, param_groups

STD = 0.02
PARAMETERS = {  # of the published modules, at width 128 and 2 blocks, and at 8
    "memory-mosaic": (396_528 - 7 * 2 * 6 + 2 * 2, None),  # 2 heads, not 8: 7 numbers a block each; and both taps
    "transformer": (923_904, 2_113_536),
    "linear-transformer": (923_904, 2_113_536),
    "retnet": (531_200, 2_116_352),
    "gla": (404_864, None),
    "rwkv": (399_616, None),
    "rwkv-as-published": (399_616, None),
    "h3": (482_048, 1_919_744),
    "hyena": (436_608, 1_737_984),
    "s4d": (317_312, 1_260_800),
    "lstm-as-published": (20 * 128 + 8 * 128**2 + 8 * 128,) * 2,  # one layer, whatever the depth
    "mamba-as-published": (20 * 128 + 6 * 128**2 + 110 * 128 + 4 * 128 * 8,) * 2,
}


def build(name: str, *, blocks: int = 2, heads: int = 2, width: int = 32) -> LanguageModel:
    return architecture(name).config(blocks=blocks, heads=heads, width=width).build()


@pytest.mark.parametrize(("name", "counts"), PARAMETERS.items(), ids=list(PARAMETERS))
def test_the_published_number_of_parameters(name, counts):
    for blocks, count in zip((2, 8), counts, strict=True):
        with torch.device("meta"):
            model = build(name, blocks=blocks, heads=2, width=128)
        assert count is None or sum(weight.numel() for weight in model.parameters()) == count


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_future_does_not_leak_and_dropout_ends_with_training(name):
    model = build(name).eval()
    tokens = torch.randint(0, 20, (2, 40))
    changed = torch.cat([tokens[:, :25], torch.randint(0, 20, (2, 15))], dim=1)
    assert_close(model(changed)[0][:, :25], model(tokens)[0][:, :25], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_state_goes_on(name):
    model = build(name).eval()
    tokens = torch.randint(0, 20, (2, 12))
    whole, (first, state) = model(tokens)[0], model(tokens[:, :7])
    assert_close(torch.cat([first, model(tokens[:, 7:], state)[0]], dim=1), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in ARCHITECTURES if not name.endswith(("mosaic", "as-published"))])
def test_matrices_have_the_published_initial_values(name):
    model = build(name, blocks=8, heads=2, width=128)
    smaller = STD / 4
    assert model.embedding.weight.std().item() == pytest.approx(STD, rel=0.1)
    for path, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            last = path.endswith("combine") and ("channel" in path or name not in ("s4d", "h3", "rwkv"))
            assert module.weight.std().item() == pytest.approx(smaller if last else STD, rel=0.1), path
            assert module.bias is None or not module.bias.any()


def test_a_memory_mosaic_has_the_published_initial_values():
    model = build("memory-mosaic", blocks=4, heads=4, width=128)
    deviation = {"key.map.weight": 128**-0.5, "value.map.weight": 128**-0.5, "combine.map.weight": 128**-0.5 / 2}
    deviation |= {"embedding.weight": 128**-0.5, "mixer.keys": 32**-0.5, "mixer.values": 32**-0.5}
    for path, weight in model.named_parameters():
        for end, std in deviation.items():
            if path.endswith(end):
                assert weight.std().item() == pytest.approx(std, rel=0.1), path
    for block in model.blocks:
        for memory in (block.sequence_mixer, block.channel_mixer):
            assert_close(memory.sharpness(), torch.full((4,), math.e**2))
            assert_close(memory.combine.scale(), torch.full((4,), math.e**-0.5))
    tokens = torch.randint(0, 20, (2, 30))
    features = model.features(model.embedding(tokens))[0]
    assert features.norm(dim=-1).mean().item() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", ["lstm", "mamba"])
def test_as_published_one_layer_stands_alone(name):
    torch.manual_seed(0)
    model = build(f"{name}-as-published", blocks=8, heads=1, width=32).eval()
    tokens = torch.randint(0, 20, (2, 9))
    (block,) = model.blocks
    alone = block.sequence_mixer(model.embedding(tokens))[0] @ model.embedding.weight.T
    assert_close(model(tokens)[0], alone)
    assert model.embedding.weight.std().item() == pytest.approx(1, abs=0.1)
    assert {path.split(".")[0] for path, _ in model.named_parameters()} == {"embedding", "blocks"}


def test_as_published_old_tokens_gain_weight_in_rwkv():
    """With the sign of the paper the first token is soon forgotten; with the published one it is the one remembered."""
    shares = []
    for name in ("rwkv", "rwkv-as-published"):
        torch.manual_seed(0)
        mixer = build(name, blocks=1, heads=1, width=32).blocks[0].sequence_mixer
        torch.nn.init.zeros_(mixer.time_decay)
        x = torch.randn(1, 60, 32)
        other = torch.cat([torch.randn(1, 1, 32), x[:, 1:]], dim=1)
        shares.append((mixer(x)[0] - mixer(other)[0])[:, -1].abs().max().item())
    assert shares[0] < 1e-6 < 1e-4 < shares[1]


def test_later_layers_of_rwkv_start_with_longer_memories():
    first, *_, last = build("rwkv", blocks=4, heads=1, width=64).blocks
    rates = [block.sequence_mixer.time_decay.exp().median() for block in (first, last)]
    assert rates[1] < 0.3 * rates[0]


def test_dropout_is_where_it_was_published():
    for name, share in {"transformer": 0.1, "linear-transformer": 0.1}.items():
        model = build(name)
        assert model.blocks[0].sequence_mixer.dropout == share
        assert model.blocks[0].dropout == 0.0
        assert model.config.embedding_dropout == 0.1
        assert model.max_positions == 4098
    mosaic = build("memory-mosaic")
    assert mosaic.positions is None
    assert mosaic.blocks[0].dropout == mosaic.blocks[0].sequence_mixer.dropout == 0.2


NO_DECAY = {
    "s4d": {"ssm.A_log_real", "ssm.A_imag", "ssm.log_dt"},
    "h3": {"ssm.A_log_real", "ssm.A_imag", "ssm.log_dt", "ssm.B", "shift.B"},
    "hyena": {f"filter.{part}" for part in ("out", "frequency")}
    | {f"filter.{kind}.{i}" for kind in ("weights", "offsets") for i in range(3)},
    "mamba": {"A_log", "D"},
    "rwkv": {"time_decay", "time_first", "mix_key", "mix_value", "mix_receptance"},
    "rwkv-as-published": set(),
    "transformer": set(),
    "gla": set(),
}


@pytest.mark.parametrize(("name", "free"), NO_DECAY.items(), ids=list(NO_DECAY))
def test_weight_decay_spares_parameters_that_opt_out(name, free):
    model = build(name)
    names = {weight: path for path, weight in model.named_parameters()}
    spared = {names[w] for g in param_groups(model, weight_decay=0.1) if g["weight_decay"] == 0 for w in g["params"]}
    assert spared == {f"blocks.{block}.sequence_mixer.{path}" for block in range(2) for path in free}
    assert sum(len(group["params"]) for group in param_groups(model, weight_decay=0.1)) == len(names)


@pytest.mark.parametrize("name", ["s4d", "h3"])
def test_what_a_recurrence_decays_by_learns_slowly(name):
    slow = {path.split(".")[-1] for path, _, spec in named_param_specs(build(name)) if spec.max_lr == 1e-3}
    assert slow == {"A_log_real", "A_imag", "log_dt"}

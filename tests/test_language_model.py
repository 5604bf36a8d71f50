import json
import re
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from memory_mosaics.config import MixerConfig, from_plain, to_plain
from memory_mosaics.errors import UserError
from memory_mosaics.language_model import (
    GAIN,
    LanguageModel,
    LanguageModelConfig,
    next_token_loss,
    parameter_count,
    weight_count,
)
from memory_mosaics.memory import ContextualMemoryConfig, PersistentMemoryConfig
from memory_mosaics.mixers.attention import AttentionConfig
from memory_mosaics.models import (
    ARCHITECTURES,
    DEPTHS,
    INGREDIENTS,
    PRESETS,
    add_ingredients,
    count_without_embeddings,
    llama,
    matching_slots,
    memory_mosaic,
    memory_mosaic_v2,
    preset,
    transformer,
)
from memory_mosaics.stores import Visibility, map_state

SMALL = {"width": 32, "blocks": 2, "heads": 4, "vocabulary": 50, "context": 64}
MODELS = {
    "memory mosaic": memory_mosaic(**SMALL),
    "v2": memory_mosaic_v2(**SMALL),
    "learned": transformer(**SMALL),
    "rotary": transformer(position="rotary", **SMALL),
    "alibi": transformer(position="alibi", **SMALL),
    "none": transformer(position="none", **SMALL),
    "llama": llama(**SMALL),
    "llama, grouped queries": llama(**SMALL, key_value_heads=2),
    "one mixer only": LanguageModelConfig(
        vocabulary=50, width=32, blocks=1, sequence_mixer=ContextualMemoryConfig(heads=4), tied=False, bias=True
    ),
    "post-norm": replace(memory_mosaic(**SMALL), norm_placement="post"),
}
models = pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)


@models
def test_a_stream_equals_all_at_once(config):
    model = LanguageModel(config).eval()
    tokens = torch.randint(0, 50, (2, 30))
    whole, _ = model(tokens)
    state, logits = None, []
    for chunk in tokens.split([1, 1, 5, 1, 20, 2], dim=1):
        y, state = model(chunk, state)
        logits.append(y)
    assert_close(torch.cat(logits, dim=1), whole, rtol=1e-4, atol=1e-5)


@models
def test_a_left_padded_row_equals_the_row_alone(config):
    model = LanguageModel(config).eval()
    tokens = torch.randint(0, 50, (2, 12))
    mask = torch.arange(12) >= torch.tensor([[0], [5]])
    assert_close(model(tokens, None, mask)[0][1, 5:], model(tokens[1:, 5:])[0][0], rtol=1e-4, atol=1e-5)


@models
def test_gradient_checkpointing_changes_no_gradient(config):
    model = LanguageModel(config)
    tokens = torch.randint(0, 50, (2, 20))
    gradients = []
    for model.gradient_checkpointing in (False, True):
        model.zero_grad()
        torch.manual_seed(0)  # of the delays of v2
        next_token_loss(model(tokens)[0][:, :-1], tokens[:, 1:]).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert_close(*gradients)


@models
def test_every_parameter_is_trained(config):
    model = LanguageModel(config)
    tokens = torch.randint(0, 50, (2, 20))
    next_token_loss(model(tokens)[0][:, :-1], tokens[:, 1:]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_post_norm_normalises_the_residual_too():
    config = replace(MODELS["memory mosaic"], norm_placement="post", bias=True)
    block = LanguageModel(config).blocks[0].eval()
    x = torch.randn(2, 9, 32)
    torch.nn.init.normal_(block.sequence_norm.bias)
    h = block.sequence_norm(x)
    h = block.channel_norm(h + block.sequence_mixer(h)[0])
    assert_close(block(x)[0], h + block.channel_mixer(h)[0])
    with pytest.raises((TypeError, ValueError), match="norm_placement"):  # the tests check types as well
        replace(config, norm_placement="middle")


def test_it_learns_to_repeat():
    """A hundred steps: random tokens, then the same again. One block of memories suffices."""
    torch.manual_seed(0)
    model = LanguageModel(memory_mosaic(width=64, blocks=1, heads=4, vocabulary=32, context=32))
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(150):
        half = torch.randint(0, 32, (32, 16))
        tokens = torch.cat([half, half], dim=1)
        loss = next_token_loss(model(tokens)[0][:, 16:-1], tokens[:, 17:])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.6, loss  # ln 32 = 3.5 without memory


def test_the_loss_is_the_cross_entropy_of_what_counts():
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[0, -100, 4], [1, 2, -100]])
    by_hand = [-logits[b, t].log_softmax(-1)[targets[b, t]] for b in range(2) for t in range(3) if targets[b, t] >= 0]
    assert_close(next_token_loss(logits, targets), torch.stack(by_hand).mean())


def test_a_fresh_model_knows_nothing():
    """Its loss is that of a uniform guess: no part starts with an opinion."""
    for name in ("memory-mosaic-tiny", "transformer-tiny"):
        model = LanguageModel(preset(name))
        tokens = torch.randint(0, 2048, (4, 65))
        loss = next_token_loss(model(tokens[:, :-1])[0], tokens[:, 1:])
        assert abs(float(loss.detach()) - torch.log(torch.tensor(2048.0))) < 0.2, name


@pytest.mark.parametrize(("size", "total", "body"), [("1.5b", "2.04", "1.51"), ("8b", "9.91", "8.86")])
def test_memory_mosaics_v2_and_its_llama_have_the_printed_sizes(size, total, body):
    """The printed numbers leave out the gates of keys, two vectors per memory: 0.2 % of the larger model."""
    config, twin = preset(f"memory-mosaic-v2-{size}"), preset(f"llama-{size}")
    gates = 2 * config.blocks * config.sequence_mixer.heads * config.width
    assert f"{(weight_count(config) - gates) / 1e9:.2f}" == total
    assert f"{(count_without_embeddings(config) - gates) / 1e9:.2f}" == body
    assert f"{weight_count(twin) / 1e9:.2f}" == {"1.5b": "1.83", "8b": "8.84"}[size]
    assert count(config)["total"] == weight_count(config)  # built on the meta device
    short, long = config.sequence_mixer.visibility
    assert (short.window, long.delay, long.train_delay) == (256, 64, (64, 256))


def test_the_window_and_the_delays_of_v2_are_in_proportion_to_the_context():
    seen = lambda context: memory_mosaic_v2(context=context).sequence_mixer.visibility  # noqa: E731
    assert (
        seen(2048) == seen(4096) == seen(8192) == (Visibility(window=256), Visibility(delay=64, train_delay=(64, 256)))
    )
    assert seen(512) == (Visibility(window=64), Visibility(delay=16, train_delay=(16, 64)))
    assert seen(1) == (Visibility(window=1), Visibility(delay=1, train_delay=(1, 1)))


def count(config):
    with torch.device("meta"):
        return parameter_count(LanguageModel(config))


@pytest.mark.parametrize("depth", [*DEPTHS, "tiny"])
def test_twins_have_the_same_size(depth):
    mosaic, twin = count(preset(f"memory-mosaic-{depth}")), count(preset(f"transformer-{depth}"))
    assert abs(mosaic["total"] / twin["total"] - 1) < 0.01
    assert sum(value for name, value in mosaic.items() if name != "total") == mosaic["total"]
    assert abs(count(preset(f"llama-{depth}"))["total"] / twin["total"] - 1) < 0.01
    v2 = preset("memory-mosaic-v2-tiny") if depth == "tiny" else preset("memory-mosaic-v2-12", blocks=depth)
    assert abs(count(v2)["total"] / twin["total"] - 1) < 0.01


ADDED = [
    "memory-mosaic+adaptive+taps+gate+windows+swiglu+rmsnorm",
    "memory-mosaic+gated",
    "memory-mosaic+pair-dropout+slot-dropout",
    "memory-mosaic+wide-slots",
    "memory-mosaic+short-long",
    "memory-mosaic-v2+fixed-delay",
    "memory-mosaic-v2+taps+gate",
    "llama+gate+taps+windows",
    "transformer-alibi+swiglu",
]


@pytest.mark.parametrize("name", ADDED)
def test_ingredients_change_the_model_and_not_its_size(name):
    base, *ingredients = name.split("+")
    kind = add_ingredients(ARCHITECTURES[base], ingredients)
    sizes = {"width": 64, "blocks": 2, "heads": 4, "vocabulary": 300, "context": 64}
    plain, config = ARCHITECTURES[base].config(**sizes), kind.config(**sizes)
    assert abs(weight_count(config) / weight_count(plain) - 1) < 0.01
    assert from_plain(LanguageModelConfig, json.loads(json.dumps(to_plain(config)))) == config
    for ingredient in ingredients:
        for field in INGREDIENTS[ingredient]:
            before, after = (getattr(one, field, getattr(one.sequence_mixer, field, None)) for one in (plain, config))
            assert before != after, field
    assert kind.label.startswith(ARCHITECTURES[base].label + " + ")
    model, tokens = LanguageModel(config).eval(), torch.randint(0, 300, (2, 20))
    whole, state = model(tokens)[0], None
    for t in range(20):
        logits, state = model(tokens[:, t : t + 1], state)
        assert_close(logits[:, 0], whole[:, t], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("memory-mosaic+gat", "no ingredient 'gat'; did you mean gate?"),
        ("memory-mosaic+taps+gated", "taps and gated both change the key; leave one of them out"),
        ("llama+adaptive", "AttentionConfig has no sharpness, which adaptive would change"),
        (
            "llama+slot-dropout",
            "slot-dropout changes nothing: the channel_mixer of LanguageModelConfig is SwiGLUConfig",
        ),
        ("llama+swiglu", "swiglu changes nothing: the channel_mixer of LanguageModelConfig is SwiGLUConfig"),
        (
            "memory-mosaic+fixed-delay",
            "fixed-delay changes nothing: the visibility of ContextualMemoryConfig is all ea",
        ),
        ("memory-mosaic-v2+windows", "the heads of ContextualMemoryConfig see different pairs already"),
    ],
)
def test_ingredients_that_cannot_be_added_are_refused(name, message):
    base, *ingredients = name.split("+")
    with pytest.raises(UserError, match=re.escape(message)):
        add_ingredients(ARCHITECTURES[base], ingredients).config(width=64, blocks=2, heads=4)


@settings(max_examples=60, deadline=None)
@given(
    head_width=st.integers(1, 128),
    heads=st.integers(1, 8),
    blocks=st.integers(1, 24),
    vocabulary=st.integers(2, 50_000),
    context=st.integers(16, 2048),
    position=st.sampled_from(["learned", "rotary", "alibi", "none"]),
)
def test_twins_have_the_same_size_at_any_size(head_width, heads, blocks, vocabulary, context, position):
    width = head_width * heads
    assume(8 <= width <= 1024 and (position != "rotary" or head_width % 2 == 0))
    sizes = {"width": width, "heads": heads, "blocks": blocks, "vocabulary": vocabulary, "context": context}
    twin = transformer(position=position, **sizes)
    mosaic = memory_mosaic(**sizes, slots=None if position == "learned" else matching_slots(twin))
    bound = max(0.01, 1 / (12 * width))  # half a slot of every block, which is more than 1 % below a width of 9
    assert abs(weight_count(mosaic) / weight_count(twin) - 1) <= bound


@settings(max_examples=60, deadline=None)
@given(
    head_width=st.integers(1, 64).map(lambda half: 2 * half),
    heads=st.integers(1, 8),
    groups=st.sampled_from([1, 2, 4]),
    blocks=st.integers(1, 24),
    vocabulary=st.integers(2, 50_000),
    context=st.integers(16, 2048),
)
def test_llama_twins_have_the_same_size_at_any_size(head_width, heads, groups, blocks, vocabulary, context):
    width = head_width * heads
    assume(8 <= width <= 1024 and heads % groups == 0)
    sizes = {"width": width, "heads": heads, "blocks": blocks, "vocabulary": vocabulary, "context": context}
    count = weight_count(llama(**sizes, key_value_heads=heads // groups))
    bound = max(0.01, 1 / (8 * width))  # half a hidden unit of every block, which is more than 1 % below a width of 13
    assert abs(count / weight_count(transformer(**sizes)) - 1) <= bound


def test_the_hidden_width_of_llama_is_round_where_it_can_be():
    hidden = lambda name, **changes: preset(name, **changes).channel_mixer.hidden  # noqa: E731
    assert {hidden(f"llama-{depth}") for depth in (12, 18)} == {2048}  # 8/3 of the width
    assert hidden("llama-small") == 1024
    assert hidden("llama-tiny") == 360
    assert (
        hidden("llama-12", key_value_heads=4) == 2432
    )  # 4/9 of the width more, in place of two thirds of the keys and values
    assert hidden("llama-12", hidden=100) == 100


def test_the_size_of_a_model_that_is_not_built():
    for config in (*MODELS.values(), preset("transformer-tiny"), replace(memory_mosaic(**SMALL), tied=False)):
        assert weight_count(config) == count(config)["total"]
    with pytest.raises(ValueError, match="too large for any machine"):
        memory_mosaic(width=2 * 10**9, heads=1)


def test_a_preset_has_the_papers_slots_and_other_sizes_as_many_as_match():
    slots = lambda name, **changes: preset(name, **changes).channel_mixer.slots  # noqa: E731
    assert {slots(f"memory-mosaic-{depth}") for depth in DEPTHS} == {2688}
    assert slots("memory-mosaic-tiny") == 480
    assert slots("memory-mosaic-12", width=384, blocks=6, heads=6) == 1344  # the recipe memory-mosaic-small
    assert slots("memory-mosaic-tiny", blocks=1) == 448 + 256 // 2  # what a table of 256 positions weighs
    assert slots("memory-mosaic-1", vocabulary=2048) == 2688 + 512 // 2


@pytest.mark.parametrize("field", [{"tied": False}, {"bias": True}])
def test_a_memory_mosaic_with_other_fields_still_matches_the_transformer(field):
    sizes = {"width": 64, "blocks": 2, "heads": 4, "vocabulary": 300, "context": 64}
    mosaic, twin = (weight_count(build(**sizes, **field)) for build in (memory_mosaic, transformer))
    assert abs(mosaic / twin - 1) < 0.01


def test_the_papers_model():
    config = preset("memory-mosaic-12", vocabulary=50304)
    assert (config.width, config.blocks, config.tied, config.bias) == (768, 12, True, False)
    assert config.sequence_mixer == ContextualMemoryConfig(heads=12)
    assert config.channel_mixer == PersistentMemoryConfig(heads=12, slots=2688)
    parts = count(config)
    per_head = 12 * (3 + 1 + 1)  # decay, two taps | sharpness, scale
    assert parts["sequence mixers"] == 12 * (3 * 768**2 + per_head)
    assert parts["channel mixers"] == 12 * (9 * 768**2 + 12 * 3)
    assert parts["embedding"] == 50304 * 768


def test_every_preset_builds():
    for name in PRESETS:
        assert count(preset(name))["total"] > 0


def test_initial_standard_deviations():
    model = LanguageModel(preset("memory-mosaic-tiny"))
    block = model.blocks[0]
    assert block.sequence_mixer.key.map.weight.std().item() == pytest.approx(128**-0.5, rel=0.05)
    assert block.sequence_mixer.combine.map.weight.std().item() == pytest.approx(0.02 / 8**0.5, rel=0.05)
    for slots in (block.channel_mixer.keys, block.channel_mixer.values):
        assert slots.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.05)
    block = LanguageModel(preset("transformer-tiny", width=384, heads=6)).blocks[0]
    for matrix in (block.sequence_mixer.query, block.sequence_mixer.key.map, block.channel_mixer.expand):
        assert matrix.weight.std().item() == pytest.approx(0.025, rel=0.05)


def test_initial_values_of_v2_are_clipped_and_shrink_with_depth():
    model = LanguageModel(memory_mosaic_v2(width=128, blocks=4, heads=4, vocabulary=2048, context=256))
    for layer, block in enumerate(model.blocks):
        memory, feedforward = block.sequence_mixer, block.channel_mixer
        for module in (memory.key.map, memory.value.map, memory.combine.map, feedforward.gate, feedforward.combine):
            fan = feedforward.combine.in_features if module is feedforward.combine else 128
            std = (2 * fan * (layer + 1)) ** -0.5
            assert module.weight.std().item() == pytest.approx(std, rel=0.05)
            assert 2.5 * std < module.weight.abs().max() <= 3 * std
    assert model.embedding.weight.std().item() == pytest.approx(1 / 16, rel=0.05)


def test_initial_values_follow_declared_roles_and_depth():
    """A user's mixer: a subclass of nn.Linear is a matrix, a declared residual map is scaled, depth is passed on."""

    class Mixer(torch.nn.Module):
        init_roles: ClassVar = {"last": "residual"}

        def __init__(self):
            super().__init__()
            self.first = type("Special", (torch.nn.Linear,), {})(256, 256)
            self.last = torch.nn.Linear(256, 256)

        def reset_at_depth(self, layer, layers):
            self.depth = layer, layers

    class MixerConfigOfMine(MixerConfig):
        def build(self, width, *, dropout=0.0, bias=False):
            return Mixer()

    config = LanguageModelConfig(vocabulary=9, width=256, blocks=2, sequence_mixer=MixerConfigOfMine())
    for init, first, last in (("default", GAIN / 16, 0.01), ("gpt2", 0.02, 0.01), ("gpt2-channel", 0.02, 0.02)):
        mixers = [block.sequence_mixer for block in LanguageModel(replace(config, init=init)).blocks]
        assert [mixer.depth for mixer in mixers] == [(0, 2), (1, 2)]
        assert mixers[0].first.weight.std().item() == pytest.approx(first, rel=0.05)
        assert mixers[1].last.weight.std().item() == pytest.approx(last, rel=0.05)
        assert not mixers[0].first.bias.any()


@pytest.mark.parametrize("heads", [1, 4, 16])
def test_random_keys_are_distinguished_at_initialisation_for_any_head_width(heads):
    """The scores of a unit key against random unit keys and against the slots deviate as memory.py says."""
    from memory_mosaics.memory import PERSISTENT_SPREAD, SPREAD

    block = LanguageModel(memory_mosaic(width=256, blocks=1, heads=heads, vocabulary=9)).blocks[0]
    query, others = torch.nn.functional.normalize(torch.randn(2, 4000, 256 // heads), dim=-1)
    scores = block.sequence_mixer.sharpness()[0] * (query * others).sum(-1)
    assert scores.std().item() == pytest.approx(SPREAD, rel=0.1)
    scores = block.channel_mixer.sharpness()[0] * query[:200] @ block.channel_mixer.keys[0, :, 0].T
    assert scores.std().item() == pytest.approx(PERSISTENT_SPREAD, rel=0.1)


def test_states_map():
    doubled = map_state(lambda x: 2 * x, (torch.ones(1), (torch.ones(2), ())))
    assert_close(doubled[1][0], torch.full((2,), 2.0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": 0}, "blocks must be at least 1, not 0"),
        ({"dropout": 1.5}, "dropout must be in"),
        ({"vocabulary": -1}, "vocabulary"),
    ],
)
def test_a_wrong_size_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        LanguageModelConfig(
            **{"vocabulary": 5, "width": 8, "blocks": 1, "sequence_mixer": AttentionConfig(heads=1)} | changes
        )


def test_an_unknown_preset_or_position_is_named():
    with pytest.raises(ValueError, match=r"no preset 'gpt-9'.*memory-mosaic"):
        preset("gpt-9")
    with pytest.raises(ValueError, match=r"no position code 'polar'.*rotary"):
        transformer(position="polar")


def test_an_unknown_argument_of_a_preset_is_named():
    with pytest.raises(ValueError, match=r"preset 'memory-mosaic-12': .*'wdith'"):
        preset("memory-mosaic-12", wdith=3)


def test_dropout_touches_training_only():
    model = LanguageModel(memory_mosaic(**SMALL, dropout=0.3))
    tokens = torch.randint(0, 50, (2, 20))
    assert not torch.allclose(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert_close(model(tokens)[0], model(tokens)[0])


@pytest.mark.parametrize("mask", [torch.ones(2, 20), torch.ones(1, 20, dtype=torch.bool)])
def test_a_mask_of_another_kind_or_shape_is_refused(mask):
    model = LanguageModel(memory_mosaic(**SMALL))
    with pytest.raises(ValueError, match=r"mask must be \(2, 20\) bool, not"):
        model(torch.randint(0, 50, (2, 20)), None, mask)


def test_a_model_has_a_shape_without_having_numbers():
    """As tools that plan memory do it: everything on the meta device."""
    with torch.device("meta"):
        logits, _ = LanguageModel(memory_mosaic(**SMALL))(torch.zeros(2, 70, dtype=torch.long))
    assert logits.shape == (2, 70, 50)


@dataclass(frozen=True, kw_only=True)
class MapsConfig(MixerConfig):
    """As somebody may write it: with a list, which has no hash."""

    widths: list[int]

    def build(self, width, *, dropout=0.0, bias=False):
        return torch.nn.ModuleList(torch.nn.Linear(width, each, bias=False) for each in self.widths)


def test_weights_of_parts_without_a_hash_are_counted_each_time():
    widths = [3]
    config = LanguageModelConfig(vocabulary=7, width=4, blocks=2, sequence_mixer=MapsConfig(widths=widths))
    count = weight_count(config)
    widths.append(5)
    assert weight_count(config) == count + 2 * 4 * 5 == parameter_count(LanguageModel(config))["total"]


def test_weights_are_counted_again_where_a_part_builds_another_module(monkeypatch):
    config = LanguageModelConfig(vocabulary=7, width=4, blocks=2, sequence_mixer=MapsConfig(widths=(3,)))
    count = weight_count(config)
    wider = lambda self, width, **_: torch.nn.ModuleList([torch.nn.Linear(width, 8, bias=False)])  # noqa: E731
    monkeypatch.setattr(MapsConfig, "build", wider)
    assert weight_count(config) == count + 2 * 4 * 5

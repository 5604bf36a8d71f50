"""The transformer baselines against independent definitions."""

import math

import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.extractors import LinearConfig
from memory_mosaics.language_model import LanguageModel, LanguageModelConfig
from memory_mosaics.mixers.attention import (
    Alibi,
    AttentionConfig,
    LearnedPositions,
    LearnedPositionsConfig,
    MLPConfig,
    Rotary,
    SwiGLUConfig,
    alibi_slopes,
)
from memory_mosaics.norms import RMSNormConfig

GPT2_MAPS = ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


def gpt2_pair():
    """transformers' GPT-2 with random weights, and ours with the same."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "n_embd": 48,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": 101,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.3 / math.sqrt(max(1, parameter.dim())))
    ours = LanguageModel(
        LanguageModelConfig(
            vocabulary=101,
            width=48,
            blocks=3,
            bias=True,
            positions=LearnedPositionsConfig(context=64),
            sequence_mixer=AttentionConfig(heads=4),
            channel_mixer=MLPConfig(),
        )
    ).eval()
    source = theirs.transformer.state_dict()
    weights = {
        "embedding.weight": source["wte.weight"],
        "positions.table.weight": source["wpe.weight"],
        "norm.weight": source["ln_f.weight"],
        "norm.bias": source["ln_f.bias"],
    }
    for i in range(3):
        for kind in ("weight", "bias"):
            get = {name: source[f"h.{i}.{name}.{kind}"].t() for name in GPT2_MAPS}  # its maps are stored transposed
            query, key, value = get["attn.c_attn"].chunk(3, dim=0)
            for name, tensor in {
                "sequence_norm": get["ln_1"],
                "sequence_mixer.query": query,
                "sequence_mixer.key.map": key,
                "sequence_mixer.value": value,
                "sequence_mixer.combine": get["attn.c_proj"],
                "channel_norm": get["ln_2"],
                "channel_mixer.expand": get["mlp.c_fc"],
                "channel_mixer.combine": get["mlp.c_proj"],
            }.items():
                weights[f"blocks.{i}.{name}.{kind}"] = tensor
    ours.load_state_dict(weights)
    return ours, theirs


def test_our_gpt2_is_gpt2():
    ours, theirs = gpt2_pair()
    tokens = torch.randint(0, 101, (2, 50))
    logits = ours(tokens)[0]
    assert_close(logits, theirs(tokens).logits, rtol=1e-5, atol=1e-5)
    assert logits.std() > 0.1


LLAMA_MAPS = {
    "sequence_norm": "input_layernorm",
    "sequence_mixer.query": "self_attn.q_proj",
    "sequence_mixer.key.map": "self_attn.k_proj",
    "sequence_mixer.value": "self_attn.v_proj",
    "sequence_mixer.combine": "self_attn.o_proj",
    "sequence_mixer.query_norm": "self_attn.q_norm",
    "sequence_mixer.key_norm": "self_attn.k_norm",
    "channel_norm": "post_attention_layernorm",
    "channel_mixer.gate": "mlp.gate_proj",
    "channel_mixer.expand": "mlp.up_proj",
    "channel_mixer.combine": "mlp.down_proj",
}


def llama_pair(kind, key_value_heads, tied=False):
    """transformers' Llama, or Qwen3 (with norms of queries and keys), with random weights, and ours with the same."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "intermediate_size": 80, "vocab_size": 101, "head_dim": 12}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": key_value_heads, "tie_word_embeddings": tied}
    settings = getattr(transformers, f"{kind}Config")(**sizes, rms_norm_eps=1e-5, bos_token_id=0, eos_token_id=0)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(settings).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(std=0.1, mean=float(parameter.dim() == 1))
    norm = RMSNormConfig(eps=1e-5)
    attention = AttentionConfig(
        heads=4, key_value_heads=key_value_heads, position=Rotary(), qk_norm=norm if kind == "Qwen3" else None
    )
    ours = LanguageModel(
        LanguageModelConfig(
            vocabulary=101,
            width=48,
            blocks=3,
            norm=norm,
            tied=tied,
            sequence_mixer=attention,
            channel_mixer=SwiGLUConfig(hidden=80),
        )
    ).eval()
    source = theirs.state_dict()
    weights = {"embedding.weight": source["model.embed_tokens.weight"], "norm.weight": source["model.norm.weight"]}
    if not tied:
        weights["head.weight"] = source["lm_head.weight"]
    for i in range(3):
        for our, their in LLAMA_MAPS.items():
            if f"model.layers.{i}.{their}.weight" in source:
                weights[f"blocks.{i}.{our}.weight"] = source[f"model.layers.{i}.{their}.weight"]
    ours.load_state_dict(weights)
    return ours, theirs


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("key_value_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", ["Llama", "Qwen3"])
@torch.no_grad()
def test_our_llama_is_llama(kind, key_value_heads, tied):
    """All positions at once, left-padded rows, and a token at a time from a state of fixed capacity."""
    ours, theirs = llama_pair(kind, key_value_heads, tied)
    tokens = torch.randint(0, 101, (3, 50))
    expected = theirs(tokens).logits
    assert expected.std() > 0.1
    logits, state = ours(tokens[:, :40])
    state, found = ours.to_fixed_capacity(state, 50), [logits]
    for token in tokens[:, 40:].split(1, dim=1):
        logits, state = ours(token, state)
        found.append(logits)
    assert_close(ours(tokens)[0], expected, rtol=1e-5, atol=1e-5)
    assert_close(torch.cat(found, dim=1), expected, rtol=1e-5, atol=1e-5)

    real = torch.arange(50) >= torch.tensor([[0], [13], [49]])
    expected = theirs(tokens, attention_mask=real.long()).logits
    assert_close(ours(tokens, None, real)[0][real], expected[real], rtol=1e-5, atol=1e-5)


def test_heads_that_share_no_keys_are_refused():
    with pytest.raises(ValueError, match="4 heads do not split into 3 groups"):
        AttentionConfig(heads=4, key_value_heads=3)
    with pytest.raises(ValueError, match="key_value_heads must be at least 1, not 0"):
        AttentionConfig(heads=4, key_value_heads=0)
    with pytest.raises(ValueError, match="ALiBi has keys of its own in each of 4 heads, not 2"):
        AttentionConfig(heads=4, key_value_heads=2, position=Alibi())


def test_grouped_queries_store_the_keys_of_their_groups_only():
    _, (_, store) = AttentionConfig(heads=4, key_value_heads=2).build(32)(torch.randn(1, 5, 32))
    assert store.keys.shape == store.values.shape == (1, 5, 2, 8)


def attend(mixer, x, bias=None, turn=lambda z: z):
    """Attention from its formula, with dense masks and in float64."""
    heads = mixer.heads
    x = x.double()
    q, k, v = (
        (x @ w.double().T).unflatten(-1, (heads, -1)).transpose(1, 2)
        for w in (mixer.query.weight, mixer.key.map.weight, mixer.value.weight)
    )
    scores = turn(q) @ turn(k).transpose(-1, -2) / math.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), -torch.inf)
    y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return (y @ mixer.combine.weight.double().T).float()


def test_rotary_is_a_rotation_of_complex_pairs():
    mixer, x = AttentionConfig(heads=4, position=Rotary()).build(32), torch.randn(2, 37, 32)

    def turn(z):
        D, T = z.shape[-1], z.shape[-2]
        speed = 10000.0 ** (-2 * torch.arange(D // 2).double() / D)
        angle = torch.arange(T).double()[:, None] * speed
        turned = torch.complex(z[..., : D // 2], z[..., D // 2 :]) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag], dim=-1)

    assert_close(mixer(x)[0], attend(mixer, x, turn=turn), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("heads", [4, 12])
def test_alibi_is_a_penalty_on_distance(heads):
    mixer, x = AttentionConfig(heads=heads, position=Alibi()).build(48), torch.randn(2, 37, 48)
    t = torch.arange(37).double()
    bias = -alibi_slopes(heads).double()[:, None, None] * (t[:, None] - t)
    assert_close(mixer(x)[0], attend(mixer, x, bias=bias), rtol=1e-5, atol=1e-5)


def test_alibi_keeps_far_positions_apart_in_bfloat16():
    """At 4000 tokens a bias held in one bfloat16 would be off by several units of score."""
    mixer, x = AttentionConfig(heads=4, position=Alibi()).build(32), torch.randn(1, 4000, 32)
    near = mixer(x)[0][:, -50:]
    rough = mixer.bfloat16()(x.bfloat16())[0][:, -50:]
    assert (rough.float() - near).abs().mean() < 0.02 * near.abs().mean() + 2e-3


def test_official_slopes():
    assert_close(alibi_slopes(8), torch.tensor([2.0**-h for h in range(1, 9)]))
    twelve = [*(2.0**-h for h in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert_close(alibi_slopes(12), torch.tensor(twelve))


def test_plain_attention_is_its_formula():
    mixer, x = AttentionConfig(heads=4, key=LinearConfig()).build(32), torch.randn(2, 37, 32)
    assert_close(mixer(x)[0], attend(mixer, x), rtol=1e-5, atol=1e-5)


def test_rotary_needs_pairs():
    with pytest.raises(ValueError, match="3 wide"):
        AttentionConfig(heads=2, position=Rotary()).build(6)(torch.randn(1, 4, 6))


@pytest.mark.parametrize("prompt", [0, 5])
def test_positions_beyond_the_table_are_named(prompt):
    positions = LearnedPositions(4, context=8)
    state = positions(torch.zeros(1, prompt, 4))[1] if prompt else None
    with pytest.raises(ValueError, match="9 tokens are more than the 8 learned positions"):
        positions(torch.zeros(1, 9 - prompt, 4), state)


def test_padding_takes_no_position():
    positions = LearnedPositions(4, context=8)
    mask = torch.arange(12) >= torch.tensor([[4], [9]])
    y, (total,) = positions(torch.zeros(2, 12, 4), None, mask)
    assert total.tolist() == [8, 3]
    assert_close(y[0, 4:], positions.table.weight)

"""What the layers ask, and the weights behind their answers: against the layers' own answers and a plain softmax."""

import math
from dataclasses import replace

import pytest
import torch

from memory_mosaics.inspection import disentanglement, head_information, inspect_position, retrievals
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.memory import OutputGateConfig
from memory_mosaics.mixers.attention import alibi_slopes
from memory_mosaics.models import llama, memory_mosaic, transformer
from memory_mosaics.norms import NoNormConfig
from memory_mosaics.stores import Pairs, Retrieval, RetrievalMixer, VisiblePairs

SIZE = {"width": 16, "blocks": 2, "heads": 2, "vocabulary": 40, "context": 12}
MODELS = {
    "memory-mosaic": memory_mosaic(**SIZE),
    **{position: transformer(position=position, **SIZE) for position in ("learned", "rotary", "alibi", "none")},
    "llama, grouped queries": llama(**SIZE, key_value_heads=1),
}
for name in ("memory-mosaic", "llama, grouped queries"):
    gated = replace(MODELS[name].sequence_mixer, gate=OutputGateConfig())
    MODELS[f"{name}, gated"] = replace(MODELS[name], sequence_mixer=gated)
TOKENS = torch.arange(33).reshape(3, 11) * 7 % 40


@pytest.mark.parametrize("name", MODELS)
def test_weights_give_the_answers_of_the_layer_as_it_runs(name):
    """Taken from the mixers' own outputs, so that a retrieval about other inputs would be found out."""
    model = LanguageModel(MODELS[name]).eval()
    outputs = {}
    for module in model.modules():
        if isinstance(module, RetrievalMixer):
            module.register_forward_hook(lambda mixer, _, output: outputs.__setitem__(mixer, output[0]))
    with torch.no_grad():
        expected, _ = model(TOKENS)
    wanted = dict(outputs)
    found = list(retrievals(model, TOKENS))
    memories = name.startswith("memory-mosaic")
    kinds = ["sequence", "channel"] if memories else ["sequence"]
    assert [(number, kind) for number, kind, *_ in found] == [(n, kind) for n in range(2) for kind in kinds]
    for _, kind, mixer, retrieval, _ in found:
        weights, answers = retrieval.weights_and_answers(range(retrieval.queries.shape[1]))
        alone = torch.einsum("bhtn,bnhv->bthv", weights, retrieval.pairs.per_head(weights.shape[1]).values)
        assert torch.equal(answers, alone) == (retrieval.gate is None)
        if kind == "channel":
            answers = answers.mean(dim=0).unflatten(0, TOKENS.shape)
        output = mixer.combine(answers if memories else answers.flatten(2))
        torch.testing.assert_close(output, wanted[mixer], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model(TOKENS)[0], expected)  # looking changes nothing


@pytest.mark.parametrize("training", [True, False])
def test_looking_leaves_the_model_as_it_was(training):
    model = LanguageModel(memory_mosaic(**SIZE, dropout=0.5)).train(training)
    first, second = ([layer.retrieval.queries for layer in retrievals(model, TOKENS)] for _ in range(2))
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert model.training is training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_what_a_query_sees_adds_up_to_one():
    model = LanguageModel(MODELS["memory-mosaic"])
    retrieval = next(retrievals(model, TOKENS)).retrieval
    weights = retrieval.weights([0, 1, 5, -1])
    assert weights.shape == (3, 2, 4, 10), "a value that peeks one step: ten pairs of eleven tokens"
    torch.testing.assert_close(weights.sum(dim=-1), torch.tensor([0.0, 1, 1, 1]).expand(3, 2, 4))
    torch.testing.assert_close(weights[:, :, 1, 0], torch.ones(3, 2))  # one pair is all there is
    assert not weights[:, :, 2, 5:].any()
    assert weights[:, :, 3].all()


def naive(mixer, x, position):
    """Attention as the papers write it, with scores of all positions at once."""
    B, T, W = x.shape
    D = W // mixer.heads
    q, k = (part(x).reshape(B, T, mixer.heads, D).transpose(1, 2) for part in (mixer.query, mixer.key.map))
    if position == "rotary":
        angle = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, D, 2) / D)
        q, k = (torch.view_as_complex(torch.stack(y.chunk(2, dim=-1), dim=-1)) for y in (q, k))
        turn = torch.polar(torch.ones_like(angle), angle)
        scores = ((q * turn) @ (k * turn).conj().transpose(-1, -2)).real / math.sqrt(D)
    else:
        scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    if position == "alibi":
        scores = scores - alibi_slopes(mixer.heads)[:, None, None] * distance
    return scores.masked_fill(distance < 0, -torch.inf).softmax(dim=-1)


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi", "none"])
def test_attention_is_the_softmax_of_the_papers(position):
    model = LanguageModel(MODELS[position])
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)  # scores that differ
        block = model.blocks[0]
        x = model.embedding(TOKENS) if model.positions is None else model.positions(model.embedding(TOKENS))[0]
        wanted = naive(block.sequence_mixer, block.sequence_norm(x), position)
    retrieval = next(retrievals(model, TOKENS)).retrieval
    assert wanted.std() > 0.1
    torch.testing.assert_close(retrieval.weights([4, -1]), wanted[:, :, [4, 10]], atol=1e-5, rtol=1e-4)


def test_padding_capacity_and_sharpness_of_any_shape_count():
    queries, keys, values = torch.randn(2, 3, 2, 4), torch.randn(2, 5, 2, 4), torch.randn(2, 5, 2, 4)
    real = torch.tensor([[True] * 5, [False, True, True, True, True]])
    held = torch.tensor([3, 4])
    for sharpness in (1.7, torch.rand(2), torch.rand(3, 2), torch.rand(2, 3, 2)):
        for pairs in (
            Pairs(keys, values, real, (VisiblePairs(2),)),
            Pairs(keys, values, real, (VisiblePairs(lengths=held),)),
            Pairs(keys, values),
        ):
            retrieval = Retrieval(queries, pairs, sharpness)
            weights = retrieval.weights([0, 2])
            answers = torch.einsum("bhtn,bnhv->bthv", weights, values)
            torch.testing.assert_close(answers, retrieval.answers()[:, [0, 2]])


def test_a_time_that_is_not_there_is_an_error():
    retrieval = next(retrievals(LanguageModel(MODELS["none"]), TOKENS)).retrieval
    with pytest.raises(IndexError):
        retrieval.weights([11])


@pytest.mark.parametrize("name", ["memory-mosaic", "memory-mosaic, gated"])
def test_heads_and_embedding_add_up_to_the_logits_of_a_model_without_norms(name):
    config = replace(MODELS[name], norm=NoNormConfig())
    model = LanguageModel(config).eval()
    found = sum(
        logits[tokens.argsort()]
        for mixer in inspect_position(model, TOKENS[0], top=40)
        for tokens, logits in zip(mixer.tokens, mixer.logits, strict=True)
    )
    with torch.no_grad():
        expected = model(TOKENS[:1])[0][0, -1] - model.logits(model.embedding(TOKENS[0, -1]))
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-6, rtol=1e-5)


def test_disentanglement_is_what_the_head_says_about_the_token():
    alike, one_each = torch.tensor([[0.1, -0.3, 0.6]]).expand(6, 3), torch.eye(3).repeat(2, 1)
    assert head_information(alike) == pytest.approx(0, abs=1e-6)
    assert head_information(torch.eye(3)[[1] * 6]) == pytest.approx(0, abs=1e-6), "one head says everything"
    assert head_information(-5 * one_each) == pytest.approx(1)
    assert head_information(torch.cat([one_each, torch.zeros(2, 3)])) == pytest.approx(1), (
        "an empty memory says nothing"
    )
    assert disentanglement(LanguageModel(memory_mosaic(**SIZE | {"heads": 1})), TOKENS) is None


@pytest.mark.parametrize("name", ["memory-mosaic, gated", "rotary"])
def test_contributions_to_the_next_token_are_what_its_logit_loses_without_a_head(name):
    config = replace(MODELS[name], norm=NoNormConfig(), channel_mixer=None, blocks=1)
    model = LanguageModel(config).eval()
    combine = model.blocks[0].sequence_mixer.combine
    weight = (combine if isinstance(combine, torch.nn.Linear) else combine.map).weight
    with torch.no_grad():
        whole, lost = model(TOKENS[:, :-1])[0], []
        for head in range(2):
            kept = weight.clone()
            weight[:, head * 8 : head * 8 + 8] = 0
            change = whole - model(TOKENS[:, :-1])[0]
            weight.copy_(kept)
            change = change - change.mean(dim=-1, keepdim=True)
            lost.append(change.gather(-1, TOKENS[:, 1:, None]).flatten())
    expected = head_information(torch.stack(lost, dim=-1))
    assert 0.01 < expected < 0.99
    assert disentanglement(model, TOKENS) == pytest.approx(expected, rel=1e-4)

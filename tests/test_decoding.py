from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memory_mosaics import LanguageModel, decoding, llama, memory_mosaic, memory_mosaic_v2, transformer
from memory_mosaics.decoding import GREEDY, Decoder, Sampler, beam_search, generate, stream
from memory_mosaics.extractors import TapsConfig
from memory_mosaics.ops.common import double_dtype
from mixers_under_contract import MIXERS

SMALL = {"width": 32, "blocks": 2, "heads": 4, "vocabulary": 50, "context": 24}
MODELS = {"memory mosaic": memory_mosaic, "transformer": transformer}
PROMPT = torch.tensor([3, 1, 4])


def strong(config):
    """A model far from uniform, so that its choices are clear."""
    torch.manual_seed(0)
    model = LanguageModel(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.dim() > 1 else None
    return model


@pytest.fixture(params=MODELS)
def model(request):
    return strong(MODELS[request.param](**SMALL, dropout=0.5)).train()


def continuation(model, prompt=PROMPT, length=8, **options):
    return generate(model, [prompt], length, **options)[0].tolist()


def log_probability(model, prompt, message):
    logits = model.eval()(torch.cat([prompt, message])[None])[0][0].log_softmax(-1)
    return sum(logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(message))


def test_greedy_is_the_best_token_of_the_whole_text_each_time(model):
    tokens = torch.tensor(continuation(model, sampler=GREEDY))
    text = PROMPT
    model.eval()
    for token in tokens:
        assert token == model(text[None])[0][0, -1].argmax()
        text = torch.cat([text, token[None]])


def test_training_goes_on_as_before(model):
    continuation(model, length=2)
    assert model.training


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}, {}])
def test_a_model_that_is_trained_further_generates_with_its_new_weights(model, how):
    """A fused optimiser changes parameters without autograd's counting it."""
    continuation(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.3, **how)
    for _ in range(3):
        model(torch.randint(50, (2, 9)))[0].logsumexp(-1).square().mean().backward()
        optimiser.step()
    twin = strong(model.config)
    twin.load_state_dict(model.state_dict())
    (mine, theirs) = (Decoder(one, [PROMPT]).logits for one in (model, twin))
    assert torch.equal(mine, theirs)


def test_it_ends_before_the_end(model):
    first = continuation(model, length=6, sampler=GREEDY)
    end = first[-1]
    assert continuation(model, length=6, sampler=GREEDY, eos=end) == first[: first.index(end)]


def test_each_row_ends_by_itself(model):
    prompts = [PROMPT, torch.tensor([9, 2]), torch.tensor([7, 7, 7, 7, 7])]
    alone = [continuation(model, prompt, 12, sampler=GREEDY) for prompt in prompts]
    end = alone[0][4]
    expected = [row[: row.index(end)] if end in row else row for row in alone]
    assert [row.tolist() for row in generate(model, prompts, 12, sampler=GREEDY, eos=end)] == expected


def test_a_stream_stops_when_all_rows_have_ended(model):
    end = continuation(model, length=3, sampler=GREEDY)[-1]
    steps = [tokens.tolist() for tokens in stream(model, [PROMPT, PROMPT], 20, sampler=GREEDY, eos=end)]
    assert steps[-1] == [end, end]
    assert len(steps) <= 3


def test_the_same_seed_generates_the_same_text_and_another_does_not(model):
    tokens = [continuation(model, length=15, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert tokens[0] == tokens[1] != tokens[2]


@pytest.mark.parametrize("sampler", [Sampler(top_k=1), Sampler(top_p=1e-6)])
def test_one_choice_is_greedy(model, sampler):
    assert continuation(model, sampler=sampler) == continuation(model, sampler=GREEDY)


def test_drawn_tokens_follow_the_probabilities():
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(4000, -1)
    drawn = Sampler(temperature=0.5)(logits, torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn, minlength=3) / 4000
    assert torch.allclose(shares, (logits[0] / 0.5).softmax(-1), atol=0.03)


def test_top_k_and_top_p_allow_the_fewest_that_suffice():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]).log()
    assert Sampler(top_p=0.6).top_k_top_p(logits).isfinite().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert Sampler(top_k=3).top_k_top_p(logits).isfinite().tolist() == [[1, 1, 1, 0], [0, 1, 1, 1]]
    assert Sampler(top_k=3, top_p=0.5).top_k_top_p(logits).isfinite().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert Sampler(top_k=9, top_p=1.0).top_k_top_p(logits).isfinite().all()


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_a_wrong_choice_is_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampler(**wrong)


def test_a_table_of_positions_ends_the_text_and_memories_go_on():
    prompt = torch.arange(20)
    assert (
        len(continuation(LanguageModel(transformer(**SMALL)), prompt, 50)) == 5
    )  # 24 are read, and the next is predicted
    assert len(continuation(LanguageModel(transformer(**SMALL, position="rotary")), prompt, 50)) == 50
    assert len(continuation(LanguageModel(memory_mosaic(**SMALL)), prompt, 50)) == 50
    assert len(continuation(LanguageModel(transformer(**SMALL)), torch.arange(24), 50)) == 1


def test_however_cold_it_takes_the_largest():
    assert Sampler(temperature=1e-38)(torch.tensor([[0.0, 1.0, 5.0]])).tolist() == [2]


def test_what_is_kept_out_of_training_stays_out(model):
    model.blocks[0].eval()
    continuation(model, length=2)
    assert not model.blocks[0].training
    assert model.blocks[1].training


def test_beams_do_not_depend_on_the_prompts_beside_them(model):
    end = continuation(model, length=5, sampler=GREEDY)[1]
    prompts = [torch.tensor([number, 2 * number % 50, 7]) for number in range(8)]
    together = beam_search(model, prompts, 10, beams=2, eos=end)
    for prompt, found in zip(prompts, together, strict=True):
        assert found.tolist() == beam_search(model, [prompt], 10, beams=2, eos=end)[0].tolist()


def test_one_beam_is_greedy(model):
    assert beam_search(model, [PROMPT], 8, beams=1)[0].tolist() == continuation(model, sampler=GREEDY)


def test_enough_beams_find_the_most_probable_text_of_all():
    model = strong(memory_mosaic(**SMALL | {"vocabulary": 4})).eval()
    texts = torch.cartesian_prod(*[torch.arange(4)] * 3)
    best = max(texts, key=lambda text: log_probability(model, PROMPT.clamp(max=3), text))
    assert beam_search(model, [PROMPT.clamp(max=3)], 3, beams=16)[0].tolist() == best.tolist()


@pytest.mark.parametrize("beams", [2, 3])
def test_beams_of_rows_side_by_side_find_what_transformers_finds(model, beams):
    pytest.importorskip("transformers")
    from memory_mosaics.huggingface import MosaicConfig, MosaicForCausalLM

    theirs = MosaicForCausalLM(MosaicConfig(language_model=model.config)).eval()
    theirs.language_model.load_state_dict(model.state_dict())
    end = continuation(model, length=5, sampler=GREEDY)[3]
    prompts = [PROMPT, torch.tensor([9, 2, 8]), torch.tensor([5, 5, 5])]
    found = beam_search(model, prompts, 12, beams=beams, eos=end)
    options = {"num_beams": beams, "do_sample": False, "eos_token_id": end, "pad_token_id": end, "max_new_tokens": 12}
    for prompt, values in zip(prompts, found, strict=True):
        expected = theirs.generate(prompt[None], **options)[0, len(prompt) :].tolist()
        expected = expected[: expected.index(end)] if end in expected else expected
        assert values.tolist() == expected


def test_no_beam_is_refused(model):
    with pytest.raises(ValueError, match="beams must be at least 1"):
        beam_search(model, [PROMPT], 3, beams=0)


def test_the_most_probable_token_is_always_allowed():
    logits = torch.randn(3, 50)
    allowed = Sampler(top_p=1e-46).top_k_top_p(logits)
    assert torch.equal(allowed.isfinite().sum(dim=-1), torch.ones(3, dtype=torch.long))
    assert torch.equal(allowed.argmax(dim=-1), logits.argmax(dim=-1))


LONG = {"width": 32, "blocks": 2, "heads": 4, "vocabulary": 50, "context": 256}
CODES = {
    "memory mosaic": memory_mosaic(**LONG),
    "llama, grouped queries": llama(**LONG, key_value_heads=2),
    "v2": memory_mosaic_v2(**LONG),
    **{f"transformer, {code}": transformer(**LONG, position=code) for code in ("learned", "rotary", "alibi", "none")},
}


@pytest.fixture(params=CODES)
def exact_model(request):
    torch.manual_seed(0)
    return LanguageModel(CODES[request.param]).double()


def tokens(rows, time):
    return torch.randint(50, (rows, time), generator=torch.Generator().manual_seed(rows * time))


@torch.no_grad()
def logits_of(model, text):
    return model.eval()(text)[0]


@pytest.mark.parametrize("capacity", [8, 2048])
def test_decoding_with_a_fixed_capacity_gives_the_logits_of_the_whole_text(exact_model, capacity, monkeypatch):
    monkeypatch.setattr(decoding, "INITIAL_CAPACITY", capacity)  # 8: it grows twice on the way
    monkeypatch.setattr(decoding, "CAPACITY_MULTIPLE", 8)
    text = tokens(3, 30)
    expected = logits_of(exact_model, text)
    decoder = Decoder(exact_model, list(text[:, :7]))
    decoder.reserve(23)
    assert decoder.capacity == min(capacity, 32)
    torch.testing.assert_close(decoder.logits, expected[:, 6])
    for t in range(7, 30):
        torch.testing.assert_close(decoder.step(text[:, t]), expected[:, t])
    assert decoder.capacity == 32


def test_prompts_of_different_lengths_are_decoded_as_if_alone(exact_model):
    prompts = [tokens(1, length)[0] for length in (1, 5, 12)]
    more = tokens(3, 20)
    decoder = Decoder(exact_model, prompts)
    for t in range(20):
        logits = decoder.step(more[:, t])
        for row, prompt in enumerate(prompts):
            alone = logits_of(exact_model, torch.cat([prompt, more[row, : t + 1]])[None])[0, -1]
            torch.testing.assert_close(logits[row], alone)


def test_rows_can_be_selected(exact_model):
    text = tokens(3, 12)
    decoder = Decoder(exact_model, list(text[:, :6]))
    decoder.step(text[:, 6])
    decoder.select(torch.tensor([2, 0, 2]))
    mixed = torch.cat([text[[2, 0, 2], :7], text[:, 7:8]], dim=1)
    torch.testing.assert_close(decoder.step(text[:, 7]), logits_of(exact_model, mixed)[:, -1])


def test_a_value_that_peeks_further_than_the_prompt_reaches():
    config = memory_mosaic(**LONG)
    far = replace(config, sequence_mixer=replace(config.sequence_mixer, value=TapsConfig(back=1, peek=3)))
    model = LanguageModel(far).double()
    text = tokens(2, 10)
    expected = logits_of(model, text)
    decoder = Decoder(model, list(text[:, :1]))
    for t in range(1, 10):
        torch.testing.assert_close(decoder.step(text[:, t]), expected[:, t])


@pytest.mark.parametrize("name", ["attention", "contextual memory"])
def test_a_channel_mixer_may_store_pairs_too(name):
    model = LanguageModel(replace(memory_mosaic(**LONG), channel_mixer=MIXERS[name])).double()
    text = tokens(2, 12)
    expected = logits_of(model, text)
    decoder = Decoder(model, list(text[:, :6]))
    for t in range(6, 12):
        torch.testing.assert_close(decoder.step(text[:, t]), expected[:, t])


@pytest.mark.parametrize(
    "name", [name for name, config in MIXERS.items() if hasattr(config.build(32), "to_fixed_capacity")]
)
def test_every_mixer_of_fixed_capacity_equals_itself_at_once(name):
    torch.manual_seed(0)
    mixer = MIXERS[name].build(32).double().eval()
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    expected, _ = mixer(x)
    _, state = mixer(x[:, :10])
    state = mixer.to_fixed_capacity(state, 40)
    for t in range(10, 30):
        y, state = mixer(x[:, t : t + 1], state)
        torch.testing.assert_close(y[:, 0], expected[:, t])


def test_a_fixed_capacity_takes_one_token_at_a_time_and_no_more_pairs_than_it_has():
    mixer = MIXERS["contextual memory"].build(32)
    _, state = mixer(torch.randn(2, 10, 32))
    with pytest.raises(ValueError, match="10 pairs exceed a capacity of 9"):
        mixer.to_fixed_capacity(state, 9)
    with pytest.raises(ValueError, match="one token at a time, not 2"):
        mixer(torch.randn(2, 2, 32), mixer.to_fixed_capacity(state, 20))


def test_padding_in_a_fixed_capacity_counts_for_nothing():
    mixer = MIXERS["contextual memory"].build(32).double().eval()
    x = torch.randn(1, 12, 32, dtype=torch.float64)
    _, state = mixer(x[:, :5])
    state = mixer.to_fixed_capacity(state, 16)
    _, state = mixer(x[:, 5:6], state, torch.tensor([[False]]))
    assert not state[2].key_padding_mask[0, 5]
    assert state[2].lengths.tolist() == [6]


def test_an_empty_prompt_is_refused(exact_model):
    with pytest.raises(ValueError, match="at least one token"):
        Decoder(exact_model, [torch.tensor([], dtype=torch.long)])


class NoDoubles(TorchDispatchMode):
    """A device without float64, as MPS."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **kwargs or {})
        assert all(x.dtype != torch.float64 for x in tree_leaves(found) if isinstance(x, torch.Tensor)), func
        return found


def test_a_device_may_lack_float64(model, monkeypatch):
    monkeypatch.setattr(decoding, "double_dtype", lambda device: double_dtype(torch.device("mps")))
    with NoDoubles():
        generate(model, [torch.tensor([1, 2])], 3, sampler=GREEDY)

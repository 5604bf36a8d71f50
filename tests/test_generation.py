import pytest
import torch

from memory_mosaics import LanguageModel, memory_mosaic, transformer
from memory_mosaics.generation import GREEDY, Draw, beam_search, generate, stream
from memory_mosaics.reader import Reader

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


def say(model, prompt=PROMPT, length=8, **options):
    return generate(model, [prompt], length, **options)[0].tolist()


def log_probability(model, prompt, said):
    logits = model.eval()(torch.cat([prompt, said])[None])[0][0].log_softmax(-1)
    return sum(logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(said))


def test_greedy_is_the_best_token_of_the_whole_text_each_time(model):
    said = torch.tensor(say(model, draw=GREEDY))
    text = PROMPT
    model.eval()
    for token in said:
        assert token == model(text[None])[0][0, -1].argmax()
        text = torch.cat([text, token[None]])


def test_training_goes_on_as_before(model):
    say(model, length=2)
    assert model.training


@pytest.mark.parametrize("how", [{"fused": True}, {"foreach": True}, {}])
def test_a_model_that_was_trained_on_speaks_with_its_new_weights(model, how):
    """A fused optimiser changes parameters without autograd's counting it."""
    say(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.3, **how)
    for _ in range(3):
        model(torch.randint(50, (2, 9)))[0].logsumexp(-1).square().mean().backward()
        optimiser.step()
    twin = strong(model.config)
    twin.load_state_dict(model.state_dict())
    (mine, theirs) = (Reader(one, [PROMPT]).logits for one in (model, twin))
    assert torch.equal(mine, theirs)


def test_it_ends_before_the_end(model):
    first = say(model, length=6, draw=GREEDY)
    end = first[-1]
    assert say(model, length=6, draw=GREEDY, end=end) == first[: first.index(end)]


def test_each_row_ends_by_itself(model):
    prompts = [PROMPT, torch.tensor([9, 2]), torch.tensor([7, 7, 7, 7, 7])]
    alone = [say(model, prompt, 12, draw=GREEDY) for prompt in prompts]
    end = alone[0][4]
    expected = [row[: row.index(end)] if end in row else row for row in alone]
    assert [row.tolist() for row in generate(model, prompts, 12, draw=GREEDY, end=end)] == expected


def test_a_stream_stops_when_all_rows_have_ended(model):
    end = say(model, length=3, draw=GREEDY)[-1]
    steps = [tokens.tolist() for tokens in stream(model, [PROMPT, PROMPT], 20, draw=GREEDY, end=end)]
    assert steps[-1] == [end, end]
    assert len(steps) <= 3


def test_the_same_generator_says_the_same_and_another_does_not(model):
    said = [say(model, length=15, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert said[0] == said[1] != said[2]


@pytest.mark.parametrize("draw", [Draw(top_k=1), Draw(top_p=1e-6)])
def test_one_choice_is_greedy(model, draw):
    assert say(model, draw=draw) == say(model, draw=GREEDY)


def test_drawn_tokens_follow_the_probabilities():
    logits = torch.tensor([[0.0, 1.0, 2.0]]).expand(4000, -1)
    drawn = Draw(temperature=0.5)(logits, torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn, minlength=3) / 4000
    assert torch.allclose(shares, (logits[0] / 0.5).softmax(-1), atol=0.03)


def test_top_k_and_top_p_allow_the_fewest_that_suffice():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]]).log()
    assert Draw(top_p=0.6).allowed(logits).isfinite().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert Draw(top_k=3).allowed(logits).isfinite().tolist() == [[1, 1, 1, 0], [0, 1, 1, 1]]
    assert Draw(top_k=3, top_p=0.5).allowed(logits).isfinite().tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert Draw(top_k=9, top_p=1.0).allowed(logits).isfinite().all()


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}])
def test_a_wrong_choice_is_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Draw(**wrong)


def test_a_table_of_positions_ends_the_text_and_memories_go_on():
    prompt = torch.arange(20)
    assert len(say(LanguageModel(transformer(**SMALL)), prompt, 50)) == 5  # 24 are read, and the next is predicted
    assert len(say(LanguageModel(transformer(**SMALL, position="rotary")), prompt, 50)) == 50
    assert len(say(LanguageModel(memory_mosaic(**SMALL)), prompt, 50)) == 50
    assert len(say(LanguageModel(transformer(**SMALL)), torch.arange(24), 50)) == 1


def test_however_cold_it_takes_the_largest():
    assert Draw(temperature=1e-38)(torch.tensor([[0.0, 1.0, 5.0]])).tolist() == [2]


def test_what_is_kept_out_of_training_stays_out(model):
    model.blocks[0].eval()
    say(model, length=2)
    assert not model.blocks[0].training
    assert model.blocks[1].training


def test_beams_do_not_depend_on_the_prompts_beside_them(model):
    end = say(model, length=5, draw=GREEDY)[1]
    prompts = [torch.tensor([number, 2 * number % 50, 7]) for number in range(12)]
    together = beam_search(model, prompts, 18, beams=2, end=end)
    for prompt, said in zip(prompts, together, strict=True):
        assert said.tolist() == beam_search(model, [prompt], 18, beams=2, end=end)[0].tolist()


def test_one_beam_is_greedy(model):
    assert beam_search(model, [PROMPT], 8, beams=1)[0].tolist() == say(model, draw=GREEDY)


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
    end = say(model, length=5, draw=GREEDY)[3]
    prompts = [PROMPT, torch.tensor([9, 2, 8]), torch.tensor([5, 5, 5])]
    found = beam_search(model, prompts, 12, beams=beams, end=end)
    options = {"num_beams": beams, "do_sample": False, "eos_token_id": end, "pad_token_id": end, "max_new_tokens": 12}
    for prompt, said in zip(prompts, found, strict=True):
        expected = theirs.generate(prompt[None], **options)[0, len(prompt) :].tolist()
        expected = expected[: expected.index(end)] if end in expected else expected
        assert said.tolist() == expected


def test_no_beam_is_refused(model):
    with pytest.raises(ValueError, match="beams must be at least 1"):
        beam_search(model, [PROMPT], 3, beams=0)


def test_the_most_probable_token_is_always_allowed():
    logits = torch.randn(3, 50)
    allowed = Draw(top_p=1e-46).allowed(logits)
    assert torch.equal(allowed.isfinite().sum(dim=-1), torch.ones(3, dtype=torch.long))
    assert torch.equal(allowed.argmax(dim=-1), logits.argmax(dim=-1))

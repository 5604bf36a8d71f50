import pytest
import torch

from memory_mosaics import LanguageModel, memory_mosaic, transformer
from memory_mosaics.generation import sample

SMALL = {"width": 32, "blocks": 2, "heads": 4, "vocabulary": 50, "context": 24}
MODELS = {"memory mosaic": memory_mosaic, "transformer": transformer}


@pytest.fixture(params=MODELS)
def model(request):
    model = LanguageModel(MODELS[request.param](**SMALL, dropout=0.5))
    for weight in model.parameters():  # far from uniform
        torch.nn.init.normal_(weight, std=0.3) if weight.dim() > 1 else None
    return model.train()


def test_greedy_is_the_best_token_of_the_whole_text_each_time(model):
    prompt = torch.tensor([3, 1, 4])
    said = sample(model, prompt, 8, temperature=0.0)
    text = prompt
    model.eval()
    for token in said:
        assert token == model(text[None])[0][0, -1].argmax()
        text = torch.cat([text, token[None]])


def test_training_goes_on_as_before(model):
    sample(model, torch.tensor([3]), 2)
    assert model.training


def test_it_ends_before_the_end(model):
    prompt = torch.tensor([3, 1, 4])
    first = sample(model, prompt, 6, temperature=0.0).tolist()
    end = first[-1]
    assert sample(model, prompt, 6, temperature=0.0, end=end).tolist() == first[: first.index(end)]


def test_the_same_generator_says_the_same_and_another_does_not(model):
    said = [
        sample(model, torch.tensor([7]), 15, generator=torch.Generator().manual_seed(s)).tolist() for s in (0, 0, 1)
    ]
    assert said[0] == said[1] != said[2]


def test_top_k_of_one_is_greedy(model):
    prompt = torch.tensor([9, 2])
    greedy = sample(model, prompt, 6, temperature=0.0)
    assert torch.equal(sample(model, prompt, 6, top_k=1), greedy)


def test_drawn_tokens_follow_the_probabilities():
    torch.manual_seed(0)
    model = LanguageModel(memory_mosaic(**SMALL | {"vocabulary": 3})).eval()
    torch.nn.init.normal_(model.embedding.weight, std=1.0)
    expected = model(torch.tensor([[1]]))[0][0, -1].div(0.5).softmax(-1)
    generator = torch.Generator().manual_seed(0)
    drawn = [sample(model, torch.tensor([1]), 1, temperature=0.5, generator=generator).item() for _ in range(600)]
    shares = torch.bincount(torch.tensor(drawn), minlength=3) / 600
    assert torch.allclose(shares, expected, atol=0.08)


def test_a_table_of_positions_ends_the_text_and_memories_go_on():
    prompt = torch.arange(20)
    assert len(sample(LanguageModel(transformer(**SMALL)), prompt, 50)) == 4
    assert len(sample(LanguageModel(transformer(**SMALL, position="rotary")), prompt, 50)) == 50
    assert len(sample(LanguageModel(memory_mosaic(**SMALL)), prompt, 50)) == 50

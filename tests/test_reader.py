from dataclasses import replace

import pytest
import torch

from memory_mosaics import LanguageModel, memory_mosaic, reader, transformer
from memory_mosaics.extractors import TapsConfig
from memory_mosaics.reader import Reader
from mixers_under_contract import MIXERS

SIZE = {"width": 32, "blocks": 2, "heads": 4, "vocabulary": 50, "context": 256}
MODELS = {
    "memory mosaic": memory_mosaic(**SIZE),
    **{f"transformer, {code}": transformer(**SIZE, position=code) for code in ("learned", "rotary", "alibi", "none")},
}


@pytest.fixture(params=MODELS)
def model(request):
    torch.manual_seed(0)
    return LanguageModel(MODELS[request.param]).double()


def tokens(rows, time):
    return torch.randint(50, (rows, time), generator=torch.Generator().manual_seed(rows * time))


@torch.no_grad()
def everything(model, text):
    return model.eval()(text)[0]


@pytest.mark.parametrize("room", [64, 2048])
def test_reading_on_in_room_gives_the_logits_of_the_whole_text(model, room, monkeypatch):
    monkeypatch.setattr(reader, "ROOM", room)  # 64: it grows twice on the way
    text = tokens(3, 200)
    expected = everything(model, text)
    reading = Reader(model, list(text[:, :7]))
    reading.reserve(193)
    torch.testing.assert_close(reading.logits, expected[:, 6])
    for t in range(7, 200):
        torch.testing.assert_close(reading.read(text[:, t]), expected[:, t])
    assert reading.room == {64: 256, 2048: 256}[room]


def test_prompts_of_different_lengths_read_as_if_alone(model):
    prompts = [tokens(1, length)[0] for length in (1, 5, 12)]
    more = tokens(3, 20)
    reading = Reader(model, prompts)
    for t in range(20):
        logits = reading.read(more[:, t])
        for row, prompt in enumerate(prompts):
            alone = everything(model, torch.cat([prompt, more[row, : t + 1]])[None])[0, -1]
            torch.testing.assert_close(logits[row], alone)


def test_rows_can_take_each_others_place(model):
    text = tokens(3, 12)
    reading = Reader(model, list(text[:, :6]))
    reading.read(text[:, 6])
    reading.reorder(torch.tensor([2, 0, 2]))
    mixed = torch.cat([text[[2, 0, 2], :7], text[:, 7:8]], dim=1)
    torch.testing.assert_close(reading.read(text[:, 7]), everything(model, mixed)[:, -1])


def test_a_value_that_peeks_further_than_the_prompt_reaches():
    config = memory_mosaic(**SIZE)
    far = replace(config, sequence_mixer=replace(config.sequence_mixer, value=TapsConfig(back=1, peek=3)))
    model = LanguageModel(far).double()
    text = tokens(2, 10)
    expected = everything(model, text)
    reading = Reader(model, list(text[:, :1]))
    for t in range(1, 10):
        torch.testing.assert_close(reading.read(text[:, t]), expected[:, t])


@pytest.mark.parametrize(
    "name", [name for name, config in MIXERS.items() if hasattr(config.build(32), "to_fixed_capacity")]
)
def test_every_mixer_with_room_equals_itself_at_once(name):
    torch.manual_seed(0)
    mixer = MIXERS[name].build(32).double().eval()
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    expected, _ = mixer(x)
    _, state = mixer(x[:, :10])
    state = mixer.to_fixed_capacity(state, 40)
    for t in range(10, 30):
        y, state = mixer(x[:, t : t + 1], state)
        torch.testing.assert_close(y[:, 0], expected[:, t])


def test_room_is_for_one_token_at_a_time_and_not_for_less_than_there_is():
    mixer = MIXERS["contextual memory"].build(32)
    _, state = mixer(torch.randn(2, 10, 32))
    with pytest.raises(ValueError, match="do not fit into room for 9"):
        mixer.to_fixed_capacity(state, 9)
    with pytest.raises(ValueError, match="one token at a time, not 2"):
        mixer(torch.randn(2, 2, 32), mixer.to_fixed_capacity(state, 20))


def test_padding_read_in_room_counts_for_nothing():
    mixer = MIXERS["contextual memory"].build(32).double().eval()
    x = torch.randn(1, 12, 32, dtype=torch.float64)
    _, state = mixer(x[:, :5])
    state = mixer.to_fixed_capacity(state, 16)
    _, state = mixer(x[:, 5:6], state, torch.tensor([[False]]))
    stored = state[2:]
    assert not stored[2][0, 5]
    assert stored[3].tolist() == [6]


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(ValueError, match="at least one token"):
        Reader(model, [torch.tensor([], dtype=torch.long)])

"""The count of operations is PyTorch's own, less what the mathematics does not ask for."""

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from memory_mosaics.benchmarks.work import count_work
from memory_mosaics.language_model import LanguageModel, next_token_loss
from memory_mosaics.memory import ContextualMemoryConfig
from memory_mosaics.models import ARCHITECTURES, memory_mosaic, transformer
from memory_mosaics.stores import Visibility

B, T, WIDTH, BLOCKS = 3, 40, 32, 2
SIZES = {"width": WIDTH, "blocks": BLOCKS, "heads": 2, "vocabulary": 50, "context": T}


def counted(act) -> int:
    """By PyTorch, forward and backward, with attention as plain products."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        act().backward()
    return counter.get_total_flops()


def loss_of(model):
    tokens = torch.randint(50, (B, T))
    return lambda: next_token_loss(model(tokens)[0], tokens)


@pytest.mark.parametrize("position", ["learned", "rotary", "none"])
def test_a_transformer(position):
    model = LanguageModel(transformer(position=position, **SIZES))
    masked = T * (T - 1) / 2 / T  # plain products compute these pairs for the mask to hide
    expected = count_work(model.config).model_flops + 12 * WIDTH * BLOCKS * masked
    assert counted(loss_of(model)) == B * T * expected


def test_a_memory_mosaic():
    model = LanguageModel(memory_mosaic(slots=24, **SIZES))
    masked = (T - 1) * (T - 2) / 2 / T
    expected = B * T * (count_work(model.config).model_flops + 12 * WIDTH * BLOCKS * masked)
    key = model.blocks[0].sequence_mixer.key
    x = torch.randn(B, T, WIDTH, requires_grad=True)
    averages = counted(lambda: key(x)[0].sum()) - 6 * B * T * key.map.weight.numel()
    assert counted(loss_of(model)) == expected + 2 * BLOCKS * averages


def pairs(config):
    """That a query sees on average, in its context."""
    return sum(recall.pairs for recall in count_work(config).recalls if not recall.persistent)


def test_an_embedding_counts_where_it_is_the_output_matrix():
    config = transformer(**SIZES)
    entries = 50 * WIDTH + BLOCKS * (12 * WIDTH**2 + 2 * WIDTH * pairs(config))
    for tied in (True, False):
        assert count_work(replace(config, tied=tied)).model_flops == 6 * entries


@pytest.mark.parametrize("name", ["linear-transformer", "retnet", "gla", "delta-net", "rwkv", "s4d", "h3", "hyena"])
def test_recurrences_and_convolutions_count_their_matrices(name):
    config = ARCHITECTURES[name].config(**SIZES)
    maps = [module.weight for module in LanguageModel(config).modules() if isinstance(module, torch.nn.Linear)]
    assert count_work(config).model_flops == 6 * (50 * WIDTH + sum(weight.numel() for weight in maps))


@pytest.mark.parametrize(("time", "memory", "attention"), [(1, 0, 1), (2, 0.5, 1.5), (5, 2, 3)])
def test_pairs_seen_by_hand(time, memory, attention):
    assert pairs(memory_mosaic(**SIZES | {"context": time})) == memory
    assert pairs(transformer(**SIZES | {"context": time})) == attention


def test_windows_and_delays_by_hand():
    """Of 40 queries: 0, 1, ..., 5, 5, ... pairs in a window of 5; 0, 0, 0, 1, ..., 37 where the delay is 3."""
    config = memory_mosaic(slots=24, **SIZES)
    short, long = Visibility(window=5), Visibility(delay=3)

    def seen(visibility):
        return replace(config, sequence_mixer=ContextualMemoryConfig(heads=2, visibility=visibility))

    assert pairs(seen(short)) == (0 + 1 + 2 + 3 + 4 + 5 * 35) / 40
    assert pairs(seen(long)) == 37 * 38 / 2 / 40
    less = pairs(config) - pairs(seen((short, long))) / 2  # of two heads each sees its own
    difference = count_work(config).model_flops - count_work(seen((short, long))).model_flops
    assert difference == pytest.approx(12 * WIDTH * BLOCKS * less)

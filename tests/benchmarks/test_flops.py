"""The count of operations is PyTorch's own, less what the mathematics does not ask for."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from memory_mosaics.benchmarks.throughput import matrix_entries, training_flops, visible_pairs
from memory_mosaics.language_model import LanguageModel, next_token_loss
from memory_mosaics.models import memory_mosaic, transformer

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
    expected = training_flops(model, T) + 12 * WIDTH * BLOCKS * masked
    assert counted(loss_of(model)) == B * T * expected


def test_a_memory_mosaic():
    model = LanguageModel(memory_mosaic(slots=24, **SIZES))
    masked = (T - 1) * (T - 2) / 2 / T
    expected = B * T * (training_flops(model, T) + 12 * WIDTH * BLOCKS * masked)
    key = model.blocks[0].sequence_mixer.key
    x = torch.randn(B, T, WIDTH, requires_grad=True)
    averages = counted(lambda: key(x)[0].sum()) - 6 * B * T * key.map.weight.numel()
    assert counted(loss_of(model)) == expected + 2 * BLOCKS * averages


def test_an_embedding_counts_where_it_is_the_output_matrix():
    from dataclasses import replace

    config = transformer(**SIZES)
    tied, untied = LanguageModel(config), LanguageModel(replace(config, tied=False))
    assert matrix_entries(tied) == matrix_entries(untied)
    assert matrix_entries(tied) == 50 * WIDTH + BLOCKS * 12 * WIDTH**2


@pytest.mark.parametrize(("time", "memory", "attention"), [(1, 0, 1), (2, 0.5, 1.5), (5, 2, 3)])
def test_pairs_seen_by_hand(time, memory, attention):
    assert visible_pairs(LanguageModel(memory_mosaic(**SIZES)), time) == BLOCKS * memory
    assert visible_pairs(LanguageModel(transformer(**SIZES)), time) == BLOCKS * attention

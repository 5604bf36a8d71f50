"""On a CUDA device: the same numbers, on the fused kernels, in memory linear in time. `make test-gpu` runs these."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.benchmarks.throughput import RandomTokens, Size
from memory_mosaics.decoding import GREEDY, DecodeGraphCache, beam_search, generate
from memory_mosaics.language_model import LanguageModel, next_token_loss, without_state
from memory_mosaics.models import memory_mosaic, memory_mosaic_v2, transformer
from memory_mosaics.ops import recall
from memory_mosaics.ops.leaky_average import leaky_average, reference
from memory_mosaics.runtime import Runtime
from memory_mosaics.tasks.task import Batch
from memory_mosaics.training.config import Training
from memory_mosaics.training.trainer import WARM_UP, Objective, TrainStep, adamw
from mixers_under_contract import MIXERS, WIDTH
from on_cuda import ON_CUDA

pytestmark = ON_CUDA
mixers = pytest.mark.parametrize("config", MIXERS.values(), ids=list(MIXERS))


@mixers
def test_cuda_gives_the_numbers_of_the_cpu(config, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # of LSTMs, by default
    mixer = config.build(WIDTH).eval()
    x, mask = torch.randn(3, 70, WIDTH), torch.arange(70) >= torch.tensor([[0], [30], [69]])
    expected = [mixer(x)[0], mixer(x, None, mask)[0][mask], mixer(x[:, :1], mixer(x)[1])[0]]
    mixer, x, mask = mixer.cuda(), x.cuda(), mask.cuda()
    found = [mixer(x)[0], mixer(x, None, mask)[0][mask], mixer(x[:, :1], mixer(x)[1])[0]]
    assert_close([y.cpu() for y in found], expected, rtol=1e-3, atol=1e-4)


@mixers
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_training_in_bfloat16_stays_on_fused_kernels(config, dropout, monkeypatch):
    """Without the one that builds all scores there is an error where no other serves."""
    monkeypatch.setattr(recall, "FASTEST", recall.FASTEST[:-1])
    mixer = config.build(WIDTH, dropout=dropout).cuda().train()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y, _ = mixer(torch.randn(2, 300, WIDTH, device="cuda"))
        y.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@pytest.mark.parametrize("time", [1, 63, 1000])
def test_leaky_average(time):
    x, decay = torch.randn(2, time, 3, 5, device="cuda"), torch.rand(3, device="cuda")
    assert_close(leaky_average(x, decay), reference(x, decay), rtol=1e-4, atol=1e-4)


@mixers
def test_memory_grows_linearly(config):
    if getattr(config.build(WIDTH), "max_positions", None):
        pytest.skip("a table of positions has a fixed length")
    peaks = []
    for time in (8192, 16384):
        mixer = config.build(WIDTH).cuda()
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            mixer(torch.randn(1, time, WIDTH, device="cuda"))[0].sum().backward()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] < 2.3 * peaks[0], peaks


@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # advice of the compiler, not for tests to take
@pytest.mark.parametrize("build", [memory_mosaic, memory_mosaic_v2, transformer])
def test_a_compiled_model_trains(build):
    config = build(width=128, blocks=2, heads=4, vocabulary=512, context=128)
    torch.manual_seed(0)
    model = LanguageModel(config).cuda()
    tokens = torch.randint(0, 512, (8, 129), device="cuda")

    @torch.compile(fullgraph=True)
    def loss_of(tokens):
        return next_token_loss(model(tokens[:, :-1])[0], tokens[:, 1:])

    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(tokens)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


SIZE = Size(name="small", width=128, blocks=2, heads=4, vocabulary=20, batch=32, context=300)
SMALL = {"width": 128, "heads": 4, "vocabulary": 20, "context": 300}
POSITIONS = ("learned", "rotary", "alibi", "none")
V1_V2_AND_TRANSFORMER = pytest.mark.parametrize("build", [memory_mosaic, memory_mosaic_v2, transformer])


TRAINING = Training(steps=1000, warm_up=5, learning_rate=3e-3)


def step_of(model, *, captured, compiled=True, training=TRAINING):
    block_fn = torch.compile(without_state, dynamic=False) if compiled else None
    here = Runtime(torch.device("cuda"), precision="bfloat16", block_fn=block_fn)
    objective = Objective(model, RandomTokens(SIZE, here.device), here).train()
    return TrainStep(objective, adamw(model, training), training, here, captured=captured)


def losses(config, *, captured, steps=10):
    torch.manual_seed(0)
    model = LanguageModel(config).cuda()
    take = step_of(model, captured=captured)
    tokens = torch.randint(20, (32, 301), generator=torch.Generator().manual_seed(0)).cuda()
    found = []
    for number in range(steps):
        torch.manual_seed(number)
        found.append(float(take(number, Batch(tokens[:, :-1], tokens[:, 1:]))[0]))
    return found


@V1_V2_AND_TRANSFORMER
def test_a_captured_step_learns_what_an_eager_one_learns(build):
    config = build(**SMALL, blocks=2)
    assert losses(config, captured=True) == pytest.approx(losses(config, captured=False), rel=5e-3)


def test_dropout_of_captured_steps_follows_the_seed_of_each_step():
    plain, dropped = (memory_mosaic(**SMALL, blocks=2, dropout=dropout) for dropout in (0.0, 0.2))
    first, again = losses(dropped, captured=True), losses(dropped, captured=True)
    assert first == pytest.approx(again, rel=1e-3)
    assert first != pytest.approx(losses(plain, captured=True), rel=1e-3)


def test_delays_of_captured_steps_follow_the_seed_of_each_step():
    """At a learning rate of 0 nothing but the drawn delays changes from step to step."""
    torch.manual_seed(0)
    model = LanguageModel(memory_mosaic_v2(**SMALL, blocks=2)).cuda()
    take = step_of(model, captured=True, training=Training(steps=1000, learning_rate=1e-20, final_learning_rate=0.0))
    tokens = torch.randint(20, (32, 301), generator=torch.Generator().manual_seed(0)).cuda()
    batch, found = Batch(tokens[:, :-1], tokens[:, 1:]), {}
    for number in range(WARM_UP + 20):
        seed = number % 10
        torch.manual_seed(seed)
        loss = float(take(number, batch)[0])
        if number >= WARM_UP:  # from here on a graph is replayed
            found.setdefault(seed, []).append(loss)
    assert all(first == pytest.approx(again, rel=1e-6) for first, again in found.values())
    assert max(map(min, found.values())) - min(map(min, found.values())) > 1e-4


@pytest.mark.parametrize(
    "build", [memory_mosaic, memory_mosaic_v2, *(partial(transformer, position=code) for code in POSITIONS)]
)
@pytest.mark.parametrize("compiled", [False, True])
def test_captured_decoding_gives_the_tokens_of_the_cpu(build, compiled):
    torch.manual_seed(0)
    model = LanguageModel(build(**SMALL, blocks=2))
    torch.nn.init.normal_(model.embedding.weight)  # clear choices
    prompts = [torch.arange(5), torch.arange(9), torch.tensor([3])]
    expected = generate(model, prompts, 100, sampler=GREEDY, eos=7)
    beams = beam_search(model, prompts, 40, beams=3, eos=7)
    model.cuda()
    assert [row.tolist() for row in generate(model, prompts, 100, sampler=GREEDY, eos=7, compiled=compiled)] == [
        row.tolist() for row in expected
    ]
    found = beam_search(model, prompts, 40, beams=3, eos=7, compiled=compiled)
    assert [row.tolist() for row in found] == [row.tolist() for row in beams]


@V1_V2_AND_TRANSFORMER
def test_a_captured_step_is_replayed_until_the_weights_change(build):
    torch.manual_seed(0)
    model = LanguageModel(build(**SMALL, blocks=2))
    torch.nn.init.normal_(model.embedding.weight)
    on_cuda = deepcopy(model).cuda()
    for rows in ([torch.arange(5), torch.arange(9)], [torch.arange(7), torch.tensor([3])]):
        expected = [row.tolist() for row in generate(model, rows, 60, sampler=GREEDY)]
        assert [row.tolist() for row in generate(on_cuda, rows, 60, sampler=GREEDY)] == expected
    assert len(DecodeGraphCache.of(on_cuda).idle) == 1
    with torch.no_grad():
        for one in (model, on_cuda):
            for parameter in one.parameters():
                parameter.mul_(1.5)
    expected = [row.tolist() for row in generate(model, rows, 60, sampler=GREEDY)]
    assert [row.tolist() for row in generate(on_cuda, rows, 60, sampler=GREEDY)] == expected

"""On a CUDA device: the same numbers, on the fused kernels, in memory linear in time. `make test-gpu` runs these."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from memory_mosaics.language_model import LanguageModel, next_token_loss
from memory_mosaics.mixers.attention import LearnedPositionsConfig
from memory_mosaics.ops.leaky_average import leaky_average, reference
from memory_mosaics.presets import memory_mosaic, transformer
from mixers_under_contract import MIXERS, WIDTH

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
mixers = pytest.mark.parametrize("config", MIXERS.values(), ids=list(MIXERS))


@mixers
def test_cuda_gives_the_numbers_of_the_cpu(config):
    mixer = config.build(WIDTH).eval()
    x, mask = torch.randn(3, 70, WIDTH), torch.arange(70) >= torch.tensor([[0], [30], [69]])
    expected = [mixer(x)[0], mixer(x, None, mask)[0][mask], mixer(x[:, :1], mixer(x)[1])[0]]
    mixer, x, mask = mixer.cuda(), x.cuda(), mask.cuda()
    found = [mixer(x)[0], mixer(x, None, mask)[0][mask], mixer(x[:, :1], mixer(x)[1])[0]]
    assert_close([y.cpu() for y in found], expected, rtol=1e-3, atol=1e-4)


@mixers
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_training_in_bfloat16_stays_on_the_flash_kernel(config, dropout):
    """The context manager allows no other kernel: leaving it is an error."""
    mixer = config.build(WIDTH, dropout=dropout).cuda().train()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.autocast("cuda", dtype=torch.bfloat16):
        y, _ = mixer(torch.randn(2, 300, WIDTH, device="cuda"))
        y.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@pytest.mark.parametrize("time", [1, 63, 1000])
def test_leaky_average(time):
    x, decay = torch.randn(2, time, 3, 5, device="cuda"), torch.rand(3, device="cuda")
    assert_close(leaky_average(x, decay), reference(x, decay), rtol=1e-4, atol=1e-4)


@mixers
def test_memory_grows_linearly(config):
    if isinstance(config, LearnedPositionsConfig):
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
@pytest.mark.parametrize("build", [memory_mosaic, transformer])
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

"""MFU: the count of FLOPs against PyTorch's own counter, and the peak that it is divided by."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.trainer.runs import tiny_training
from trainer.contract.models import MODELS
from trainer.contract.optimisation import LoraSpec
from trainer.models.decoder import Decoder, initialise
from trainer.models.lora import add_adapters
from trainer.reporting.throughput import PEAKS, model_flops_utilisation, peak_of

SHAPE = MODELS["llama-1m"]
VOCABULARY, SEQUENCES, LENGTH = 300, 2, 128


def counted(model: Decoder) -> float:
    """Return the FLOPs of a training step for each token, as PyTorch's counter sees them."""
    tokens = torch.randint(0, VOCABULARY, (SEQUENCES, LENGTH))
    # The counter does not know every fused attention kernel; the plain products it counts completely.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    return counter.get_total_flops() / (SEQUENCES * LENGTH)


@pytest.fixture
def model() -> Decoder:
    decoder = Decoder(SHAPE, VOCABULARY, LENGTH)
    decoder.zero_buffers()
    initialise(decoder, 1)
    return decoder


def test_all_parameters_trained_count_as_pytorch_counts(model: Decoder) -> None:
    expected = SHAPE.flops_per_token(VOCABULARY, LENGTH, causal=False)
    assert counted(model) == pytest.approx(expected, rel=0.01)


def test_adapters_trained_count_as_pytorch_counts(model: Decoder) -> None:
    lora = LoraSpec(rank=8)
    add_adapters(model, lora)
    adapters = SHAPE.adapter_parameters(lora.rank, lora.targets)
    expected = SHAPE.flops_per_token(VOCABULARY, LENGTH, causal=False, trained_adapters=adapters)
    # The first block's input has no gradient, which the formula leaves out of account.
    assert counted(model) == pytest.approx(expected, rel=0.05)
    assert expected < 0.85 * SHAPE.flops_per_token(VOCABULARY, LENGTH, causal=False)


@pytest.mark.parametrize(
    ("name", "bf16", "fp8"),
    [
        ("NVIDIA GB200", 2.5e15, 5.0e15),
        ("NVIDIA B200", 2.25e15, 4.5e15),
        ("NVIDIA GB300", 2.5e15, 5.0e15),
        ("NVIDIA B300 SXM6 AC", 2.25e15, 4.5e15),
        ("NVIDIA GH200 480GB", 9.895e14, 1.979e15),
        ("NVIDIA H200", 9.895e14, 1.979e15),
        ("NVIDIA H200 NVL", 8.355e14, 1.671e15),
        ("NVIDIA H100 80GB HBM3", 9.895e14, 1.979e15),
        ("NVIDIA H100 PCIe", 7.565e14, 1.513e15),
        ("NVIDIA H100 NVL", 8.355e14, 1.671e15),
        ("NVIDIA A100-SXM4-80GB", 3.12e14, None),
        ("AMD Instinct MI300X", 1.3074e15, 2.6149e15),
        ("NVIDIA GeForce RTX 4090", None, None),
    ],
)
def test_the_peak_is_that_of_the_device_and_precision(
    monkeypatch: pytest.MonkeyPatch, name: str, bf16: float | None, fp8: float | None
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    device = torch.device("cuda", 0)
    assert (peak_of(device, "bf16"), peak_of(device, "fp8")) == (bf16, fp8)
    assert peak_of(device, "fp32") == bf16


def test_no_entry_hides_a_later_one() -> None:
    names = [name for name, _ in PEAKS]
    assert not [(early, late) for i, early in enumerate(names) for late in names[i + 1 :] if early in late]


def test_mfu_is_achieved_flops_over_the_peak_of_all_devices() -> None:
    training = tiny_training()
    flops = training.flops_per_token(VOCABULARY, causal=True)
    found = model_flops_utilisation(training, VOCABULARY, tokens_per_second=1000.0, world_size=4, peak=1e9)
    assert found["throughput/mfu_causal"] == pytest.approx(1000.0 * flops / 4e9)
    assert found["throughput/mfu_palm"] > found["throughput/mfu_causal"]
    assert model_flops_utilisation(training, VOCABULARY, 1000.0, 4, None) == {}

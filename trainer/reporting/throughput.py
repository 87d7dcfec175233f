"""Model FLOPs utilisation, in both conventions, with the peak named; None where the peak is unknown."""

from dataclasses import dataclass

import torch

from trainer.contract.models import ModelShape

# Dense bf16 peaks in FLOP/s by the device's name in CUDA (vendor data sheets, no sparsity), longest first.
_BF16_PEAKS: tuple[tuple[str, float], ...] = (
    ("GB200", 2.25e15),
    ("B200", 2.25e15),
    ("H200", 9.89e14),
    ("H100 PCIe", 7.56e14),
    ("H100", 9.89e14),
    ("A100", 3.12e14),
    ("L40S", 3.62e14),
)


@dataclass(frozen=True)
class Peak:
    """The figure that MFU is measured against: `name` says of what device and format."""

    name: str
    flops: float


def peak_of(device: torch.device) -> Peak | None:
    """Return the device's peak, None for a CPU or a device that is not in the table."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    for part, flops in _BF16_PEAKS:
        if part in name:
            return Peak(f"{name} bf16 dense", flops)
    return None


def model_flops_utilisation(
    shape: ModelShape,
    vocab_size: int,
    sequence_length: int,
    tokens_per_second: float,
    world_size: int,
    peak: Peak | None,
) -> dict[str, float]:
    """Return the metrics `throughput/mfu_causal`, which counts half of the attention matrix, and `throughput/mfu_palm`,
    which counts all of it; empty without a peak."""
    if peak is None:
        return {}
    per_device = tokens_per_second / world_size / peak.flops
    return {
        f"throughput/mfu_{name}": per_device * shape.flops_per_token(vocab_size, sequence_length, causal=causal)
        for name, causal in (("causal", True), ("palm", False))
    }

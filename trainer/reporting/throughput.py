"""Model FLOPs utilisation (MFU), in two conventions, against the peak of the device in the run's precision."""

from dataclasses import dataclass

import torch

from trainer.contract.training import TrainingSpec


@dataclass(frozen=True)
class Peak:
    """Peaks of a device in FLOP/s for dense matrix products, without structured sparsity."""

    bf16: float
    fp8: float | None = None


# By a part of the device's name in torch, the first that matches. NVIDIA's data sheets give most figures with sparsity:
# half of those is here. Sources: data sheets of A100 (2021), L40S, H100 and H100 NVL (2023), H200 and H200 NVL, GH200
# (2024), HGX B200 and B300, GB200 NVL72 and GB300 NVL72 (2025; racks of 72, servers of 8), AMD Instinct MI300X (2023).
PEAKS: tuple[tuple[str, Peak], ...] = (
    ("GB300", Peak(2.5e15, 5.0e15)),
    ("GB200", Peak(2.5e15, 5.0e15)),
    ("B300", Peak(2.25e15, 4.5e15)),
    ("B200", Peak(2.25e15, 4.5e15)),
    ("GH200", Peak(9.895e14, 1.979e15)),
    ("H200 NVL", Peak(8.355e14, 1.671e15)),
    ("H200", Peak(9.895e14, 1.979e15)),
    ("H100 NVL", Peak(8.355e14, 1.671e15)),
    ("H100 PCIe", Peak(7.565e14, 1.513e15)),
    ("H100", Peak(9.895e14, 1.979e15)),
    ("A100", Peak(3.12e14)),
    ("L40S", Peak(3.62e14, 7.33e14)),
    ("MI300X", Peak(1.3074e15, 2.6149e15)),
)


def peak_of(device: torch.device, precision: str) -> float | None:
    """Return the device's peak in FLOP/s for fp8, else for bf16, which fp32 runs are measured against too.

    None for a CPU, for a device that is not in the table, and for fp8 on a device without it.
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    peak = next((peak for part, peak in PEAKS if part in name), None)
    if peak is None:
        return None
    return peak.fp8 if precision == "fp8" else peak.bf16


def model_flops_utilisation(
    training: TrainingSpec, vocab_size: int, tokens_per_second: float, world_size: int, peak: float | None
) -> dict[str, float]:
    """Return the metrics `throughput/mfu_causal`, which counts half of the attention matrix, and `throughput/mfu_palm`,
    which counts all of it; empty without a peak.

    `tokens_per_second` is that of all ranks. With packing `documents` attention computes less than is counted: both
    are upper bounds then.
    """
    if peak is None:
        return {}
    per_device = tokens_per_second / world_size / peak
    return {
        f"throughput/mfu_{name}": per_device * training.flops_per_token(vocab_size, causal=causal)
        for name, causal in (("causal", True), ("palm", False))
    }

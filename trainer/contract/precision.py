"""Which accelerators compute in bf16, and what fp32 costs on a GPU."""

_BF16_ACCELERATORS = (
    "a2", "a10", "a16", "a30", "a40", "a100", "a800", "l4", "l20", "l40", "h20", "h100", "h200", "h800", "gh200",
    "b100", "b200", "b300", "gb200", "gb300", "mi210", "mi250", "mi300", "mi325", "mi350", "mi355",
)  # fmt: skip
"""GPUs whose matrix products have bf16: NVIDIA's from Ampere, AMD's from CDNA 2 (their data sheets)."""


def accelerator_has_bf16(name: str) -> bool | None:
    """Return whether the accelerator of a pool computes in bf16, by the first part of its name, such as `h100-80gb`.

    False for `cpu`. None for a name that is not known: the trainer then asks the device.
    """
    if name == "cpu":
        return False
    parts = name.lower().replace("nvidia-", "").replace("amd-", "").replace("_", "-").split("-")
    return True if any(parts[0] in (each, each + "s", each + "x") for each in _BF16_ACCELERATORS) else None


def fp32_cost(precision: str, *, on_gpu: bool) -> str | None:
    """Return what fp32 costs on a GPU, as the reason of a warning; None where it costs nothing.

    Source: the data sheets of A100 (2021) and H100 (2023) have half as many TFLOP/s of TF32 as of bf16.
    """
    if not on_gpu or precision != "fp32":
        return None
    return (
        "precision fp32 on a GPU: matrix products take about 2 times as long as in bf16 (by TF32), attention longer "
        "still, and activations and gathered weights take 2 times the memory; set training.precision to bf16"
    )

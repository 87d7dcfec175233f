"""Approximate the orthogonal matrix nearest to an update, by the Newton-Schulz iteration of Muon."""

import torch
from torch import Tensor

# Coefficients of the quintic a x + b x^3 + c x^5 (Jordan et al. 2024, "Muon: an optimizer for hidden layers"): steep at
# 0, so that small singular values grow fast; after five rounds all lie between about 0.7 and 1.2.
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315
MIN_NORM = 1e-7


def working_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 on an accelerator, and float32 on a CPU, where bfloat16 is not faster."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def orthogonalize(update_NRC: Tensor, iterations: int) -> Tensor:
    """Return the N matrices with their singular values brought near 1, in their own dtype."""
    is_tall = update_NRC.shape[-2] > update_NRC.shape[-1]
    x_NRC = update_NRC.mT if is_tall else update_NRC
    # The Frobenius norm is no smaller than the largest singular value, which must not exceed 1.
    x_NRC = x_NRC / torch.linalg.matrix_norm(x_NRC, keepdim=True).clamp(min=MIN_NORM)
    for _ in range(iterations):
        gram_NRR = x_NRC @ x_NRC.mT
        polynomial_NRR = torch.baddbmm(gram_NRR, gram_NRR, gram_NRR, beta=CUBIC, alpha=QUINTIC)
        x_NRC = torch.baddbmm(x_NRC, polynomial_NRR, x_NRC, beta=LINEAR)
    return x_NRC.mT if is_tall else x_NRC

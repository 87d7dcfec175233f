"""Merge the weights of several models, tensor by tensor: weighted mean, spherical interpolation, and TIES."""

from collections.abc import Sequence

import torch
from torch import Tensor

PARALLEL = 1e-6
"""Sine of the angle between two tensors below which they are interpolated linearly."""


def linear(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted mean of tensors, in fp32 (Wortsman et al. 2022, "Model soups")."""
    total = sum(weights)
    merged = torch.zeros_like(tensors[0], dtype=torch.float32)
    for tensor, weight in zip(tensors, weights, strict=True):
        merged += tensor.float() * (weight / total)
    return merged


def slerp(first: Tensor, second: Tensor, weights: Sequence[float]) -> Tensor:
    """Return the spherical interpolation of two tensors as vectors, in fp32: with t the second one's share of the
    weights and a the angle between them, sin((1 - t) a) / sin(a) times the first plus sin(t a) / sin(a) times the
    second (Shoemake 1985). Tensors in the same or opposite directions, or of zeros, are interpolated linearly."""
    share = weights[1] / sum(weights)
    one, other = first.double().flatten(), second.double().flatten()
    norms = float(one.norm() * other.norm())
    cosine = min(1.0, max(-1.0, float(one @ other) / norms)) if norms else 1.0
    angle = torch.tensor(cosine, dtype=torch.float64).acos()
    if float(angle.sin()) < PARALLEL:
        return linear([first, second], weights)
    merged = (((1.0 - share) * angle).sin() * one + (share * angle).sin() * other) / angle.sin()
    return merged.view_as(first).float()


def ties(base: Tensor, tensors: Sequence[Tensor], weights: Sequence[float], density: float, scale: float) -> Tensor:
    """Return base + scale times the merged differences from it, in fp32 (Yadav et al. 2023, "TIES-Merging").

    Of each difference the share `density` of the largest absolute values is left, the rest is 0. Each place gets the
    sign of the weighted sum of the differences, and the weighted mean of those that have this sign.
    """
    differences = [trim(tensor.float() - base.float(), density) for tensor in tensors]
    total = torch.zeros_like(base, dtype=torch.float32)
    for difference, weight in zip(differences, weights, strict=True):
        total += weight * difference
    sign = total.sign()
    merged, counted = torch.zeros_like(total), torch.zeros_like(total)
    for difference, weight in zip(differences, weights, strict=True):
        agrees = weight * ((difference.sign() == sign) & (difference != 0))
        merged += agrees * difference
        counted += agrees
    return base.float() + scale * merged / counted.where(counted > 0, 1.0)


def trim(difference: Tensor, density: float) -> Tensor:
    """Return a tensor with the share `density` of its largest absolute values, and those that are equal to the smallest
    of them, and zeros elsewhere."""
    number = max(1, round(density * difference.numel()))
    if number >= difference.numel():
        return difference
    smallest = difference.abs().flatten().kthvalue(difference.numel() - number + 1).values
    return difference.where(difference.abs() >= smallest, 0.0)

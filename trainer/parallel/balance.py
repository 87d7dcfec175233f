"""Balancing of experts without a loss of its own (Wang et al. 2024): after each step, each expert's bias moves a fixed
amount towards equal load."""

import torch
from torch import Tensor

from trainer.models.decoder import Decoder
from trainer.parallel.mesh import SEQUENCES, Mesh, sum_over
from trainer.parallel.weights import mixtures


class Balancer:
    """Of the mixtures of a rank's stages. One small sum over the ranks that see different tokens."""

    def __init__(self, stages: list[Decoder], mesh: Mesh) -> None:
        self._mixtures = list(mixtures(stages).values())
        moe = stages[0].shape.moe
        self._rate = moe.balance_rate if moe is not None else 0.0
        self._group = mesh.group(*SEQUENCES) if self._mixtures else None

    def step(self, is_finite: Tensor) -> None:
        """Move the biases, or leave them bitwise as they are where the step is skipped."""
        if not self._mixtures:
            return
        with torch.no_grad():
            loads_LN = sum_over(torch.stack([mixture.load for mixture in self._mixtures]), self._group)
            moves_LN = self._rate * (loads_LN.mean(-1, keepdim=True) - loads_LN).sign()
            for mixture, move_N in zip(self._mixtures, moves_LN, strict=True):
                mixture.balance.copy_(torch.where(is_finite, mixture.balance + move_N, mixture.balance))
                mixture.load.zero_()

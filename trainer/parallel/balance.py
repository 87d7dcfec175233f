"""Load balancing of experts without an auxiliary loss (Wang et al. 2024): after each step, the bias of each expert is
raised by a fixed amount if its load was below the mean, and lowered if it was above."""

import torch
from torch import Tensor

from trainer.models.decoder import Decoder
from trainer.parallel.mesh import TOKEN_AXES, Mesh, all_reduce_sum
from trainer.parallel.weights import moe_layers


class ExpertBalancer:
    """Updates the biases of the mixtures of experts in a rank's stages; loads are summed over all tokens of the
    step."""

    def __init__(self, stages: list[Decoder], mesh: Mesh) -> None:
        self._mixtures = list(moe_layers(stages).values())
        moe = stages[0].shape.moe
        self._rate = moe.balance_rate if moe is not None else 0.0
        self._group = mesh.group(*TOKEN_AXES) if self._mixtures else None

    def step(self, is_finite: Tensor) -> None:
        """Update the biases, or leave them unchanged where `is_finite` is false; a collective. Resets the loads."""
        if not self._mixtures:
            return
        with torch.no_grad():
            loads_LN = all_reduce_sum(torch.stack([mixture.load for mixture in self._mixtures]), self._group)
            moves_LN = self._rate * (loads_LN.mean(-1, keepdim=True) - loads_LN).sign()
            for mixture, move_N in zip(self._mixtures, moves_LN, strict=True):
                mixture.balance.copy_(torch.where(is_finite, mixture.balance + move_N, mixture.balance))
                mixture.load.zero_()

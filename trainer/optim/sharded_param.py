"""One parameter as an optimizer sees it."""

from dataclasses import dataclass

from torch import Tensor, nn

from trainer.optim.param_groups import Treatment
from trainer.parallel.layout import Placement


@dataclass(frozen=True)
class Member:
    """`shard` is this rank's part of `parameter`, a plain tensor that shares its memory; `placement` says which."""

    name: str
    parameter: nn.Parameter
    shard: Tensor
    placement: Placement
    treatment: Treatment

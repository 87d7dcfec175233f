"""One parameter as an optimizer sees it."""

from dataclasses import dataclass

from torch import Tensor, nn

from trainer.optim.param_groups import ParamGroupConfig
from trainer.parallel.layout import ParamLayout


@dataclass(frozen=True)
class ShardedParam:
    """`shard` is this rank's part of `parameter`, a plain tensor that shares its memory; `param_layout` says which."""

    name: str
    parameter: nn.Parameter
    shard: Tensor
    param_layout: ParamLayout
    group_config: ParamGroupConfig

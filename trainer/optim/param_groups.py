"""Choose the algorithm, learning rate factor and weight decay of each parameter."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, assert_never

from trainer.contract.optimisation import OptimizerSpec, ParameterGroup
from trainer.contract.run import EndClass
from trainer.errors import TrainerError

Algorithm = Literal["adamw", "muon"]

BIASES = ("gate_bias", "up_bias", "down_bias")  # of a stack of experts, so they have two dimensions
# Matrices of blocks that AdamW updates: a router's rows are scores of experts.
ADAMW_MATRICES = ("router.weight", *BIASES)


@dataclass(frozen=True)
class ParamGroupConfig:
    """How a parameter is updated. `learning_rate_factor` is a factor of AdamW's rate, also for Muon."""

    algorithm: Algorithm
    learning_rate_factor: float
    weight_decay: float


def param_group_config(name: str, num_dimensions: int, spec: OptimizerSpec) -> ParamGroupConfig:
    """Return the configuration of a parameter by its name and number of dimensions in the complete model.

    Norms, biases and other one-dimensional parameters are not decayed unless a group says so; embeddings are.
    """
    group = next((group for group in spec.groups if fnmatchcase(name, group.pattern)), ParameterGroup(pattern="*"))
    decay = group.weight_decay_factor
    if decay is None:
        decay = 1.0 if num_dimensions > 1 and not name.endswith(BIASES) else 0.0
    algorithm = _algorithm(name, num_dimensions, spec)
    factor = group.learning_rate_factor
    if algorithm == "muon" and spec.muon.learning_rate is not None:
        assert spec.learning_rate is not None, "TrainingSpec has chosen it"
        factor *= spec.muon.learning_rate / spec.learning_rate
    return ParamGroupConfig(algorithm, factor, spec.weight_decay * decay)


def moments_per_parameter(algorithm: Algorithm) -> int:
    """Return how many numbers of state, as fp32, `algorithm` holds for each number of a parameter."""
    match algorithm:
        case "adamw":
            return 2
        case "muon":
            return 1
        case unknown:
            assert_never(unknown)


def _algorithm(name: str, num_dimensions: int, spec: OptimizerSpec) -> Algorithm:
    """Return the rule that updates a parameter. An optimizer without a case here is an error, not AdamW."""
    match spec.name:
        case "adamw":
            return "adamw"
        case "muon":
            is_matrix = name.startswith("blocks.") and num_dimensions > 1 and not name.endswith(ADAMW_MATRICES)
            return "muon" if is_matrix else "adamw"
        case unknown:
            assert_never(unknown)


def check_patterns(groups: Iterable[ParameterGroup], names: Iterable[str]) -> None:
    """Raise TrainerError for a group whose pattern matches no parameter of the undivided model (`names`)."""
    names = list(names)
    for group in groups:
        if not any(fnmatchcase(name, group.pattern) for name in names):
            near = difflib.get_close_matches(group.pattern, names, n=3, cutoff=0.0)
            raise TrainerError(
                EndClass.BAD_SPEC,
                f"training.optimizer.groups: no parameter name matches {group.pattern!r}; similar names: "
                f"{', '.join(near)}",
            )

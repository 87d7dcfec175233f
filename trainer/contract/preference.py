"""Preference training: which loss teaches a model to prefer one answer to another."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import CheckedModel, FieldConflict

Probability = Annotated[float, Field(ge=0.0, lt=0.5)]


class PreferenceSpec(CheckedModel):
    """Train on pairs of answers, of which one is preferred, instead of on text. Needs `model.base`, the data format
    `preference`, packing `documents` and `long_documents: drop`."""

    loss: Literal["dpo", "orpo"] = "dpo"
    """`dpo` (Rafailov et al. 2023) compares the model with the base model, the reference: with `lora` that is the model
    without its adapters, otherwise a second copy of the weights. `orpo` (Hong et al. 2024) needs no reference: it adds
    a penalty on the odds of the rejected answer to the usual loss of the chosen one."""
    beta: Annotated[float, Field(gt=0.0, le=100.0)] = 0.1
    """With `dpo`, how strongly the model is held close to the reference. With `orpo`, the weight of the penalty (lambda
    in the paper)."""
    label_smoothing: Probability = 0.0
    """Probability that a pair is labelled the wrong way round, which `dpo` takes into account (conservative DPO,
    Mitchell 2023). Refused with `orpo`."""
    length_normalised: bool = False
    """Whether `dpo` divides the log-probability of an answer by its number of tokens, so that long answers do not weigh
    more. `orpo` always does, and refuses this field."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        if self.loss == "orpo" and self.label_smoothing:
            message = (
                f"label_smoothing {self.label_smoothing:g} is not defined for loss orpo; leave it out, or take dpo"
            )
            yield FieldConflict("label_smoothing", message, ("loss",))
        if self.loss == "orpo" and self.length_normalised:
            message = "loss orpo always divides by the length; leave length_normalised out"
            yield FieldConflict("length_normalised", message, ("loss",))

    @property
    def has_reference(self) -> bool:
        """Return whether the loss compares the model with the base model."""
        return self.loss == "dpo"

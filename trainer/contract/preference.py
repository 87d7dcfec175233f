"""Preference training: which loss teaches a model to prefer one answer to another."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import CheckedModel, FieldConflict

Probability = Annotated[float, Field(ge=0.0, lt=0.5)]
Weight = Annotated[float, Field(gt=0.0, le=100.0), Field(exclude_if=lambda value: value == 1.0)]


class PreferenceSpec(CheckedModel):
    """Train on answers that were judged, instead of on text: on pairs, of which one is preferred, or with `kto` on
    answers that are labelled good or bad. Needs `model.base`, the data format `preference` or `unpaired`,
    packing `documents` and `long_documents: drop`."""

    loss: Literal["dpo", "orpo", "kto"] = "dpo"
    """`dpo` (Rafailov et al. 2023) compares the model with the base model, the reference: with `lora` that is the model
    without its adapters, otherwise a second copy of the weights. `orpo` (Hong et al. 2024) needs no reference: it adds
    a penalty on the odds of the rejected answer to the usual loss of the chosen one. `kto` (Ethayarajh et al. 2024)
    compares with the reference too, and needs no pairs: each answer has a label."""
    beta: Annotated[float, Field(gt=0.0, le=100.0)] = 0.1
    """With `dpo` and `kto`, how strongly the model is held close to the reference. With `orpo`, the weight of the
    penalty (lambda in the paper)."""
    label_smoothing: Probability = 0.0
    """Probability that a pair is labelled the wrong way round, which `dpo` takes into account (conservative DPO,
    Mitchell 2023). Refused with `orpo` and `kto`."""
    length_normalised: bool = False
    """Whether `dpo` divides the log-probability of an answer by its number of tokens, so that long answers do not weigh
    more. `orpo` always does, and refuses this field; so does `kto`, which never does."""
    reference: Annotated[Literal["live", "precomputed"], Field(exclude_if=lambda value: value == "live")] = "live"
    """When `dpo` computes the log-probabilities of the reference. `live`: in each step. `precomputed`: of all sequences
    of the rest of the run before the first step, and again after each restart, with the weights that are then trained:
    without the memory of the second copy, and with one pass by the reference where the run passes over its data several
    times. Refused with `data.on_corrupt` `skip`."""
    desirable_weight: Weight = 1.0
    """With `kto`, the weight of the loss of answers with the label true (lambda_D in the paper). If there are more
    answers of one label, weights can make up for it: the paper recommends that the number of desirable answers times
    their weight is 1 to 4/3 of the number of undesirable answers times theirs."""
    undesirable_weight: Weight = 1.0
    """With `kto`, the weight of the loss of answers with the label false (lambda_U in the paper)."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        if self.loss != "dpo" and self.label_smoothing:
            message = (
                f"label_smoothing {self.label_smoothing:g} is not defined for loss {self.loss}; leave it out, or take "
                "dpo"
            )
            yield FieldConflict("label_smoothing", message, ("loss",))
        if self.loss != "dpo" and self.length_normalised:
            always = "always divides" if self.loss == "orpo" else "never divides"
            message = f"loss {self.loss} {always} by the length; leave length_normalised out"
            yield FieldConflict("length_normalised", message, ("loss",))
        if self.loss != "dpo" and self.reference != "live":
            message = f"reference {self.reference} belongs to loss dpo, and loss is {self.loss}; leave it out"
            yield FieldConflict("reference", message, ("loss",))
        for name in ("desirable_weight", "undesirable_weight"):
            weight = getattr(self, name)
            if self.loss != "kto" and weight != 1.0:
                message = f"{name} {weight:g} belongs to loss kto, and loss is {self.loss}; leave it out, or take kto"
                yield FieldConflict(name, message, ("loss",))

    @property
    def has_reference(self) -> bool:
        """Return whether the loss compares the model with the base model."""
        return self.loss != "orpo"

    @property
    def has_live_reference(self) -> bool:
        """Return whether each step computes log-probabilities by the base model."""
        return self.has_reference and self.reference == "live"

    @property
    def forward_passes(self) -> int:
        """Return how often a step passes each token forward beside the pass that it learns from: by the reference, and
        with `kto` by both models for the reference point. Passes before the first step do not count."""
        return {"dpo": int(self.has_live_reference), "orpo": 0, "kto": 3}[self.loss]

    @property
    def data_format(self) -> Literal["preference", "unpaired"]:
        """Return the format of the data that the loss needs."""
        return "unpaired" if self.loss == "kto" else "preference"

"""Evaluation jobs: what to evaluate a trained model on, and the figures that an attempt registers."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trainer.contract.base import CheckedModel, Count64, FieldConflict, Pattern, SpecModel, WireModel
from trainer.contract.data import Source, TextField
from trainer.contract.parallelism import ParallelismSpec
from trainer.contract.training import TrainingSpec

METRICS = {
    "loss": ("loss", "bits_per_byte"),
    "multiple_choice": ("accuracy", "accuracy_normalised"),
}
"""The metrics of each kind of evaluation."""
LOWER_IS_BETTER = frozenset({"loss", "bits_per_byte"})
PROPORTIONS = frozenset({"accuracy", "accuracy_normalised"})
MAX_SEQUENCES = 1024
"""Sequences that are computed together, over all data ranks, at most."""
EVALUATION_NAME_PATTERN = r"^[a-z][a-z0-9_-]{0,62}$"
EvaluationName = Annotated[
    str, Pattern(EVALUATION_NAME_PATTERN, "lower-case letters, digits, _ and -, beginning with a letter")
]
Metric = Literal["loss", "bits_per_byte", "accuracy", "accuracy_normalised"]


class EvaluationTask(SpecModel):
    """One evaluation: a name, and data with a way to score it."""

    name: Annotated[EvaluationName, Field(examples=["held-out"])]
    """Name of the evaluation, by which results are compared between versions and promotion requires them: lower-case
    letters, digits, underscores and hyphens."""
    kind: Annotated[Literal["loss", "multiple_choice"], Field(examples=["loss"])]
    """`loss`: the mean loss of a token (`loss`) and, for text, bits per byte (`bits_per_byte`) of all documents of the
    data set. `multiple_choice`: the share of questions of which the right choice is the likeliest (`accuracy`), and of
    which it is by the log-likelihood per byte of the choice (`accuracy_normalised`)."""
    source: Annotated[Source, Field(examples=["dataset:held-out"])]
    """`dataset:NAME` for an uploaded data set of the team, `s3://bucket/prefix` in a bucket that an administrator has
    granted to the team, or `builtin:python-stdlib`. Each source may occur once. All of its documents are used. For
    `multiple_choice` it has JSON lines with `question` (text), `choices` (a list of texts) and `answer` (the number of
    the right choice, 0 for the first)."""
    format: Literal["auto", "text", "jsonl", "parquet", "chat"] = "auto"
    """Format of the files of kind `loss`, as in `training.data`. Of conversations (`chat`) only the assistant's answers
    count. Ignored by `multiple_choice`."""
    text_field: TextField = "text"
    """Field or column that has the text, as in `training.data`. Ignored by `multiple_choice`."""


class EvaluationJobSpec(CheckedModel):
    """A job that evaluates a trained model, and trains nothing. Results are stored with the model."""

    model: Annotated[str, Field(min_length=1, max_length=1000, examples=["model:support-bot@candidate"])]
    """The model to evaluate: `model:NAME@ALIAS` or `model:NAME@NUMBER` for a registered version, `model:art_...` for an
    exported model by its id, or what else `training.model.base` takes. What it refers to is fixed when the job is
    submitted."""
    tasks: Annotated[
        list[EvaluationTask],
        Field(
            min_length=1,
            max_length=64,
            examples=[[{"name": "held-out", "kind": "loss", "source": "dataset:held-out"}]],
        ),
    ]
    """Up to 64 evaluations, each on a data set of its own."""
    sequence_length: Annotated[int, Field(ge=8, le=1_048_576, examples=[256])]
    """Largest number of tokens that the model sees together. Longer documents are cut into windows of this length, each
    of which begins without context; of a longer question the beginning is left out."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Number format of the computation, as in `training.precision`."""
    parallelism: ParallelismSpec = ParallelismSpec()
    """How the processes divide the work, as in `training.parallelism`."""

    def _conflicts(self) -> Iterator[FieldConflict]:
        for field in ("name", "source"):
            values = [getattr(task, field) for task in self.tasks]
            twice = sorted({value for value in values if values.count(value) > 1})
            if twice:
                message = f"tasks have the {field} {', '.join(twice)} more than once; each must have its own"
                yield FieldConflict("tasks", message)

    def as_training(self) -> TrainingSpec:
        """Return the training spec that loads the same model onto the same mesh. It is not trained."""
        data = {
            "packing": "documents",
            "mixture": [
                {"source": task.source, "format": task.format, "text_field": task.text_field} for task in self.tasks
            ],
        }
        return TrainingSpec.model_validate(
            {
                "model": {"base": self.model},
                "data": data,
                "steps": 1,
                "tokens_per_step": MAX_SEQUENCES * self.sequence_length,
                "sequence_length": self.sequence_length,
                "precision": self.precision,
                "parallelism": self.parallelism.model_dump(),
                "compile": False,
            }
        )

    def is_loaded_by(self, training: TrainingSpec) -> bool:
        """Return whether a training spec is `as_training`, perhaps with what the platform has resolved."""
        own = self.as_training()
        fixed = ("steps", "tokens_per_step", "sequence_length", "compile", "optimizer", "lora", "preference")
        sources = [part.source for part in training.data.parts]
        return sources == [part.source for part in own.data.parts] and all(
            getattr(training, name) == getattr(own, name) for name in fixed
        )


FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class EvaluationFigure(WireModel):
    """One metric of one evaluation. `n`: documents or questions. `tokens`: those that count. `standard_error`, `low`
    and `high` (the 95 % confidence interval): None if `n` is too small to estimate them."""

    name: EvaluationName
    metric: Metric
    value: FiniteFloat
    n: Annotated[Count64, Field(ge=1)]
    tokens: Annotated[Count64, Field(ge=1)]
    standard_error: Annotated[FiniteFloat, Field(ge=0.0)] | None = None
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None


class EvaluationResults(WireModel):
    """Body of POST /evaluations: all figures of an evaluation job. Of which model is known from the job's spec."""

    figures: Annotated[list[EvaluationFigure], Field(min_length=1, max_length=256)]

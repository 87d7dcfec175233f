"""Evaluation jobs: what to evaluate a trained model on, and the figures that an attempt registers."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from trainer.contract.base import CheckedModel, Count64, FieldConflict, Pattern, WireModel
from trainer.contract.data import Source, TextField
from trainer.contract.item_scores import MAX_BYTES
from trainer.contract.parallelism import ParallelismSpec
from trainer.contract.training import TrainingSpec

METRICS = {
    "loss": ("loss", "bits_per_byte"),
    "multiple_choice": ("accuracy", "accuracy_normalised"),
    "generation": ("exact_match", "f1", "regex", "json_schema"),
}
"""The metrics of each kind of evaluation. Of `generation`, a task has those in its `scores`."""
LOWER_IS_BETTER = frozenset({"loss", "bits_per_byte"})
AT_MOST_ONE = frozenset(METRICS["multiple_choice"] + METRICS["generation"])
MAX_SEQUENCES = 1024
"""Sequences that are computed together, over all data ranks, at most."""
EVALUATION_NAME_PATTERN = r"^[a-z][a-z0-9_-]{0,62}$"
EvaluationName = Annotated[
    str, Pattern(EVALUATION_NAME_PATTERN, "lower-case letters, digits, _ and -, beginning with a letter")
]
Score = Literal["exact_match", "f1", "regex", "json_schema"]
Metric = Literal[
    "loss", "bits_per_byte", "accuracy", "accuracy_normalised", "exact_match", "f1", "regex", "json_schema"
]
WITHOUT_REFERENCES = frozenset({"regex", "json_schema"})
"""Scores that compare an answer with no reference; `regex` only if its pattern has no group."""


def _is_none(value: object) -> bool:
    """Leave a field out of messages where it is not given: trainers of earlier versions do not know it."""
    return value is None


class EvaluationTask(CheckedModel):
    """One evaluation: a name, and data with a way to score it."""

    name: Annotated[EvaluationName, Field(examples=["held-out"])]
    """Name of the evaluation, by which results are compared between versions and promotion requires them: lower-case
    letters, digits, underscores and hyphens."""
    kind: Annotated[Literal["loss", "multiple_choice", "generation"], Field(examples=["loss"])]
    """`loss`: the mean loss of a token (`loss`) and, for text, bits per byte (`bits_per_byte`) of all documents of the
    data set. `multiple_choice`: the share of questions of which the right choice is the likeliest (`accuracy`), and of
    which it is by the log-likelihood per byte of the choice (`accuracy_normalised`). `generation`: the model continues
    each prompt, always with the likeliest token, and its answers are scored by `scores`."""
    source: Annotated[Source, Field(examples=["dataset:held-out"])]
    """`dataset:NAME` for an uploaded data set of the team (or `dataset:NAME@NUMBER`, `dataset:NAME@ALIAS` for one of
    its versions), `s3://bucket/prefix` in a bucket that an administrator has granted to the team, or
    `builtin:python-stdlib`. Which version is fixed when the job is submitted. Each source may occur once. All of its
    documents are used. For `multiple_choice` it has JSON lines with `question` (text), `choices` (a list of texts) and
    `answer` (the number of the right choice, 0 for the first). For `generation` it has JSON lines with `prompt` (text)
    or `messages` (a conversation that ends with a message of the user), and `answer` (the reference answer, or a list
    of them)."""
    format: Literal["auto", "text", "jsonl", "parquet", "chat"] = "auto"
    """Format of the files of kind `loss`, as in `training.data`. Of conversations (`chat`) only the assistant's answers
    count. Ignored by the other kinds."""
    text_field: TextField = "text"
    """Field or column that has the text, as in `training.data`. Ignored by the other kinds."""
    scores: Annotated[
        Annotated[list[Score], Field(min_length=1, max_length=4)] | None,
        Field(examples=[["exact_match", "f1"]], exclude_if=_is_none),
    ] = None
    """How answers of kind `generation` are scored; required there. `exact_match`: the share of answers that are equal
    to a reference answer. `f1`: the mean F1 of the answer's words, against the reference answer with the highest. Both
    after lower-casing, and without punctuation and the words a, an and the, as in SQuAD. `regex`: the share of answers
    that match `pattern`. `json_schema`: the share of answers that are JSON and valid by the schema of that name."""
    max_tokens: Annotated[Annotated[int, Field(ge=1, le=8192)] | None, Field(examples=[64], exclude_if=_is_none)] = None
    """Largest number of tokens to generate for each prompt of kind `generation`; required there. A prompt and its
    answer must together fit into `sequence_length`."""
    stop: Annotated[
        Annotated[list[Annotated[str, Field(min_length=1, max_length=100)]], Field(min_length=1, max_length=8)] | None,
        Field(examples=[["\n"]], exclude_if=_is_none),
    ] = None
    """Texts that end an answer of kind `generation` where the first of them occurs; they are not part of it. An answer
    also ends at the model's end of text, and after `max_tokens`."""
    pattern: Annotated[
        Annotated[str, Field(min_length=1, max_length=500)] | None,
        Field(examples=["answer is ([0-9]+)"], exclude_if=_is_none),
    ] = None
    """Regular expression in Python's syntax for the score `regex`, with one group at most. An answer matches if the
    expression is found in it, and the text of the group, if there is one, is equal to a reference answer in the sense
    of `exact_match`; the first match counts."""
    json_schema: Annotated[
        dict[str, Any] | None,
        Field(
            examples=[{"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}],
            exclude_if=_is_none,
        ),
    ] = None
    """JSON schema (draft 2020-12) for the score `json_schema`: up to 8192 bytes as JSON, and 32 levels deep. An answer
    is valid if all of it is JSON, perhaps in one Markdown code block, and the schema allows it. References lead to
    schemas within it (`#/$defs/...`); regular expressions are those of Python; `format` is not checked. `{}` allows
    every answer that is JSON."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the metrics that a result of this task may have."""
        return tuple(self.scores or ()) if self.kind == "generation" else METRICS[self.kind]

    @property
    def needs_answers(self) -> bool:
        """Return whether what is generated is compared with reference answers."""
        has_group = self.pattern is not None and re.compile(self.pattern).groups > 0
        return has_group or any(score not in WITHOUT_REFERENCES for score in self.scores or ())

    def _conflicts(self) -> Iterator[FieldConflict]:
        if self.kind != "generation":
            for field in ("scores", "max_tokens", "stop", "pattern", "json_schema"):
                if getattr(self, field) is not None:
                    message = f"{field} is only for the kind generation, not {self.kind}; leave it out"
                    yield FieldConflict(field, message, ("kind",))
            return
        for field in ("scores", "max_tokens"):
            if getattr(self, field) is None:
                yield FieldConflict(field, f"the kind generation needs {field}", ("kind",))
        scores = self.scores or []
        if len(set(scores)) < len(scores):
            yield FieldConflict("scores", f"scores has one of them twice: {', '.join(scores)}")
        if ("regex" in scores) != (self.pattern is not None):
            message = "the score regex needs a pattern, and a pattern needs the score regex; give both or none"
            yield FieldConflict("pattern", message, ("scores",))
        problem = None if self.pattern is None else pattern_problem(self.pattern)
        if problem is not None:
            yield FieldConflict("pattern", problem)
        yield from self._schema_conflicts()

    def _schema_conflicts(self) -> Iterator[FieldConflict]:
        if ("json_schema" in (self.scores or ())) != (self.json_schema is not None):
            message = "the score json_schema needs a json_schema, and a json_schema needs the score; give both or none"
            yield FieldConflict("json_schema", message, ("scores",))
        if self.json_schema is None:
            return
        from trainer.contract.json_schema import schema_problem  # noqa: PLC0415 - the command line lacks jsonschema

        problem = schema_problem(self.json_schema)
        if problem is not None:
            yield FieldConflict("json_schema", f"json_schema cannot be used: {problem}")


def pattern_problem(pattern: str) -> str | None:
    """Return why a regular expression cannot be used for the score `regex`, None if it can."""
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        return f"the pattern {pattern[:100]!r} is no regular expression in Python's syntax: {error}"
    if groups > 1:
        return f"the pattern has {groups} groups, and only one can be compared; write the others as (?:...)"
    return None


class EvaluationSettings(CheckedModel):
    """What to evaluate a model on, and how."""

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
        for number, task in enumerate(self.tasks):
            if task.max_tokens is not None and task.max_tokens >= self.sequence_length:
                message = (
                    f"tasks.{number}.max_tokens {task.max_tokens} leaves no room for a prompt in sequence_length "
                    f"{self.sequence_length}; lower it, or raise sequence_length"
                )
                yield FieldConflict(f"tasks.{number}.max_tokens", message, ("sequence_length",))


class EvaluationJobSpec(EvaluationSettings):
    """A job that evaluates a trained model, and trains nothing. Results are stored with the model."""

    model: Annotated[str, Field(min_length=1, max_length=1000, examples=["model:support-bot@candidate"])]
    """The model to evaluate: `model:NAME@ALIAS` or `model:NAME@NUMBER` for a registered version, `model:art_...` for an
    exported model by its id, or what else `training.model.base` takes. What it refers to is fixed when the job is
    submitted."""

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
        fixed = ("steps", "tokens_per_step", "sequence_length", "compile", "optimizer", "lora", "ema", "preference")
        sources = [part.source for part in training.data.parts]
        return sources == [part.source for part in own.data.parts] and all(
            getattr(training, name) == getattr(own, name) for name in fixed
        )


FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]


class EvaluationFigure(WireModel):
    """One metric of one evaluation. `n`: documents, questions or prompts. `tokens`: those that count, or were
    generated. `standard_error`, `low` and `high` (the 95 % confidence interval): None if `n` is too small to estimate
    them. `items`: the results of the items (`trainer.contract.item_scores`)."""

    name: EvaluationName
    metric: Metric
    value: FiniteFloat
    n: Annotated[Count64, Field(ge=1)]
    tokens: Annotated[Count64, Field(ge=1)]
    standard_error: Annotated[FiniteFloat, Field(ge=0.0)] | None = None
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    items: Annotated[Annotated[str, Field(max_length=2 * MAX_BYTES)] | None, Field(exclude_if=_is_none, repr=False)] = (
        None
    )


class EvaluationResults(WireModel):
    """Body of POST /evaluations: all figures of an evaluation job. Of which model is known from the job's spec."""

    figures: Annotated[list[EvaluationFigure], Field(min_length=1, max_length=256)]

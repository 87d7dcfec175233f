"""Evaluation during training: the loss on each data set's held-out part, and continuations of prompts."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from trainer.contract.forward_cost import VALIDATION_ROUND
from trainer.contract.manifest import BEST_LOSS, BEST_STEP
from trainer.contract.training import EvaluationSpec
from trainer.data.batch import MicroBatch
from trainer.data.chat import ChatTemplate
from trainer.data.shards import TOKENIZER_NAME, DatasetIndex
from trainer.data.tokenizer import ids_before_text
from trainer.models.preference import preference_series
from trainer.parallel.generation import generation_session
from trainer.parallel.mesh import all_reduce_world
from trainer.parallel.parallelize import ParallelModel
from trainer.resilience.assignment import Assignment

SAMPLING_SEED = 1
SAMPLING_TEMPERATURE = 0.8


@dataclass(frozen=True)
class HeldOutSet:
    """A rank's held-out batches of one data set. `name`: in names of metrics. `tokens_per_byte`: of the complete split;
    None if only some of its tokens are targets."""

    name: str
    batches: list[MicroBatch]
    tokens_per_byte: float | None


@dataclass(frozen=True)
class EvaluationResult:
    """The mean loss and the metrics by name of an evaluation."""

    loss: float
    values: dict[str, float]


class BestEvaluation:
    """The evaluation with the lowest loss, which checkpoints record, and whether training has waited long enough for a
    lower one."""

    def __init__(self, spec: EvaluationSpec, recorded: Mapping[str, float]) -> None:
        """Set up from the metrics that the checkpoint of a resumed run recorded."""
        self._spec = spec
        self.loss = recorded.get(BEST_LOSS, math.inf)
        self.step = int(recorded.get(BEST_STEP, 0))

    def update(self, step: int, loss: float) -> None:
        """Take the loss after `step` steps into account."""
        if loss < self.loss:
            self.loss, self.step = loss, step

    def has_waited(self, step: int) -> bool:
        """Return whether so many evaluations up to `step` brought no lower loss as `patience` says."""
        every, patience = self._spec.every_steps, self._spec.patience
        return patience is not None and step // every - self.step // every >= patience

    @property
    def metrics(self) -> dict[str, float]:
        """Return what a checkpoint records."""
        return {BEST_LOSS: self.loss, BEST_STEP: float(self.step)} if self.loss < math.inf else {}


def make_held_out_set(source: str, index: DatasetIndex, batches: list[MicroBatch]) -> HeldOutSet:
    """Return a held-out set with its metric name, and its tokens per byte where that is known."""
    name = re.sub(r"[^a-z0-9]+", "_", source.partition(":")[2].lower()).strip("_") or "data"
    num_bytes = index.text_bytes["validation"]
    per_byte = index.validation_tokens / num_bytes if num_bytes and not index.is_masked else None
    return HeldOutSet(name, batches, per_byte)


def make_names_unique(sets: Sequence[HeldOutSet]) -> list[HeldOutSet]:
    """Return the sets with unique names: a number is appended to a repeated name."""
    found: dict[str, HeldOutSet] = {}
    for each in sets:
        name, number = each.name, 1
        while name in found:
            number += 1
            name = f"{each.name}_{number}"
        found[name] = HeldOutSet(name, each.batches, each.tokens_per_byte)
    return list(found.values())


def evaluate(model: ParallelModel, sets: Sequence[HeldOutSet], report_progress: Callable[[], None]) -> EvaluationResult:
    """Evaluate and return the same result on every rank; a collective. The loss is the mean over the counted tokens of
    all data sets, or over their pairs or labelled answers; bits per byte is the loss in bits, by what a byte of the
    split's text comes to in tokens."""
    mesh = model.weights.mesh
    sums_N2 = torch.zeros(len(sets), 2, dtype=torch.float64, device=mesh.device)
    for number, each in enumerate(sets):
        model.update_reference_point(batch.to(mesh.device) for batch in each.batches)
        for first in range(0, len(each.batches), VALIDATION_ROUND):
            batches = [batch.to(mesh.device) for batch in each.batches[first : first + VALIDATION_ROUND]]
            sums_N2[number] += model.losses(batches)
            report_progress()
    reduced = all_reduce_world(torch.cat([sums_N2.flatten(), model.take_preference_figures().double()]), mesh).tolist()
    preference_figures = reduced[2 * len(sets) :]
    sums = list(zip(reduced[: 2 * len(sets) : 2], reduced[1 : 2 * len(sets) : 2], strict=True))
    loss = sum(row[0] for row in sums) / sum(row[1] for row in sums)
    spec = None if model.preference is None else model.preference.spec
    values = {"evaluation/loss": loss} | preference_series(spec, "evaluation", preference_figures)
    for each, (loss_sum, tokens) in zip(sets, sums, strict=True):
        prefix = f"evaluation/{each.name}" if len(sets) > 1 else "evaluation"
        if tokens:
            values[f"{prefix}/loss"] = loss_sum / tokens
            if each.tokens_per_byte is not None:
                values[f"{prefix}/bits_per_byte"] = loss_sum / tokens / math.log(2) * each.tokens_per_byte
    return EvaluationResult(loss, values)


class PromptSampler:
    """Continue fixed prompts, each time with the same random numbers, on any mesh."""

    def __init__(self, assignment: Assignment, model: ParallelModel) -> None:
        training = assignment.training
        spec, length = training.evaluation, training.sequence_length
        index = DatasetIndex.read(assignment.dataset_folder)
        self._model, self._end_of_text = model, index.end_of_text
        self._tokenizer = Tokenizer.from_file(str(assignment.dataset_folder / TOKENIZER_NAME))
        self.prompts = spec.prompts
        self._num_tokens = min(spec.sample_tokens, length - 1)
        texts, before = list(spec.prompts), ids_before_text(self._tokenizer)
        if all(part.format == "chat" for part in training.data.parts):
            end_of_text = self._tokenizer.id_to_token(index.end_of_text)
            assert end_of_text is not None, "the data set was made with this tokenizer"
            template = ChatTemplate.from_model(assignment.base_folder, end_of_text)
            texts, before = [template.prompt(text) for text in texts], []
        encoded = [[*before, *self._tokenizer.encode(text, add_special_tokens=False).ids] for text in texts]
        self._prompts = [(ids or [self._end_of_text])[-(length - self._num_tokens) :] for ids in encoded]

    def generate(self, report_progress: Callable[[], None]) -> list[str]:
        """Return the continuation of each prompt; a collective. A continuation extends up to the end of the text or
        of the allowance."""
        device = self._model.weights.mesh.device
        lengths = [len(ids) for ids in self._prompts]
        first_PN = torch.full((len(lengths), max(lengths)), self._end_of_text, device=device)
        for row, ids in enumerate(self._prompts):
            first_PN[row, : len(ids)] = torch.tensor(ids, device=device)
        generator = torch.Generator().manual_seed(SAMPLING_SEED)
        max_tokens = max(lengths) + self._num_tokens
        with generation_session(
            self._model, max_tokens, lambda logits_PV: sample_tokens(logits_PV, generator)
        ) as generation:
            new = [generation.prefill(first_PN, lengths)]
            while len(new) < self._num_tokens:
                new.append(generation.step(new[-1]))
                report_progress()
        return [self._text(token_ids) for token_ids in torch.stack(new, 1).tolist()]

    def _text(self, new: list[int]) -> str:
        if self._end_of_text in new:
            new = new[: new.index(self._end_of_text)]
        return self._tokenizer.decode(new)


def sample_tokens(logits_PV: Tensor, generator: torch.Generator) -> Tensor:
    """Sample a token id from each row of logits, [P]; on the CPU, so that the device does not change the samples."""
    scores_PV = (logits_PV.float().cpu() / SAMPLING_TEMPERATURE).softmax(-1)
    if not scores_PV.isfinite().all():
        return scores_PV.new_zeros(scores_PV.shape[0], dtype=torch.int64)  # the model has diverged
    return torch.multinomial(scores_PV, 1, generator=generator)[:, 0]

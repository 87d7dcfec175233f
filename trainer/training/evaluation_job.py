"""Evaluate a trained model on the tasks of an evaluation job, on any mesh, and register the figures."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.contract import item_scores
from trainer.contract.data import MixturePart
from trainer.contract.encryption import Encryptor
from trainer.contract.evaluation import EvaluationFigure, EvaluationResults, EvaluationTask
from trainer.contract.forward_cost import VALIDATION_ROUND
from trainer.contract.run import EndClass
from trainer.contract.timeouts import TRAINING_TIMEOUT
from trainer.data.batch import MicroBatch
from trainer.data.documents import RawObject
from trainer.data.evaluation import ItemReader, Items, Prompt, Window
from trainer.data.packing import IGNORED
from trainer.data.prepare import UNIT_BYTES
from trainer.data.raw_objects import read_units
from trainer.data.tokenizer import ExistingTokenizer
from trainer.parallel.mesh import Mesh, all_reduce_world
from trainer.parallel.parallelize import ParallelModel
from trainer.reporting.reporter import Reporter
from trainer.resilience.assignment import Assignment
from trainer.storage.base import Storage
from trainer.training.answer_scores import score_answers
from trainer.training.answers import Answer, AnswerGenerator, Stopped, not_finite
from trainer.training.build import build_frozen
from trainer.training.confidence import Estimate, mean_score, proportion, ratio
from trainer.training.measurements import highest

LENGTH_STEP = 128
"""Rows are padded to a multiple of this, where nothing divides the sequence over ranks."""


@dataclass(frozen=True)
class Scorer:
    """Scores windows on a mesh. `batch_size`: of one forward pass; `length`: the longest window."""

    model: ParallelModel
    data_rank: int
    data_ranks: int
    batch_size: int
    length: int
    report_progress: Callable[[], None]
    is_stopping: Callable[[], bool] = lambda: False

    def score(self, items: Items) -> NDArray[np.float64]:
        """Return [summed loss, number of targets] of each item, [N, 2], the same on every rank; a collective. Raises
        Stopped."""
        mesh = self.model.weights.mesh
        order = sorted(range(len(items.windows)), key=lambda number: -len(items.windows[number].tokens_S))
        groups = [order[first : first + self.batch_size] for first in range(0, len(order), self.batch_size)]
        sums_W2 = torch.zeros(len(order), 2, dtype=torch.float64, device=mesh.device)
        per_rank = -(-len(groups) // self.data_ranks)
        for first in range(0, per_rank, VALIDATION_ROUND):
            if highest(float(self.is_stopping()), mesh):
                raise Stopped
            mine = [
                number * self.data_ranks + self.data_rank
                for number in range(first, min(first + VALIDATION_ROUND, per_rank))
            ]
            chosen = [groups[number] if number < len(groups) else [] for number in mine]
            # A rank without windows takes part in collectives with one that has no targets.
            batches = [self._batch([items.windows[each] for each in group] or [items.windows[0]]) for group in chosen]
            for group, rows_B2 in zip(
                chosen, self.model.row_losses([batch.to(mesh.device) for batch in batches]), strict=True
            ):
                if group:
                    sums_W2[group] = rows_B2[: len(group)]
            self.report_progress()
        windows_W2 = all_reduce_world(sums_W2, mesh).cpu().numpy()
        found_N2 = np.zeros((len(items.num_bytes), 2))
        np.add.at(found_N2, [window.item for window in items.windows], windows_W2)
        return found_N2

    def _batch(self, windows: Sequence[Window]) -> MicroBatch:
        """Return windows as rows, padded at their ends, where causal attention does not see the padding."""
        sizes, longest = self.model.weights.mesh.sizes, max(len(window.tokens_S) for window in windows)
        length = min(self.length, -(-longest // LENGTH_STEP) * LENGTH_STEP)
        if sizes.context * sizes.tensor > 1:
            length = self.length
        shape = (self.batch_size if sizes.pipeline > 1 else len(windows), length)
        tokens_BS, targets_BS = torch.zeros(shape, dtype=torch.int64), torch.full(shape, IGNORED)
        for row, window in enumerate(windows):
            count = len(window.tokens_S)
            tokens_BS[row, :count] = torch.from_numpy(window.tokens_S)
            targets_BS[row, :count] = torch.from_numpy(window.targets_S)
        return MicroBatch(tokens_BS, targets_BS)


def figures_of(task: EvaluationTask, items: Items, sums_N2: NDArray[np.float64]) -> Iterator[EvaluationFigure]:
    """Yield the metrics of a task from [summed loss, number of targets] of each item.

    Raises TrainerError (BAD_SPEC) if the model's loss is not finite.
    """
    if not np.isfinite(sums_N2).all():
        raise not_finite(task)
    losses_N, tokens_N = sums_N2[:, 0], sums_N2[:, 1]
    bytes_N = np.array(items.num_bytes, dtype=np.float64)
    tokens = round(float(tokens_N.sum()))
    if task.kind == "loss":
        yield _figure(task, "loss", ratio(losses_N, tokens_N), tokens, losses_N, tokens_N)
        if bytes_N.sum():
            bits_N = losses_N / math.log(2)
            yield _figure(task, "bits_per_byte", ratio(bits_N, bytes_N), tokens, bits_N, bytes_N)
        return
    for metric, scores_N in (("accuracy", -losses_N), ("accuracy_normalised", -losses_N / bytes_N)):
        right = np.array([
            int(np.argmax(scores_N[first : first + choices])) == answer for first, choices, answer in items.questions
        ])  # fmt: skip
        yield _figure(task, metric, proportion(int(right.sum()), len(right)), tokens, right)


def figures_of_answers(
    task: EvaluationTask, prompts: Sequence[Prompt], answers: Sequence[Answer]
) -> Iterator[EvaluationFigure]:
    """Yield the scores of a task of the kind generation. Raises TrainerError (BAD_SPEC) as `score_answers` does."""
    answered = [(answer.text, prompt.references) for prompt, answer in zip(prompts, answers, strict=True)]
    tokens = sum(answer.num_tokens for answer in answers)
    for score in task.scores or ():
        scores = np.array(score_answers(task, score, answered))
        found = mean_score(scores) if score == "f1" else proportion(round(float(scores.sum())), len(scores))
        yield _figure(task, score, found, tokens, scores)


def _figure(
    task: EvaluationTask, metric: str, found: Estimate, tokens: int, *items: NDArray[np.generic]
) -> EvaluationFigure:
    """Return a figure with the results of its items, by column."""
    packed = item_scores.pack(metric, *(column.tolist() for column in items)) or None
    return EvaluationFigure.model_validate(
        {"name": task.name, "metric": metric, "n": len(items[0]), "tokens": tokens, "items": packed, **vars(found)}
    )


def results_of(figures: Sequence[EvaluationFigure]) -> EvaluationResults:
    """Return the message with all figures of a job, of which the last ones lack items if there are too many bytes."""
    fit = item_scores.affordable([len(each.items or "") for each in figures])
    return EvaluationResults(
        figures=[
            each if has_room else each.model_copy(update={"items": None})
            for each, has_room in zip(figures, fit, strict=True)
        ]
    )


def run_evaluation_job(assignment: Assignment, mesh: Mesh, reporter: Reporter) -> EndClass:
    """Evaluate the base model of the job's spec, and register the figures; a collective. Return COMPLETED or STOPPED.

    A later attempt begins with the first task again: results are registered together.
    """
    run, training = assignment.run, assignment.training
    assert run.evaluation is not None and assignment.base_folder is not None, "the spec names a model"
    platform, storage = assignment.connection.connect(run)
    with reporter.phase("model", heartbeat_phase="model"):
        model, part = build_frozen(assignment, mesh)
        model.score_tokens()
    existing = ExistingTokenizer.from_model(assignment.base_folder, training.tokenizer.vocab_size)
    reader = ItemReader(existing, training.sequence_length)
    model.weights.mesh.set_timeout(TRAINING_TIMEOUT)
    scorer = Scorer(
        model, part.rank, part.world_size, part.micro_batch, training.sequence_length, reporter.report_progress,
        reporter.stop_requested,
    )  # fmt: skip
    generator = AnswerGenerator(
        model, Tokenizer.from_file(str(existing.file)), existing.end_of_text, part.world_size, part.micro_batch,
        reporter.report_progress, reporter.stop_requested,
    )  # fmt: skip
    reporter.event("training.started", step=0)
    figures: list[EvaluationFigure] = []
    try:
        for number, task in enumerate(run.evaluation.tasks):
            reporter.enter_phase("model")
            part_of_data, objects = read_objects(assignment, number, storage)
            if task.kind == "generation":
                prompts = reader.read_prompts(task, part_of_data, objects)
                reporter.enter_phase("evaluation")
                begin = time.monotonic()
                found = list(figures_of_answers(task, prompts, generator.generate(task, prompts)))
            else:
                items = reader.read(task, part_of_data, objects)
                reporter.enter_phase("evaluation")
                begin = time.monotonic()
                found = list(figures_of(task, items, scorer.score(items)))
            figures += found
            reporter.event(
                "evaluation.task", name=task.name, n=found[0].n, tokens=found[0].tokens,
                values={each.metric: each.value for each in found}, seconds=time.monotonic() - begin,
            )  # fmt: skip
    except Stopped:
        return EndClass.STOPPED
    if mesh.rank == 0:
        platform.register_evaluation(results_of(figures))
    reporter.report_step(1)
    return EndClass.COMPLETED


def read_objects(assignment: Assignment, number: int, storage: Storage) -> tuple[MixturePart, Iterator[RawObject]]:
    """Return the data of a task. Each rank reads all of it. Iterating raises TrainerError (DATA_ERROR)."""
    part, source = assignment.training.data.parts[number], assignment.run.datasets[number]
    units = read_units(part, source, storage, Encryptor(assignment.sources[number].key), [], UNIT_BYTES)
    return part, (raw for unit in units for raw in unit())

"""Generate the answers of an evaluation job: greedily, on any mesh, each data rank for its share of the prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from trainer.contract.evaluation import EvaluationTask
from trainer.contract.run import EndClass
from trainer.data.evaluation import Prompt
from trainer.errors import TrainerError
from trainer.parallel.generation import generation_session
from trainer.parallel.parallelize import ParallelModel
from trainer.training.measurements import highest

STOP_STEPS = 16
"""The ranks agree on whether to stop whenever so many tokens have been generated."""
_DIVERGED = -1


class Stopped(Exception):
    """The attempt is to stop."""


def not_finite(task: EvaluationTask) -> TrainerError:
    """Return the error of a model that computes no finite numbers on a task."""
    return TrainerError(
        EndClass.BAD_SPEC,
        f"what the model computes on the evaluation {task.name!r} is not finite: its weights are damaged or have "
        "diverged, or the precision is too low; evaluate with precision fp32, or another version",
    )


@dataclass(frozen=True)
class Answer:
    """A generated text, and the number of tokens that were generated for it, an end of text included."""

    text: str
    num_tokens: int


@dataclass(frozen=True)
class AnswerGenerator:
    """Generates answers on a mesh. `batch_size`: prompts of a data rank that are computed together, at most."""

    model: ParallelModel
    tokenizer: Tokenizer
    end_of_text: int
    data_ranks: int
    batch_size: int
    report_progress: Callable[[], None]
    is_stopping: Callable[[], bool] = lambda: False

    def generate(self, task: EvaluationTask, prompts: Sequence[Prompt]) -> list[Answer]:
        """Return an answer to each prompt, the same on every rank; a collective.

        Raises Stopped, and TrainerError (BAD_SPEC) if the model's outputs are not finite.
        """
        longest_first = sorted(range(len(prompts)), key=lambda number: -len(prompts[number].ids))
        together = self.data_ranks * self.batch_size
        answers: dict[int, Answer] = {}
        for first in range(0, len(prompts), together):
            chosen = longest_first[first : first + together]
            rows = [prompts[number].ids for number in chosen]
            rows += [rows[-1]] * (-len(rows) % self.data_ranks)  # every data rank has as many
            found = self._generate(task, rows)
            answers |= {number: self._answer(task, ids) for number, ids in zip(chosen, found, strict=False)}
        return [answers[number] for number in range(len(prompts))]

    def _generate(self, task: EvaluationTask, rows: list[list[int]]) -> list[list[int]]:
        """Return the new token ids of each row, up to the one with which its answer ends."""
        assert task.max_tokens is not None, "of the kind generation"
        mesh = self.model.weights.mesh
        lengths = [len(ids) for ids in rows]
        tokens_BN = torch.full((len(rows), max(lengths)), self.end_of_text, device=mesh.device)
        for row, ids in enumerate(rows):
            tokens_BN[row, : len(ids)] = torch.tensor(ids, device=mesh.device)
        new: list[list[int]] = [[] for _ in rows]
        unfinished = set(range(len(rows)))
        with generation_session(
            self.model, max(lengths) + task.max_tokens, likeliest_tokens, divides_rows=True
        ) as generation:
            chosen_B = generation.prefill(tokens_BN, lengths)
            for number in range(1, task.max_tokens + 1):
                if number % STOP_STEPS == 0 and highest(float(self.is_stopping()), mesh):
                    raise Stopped
                ids = chosen_B.tolist()
                if _DIVERGED in ids:
                    raise not_finite(task)
                for row in sorted(unfinished):
                    new[row].append(ids[row])
                    if self._has_ended(task, new[row]):
                        unfinished.remove(row)
                self.report_progress()
                if not unfinished or number == task.max_tokens:
                    break
                chosen_B = generation.step(chosen_B)
        return new

    def _has_ended(self, task: EvaluationTask, ids: list[int]) -> bool:
        """Return whether the newest token ends an answer."""
        if ids[-1] == self.end_of_text:
            return True
        stop = task.stop or []
        if not stop:
            return False
        written = self.tokenizer.decode(ids, skip_special_tokens=False)
        return any(text in written for text in stop)

    def _answer(self, task: EvaluationTask, ids: list[int]) -> Answer:
        text_ids = ids[:-1] if ids[-1] == self.end_of_text else ids
        text = self.tokenizer.decode(text_ids)
        ends = [place for place in (text.find(stop) for stop in task.stop or []) if place >= 0]
        return Answer(text[: min(ends, default=len(text))], len(ids))


def likeliest_tokens(logits_BV: Tensor) -> Tensor:
    """Return the likeliest token id of each row of logits, [B]; -1 for a row that is not finite."""
    return torch.where(logits_BV.isfinite().all(-1), logits_BV.argmax(-1), _DIVERGED)

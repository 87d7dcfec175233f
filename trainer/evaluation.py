"""What a model is worth while it trains: its loss on what each data set holds out, and what it goes on to say."""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from trainer.data.batch import MicroBatch
from trainer.data.chat import ChatTemplate
from trainer.data.shards import TOKENIZER_NAME, DatasetIndex
from trainer.parallel.mesh import sum_over_ranks
from trainer.parallel.spread import SpreadModel
from trainer.resilience.assignment import Assignment

VALIDATION_ROUND = 8  # micro-batches that are under way through a pipeline together
SAMPLING_SEED = 1
SAMPLING_TEMPERATURE = 0.8


@dataclass(frozen=True)
class HeldOut:
    """What a rank evaluates of one data set. `name` is as metrics have it; `tokens_per_byte` of the whole split, None
    where only some of its tokens are counted."""

    name: str
    batches: list[MicroBatch]
    tokens_per_byte: float | None


@dataclass(frozen=True)
class Evaluated:
    """`values`: metrics by name."""

    loss: float
    values: dict[str, float]
    seconds: float


def held_out(source: str, index: DatasetIndex, batches: list[MicroBatch]) -> HeldOut:
    name = re.sub(r"[^a-z0-9]+", "_", source.partition(":")[2].lower()).strip("_") or "data"
    num_bytes = index.text_bytes["validation"]
    per_byte = index.validation_tokens / num_bytes if num_bytes and not index.is_masked else None
    return HeldOut(name, batches, per_byte)


def told_apart(sets: Sequence[HeldOut]) -> list[HeldOut]:
    """The same, with a number behind a name that an earlier one has."""
    found: dict[str, HeldOut] = {}
    for each in sets:
        name, number = each.name, 1
        while name in found:
            number += 1
            name = f"{each.name}_{number}"
        found[name] = HeldOut(name, each.batches, each.tokens_per_byte)
    return list(found.values())


def evaluate(model: SpreadModel, sets: Sequence[HeldOut]) -> Evaluated:
    """Collective, the same on every rank. The loss is the mean over the counted tokens of all data sets; bits per byte
    is the loss in bits, by what a byte of the split's text comes to in tokens."""
    begin = time.monotonic()
    mesh = model.weights.mesh
    sums_N2 = torch.zeros(len(sets), 2, dtype=torch.float64, device=mesh.device)
    for number, each in enumerate(sets):
        for first in range(0, len(each.batches), VALIDATION_ROUND):
            batches = [batch.to(mesh.device) for batch in each.batches[first : first + VALIDATION_ROUND]]
            sums_N2[number] += model.losses(batches)
    sums = sum_over_ranks(sums_N2, mesh).tolist()
    loss = sum(row[0] for row in sums) / sum(row[1] for row in sums)
    values = {"evaluation/loss": loss}
    for each, (loss_sum, tokens) in zip(sets, sums, strict=True):
        prefix = f"evaluation/{each.name}" if len(sets) > 1 else "evaluation"
        if tokens:
            values[f"{prefix}/loss"] = loss_sum / tokens
            if each.tokens_per_byte is not None:
                values[f"{prefix}/bits_per_byte"] = loss_sum / tokens / math.log(2) * each.tokens_per_byte
    return Evaluated(loss, values, time.monotonic() - begin)


class Sampler:
    """Goes on from fixed prompts, each time with the same random numbers.

    All ranks compute alike, as sharded models need, and always as many tokens of the same shape, so that no rank waits
    for another and nothing is compiled twice.
    """

    def __init__(self, assignment: Assignment, model: SpreadModel) -> None:
        training = assignment.run.training
        spec, length = training.evaluation, training.sequence_length
        index = DatasetIndex.read(assignment.dataset_folder)
        self._model, self._end_of_text = model, index.end_of_text
        self._tokenizer = Tokenizer.from_file(str(assignment.dataset_folder / TOKENIZER_NAME))
        self.prompts = spec.prompts
        sizes = model.weights.mesh.sizes
        self.is_possible = sizes.pipeline == sizes.tensor == sizes.context == 1
        self._num_tokens = min(spec.sample_tokens, length - 1)
        texts = list(spec.prompts)
        if all(part.format == "chat" for part in training.data.parts):
            end_of_text = self._tokenizer.id_to_token(index.end_of_text)
            template = ChatTemplate.of_model(assignment.base_folder, end_of_text)
            texts = [template.prompt(text) for text in texts]
        encoded = [self._tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
        self._prompts = [(ids or [self._end_of_text])[-(length - self._num_tokens) :] for ids in encoded]

    def samples(self) -> list[str]:
        """Collective: what follows each prompt, up to the end of the text or of the allowance."""
        (stage,) = self._model.stages
        weights = self._model.weights
        device = weights.mesh.device
        begins_P = torch.tensor([len(ids) for ids in self._prompts], device=device)
        width = int(begins_P.max()) + self._num_tokens
        tokens_PS = torch.full((len(self._prompts), width), self._end_of_text, device=device)
        for row, ids in enumerate(self._prompts):
            tokens_PS[row, : len(ids)] = torch.tensor(ids, device=device)
        generator = torch.Generator().manual_seed(SAMPLING_SEED)
        rows_P = torch.arange(len(self._prompts), device=device)
        with weights.inference():
            for number in range(self._num_tokens):
                places_P = begins_P + number
                logits_PV = stage(tokens_PS)[rows_P, places_P - 1]
                tokens_PS[rows_P, places_P] = chosen_words(logits_PV, generator).to(device)
        weights.after_inference()
        return [self._text(tokens_PS[row], len(ids)) for row, ids in enumerate(self._prompts)]

    def _text(self, tokens_S: Tensor, begin: int) -> str:
        new = tokens_S[begin : begin + self._num_tokens].tolist()
        if self._end_of_text in new:
            new = new[: new.index(self._end_of_text)]
        return self._tokenizer.decode(new)


def chosen_words(logits_PV: Tensor, generator: torch.Generator) -> Tensor:
    """[P], one of each row by its probabilities; drawn on the CPU, where every device gives the same numbers."""
    scores_PV = (logits_PV.float().cpu() / SAMPLING_TEMPERATURE).softmax(-1)
    if not scores_PV.isfinite().all():
        return scores_PV.new_zeros(scores_PV.shape[0], dtype=torch.int64)  # a lost model says nothing
    return torch.multinomial(scores_PV, 1, generator=generator)[:, 0]

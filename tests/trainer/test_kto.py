"""KTO: the loss by the paper's formula, the reference point from mismatched answers, answers with a label from TRL's
formats, the same numbers on every mesh."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from tests.trainer.pairs import CHAT, UNPAIRED, labelled, preferring, write_pairs
from tests.trainer.runs import FinishedRun, kill_rank, run_alone, tiny_training
from trainer.contract.preference import PreferenceSpec
from trainer.contract.run import EndClass
from trainer.contract.training import TrainingSpec
from trainer.data.batch import MicroBatch
from trainer.data.documents import RawObject
from trainer.data.loader import micro_batch
from trainer.data.masks import masked
from trainer.data.packing import IGNORED, DocumentRows
from trainer.data.unpaired import LabelledAnswer, read_labelled_answers
from trainer.errors import TrainerError
from trainer.models.kto import kto_loss, log_ratio_sums, mismatched, reference_point
from trainer.models.preference import count_answers, preference_series

KTO: dict[str, Any] = {"loss": "kto", "desirable_weight": 1.5, "undesirable_weight": 0.5}
LORA = {"lora": {"rank": 4, "alpha": 8.0}, "optimizer": {"learning_rate": 1e-2, "epsilon": 1e-5}}
SHAPE = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 64}
Answer = tuple[list[int], list[int], bool]  # prompt, answer, label


def packed(answers: list[Answer], length: int) -> MicroBatch:
    """All answers in one row, as they are stored and read."""
    stored = [
        masked(prompt + answer, [False] * len(prompt) + [True] * len(answer), is_rejected=not label)
        for prompt, answer, label in answers
    ]
    rows = DocumentRows(np.array([len(each) for each in stored]), length, "drop")
    assert rows.count == 1
    return micro_batch(rows.read(np.concatenate(stored), 0, 99, is_masked=True, has_labels=True))


THREE: list[Answer] = [([1, 2, 3], [10, 11], True), ([4], [12, 13, 14], False), ([5, 6], [15], True)]


def documents_of(batch: MicroBatch) -> list[tuple[list[int], list[int]]]:
    """(input tokens, targets that count) of each document of the first row that has some."""
    assert batch.documents_BS is not None
    found = []
    for number in batch.documents_BS[0].unique_consecutive().tolist():
        here = batch.documents_BS[0] == number
        targets = batch.targets_BS[0][here]
        if (targets != IGNORED).any():
            found.append((batch.tokens_BS[0][here].tolist(), targets[targets != IGNORED].tolist()))
    return found


def test_the_number_of_a_document_says_its_label() -> None:
    batch = packed(THREE, 14)
    assert batch.documents_BS is not None
    assert batch.documents_BS.tolist() == [[0] * 5 + [3] * 4 + [4] * 3 + [6] * 2]
    assert int(count_answers(PreferenceSpec(loss="kto"), batch)) == 3


@pytest.mark.parametrize("length", [12, 13, 20])
def test_mismatched_answers_are_those_of_the_neighbour_before(length: int) -> None:
    batch = mismatched(packed(THREE, length))
    expected = [(prompt + THREE[number - 1][1], THREE[number - 1][1]) for number, (prompt, *_) in enumerate(THREE)]
    assert documents_of(batch) == expected
    assert batch.positions_BS is not None and batch.documents_BS is not None
    begins = [number for number, position in enumerate(batch.positions_BS[0].tolist()) if position == 0]
    assert begins == [0, 4, 7, 12][: 3 + (length > 12)]
    assert batch.targets_BS[0, 2] == 15  # the last token of a prompt predicts the first of the answer
    # Twice mismatched three times is what was there before.
    again = mismatched(mismatched(batch))
    assert documents_of(again) == documents_of(packed(THREE, length))


def test_a_row_of_one_answer_has_no_mismatched_one() -> None:
    alone, padding = packed(THREE[:1], 12), packed(THREE, 12)
    padding = MicroBatch(
        padding.tokens_BS, torch.full_like(padding.targets_BS, IGNORED), *list(vars(padding).values())[2:]
    )
    found = mismatched(alone.joined(padding).joined(packed(THREE, 12)))
    assert (found.targets_BS[:2] == IGNORED).all() and (found.targets_BS[2] != IGNORED).sum() == 6
    assert torch.equal(found.tokens_BS[1], padding.tokens_BS[0])
    values = torch.where(found.targets_BS != IGNORED, -1.0, 0.0)
    assert log_ratio_sums(found, values, 2 * values).tolist() == [6.0, 3.0]


@pytest.mark.parametrize(("sums", "point"), [([6.0, 3.0], 2.0), ([-6.0, 3.0], 0.0), ([0.0, 0.0], 0.0)])
def test_the_reference_point_is_a_mean_that_is_not_negative(sums: list[float], point: float) -> None:
    assert float(reference_point(torch.tensor(sums))) == point


def test_the_loss_is_the_formula_of_the_paper() -> None:
    spec = PreferenceSpec(loss="kto", beta=0.3, desirable_weight=1.2, undesirable_weight=0.7)
    batch, point = packed(THREE, 14), 0.4
    counted = batch.targets_BS != IGNORED
    generator = torch.Generator().manual_seed(1)
    mine, theirs = (-torch.rand(1, 14, generator=generator, dtype=torch.float64).where(counted, 0.0) for _ in range(2))
    mine = mine.where(counted, 0.0).requires_grad_()
    found = kto_loss(spec, batch, mine, theirs, torch.tensor(point))
    assert batch.documents_BS is not None
    expected, rewards, counts = 0.0, {True: 0.0, False: 0.0}, {True: 0, False: 0}
    for number, (_, _, label) in zip((0, 3, 4), THREE, strict=True):
        ratio = float((mine.detach() - theirs)[batch.documents_BS == number].sum())
        signed = ratio - point if label else point - ratio
        weight = 1.2 if label else 0.7
        expected += weight - weight / (1 + math.exp(-0.3 * signed))
        rewards[label] += 0.3 * ratio
        counts[label] += 1
    assert found.loss.item() == pytest.approx(expected, rel=1e-9)
    assert found.figures.tolist() == pytest.approx([rewards[True], rewards[False], 0, counts[True], counts[False]])
    found.loss.backward()
    assert mine.grad is not None and bool(mine.grad[counted].all()) and not mine.grad[0, 12:].any()
    series = preference_series(spec, "train", [*found.figures.tolist(), 6.0, 4.0])
    assert series == pytest.approx(
        {
            "train/desirable_reward": rewards[True] / 2,
            "train/undesirable_reward": rewards[False],
            "train/reward_margin": rewards[True] / 2 - rewards[False],
            "train/reference_point": 1.5,
        }
    )
    one_kind = preference_series(spec, "train", [1.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0])
    assert one_kind == {"train/desirable_reward": 0.5}


def read(*rows: Any, has_template: bool = True) -> list[LabelledAnswer]:
    content = "\n".join(json.dumps(row) for row in rows).encode()
    return list(read_labelled_answers([RawObject.of("a.jsonl", content)], CHAT if has_template else None))


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


QUESTION, ANSWER = message("user", "why"), message("assistant", "so")


@pytest.mark.parametrize(
    ("row", "prompt", "answer"),
    [
        ({"prompt": "The sky is", "completion": " blue."}, "The sky is", " blue."),
        ({"prompt": [QUESTION], "completion": [ANSWER]}, "[user]why[assistant]", "so"),
        ({"messages": [QUESTION, ANSWER]}, "[user]why[assistant]", "so"),
        ({"messages": [QUESTION, ANSWER, QUESTION, ANSWER]}, "[user]why[assistant]so[user]why[assistant]", "so"),
    ],
    ids=["text", "chat", "messages", "messages-turns"],
)
@pytest.mark.parametrize("label", [True, False])
def test_answers_of_each_format(row: dict[str, Any], prompt: str, answer: str, label: bool) -> None:
    (found,) = read({**row, "label": label})
    assert found.is_desirable is label and found.is_plain is isinstance(row.get("prompt"), str)
    ((start, stop),) = found.counted
    assert (found[:start], found[start:stop]) == (prompt, answer)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (
            {"prompt": "a", "completion": "b"},
            "the line has no fields 'completion' and 'label' (it has: completion, prompt)",
        ),
        ({"prompt": "a", "label": True}, "(it has: label, prompt)"),
        (["a"], "the line is not a JSON object"),
        (
            {"prompt": "a", "completion": "b", "label": 1},
            "the line has the label 1; write true for an answer to prefer, and false",
        ),
        ({"prompt": "a", "completion": "b", "label": "good"}, "has the label 'good'; write true"),
        ({"prompt": "a", "completion": "", "label": True}, "the line has an empty completion; remove the line"),
        ({"prompt": "a", "completion": [ANSWER], "label": True}, "and prompt is a str, completion is a list"),
        ({"completion": "b", "label": True}, "and prompt is a NoneType, completion is a str"),
        ({"prompt": "a", "completion": "b \ud800", "label": True}, "has half of a surrogate pair"),
        ({"prompt": [QUESTION], "completion": [QUESTION], "label": True}, "no message with the role assistant"),
        ({"messages": [ANSWER], "label": True}, "no message of the assistant after one of the user"),
        ({"messages": [QUESTION], "label": False}, "no message of the assistant after one of the user"),
        ({"messages": "why", "label": False}, "messages is not a list of messages"),
        ({"messages": [{"role": "user"}], "label": False}, "messages[0] has no text in 'content'"),
    ],
)
def test_a_line_without_a_labelled_answer_is_refused_by_number(row: Any, problem: str) -> None:
    with pytest.raises(TrainerError) as refused:
        read({"prompt": "a", "completion": "b", "label": True}, row)
    assert refused.value.end_class is EndClass.DATA_ERROR
    assert "a.jsonl line 2: " in str(refused.value) and problem in str(refused.value)


def test_conversations_need_the_template_of_the_model() -> None:
    with pytest.raises(TrainerError, match="the base model has no chat template; train it on conversations first"):
        read({"messages": [QUESTION, ANSWER], "label": True}, has_template=False)


def spec(**changes: Any) -> TrainingSpec:
    """A spec that is valid without the files of its base."""
    fields = {
        "model": {"base": "model:x", "shape": SHAPE}, "data": UNPAIRED, "preference": KTO, "steps": 4,
        "tokens_per_step": 512, "sequence_length": 64, **changes,
    }  # fmt: skip
    return TrainingSpec.model_validate(fields)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data": {**UNPAIRED, "format": "preference"}}, "with loss kto needs data.format unpaired, and it"),
        ({"preference": {"loss": "dpo"}}, "with loss dpo needs data.format preference, and it is unpaired"),
        ({"preference": None}, "belongs to training on labelled answers; set preference, for example {loss: kto}"),
        ({"preference": {"loss": "kto", "label_smoothing": 0.1}}, "label_smoothing 0.1 is not defined for loss kto"),
        ({"preference": {"loss": "kto", "length_normalised": True}}, "loss kto never divides by the length; leave"),
        ({"preference": {"loss": "orpo", "desirable_weight": 2.0}}, "desirable_weight 2 belongs to loss kto, and loss"),
        (
            {"data": {**UNPAIRED, "long_documents": "cut"}},
            "long_documents cut would separate an answer from its prompt",
        ),
        (
            {"data": {**UNPAIRED, "packing": "none", "long_documents": "cut"}},
            "needs packing `documents`, so that answers",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(changes: Any, problem: str) -> None:
    with pytest.raises(ValueError, match="validation error") as refused:
        spec(**changes)
    assert problem in str(refused.value)


def test_estimates_count_the_passes_for_the_reference_point() -> None:
    pairs = {"preference": {"loss": "orpo"}, "data": {**UNPAIRED, "format": "preference"}}
    trained = spec(**pairs).flops_per_token(300, causal=True)
    assert spec().flops_per_token(300, causal=True) == pytest.approx(2 * trained, rel=1e-6)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("base") / "run", tiny_training(steps=4, schedule={"warmup_steps": 0}))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("answers") / "answers.jsonl", labelled())


def learning(base: FinishedRun, **changes: Any) -> TrainingSpec:
    return preferring(base, data=UNPAIRED, preference=KTO, **changes)


CHANGES: dict[str, dict[str, Any]] = {"full": {}, "lora": LORA}
Alone = Callable[[str], FinishedRun]
SERIES = ("loss", "desirable_reward", "undesirable_reward", "reward_margin", "reference_point")


@pytest.fixture(scope="module")
def alone(base: FinishedRun, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The run of one process, by what it trains."""
    folder = tmp_path_factory.mktemp("alone")
    return cache(lambda name: run_alone(folder / name, learning(base, **CHANGES[name]), data=data))


@pytest.mark.processes
@pytest.mark.parametrize("name", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_a_run_learns_from_labels(name: str, alone: Alone) -> None:
    run = alone(name)
    assert run.end_class is EndClass.COMPLETED, run.end
    margin, losses = run.series("evaluation/reward_margin"), run.series("evaluation/loss")
    assert margin[0] == 0.0 and margin[20] > 0.01
    assert 0.25 < losses[0] < 0.75 and losses[20] < losses[0]  # each answer has half of its weight at first
    assert run.series("train/reference_point")[1] == 0.0 and max(run.series("train/reference_point").values()) > 0.0


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("full", {"parallelism": {"zero": 3}}),
        pytest.param("full", {"parallelism": {"micro_batch_sequences": 1, "zero": 0}}, marks=pytest.mark.slow),
        pytest.param("full", {"parallelism": {"tensor": 2}}, marks=pytest.mark.slow),
        pytest.param("lora", {"parallelism": {"zero": 2}}, marks=pytest.mark.slow),
        pytest.param("lora", {"parallelism": {"tensor": 2}}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_numbers_are_the_same_on_every_mesh(
    name: str, changes: dict[str, Any], base: FinishedRun, data: Path, alone: Alone, tmp_path: Path
) -> None:
    run = run_alone(tmp_path / "run", learning(base, **CHANGES[name], **changes), processes=2, data=data)
    assert run.end_class is EndClass.COMPLETED, run.end
    for series in SERIES:
        for stage in ("train", "evaluation"):
            expected = alone(name).series(f"{stage}/{series}")
            assert run.series(f"{stage}/{series}") == pytest.approx(expected, abs=1e-4), series


@pytest.mark.processes
@pytest.mark.slow
def test_a_killed_run_continues_with_the_same_bits(base: FinishedRun, data: Path, alone: Alone, tmp_path: Path) -> None:
    run = run_alone(
        tmp_path / "run", learning(base), data=data, restarts=1, every_steps=7, at_first_checkpoint=kill_rank(0)
    )
    assert run.end_class is EndClass.COMPLETED, run.end
    assert run.events("checkpoint.restored"), "the run was not resumed"
    for series in SERIES:
        assert run.series(f"train/{series}") == alone("full").series(f"train/{series}"), series


@pytest.mark.processes
def test_sequences_of_single_answers_end_the_run_with_the_remedy(base: FinishedRun, tmp_path: Path) -> None:
    text = "tree stone tree stone"
    tokenizer = Tokenizer.from_file(str(base.output / "model" / "tokenizer.json"))
    length = max(8, len(tokenizer.encode(text).ids) + 1)  # the end of the text is a token too
    rows = [{"prompt": text[:4], "completion": text[4:], "label": bool(number % 2)} for number in range(20)]
    training = learning(base, sequence_length=length, tokens_per_step=4 * length)
    run = run_alone(tmp_path / "run", training, data=write_pairs(tmp_path / "a.jsonl", rows))
    assert run.end_class is EndClass.DATA_ERROR
    assert "has a single answer, and training.preference.loss kto needs several" in run.end["message"]
    assert f"set a longer sequence_length than {length}" in run.end["message"]

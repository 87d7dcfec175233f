"""The first 20 steps of DPO are those of TRL's `DPOTrainer`, and those of KTO those of its `KTOTrainer`, from the same
texts. Skipped where TRL is not installed; `test_preference.py` and `test_kto.py` compare the losses with the papers'
formulas everywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.trainer.pairs import UNPAIRED, labelled, pairs, preferring, write_pairs
from tests.trainer.runs import FinishedRun, run_alone, tiny_training
from trainer.data.corpus import Corpus
from trainer.data.source import PreparedSource
from trainer.export.folder import with_base
from trainer.storage.folder import FolderStorage

trl = pytest.importorskip("trl", reason="TRL is not installed; it is tested with trl 1.16.0")
import datasets  # noqa: E402 - installed with TRL alone

pytestmark = [pytest.mark.processes, pytest.mark.slow]
STEPS, PAIRS_PER_STEP, ANSWERS_PER_STEP = 20, 4, 4
SIDES = ("chosen", "rejected")
RATE = 1e-3
OPTIMIZER = {"learning_rate": RATE, "weight_decay": 0.0}
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class InOrder(trl.DPOTrainer):
    """TRL's trainer, which takes the pairs in the order of the data set and records what each step finds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.found: list[tuple[float, float]] = []
        super().__init__(*args, **kwargs)

    def _get_train_sampler(self, *_: Any, **__: Any) -> torch.utils.data.Sampler:
        return torch.utils.data.SequentialSampler(self.train_dataset)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        margins = self._metrics["train"]["rewards/margins"][-1]
        self.found.append(((loss[0] if isinstance(loss, tuple) else loss).item(), float(margins)))
        return loss


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    made = run_alone(tmp_path_factory.mktemp("base") / "run", tiny_training())
    (made.output / "model" / "chat_template.jinja").write_text(TEMPLATE)
    return made


def as_conversations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            **{name: [{"role": "assistant", "content": row[name].strip()}] for name in SIDES},
        }
        for row in rows
    ]


def text_of(row: dict[str, Any], answer: str, tokenizer: Any) -> str:
    if isinstance(row["prompt"], str):
        return row["prompt"] + row[answer] + tokenizer.eos_token
    return tokenizer.apply_chat_template([*row["prompt"], *row[answer]], tokenize=False)


@contextmanager
def one_thread() -> Iterator[None]:
    """More threads than free cores make tiny steps take seconds."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def one_a_row(rows: list[dict[str, Any]], tokenizer: Any) -> tuple[list[dict[str, Any]], int]:
    """Return rows, and a length such that each sequence has one of them: TRL counts a batch in pairs."""
    sizes = [sum(len(tokenizer(text_of(row, side, tokenizer)).input_ids) for side in SIDES) for row in rows]
    return [row for row, size in zip(rows, sizes, strict=True) if size > max(sizes) / 2], max(sizes)


def rows_in_order(run: FinishedRun, training: Any, rows: list[dict[str, Any]], tokenizer: Any) -> list[dict[str, Any]]:
    """The rows of the data set that each step of our run has trained on, in this order."""
    (folder,) = (run.output / "work" / "datasets").iterdir()
    corpus = Corpus([PreparedSource("tiny", folder, None, "")], training, FolderStorage(run.output / "store"))
    by_text = {text_of(row, "chosen", tokenizer): row for row in rows}
    found = []
    for step in range(STEPS):
        samples = corpus.in_shard_order(np.arange(step * PAIRS_PER_STEP, (step + 1) * PAIRS_PER_STEP))
        batch = corpus.rows(samples)
        assert batch.documents_BS is not None
        for tokens, targets, documents in zip(batch.tokens_BS, batch.targets_BS, batch.documents_BS, strict=True):
            assert set(documents[targets >= 0].tolist()) == {0, 1}, "each row has one pair"
            found.append(by_text[tokenizer.decode(tokens[documents == 0])])
    corpus.close()
    return found


@pytest.mark.parametrize(
    ("preference", "theirs", "is_chat"),
    [
        ({}, {}, False),
        ({"beta": 0.5}, {"beta": 0.5}, True),
        ({"length_normalised": True, "beta": 2.0}, {"loss_type": ["sigmoid_norm"], "beta": 2.0}, False),
    ],
    ids=["plain", "chat", "normalised"],
)
def test_the_first_steps_are_those_of_trl(
    preference: dict[str, Any],
    theirs: dict[str, Any],
    is_chat: bool,
    base: FinishedRun,
    tmp_path: Path,
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base.output / "model")
    rows, length = one_a_row(as_conversations(pairs()) if is_chat else pairs(), tokenizer)
    training = with_base(
        preferring(
            base, preference={"loss": "dpo", **preference}, optimizer=OPTIMIZER, steps=STEPS, sequence_length=length,
            tokens_per_step=length * PAIRS_PER_STEP, schedule={"name": "constant", "warmup_steps": 0},
        ),
        base.output / "model",
    )  # fmt: skip
    run = run_alone(tmp_path / "run", training, data=write_pairs(tmp_path / "pairs.jsonl", rows))
    assert run.end_class.value == "completed", run.end
    model = transformers.AutoModelForCausalLM.from_pretrained(base.output / "model", dtype=torch.float32)
    tokenizer.pad_token = tokenizer.eos_token
    arguments = trl.DPOConfig(
        output_dir=str(tmp_path / "trl"), per_device_train_batch_size=PAIRS_PER_STEP, max_steps=STEPS,
        learning_rate=RATE, adam_beta2=0.95, weight_decay=0.0, lr_scheduler_type="constant", max_grad_norm=1.0,
        activation_checkpointing=False, bf16=False, use_cpu=True, report_to="none", save_strategy="no", logging_steps=1,
        disable_tqdm=True, **theirs,
    )  # fmt: skip
    ordered = rows_in_order(run, training, rows, tokenizer)
    trainer = InOrder(
        model=model, args=arguments, train_dataset=datasets.Dataset.from_list(ordered), processing_class=tokenizer
    )
    with one_thread():
        trainer.train()
    ours = run.series("train/loss")
    margins = run.series("train/reward_margin")
    assert [ours[step + 1] for step in range(STEPS)] == pytest.approx([loss for loss, _ in trainer.found], abs=1e-4)
    if not preference.get("length_normalised"):  # TRL's rewards are sums all the same
        expected = [each for _, each in trainer.found]
        assert [margins[step + 1] for step in range(STEPS)] == pytest.approx(expected, abs=1e-4)
    assert margins[STEPS] > 0.1


class LabelsInOrder(trl.KTOTrainer):
    """TRL's trainer of answers with labels, which records the loss and the reference point of each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.found: list[tuple[float, float]] = []
        super().__init__(*args, **kwargs)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        self.found.append(((loss[0] if isinstance(loss, tuple) else loss).item(), self._metrics["train"]["kl"][-1]))
        return loss


def answers_of_one_length(tokenizer: Any) -> tuple[list[dict[str, Any]], int]:
    """Return labelled answers with equally many tokens, each once, and their number of tokens: as many fit into each
    sequence."""
    by_size: dict[int, dict[str, dict[str, Any]]] = {}
    for row in labelled(4000):
        text = row["prompt"] + row["completion"] + tokenizer.eos_token
        by_size.setdefault(len(tokenizer(text).input_ids), {})[text] = row
    size = max(by_size, key=lambda each: len(by_size[each]))
    return list(by_size[size].values()), size


def answers_in_order(
    run: FinishedRun, training: Any, rows: list[dict[str, Any]], tokenizer: Any
) -> list[dict[str, Any]]:
    """The answers that each step of our run has trained on, which are those of one sequence, in its order."""
    (folder,) = (run.output / "work" / "datasets").iterdir()
    corpus = Corpus([PreparedSource("tiny", folder, None, "")], training, FolderStorage(run.output / "store"))
    by_text = {row["prompt"] + row["completion"] + tokenizer.eos_token: row for row in rows}
    found = []
    for step in range(STEPS):
        batch = corpus.rows(np.array([step]))
        assert batch.documents_BS is not None
        numbers = np.unique(batch.documents_BS[batch.targets_BS >= 0])
        assert len(numbers) == ANSWERS_PER_STEP
        for number in numbers:
            found.append(by_text[tokenizer.decode(batch.tokens_BS[batch.documents_BS == number])])
    corpus.close()
    return found


@pytest.mark.parametrize("weights", [{}, {"beta": 1.0, "desirable_weight": 1.5, "undesirable_weight": 0.5}], ids=str)
def test_the_first_steps_of_kto_are_those_of_trl(weights: dict[str, float], base: FinishedRun, tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base.output / "model")
    rows, size = answers_of_one_length(tokenizer)
    length = size * ANSWERS_PER_STEP
    training = with_base(
        preferring(
            base, data=UNPAIRED, preference={"loss": "kto", **weights}, optimizer=OPTIMIZER, steps=STEPS,
            sequence_length=length, tokens_per_step=length, schedule={"name": "constant", "warmup_steps": 0},
        ),
        base.output / "model",
    )  # fmt: skip
    run = run_alone(tmp_path / "run", training, data=write_pairs(tmp_path / "answers.jsonl", rows))
    assert run.end_class.value == "completed", run.end
    model = transformers.AutoModelForCausalLM.from_pretrained(base.output / "model", dtype=torch.float32)
    tokenizer.pad_token = tokenizer.eos_token
    arguments = trl.KTOConfig(
        output_dir=str(tmp_path / "trl"), per_device_train_batch_size=ANSWERS_PER_STEP, max_steps=STEPS,
        learning_rate=RATE, adam_beta2=0.95, weight_decay=0.0, lr_scheduler_type="constant", max_grad_norm=1.0,
        activation_checkpointing=False, bf16=False, use_cpu=True, report_to="none", save_strategy="no", logging_steps=1,
        disable_tqdm=True, train_sampling_strategy="sequential", **weights,
    )  # fmt: skip
    ordered = answers_in_order(run, training, rows, tokenizer)
    trainer = LabelsInOrder(
        model=model, args=arguments, train_dataset=datasets.Dataset.from_list(ordered), processing_class=tokenizer
    )
    with one_thread():
        trainer.train()
    ours, points = run.series("train/loss"), run.series("train/reference_point")
    assert [ours[step + 1] for step in range(STEPS)] == pytest.approx([loss for loss, _ in trainer.found], abs=1e-4)
    expected = [point for _, point in trainer.found]
    assert [points[step + 1] for step in range(STEPS)] == pytest.approx(expected, abs=1e-4)
    assert max(expected) > 0.01

"""Held-out loss by data set and by byte, and what the model says to fixed prompts, on any mesh alike."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.runs import FinishedRun, run_alone, tiny_text, tiny_training
from tests.trainer.test_chat import conversations
from trainer.contract.run import EndClass
from trainer.contract.training import EvaluationSpec
from trainer.data.batch import MicroBatch
from trainer.data.shards import DatasetIndex
from trainer.export.folder import with_base
from trainer.export.read import load_exported
from trainer.training.evaluation import BestEvaluation, HeldOutSet, make_held_out_set, make_names_unique, sample_tokens

PROMPTS = {"every_steps": 10, "sequences": 8, "prompts": ["gold is", "the furnace keeps"], "sample_tokens": 12}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("run") / "run", tiny_training(evaluation=PROMPTS))


def index_of(run: FinishedRun) -> DatasetIndex:
    (path,) = run.output.glob("work/datasets/*-local")
    return DatasetIndex.read(path)


def test_bits_per_byte_follow_from_loss_and_text(run: FinishedRun) -> None:
    index = index_of(run)
    losses, bits = run.series("evaluation/loss"), run.series("evaluation/bits_per_byte")
    assert sorted(bits) == [0, 10, 20]
    tokens_per_byte = index.validation_tokens / index.text_bytes["validation"]
    for step, loss in losses.items():
        assert bits[step] == pytest.approx(loss / math.log(2) * tokens_per_byte)


def test_samples_are_those_of_the_model_and_the_last_are_the_exports(run: FinishedRun) -> None:
    samples = run.events("evaluation.sample")
    assert [(each["step"], each["prompt"]) for each in samples] == [
        (step, prompt) for step in (0, 10, 20) for prompt in PROMPTS["prompts"]
    ]
    model, tokenizer = load_exported(run.output / "model")
    generator = torch.Generator().manual_seed(1)
    texts = [tokenizer.encode(prompt).ids for prompt in PROMPTS["prompts"]]
    new: list[list[int]] = [[], []]
    for _ in range(12):
        with torch.no_grad():
            logits = [model(torch.tensor([ids + more]))[0, -1] for ids, more in zip(texts, new, strict=True)]
        for more, word in zip(new, sample_tokens(torch.stack(logits), generator).tolist(), strict=True):
            more.append(word)
    said = [tokenizer.decode(more[: more.index(0)] if 0 in more else more) for more in new]
    assert [each["text"] for each in samples[-2:]] == said


@pytest.mark.parametrize("parallelism", [{"zero": 3}, {"zero": 0}, {"tensor": 2}, {"pipeline": 2}], ids=str)
def test_ranks_sample_what_one_rank_does(parallelism: dict[str, Any], run: FinishedRun, tmp_path: Path) -> None:
    training = tiny_training(evaluation=PROMPTS, parallelism=parallelism)
    other = run_alone(tmp_path / "run", training, processes=2, data=run.output.parent / "tiny.txt")
    assert other.end_class is EndClass.COMPLETED
    first = [each["text"] for each in run.events("evaluation.sample")][:2]
    assert [each["text"] for each in other.events("evaluation.sample")][:2] == first
    assert len(other.events("evaluation.sample")) == 6


def test_samples_change_nothing_that_is_trained(run: FinishedRun, tmp_path: Path) -> None:
    silent = tiny_training(evaluation={**PROMPTS, "prompts": []})
    other = run_alone(tmp_path / "run", silent, data=run.output.parent / "tiny.txt")
    assert other.series("train/loss") == run.series("train/loss")
    assert other.series("evaluation/loss") == run.series("evaluation/loss")


def test_each_data_set_of_a_mixture_has_its_loss(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text(tiny_text(30_000))
    (tmp_path / "chats.jsonl").write_bytes(conversations(200))
    data = {
        "mixture": [{"source": "dataset:words"}, {"source": "dataset:chats", "format": "chat"}],
        "packing": "documents",
    }
    training = tiny_training(data=data, sequence_length=64, steps=4)
    other = run_alone(tmp_path / "run", training, files=[tmp_path / "words.txt", tmp_path / "chats.jsonl"])
    points = [json.loads(line)["values"] for line in (other.output / "metrics.jsonl").read_text().splitlines()]
    names = {name for values in points for name in values if name.startswith("evaluation/")}
    assert names == {
        "evaluation/loss", "evaluation/words/loss", "evaluation/words/bits_per_byte", "evaluation/chats/loss",
    }  # fmt: skip
    words, chats, both = (other.series(f"evaluation/{name}loss")[4] for name in ("words/", "chats/", ""))
    assert min(words, chats) <= both <= max(words, chats)


def test_names_of_data_sets_are_told_apart() -> None:
    index = DatasetIndex("f", 300, 1, "uint16", {"train": [], "validation": []}, {"train": 0, "validation": 0}, 0)
    sources = ["dataset:Red-1", "s3://red/1", "builtin:python-stdlib", "dataset:---"]
    found = make_names_unique([make_held_out_set(source, index, []) for source in sources])
    assert [each.name for each in found] == ["red_1", "red_1_2", "python_stdlib", "data"]
    assert all(each.tokens_per_byte is None for each in found)
    assert found[0] == HeldOutSet("red_1", list[MicroBatch](), None)


def test_training_ends_early_without_a_lower_loss_and_a_rerun_does_not_continue(tmp_path: Path) -> None:
    evaluation = {"every_steps": 2, "sequences": 8, "patience": 2}
    training = tiny_training(evaluation=evaluation, optimizer={"learning_rate": 1e-12})
    run = run_alone(tmp_path / "run", training, processes=2)
    assert run.end_class is EndClass.COMPLETED, run.end["message"]
    (event,) = run.events("training.ended_early")
    assert (event["step"], event["best_step"], event["patience"]) == (4, 0, 2)
    assert event["best_loss"] == pytest.approx(run.series("evaluation/loss")[0], abs=1e-3)
    assert max(run.series("train/loss")) == 4
    assert (run.output / "model" / "model.safetensors").exists()
    shutil.rmtree(run.output / "model")  # as if it had been interrupted before
    again = run_alone(tmp_path / "run", training, processes=2)
    assert again.end_class is EndClass.COMPLETED, again.end["message"]
    assert max(again.series("train/loss")) == 4
    assert (run.output / "model" / "model.safetensors").exists()


def test_the_best_evaluation_is_remembered_by_checkpoints() -> None:
    spec = EvaluationSpec(every_steps=10, patience=3)
    best = BestEvaluation(spec, {})
    for step, loss in ((0, 3.0), (10, 2.0), (20, 2.5), (30, math.nan)):
        best.update(step, loss)
        assert not best.has_waited(step)
    resumed = BestEvaluation(spec, best.metrics)
    assert (resumed.loss, resumed.step) == (2.0, 10)
    assert not resumed.has_waited(39)
    assert resumed.has_waited(40)
    resumed.update(40, 1.0)
    assert not resumed.has_waited(60)
    assert BestEvaluation(EvaluationSpec(), {}).metrics == {}


BEST = {"every_steps": 4, "sequences": 8}


@pytest.mark.parametrize("processes", [1, 2])
def test_the_best_checkpoint_is_retained_and_exported(tmp_path: Path, processes: int) -> None:
    """A learning rate that destroys the model after it has learnt: its warm-up ends at a rate far too high."""
    training = tiny_training(evaluation=BEST, steps=48, optimizer={"learning_rate": 1.0}, schedule={"warmup_steps": 48})
    run = run_alone(tmp_path / "run", training, processes=processes, every_steps=100, keep_last=1, keep_best=True)
    assert run.end_class is EndClass.COMPLETED, run.end["message"]
    losses = run.series("evaluation/loss")
    best = min(losses, key=lambda step: losses[step])
    assert 0 < best < 48, losses
    (event,) = run.events("export.best")
    assert event["step"] == best
    assert sorted(int(path.name.split("-")[1]) for path in run.checkpoints) == [best, 48]
    fields = {
        "model": {"base": str(run.output / "model")},
        "tokenizer": {},
        "steps": 1,
        "schedule": {"warmup_steps": 0},
    }
    again = with_base(tiny_training(evaluation=BEST, **fields), run.output / "model")
    seen = run_alone(tmp_path / "seen", again, data=run.output.parent / "tiny.txt")
    assert seen.series("evaluation/loss")[0] == pytest.approx(losses[best], abs=1e-4)


def test_a_damaged_best_checkpoint_is_named_and_its_remedy_works(tmp_path: Path) -> None:
    training = tiny_training(evaluation=BEST, steps=48, optimizer={"learning_rate": 1.0}, schedule={"warmup_steps": 48})
    settings: dict[str, Any] = {"every_steps": 100, "keep_last": 1}
    first = run_alone(tmp_path / "run", training, keep_best=True, **settings)
    assert first.end_class is EndClass.COMPLETED, first.end["message"]
    (event,) = first.events("export.best")
    shutil.rmtree(first.output / "model")  # as if the export had been interrupted
    (part, *_) = sorted(first.checkpoints[0].glob("rank0*"))
    part.write_bytes(part.read_bytes()[:-1])
    damaged = run_alone(tmp_path / "run", training, keep_best=True, **settings)
    assert damaged.end_class is EndClass.STORAGE_ERROR
    assert (
        f"the checkpoint of step {event['step']}, which has the lowest held-out loss, is damaged"
        in (damaged.end["message"])
    )
    remedied = run_alone(tmp_path / "run", training, **settings)
    assert remedied.end_class is EndClass.COMPLETED, remedied.end["message"]
    assert (remedied.output / "model" / "model.safetensors").exists()

"""Evaluation jobs: figures equal to a plain computation on one model, on every mesh; invalid data names its line."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import FinishedRun, platform_run, run_alone, tiny_text, tiny_training
from tests.trainer.test_platform_runs import supervisor_for
from trainer.contract import item_scores
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.evaluation import EvaluationJobSpec, EvaluationResults, EvaluationTask
from trainer.contract.manifest import StoredFile
from trainer.contract.run import DatasetSource, EndClass, RunConfig
from trainer.data.documents import RawObject
from trainer.data.evaluation import ItemReader
from trainer.data.packing import IGNORED
from trainer.data.tokenizer import ExistingTokenizer
from trainer.errors import TrainerError
from trainer.export.folder import with_base
from trainer.export.read import load_exported
from trainer.training.confidence import Z, proportion, ratio
from trainer.training.evaluation_job import figures_of, results_of

LENGTH = 32
TEXTS = [tiny_text()[start : start + size] for start, size in ((0, 300), (500, 40), (900, 90), (2000, 700))]
QUESTIONS = [
    {"question": "the furnace keeps an even", "choices": ["heat", "zzzz qqq"], "answer": 0},
    {"question": "gold is made of ", "choices": ["%%%", "lead", "watch it while"], "answer": 1},
    {"question": "nobody has to watch it", "choices": ["while", "while gold is made of lead"], "answer": 1},
    {"question": tiny_text()[:400], "choices": ["the", "heat for weeks and nobody"], "answer": 0},
]
TASKS = [
    {"name": "held-out", "kind": "loss", "source": "dataset:texts", "format": "jsonl"},
    {"name": "facts", "kind": "multiple_choice", "source": "dataset:facts"},
]
CHAT = [
    {"messages": [{"role": "user", "content": "gold?"}, {"role": "assistant", "content": "it is made of lead"}]},
    {"messages": [{"role": "user", "content": "heat?"}, {"role": "assistant", "content": "even heat for weeks"}]},
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("trained") / "run", tiny_training())


def json_lines(rows: Iterable[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def evaluation_run(
    trained: FinishedRun, *, processes: int = 1, data: dict[str, bytes] | None = None, **changes: Any
) -> tuple[RunConfig, Any, dict[str, bytes]]:
    """What a platform would hand out for an evaluation of the trained model."""
    model = trained.output / "model"
    spec = EvaluationJobSpec.model_validate({"model": str(model), "tasks": TASKS, "sequence_length": LENGTH, **changes})
    contents = {"texts": json_lines({"text": text} for text in TEXTS), "facts": json_lines(QUESTIONS), **(data or {})}
    run, keys, objects = platform_run(with_base(spec.as_training(), model), processes=processes, evaluation=spec)
    sources, keysets = [], {}
    for task in spec.tasks:
        name = task.source.removeprefix("dataset:")
        keysets[f"dset_{name}"] = new_keyset()
        key = f"datasets/dset_{name}/raw-000.part"
        objects[key], part = Encryptor(keysets[f"dset_{name}"]).encrypt(contents[name], key)
        file = StoredFile(path=f"{name}.jsonl", parts=[part])
        sources.append(DatasetSource(dataset_id=f"dset_{name}", name=name, origin="sealed", raw=[file]))
    run = run.model_copy(update={"dataset": sources[0], "more_datasets": sources[1:]})
    keys = keys.model_copy(update={"dataset": keysets[sources[0].dataset_id], "more_datasets": keysets})
    return run, keys, objects


def evaluated(trained: FinishedRun, work: Path, **changes: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """The figures that an agent and its workers register."""
    with AgentApi(*evaluation_run(trained, **changes)) as api:
        assert supervisor_for(api, work).run() is EndClass.COMPLETED, api.ends
        (results,) = api.evaluations
    return {(figure["name"], figure["metric"]): figure for figure in results["figures"]}


def plain_losses(model: Path, prompt: str, text: str, *, length: int | None = None, ends: bool = False) -> list[float]:
    """The loss of each token of `text` after `prompt`, computed with the exported model alone."""
    decoder, tokenizer = load_exported(model)
    end = tokenizer.token_to_id("<|endoftext|>")
    encoding = tokenizer.encode(prompt + text, add_special_tokens=False)
    ids = [end, *encoding.ids, *([end] if ends else [])]
    first = 1 + sum(begin < len(prompt) for begin, _ in encoding.offsets)
    losses = []
    with torch.no_grad():
        for start in range(0, len(ids) - 1, length or len(ids)):
            window = torch.tensor(ids[start : start + (length or len(ids)) + 1])
            logits = decoder(window[None, :-1])[0].float()
            losses += functional.cross_entropy(logits, window[1:], reduction="none").tolist()
    return losses[first - 1 :]


def test_the_figures_are_those_of_a_plain_computation(trained: FinishedRun, tmp_path: Path) -> None:
    found, model = evaluated(trained, tmp_path), trained.output / "model"
    documents = [plain_losses(model, "", text, length=LENGTH, ends=True) for text in TEXTS]
    loss = found["held-out", "loss"]
    tokens, total = sum(map(len, documents)), sum(map(sum, documents))
    assert (loss["n"], loss["tokens"]) == (len(TEXTS), tokens)
    assert loss["value"] == pytest.approx(total / tokens, rel=1e-5)
    bits = total / math.log(2) / sum(len(text.encode()) for text in TEXTS)
    assert found["held-out", "bits_per_byte"]["value"] == pytest.approx(bits, rel=1e-5)
    right = normalised = 0
    for row in QUESTIONS[:3]:  # of the fourth, the beginning is left out
        prompt = str(row["question"]).rstrip(" ")
        scores = [-sum(plain_losses(model, prompt, f" {choice}")) for choice in row["choices"]]
        right += int(np.argmax(scores)) == row["answer"]
        per_byte = [score / len(choice) for score, choice in zip(scores, row["choices"], strict=True)]
        normalised += int(np.argmax(per_byte)) == row["answer"]
    three = evaluated(trained, tmp_path / "three", data={"facts": json_lines(QUESTIONS[:3])})
    assert three["facts", "accuracy"]["value"] == pytest.approx(right / 3)
    assert three["facts", "accuracy_normalised"]["value"] == pytest.approx(normalised / 3)
    assert right != normalised, "the two metrics differ on these questions"


MESHES = [
    pytest.param({"zero": 3}, 2, id="zero 3"),
    pytest.param({"zero": 0}, 2, id="replicas"),
    pytest.param({"tensor": 2}, 2, id="tensor"),
    pytest.param({"context": 2}, 2, id="context", marks=pytest.mark.slow),
    pytest.param({"pipeline": 2}, 2, id="pipeline"),
    pytest.param({"pipeline": 2, "tensor": 2, "zero": 1}, 8, id="three axes", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("parallelism", "processes"), MESHES)
def test_every_mesh_gives_the_same_figures(
    trained: FinishedRun, tmp_path: Path, parallelism: dict[str, Any], processes: int
) -> None:
    alone = evaluated(trained, tmp_path / "alone")
    found = evaluated(trained, tmp_path / "mesh", processes=processes, parallelism=parallelism)
    assert found.keys() == alone.keys()
    for key, figure in alone.items():
        assert (found[key]["n"], found[key]["tokens"]) == (figure["n"], figure["tokens"])
        for name in ("value", "standard_error", "low", "high"):
            assert found[key][name] == pytest.approx(figure[name], rel=1e-5), (key, name)


def test_a_trainer_that_knows_no_evaluations_gets_nothing_to_train(trained: FinishedRun) -> None:
    run, _, _ = evaluation_run(trained)
    sent = run.model_dump(mode="json")
    assert sent["training"] is None
    assert RunConfig.model_validate(sent) == RunConfig.model_validate_json(run.model_dump_json()) == run


def test_only_the_answers_of_conversations_count(trained: FinishedRun, tmp_path: Path) -> None:
    tasks = [{"name": "chat", "kind": "loss", "source": "dataset:chat", "format": "chat"}]
    found = evaluated(trained, tmp_path, tasks=tasks, data={"chat": json_lines(CHAT)})
    assert set(found) == {("chat", "loss")}, "bits per byte are not known of conversations"
    longer = [{"messages": [{"role": "user", "content": "gold? " * 2}, CHAT[0]["messages"][1]]}, CHAT[1]]
    other = evaluated(trained, tmp_path / "longer", tasks=tasks, data={"chat": json_lines(longer)})
    assert other["chat", "loss"]["tokens"] == found["chat", "loss"]["tokens"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a?", "choices": ["b", "c"]}, "no fields 'question', 'choices' and 'answer' (it has: choices"),
        (["a"], "(it has: a list)"),
        ({"question": " ", "choices": ["b", "c"], "answer": 0}, "question is ' '"),
        ({"question": "a?", "choices": ["b"], "answer": 0}, "choices has 1 texts"),
        ({"question": "a?", "choices": ["b", "b"], "answer": 0}, "1 of them different"),
        ({"question": "a?", "choices": ["b", 3], "answer": 0}, "choices must be a list of texts"),
        ({"question": "a?", "choices": ["b", "c"], "answer": 2}, "answer is 2; it must be the number of a choice"),
        ({"question": "a?", "choices": ["b", "c"], "answer": True}, "answer is True"),
        ({"question": "a?", "choices": ["b", "c"], "answer": "b"}, "answer is 'b'"),
        ({"question": "a\ud800?", "choices": ["b", "c"], "answer": 0}, "half of a surrogate pair"),
        ({"question": "a?", "choices": ["b", "the gold " * 99], "answer": 0}, "more than evaluation.sequence_length"),
    ],
)
def test_an_invalid_question_is_named_by_its_line(trained: FinishedRun, row: Any, message: str) -> None:
    with pytest.raises(TrainerError) as refused:
        read(trained, json_lines([QUESTIONS[0], row]), **TASKS[1])
    assert refused.value.end_class is EndClass.DATA_ERROR
    assert "facts.jsonl line 2: " in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["kind"])
def test_a_data_set_without_rows_is_refused(trained: FinishedRun, task: dict[str, Any]) -> None:
    with pytest.raises(TrainerError, match=f"of the evaluation '{task['name']}' has no"):
        read(trained, b"\n", **task)


def test_an_error_in_the_data_ends_the_job_with_the_line(trained: FinishedRun, tmp_path: Path) -> None:
    broken = json_lines([QUESTIONS[0]]) + b"{not json\n"
    with AgentApi(*evaluation_run(trained, processes=2, data={"facts": broken})) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.DATA_ERROR
        assert not api.evaluations
        assert "facts.jsonl line 2 is not JSON" in api.ends[0]["message"]


def read(trained: FinishedRun, content: bytes, **task: Any) -> Any:
    model = trained.output / "model"
    asked = EvaluationTask.model_validate(task)
    part = EvaluationJobSpec(model="x", tasks=[asked], sequence_length=LENGTH).as_training().data.parts[0]
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    reader = ItemReader(ExistingTokenizer.from_model(model, vocab_size), LENGTH)
    return reader.read(asked, part, [RawObject.of(f"{asked.name}.jsonl", content)])


def test_each_token_of_a_long_document_is_a_target_once(trained: FinishedRun) -> None:
    items = read(trained, json_lines([{"text": TEXTS[3]}]), **TASKS[0])
    assert len(items.windows) > 3
    targets = np.concatenate([window.targets_S for window in items.windows])
    _, tokenizer = load_exported(trained.output / "model")
    assert tokenizer.decode(targets.tolist(), skip_special_tokens=True) == TEXTS[3]
    assert (targets != IGNORED).all()
    assert max(len(window.tokens_S) for window in items.windows) == LENGTH


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_job(trained: FinishedRun, value: float) -> None:
    items = read(trained, json_lines([{"text": "gold"}]), **TASKS[0])
    task = EvaluationTask.model_validate(TASKS[0])
    with pytest.raises(TrainerError, match="is not finite"):
        list(figures_of(task, items, np.array([[value, 3.0]])))


def test_results_that_are_not_finite_are_no_message() -> None:
    figure = {"name": "facts", "metric": "accuracy", "value": math.nan, "n": 4, "tokens": 9}
    with pytest.raises(ValueError, match="finite"):
        EvaluationResults.model_validate({"figures": [figure]})


def test_the_interval_of_a_proportion_is_wilsons() -> None:
    found = proportion(8, 10)  # the interval of 8 of 10 in Wilson's formula: 0.4902, 0.9433
    assert found.value == 0.8
    assert (found.low, found.high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert found.standard_error == pytest.approx(math.sqrt(0.8 * 0.2 / 10))
    every = proportion(5, 5)
    assert (every.high, every.standard_error) == (1.0, 0.0)
    assert every.low == pytest.approx(1 / (1 + Z**2 / 5))


def test_the_interval_of_a_ratio_covers_it_in_19_of_20_cases() -> None:
    chosen = np.random.default_rng(7)
    covered = 0
    for _ in range(1000):
        sizes = chosen.integers(5, 50, 200).astype(float)
        found = ratio(sizes * chosen.normal(2.0, 0.5, 200), sizes)
        assert found.low is not None and found.high is not None
        covered += found.low <= 2.0 <= found.high
    assert 925 <= covered <= 975


def test_a_single_document_has_no_standard_error() -> None:
    found = ratio(np.array([6.0]), np.array([3.0]))
    assert (found.value, found.standard_error, found.low, found.high) == (2.0, None, None, None)


def test_a_task_that_occurs_twice_is_refused() -> None:
    twice = {"model": "model:a@b", "sequence_length": 32, "tasks": [TASKS[0], TASKS[0]]}
    with pytest.raises(ValueError, match="tasks have the name held-out more than once"):
        EvaluationJobSpec.model_validate(twice)


def test_figures_have_the_results_of_their_items(trained: FinishedRun) -> None:
    questions = [{"question": "a", "choices": ["b", "c"], "answer": answer} for answer in (0, 1, 0)]
    items = read(trained, json_lines(questions), **TASKS[1])
    sums = np.array([[1.0, 1.0], [2.0, 1.0]] * 3)
    found = {each.metric: each for each in figures_of(EvaluationTask.model_validate(TASKS[1]), items, sums)}
    accuracy = found["accuracy"]
    assert accuracy.items is not None
    (right,) = item_scores.unpack("accuracy", 3, item_scores.decode(accuracy.items))
    assert (right.tolist(), accuracy.value, accuracy.n) == ([1, 0, 1], pytest.approx(2 / 3), 3)
    texts = read(trained, json_lines([{"text": "gold"}, {"text": "silver coin"}]), **TASKS[0])
    losses = np.array([[4.0, 2.0], [9.0, 3.0]])
    for each in figures_of(EvaluationTask.model_validate(TASKS[0]), texts, losses):
        assert each.items is not None
        columns = item_scores.unpack(each.metric, 2, item_scores.decode(each.items))
        assert item_scores.problem(each.metric, each.value, columns) == ""
    many = results_of([accuracy.model_copy(update={"items": "x" * item_scores.MAX_TOTAL_BYTES}), accuracy])
    assert [each.items is None for each in many.figures] == [False, True]

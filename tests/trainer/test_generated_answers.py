"""Evaluation of generated answers: equal to plain greedy generation on every mesh; scores as in SQuAD; invalid prompts
are named by their line."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import FinishedRun, run_alone, tiny_text, tiny_training
from tests.trainer.test_evaluation_job import LENGTH, MESHES, evaluated, evaluation_run, json_lines
from tests.trainer.test_platform_runs import supervisor_for
from trainer.contract.evaluation import EvaluationJobSpec, EvaluationTask
from trainer.contract.run import EndClass
from trainer.data.chat import ChatTemplate
from trainer.data.documents import RawObject
from trainer.data.evaluation import ItemReader, Prompt
from trainer.data.tokenizer import ExistingTokenizer
from trainer.errors import TrainerError
from trainer.export.generate import generate
from trainer.export.read import load_exported
from trainer.training import answer_scores
from trainer.training.answer_scores import exact_match, f1, score_answers
from trainer.training.answers import likeliest_tokens
from trainer.training.confidence import Z, mean_score

NUM_TOKENS = 8
TASK = {
    "name": "facts", "kind": "generation", "source": "dataset:facts", "scores": ["exact_match", "f1"],
    "max_tokens": NUM_TOKENS,
}  # fmt: skip
PROMPTS = ["gold is made of", "the furnace", "nobody has to watch it while the furnace", tiny_text()[:40], "heat"]
MESSAGES = [{"role": "user", "content": "gold?"}]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("trained") / "run", tiny_training())


def greedy(trained: FinishedRun, prompt: str, tokens: int = NUM_TOKENS, begin: str = "<|endoftext|>") -> str:
    """What the exported model writes after a prompt, computed without the job."""
    decoder, tokenizer = load_exported(trained.output / "model")
    new = generate(decoder, tokenizer, begin + prompt, tokens=tokens, temperature=0.0, seed=1, window=64)
    return str(tokenizer.decode(new))


def rows(trained: FinishedRun) -> list[dict[str, Any]]:
    """Prompts with what the model writes as the answer, except for the last two."""
    right = [{"prompt": each, "answer": ["zzz", greedy(trained, each)]} for each in PROMPTS[:3]]
    return [*right, {"prompt": PROMPTS[3], "answer": "zzz"}, {"prompt": PROMPTS[4], "answer": ["zzz", "qqq"]}]


def scored(trained: FinishedRun, work: Path, data: list[Any], **changes: Any) -> dict[str, dict[str, Any]]:
    """The figures of a job with one task, by metric."""
    run = {name: changes.pop(name) for name in ("processes", "parallelism") if name in changes}
    found = evaluated(trained, work, tasks=[{**TASK, **changes}], data={"facts": json_lines(data)}, **run)
    return {metric: figure for (_, metric), figure in found.items()}


def test_answers_are_those_of_plain_greedy_generation(trained: FinishedRun, tmp_path: Path) -> None:
    found = scored(trained, tmp_path, rows(trained))
    assert set(found) == {"exact_match", "f1"}
    exact = found["exact_match"]
    assert (exact["value"], exact["n"]) == (3 / 5, 5)
    assert exact["tokens"] <= 5 * NUM_TOKENS
    assert exact["low"] == pytest.approx(0.2307, abs=1e-4), "Wilson's interval of 3 of 5"
    assert found["f1"]["value"] == pytest.approx(3 / 5)
    assert found["f1"]["standard_error"] == pytest.approx(math.sqrt(0.3 / 5))


@pytest.mark.parametrize(("parallelism", "processes"), MESHES)
def test_every_mesh_gives_the_same_answers(
    trained: FinishedRun, tmp_path: Path, parallelism: dict[str, Any], processes: int
) -> None:
    found = scored(trained, tmp_path, rows(trained), processes=processes, parallelism=parallelism)
    assert (found["exact_match"]["value"], found["exact_match"]["n"]) == (3 / 5, 5)


def test_an_answer_ends_at_the_first_stop_text(trained: FinishedRun, tmp_path: Path) -> None:
    written = greedy(trained, PROMPTS[0])
    place = len(written) // 2
    stop = written[place : place + 2]
    expected = written[: written.index(stop)]
    row = {"prompt": PROMPTS[0], "answer": expected}
    found = scored(trained, tmp_path, [row], stop=["never written", stop], scores=["exact_match"])["exact_match"]
    assert found["value"] == 1.0
    assert found["tokens"] < NUM_TOKENS, "nothing is generated after it"
    assert exact_match(written, [expected]) == 0.0, "the stop text changes the score"


def test_a_conversation_is_continued_by_the_assistant(trained: FinishedRun, tmp_path: Path) -> None:
    prompt = ChatTemplate.from_model(trained.output / "model", "<|endoftext|>").prompt("gold?")
    assert prompt.endswith("### Assistant:\n")
    row = {"messages": MESSAGES, "answer": greedy(trained, prompt, 4, begin="")}
    assert row["answer"] not in ("", greedy(trained, "gold?", 4)), "the template changes the answer"
    assert scored(trained, tmp_path, [row], max_tokens=4)["exact_match"]["value"] == 1.0


def read(trained: FinishedRun, content: bytes, **changes: Any) -> list[Prompt]:
    model = trained.output / "model"
    task = EvaluationTask.model_validate({**TASK, **changes})
    part = EvaluationJobSpec(model="x", tasks=[task], sequence_length=LENGTH).as_training().data.parts[0]
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    reader = ItemReader(ExistingTokenizer.from_model(model, vocab_size), LENGTH)
    return reader.read_prompts(task, part, [RawObject.of("facts.jsonl", content)])


INVALID: list[tuple[Any, str]] = [
    ({"answer": "b"}, "either the field 'prompt' or 'messages' (it has: answer)"),
    ({"prompt": "a", "messages": MESSAGES, "answer": "b"}, "either the field 'prompt' or 'messages'"),
    (["a"], "(it has: a list)"),
    ({"prompt": " ", "answer": "b"}, "prompt is ' '"),
    ({"prompt": 3, "answer": "b"}, "prompt is 3"),
    ({"prompt": "a\ud800", "answer": "b"}, "half of a surrogate pair"),
    ({"prompt": "a"}, "no field 'answer'"),
    ({"prompt": "a", "answer": 4}, "answer is 4; it must be a text"),
    ({"prompt": "a", "answer": []}, "answer is a list; it must be a text, or a list of texts"),
    ({"messages": [], "answer": "b"}, "messages is not a list of messages"),
    ({"messages": [{"role": "user"}], "answer": "b"}, "messages[0] has no text in 'content'"),
    ({"messages": [*MESSAGES, {"role": "assistant", "content": "c"}], "answer": "b"}, "move its text to"),
    ({"prompt": "heat " * 60, "answer": "b"}, "more than evaluation.sequence_length 32; raise it"),
]


@pytest.mark.parametrize(("row", "message"), INVALID)
def test_an_invalid_prompt_is_named_by_its_line(trained: FinishedRun, row: Any, message: str) -> None:
    with pytest.raises(TrainerError) as refused:
        read(trained, json_lines([{"prompt": "a", "answer": "b"}, row]))
    assert refused.value.end_class is EndClass.DATA_ERROR
    assert "facts.jsonl line 2: " in str(refused.value)
    assert message in str(refused.value)


def test_an_invalid_prompt_ends_the_job(trained: FinishedRun, tmp_path: Path) -> None:
    data = {"facts": json_lines([{"prompt": "a", "answer": "b"}, {"prompt": "a"}])}
    with AgentApi(*evaluation_run(trained, processes=2, tasks=[TASK], data=data)) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.DATA_ERROR
        assert not api.evaluations
        assert "facts.jsonl line 2: no field 'answer'" in api.ends[0]["message"]


def test_a_pattern_without_a_group_needs_no_answers(trained: FinishedRun) -> None:
    row = json_lines([{"prompt": "a"}])
    assert read(trained, row, scores=["regex"], pattern="[0-9]")[0].references == []
    with pytest.raises(TrainerError, match="no field 'answer'"):
        read(trained, row, scores=["regex"], pattern="([0-9])")


def test_no_prompts_are_refused(trained: FinishedRun) -> None:
    with pytest.raises(TrainerError, match="of the evaluation 'facts' has no prompts"):
        read(trained, b"\n")


@pytest.mark.parametrize(
    ("answer", "references", "exact", "expected"),
    [
        ("The Cat, sat!", ["cat sat"], 1, 1),  # case, punctuation and articles do not count
        ("a red  cat", ["the cat"], 0, 2 / 3),  # precision 1/2, recall 1
        ("red red cat", ["red cat cat"], 0, 2 / 3),  # 2 of 3 words each
        ("dog", ["cat", "big dog"], 0, 2 / 3),  # the reference that fits best
        ("dog", ["cat"], 0, 0),
        ("the", ["!"], 1, 1),  # neither has a word
        ("", ["cat"], 0, 0),
    ],
)
def test_scores_are_those_of_squad(answer: str, references: list[str], exact: float, expected: float) -> None:
    assert exact_match(answer, references) == exact
    assert f1(answer, references) == pytest.approx(expected)


def regex_task(pattern: str) -> EvaluationTask:
    return EvaluationTask.model_validate({**TASK, "scores": ["regex"], "pattern": pattern})


@pytest.mark.parametrize(
    ("pattern", "answer", "references", "expected"),
    [
        ("[0-9]+", "it is 42.", [], 1),
        ("[0-9]+", "it is unknown", [], 0),
        ("is ([0-9]+)", "it is 42, is 7", ["42"], 1),
        ("is ([0-9]+)", "it is 42, is 7", ["7"], 0),  # the first match counts
        ("is( [0-9]+)?", "it is", ["42"], 0),  # a group that takes no part
    ],
)
def test_a_pattern_is_searched(pattern: str, answer: str, references: list[str], expected: float) -> None:
    assert score_answers(regex_task(pattern), "regex", [(answer, references)]) == [expected]


def test_a_pattern_that_backtracks_too_much_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_scores, "MATCH_SECONDS", 0.1)
    with pytest.raises(TrainerError, match="on answer 2 of 61 characters: it backtracks too much") as refused:
        score_answers(regex_task("(a+)+b"), "regex", [("ab", ["a"]), ("a" * 60 + "c", ["a"])])
    assert refused.value.end_class is EndClass.BAD_SPEC


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"scores": None}, "scores", "the kind generation needs scores"),
        ({"max_tokens": None}, "max_tokens", "the kind generation needs max_tokens"),
        ({"scores": ["f1", "f1"]}, "scores", "scores has one of them twice: f1, f1"),
        ({"scores": ["regex"]}, "pattern", "the score regex needs a pattern"),
        ({"pattern": "a"}, "pattern", "a pattern needs the score regex"),
        ({"scores": ["regex"], "pattern": "(a"}, "pattern", "'(a' is no regular expression"),
        ({"scores": ["regex"], "pattern": "(" * 250 + ")" * 250}, "pattern", "the pattern"),
        ({"scores": ["regex"], "pattern": "(a)(b)"}, "pattern", "has 2 groups, and only one can be compared"),
        ({"scores": ["json_schema"]}, "json_schema", "the score json_schema needs a json_schema"),
        ({"json_schema": {}}, "json_schema", "a json_schema needs the score"),
        ({"kind": "loss"}, "scores", "scores is only for the kind generation, not loss"),
    ],
)
def test_a_task_that_cannot_be_scored_is_refused(change: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        EvaluationTask.model_validate({**TASK, **change})
    assert message in str(refused.value)
    conflicts = refused.value.errors()[0]["ctx"]["error"].conflicts
    assert field in [conflict.at for conflict in conflicts]


def schema_task(schema: Any) -> EvaluationTask:
    return EvaluationTask.model_validate({**TASK, "scores": ["json_schema"], "json_schema": schema})


CITY = {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}
TREE = {"type": "object", "properties": {"parts": {"type": "array", "items": {"$ref": "#"}}}, "required": ["parts"]}


@pytest.mark.parametrize(
    ("schema", "answer", "expected"),
    [
        (CITY, ' {"city": "Lima"}\n', 1),
        (CITY, '```json\n{"city": "Lima"}\n```', 1),
        (CITY, '```\n{"city": "Lima"}\n```\n', 1),
        (CITY, '```python\n{"city": "Lima"}\n```', 0),
        (CITY, 'Here it is: {"city": "Lima"}', 0),
        (CITY, '```json\n{"city": "Lima"}\n``` Done.', 0),
        (CITY, '{"city": 4}', 0),
        (CITY, '{"town": "Lima"}', 0),
        (CITY, "", 0),
        ({}, "[1, null]", 1),
        ({}, "NaN", 0),
        ({}, "1e999", 0),
        ({"multipleOf": 0.5}, "1" + "0" * 400, 0),
        ({}, "[" * 64 + "]" * 64, 1),
        ({}, "[" * 65 + "]" * 65, 0),
        ({}, "[" * 100_000, 0),
        (TREE, '{"parts": [{"parts": []}]}', 1),
        (TREE, '{"parts": [{"parts": [3]}]}', 0),
        ({"$id": "https://example.com/a", "$ref": "#x", "$defs": {"x": {"$anchor": "x", "const": 1}}}, "1.0", 1),
        ({"items": {"$ref": "#/$defs/a~1b"}, "$defs": {"a/b": {"enum": ["yes"]}}}, '["no"]', 0),
        ({"properties": {"$ref": {"type": "string"}}}, '{"$ref": "https://example.com"}', 1),
    ],
)
def test_an_answer_is_validated_by_a_schema(schema: Any, answer: str, expected: float) -> None:
    assert score_answers(schema_task(schema), "json_schema", [(answer, [])]) == [expected]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strin"}, "at /type: 'strin' is not"),
        ({"properties": {"a": {"minLength": -1}}}, "at /properties/a/minLength: -1 is less than the minimum of 0"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "only draft 2020-12 is supported"),
        ({"$ref": "https://example.com/a.json"}, "at /$ref leads out of the schema, and nothing is fetched"),
        ({"items": {"$ref": "#/$defs/a"}}, "$ref '#/$defs/a' at /items/$ref leads to no schema"),
        ({"items": {"$ref": "#a"}}, "$ref '#a' at /items/$ref leads to no schema"),
        ({"$ref": "#/examples/0", "examples": [{"type": "strin"}]}, "leads to no schema"),
        ({"allOf": [{"$ref": "#"}]}, "the reference at /allOf/0 leads back to itself"),
        ({"items": {"$id": "b"}}, "$id at /items/$id is within another schema"),
        ({"items": {"pattern": "(a"}}, "at /items/pattern: '(a' is no regular expression"),
        ({"patternProperties": {"(a": {}}}, "at /patternProperties/(a: '(a' is no regular expression"),
        ({"patternProperties": {"b": {}, "(?i)a": {}}}, "at /patternProperties: '|(?i)a|b' is no regular expression"),
        ({"multipleOf": 10**400}, "the number at /multipleOf is beyond the range"),
        ({"description": "a" * 8192}, "and at most 8192 are accepted; leave out descriptions"),
        (json.loads('{"not":' * 33 + "{}" + "}" * 33), "the schema nests more than 32 levels deep; move inner"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_its_place(schema: Any, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        schema_task(schema)
    (conflict,) = refused.value.errors()[0]["ctx"]["error"].conflicts
    assert conflict.at == "json_schema"
    assert conflict.message.startswith("json_schema cannot be used: ")
    assert message in conflict.message


def doubled(levels: int) -> dict[str, Any]:
    """A schema of which each level asks for the next one twice."""
    names = {f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/s0", "$defs": {**names, f"s{levels}": {"type": "object"}}}


@pytest.mark.parametrize(
    ("schema", "answer"),
    [({"pattern": "(a+)+b"}, '"' + "a" * 60 + 'c"'), (doubled(24), "{}")],
    ids=["pattern", "allOf"],
)
def test_a_schema_that_takes_too_long_ends_the_job(
    monkeypatch: pytest.MonkeyPatch, schema: dict[str, Any], answer: str
) -> None:
    monkeypatch.setattr(answer_scores, "MATCH_SECONDS", 0.1)
    with pytest.raises(TrainerError, match=r"took longer than 0\.1 s of CPU time on answer 2 of") as refused:
        score_answers(schema_task(schema), "json_schema", [("[", []), (answer, [])])
    assert refused.value.end_class is EndClass.BAD_SPEC


def test_the_share_of_valid_answers_has_an_interval(trained: FinishedRun, tmp_path: Path) -> None:
    data = [{"prompt": each} for each in PROMPTS]
    found = scored(trained, tmp_path, data, scores=["json_schema"], json_schema=CITY)["json_schema"]
    assert (found["value"], found["n"], found["low"]) == (0.0, 5, 0.0)
    assert found["high"] == pytest.approx(0.4345, abs=1e-4), "Wilson's interval of 0 of 5"


def test_an_answer_must_leave_room_for_its_prompt() -> None:
    with pytest.raises(ValueError, match=r"tasks.0.max_tokens 8 leaves no room for a prompt in sequence_length 8"):
        EvaluationJobSpec.model_validate({"model": "model:a@b", "tasks": [TASK], "sequence_length": 8})


def test_a_trainer_that_knows_no_generation_gets_other_tasks_unchanged() -> None:
    task = EvaluationTask.model_validate({"name": "a", "kind": "loss", "source": "dataset:a"})
    assert set(task.model_dump()) == {"name", "kind", "source", "format", "text_field"}


def test_outputs_that_are_not_finite_are_no_tokens() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, math.nan, 1.0], [math.inf, 0.0, 1.0]])
    assert likeliest_tokens(logits).tolist() == [1, -1, -1]


def test_the_interval_of_a_mean_score_is_cut_at_one() -> None:
    found = mean_score(torch.tensor([1.0, 1.0, 0.5, 1.0]).numpy())
    assert found.value == 0.875
    assert found.standard_error == pytest.approx(0.25 / 2)
    assert (found.low, found.high) == (pytest.approx(0.875 - Z * 0.125), 1.0)
    equal = mean_score(torch.tensor([0.5, 0.5, 0.5]).numpy())
    assert (equal.value, equal.standard_error, equal.low, equal.high) == (0.5, None, None, None), "no certainty"
    single = mean_score(torch.tensor([0.5]).numpy())
    assert (single.value, single.low, single.high) == (0.5, None, None)

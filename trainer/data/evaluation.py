"""Read what an evaluation job scores: documents, conversations, questions with choices, and prompts, as token ids.

Everything is read into memory: an evaluation set is small beside what a model was trained on.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.contract.chat import TOOLS_FIELD
from trainer.contract.data import END_OF_TEXT, MixturePart
from trainer.contract.evaluation import EvaluationTask
from trainer.data.chat import (
    ChatTemplate,
    Conversation,
    counted_tokens,
    messages_problem,
    read_conversations,
    with_parsed_arguments,
)
from trainer.data.documents import (
    LONE_SURROGATE,
    Document,
    Place,
    RawObject,
    data_error,
    has_lone_surrogate,
    json_lines,
    names_of,
    read_documents,
)
from trainer.data.packing import IGNORED
from trainer.data.tokenizer import ExistingTokenizer, ids_before_text

QUESTION, CHOICES, ANSWER = "question", "choices", "answer"
PROMPT, MESSAGES = "prompt", "messages"
_BATCH_DOCUMENTS = 256  # for each call of the tokenizer


@dataclass(frozen=True)
class Window:
    """What one forward pass scores: the tokens of item number `item`, and their targets, IGNORED where none counts."""

    item: int
    tokens_S: NDArray[np.int64]
    targets_S: NDArray[np.int64]


@dataclass
class Items:
    """The items of a task, each a document or one choice of a question, in order.

    `num_bytes`: UTF-8 bytes of each item that count; 0 for conversations, of which they are not known exactly.
    `questions`: (first item, number of choices, right choice) of each question.
    """

    windows: list[Window] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    questions: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Return the number of targets of all items."""
        return sum(int((window.targets_S != IGNORED).sum()) for window in self.windows)


@dataclass(frozen=True)
class Prompt:
    """What a model continues, as token ids, and the answers that count as right; none if they are not compared."""

    ids: list[int]
    references: list[str]


class ItemReader:
    """Reads the items and prompts of tasks with the tokenizer and the chat template of a model."""

    def __init__(self, existing: ExistingTokenizer, sequence_length: int) -> None:
        self._tokenizer = Tokenizer.from_file(str(existing.file))
        self._before, self._end = ids_before_text(self._tokenizer), existing.end_of_text
        self._template = ChatTemplate.from_model(
            existing.model, self._tokenizer.id_to_token(existing.end_of_text) or END_OF_TEXT
        )
        self._length = sequence_length

    def read(self, task: EvaluationTask, part: MixturePart, objects: Iterable[RawObject]) -> Items:
        """Return the items of a task. Raises TrainerError (DATA_ERROR) that names object and line, and for no items."""
        items = Items()
        if task.kind == "multiple_choice":
            for raw in objects:
                for place, record in json_lines(raw):
                    self._add_question(items, place, record)
        elif part.format == "chat":
            self._add_documents(items, read_conversations(objects, part, self._template))
        else:
            self._add_documents(items, read_documents(objects, part))
        if not items.windows:
            what = "questions" if task.kind == "multiple_choice" else "documents with text"
            raise data_error(f"{part.source} of the evaluation {task.name!r} has no {what}; add some, or leave it out")
        return items

    def read_prompts(self, task: EvaluationTask, part: MixturePart, objects: Iterable[RawObject]) -> list[Prompt]:
        """Return the prompts of a task of the kind generation. Raises TrainerError (DATA_ERROR) that names object and
        line, and for no prompts."""
        prompts = [self._prompt(task, place, record) for raw in objects for place, record in json_lines(raw)]
        if not prompts:
            raise data_error(f"{part.source} of the evaluation {task.name!r} has no prompts; add some, or leave it out")
        return prompts

    def _prompt(self, task: EvaluationTask, place: Place, record: Any) -> Prompt:
        problem = prompt_problem(record, needs_answer=task.needs_answers)
        if problem is not None:
            raise data_error(f"{place.object} line {place.row}: {problem}")
        if PROMPT in record:
            text, before = record[PROMPT], self._before or [self._end]
        else:  # the template begins a conversation with what the model expects there
            try:
                text = self._template.answer_prompt(with_parsed_arguments(record[MESSAGES]), record.get(TOOLS_FIELD))
            except TemplateError as error:
                raise data_error(f"{place.object} line {place.row}: {error}; change the messages") from error
            before = []
        ids = [*before, *self._tokenizer.encode(text, add_special_tokens=False).ids]
        assert task.max_tokens is not None, "of the kind generation"
        if len(ids) + task.max_tokens > self._length:
            raise data_error(
                f"{place.object} line {place.row}: the prompt has {len(ids)} tokens, which with max_tokens "
                f"{task.max_tokens} is more than evaluation.sequence_length {self._length}; raise it, lower "
                "max_tokens, or shorten the prompt"
            )
        answer = record.get(ANSWER, [])
        return Prompt(ids, [answer] if isinstance(answer, str) else answer)

    def _add_documents(self, items: Items, documents: Iterable[Document]) -> None:
        for batch in _batches(documents):
            encodings = self._tokenizer.encode_batch([str(each) for each in batch], add_special_tokens=False)
            for document, encoding in zip(batch, encodings, strict=True):
                if isinstance(document, Conversation):
                    begins = np.array([begin for begin, _ in encoding.offsets], dtype=np.int64)
                    self._add(items, encoding.ids, counted_tokens(begins, document.counted).tolist(), 0)
                else:
                    first = self._before or [self._end]
                    ids = [*first, *encoding.ids, self._end]
                    counted = [False] * len(first) + [True] * (len(encoding.ids) + 1)
                    self._add(items, ids, counted, len(document.encode()))

    def _add(self, items: Items, ids: list[int], counted: list[bool], num_bytes: int) -> None:
        """Add an item, in windows in which each counted token but the first of all is a target once."""
        number, tokens = len(items.num_bytes), np.array(ids, dtype=np.int64)
        targets = np.where(counted, tokens, IGNORED)[1:]
        items.num_bytes.append(num_bytes)
        for start in range(0, len(targets), self._length):
            window = targets[start : start + self._length]
            if (window != IGNORED).any():
                items.windows.append(Window(number, tokens[start : start + len(window)], window))

    def _add_question(self, items: Items, place: Place, record: Any) -> None:
        problem = question_problem(record)
        if problem is not None:
            raise data_error(f"{place.object} line {place.row}: {problem}")
        question, choices = record[QUESTION], record[CHOICES]
        items.questions.append((len(items.num_bytes), len(choices), record[ANSWER]))
        # The space before a choice belongs to its first token, as in most tokenizers.
        prompt = question.rstrip(" ")
        texts = [prompt + _space(question, choice) + choice for choice in choices]
        for choice, encoding in zip(
            choices, self._tokenizer.encode_batch(texts, add_special_tokens=False), strict=True
        ):
            first = self._before or [self._end]
            counted = [False] * len(first) + [begin >= len(prompt) for begin, _ in encoding.offsets]
            ids = [*first, *encoding.ids]
            if not any(counted):
                raise data_error(
                    f"{place.object} line {place.row}: the tokenizer joins the choice {choice[:60]!r} with the "
                    "question, so that it has no token of its own; end the question with a space or a line end"
                )
            if sum(counted) > self._length:
                raise data_error(
                    f"{place.object} line {place.row}: the choice {choice[:60]!r} has {sum(counted)} tokens, more than "
                    f"evaluation.sequence_length {self._length}; raise it, or shorten the choice"
                )
            kept = self._length + 1  # of a longer one, the question's beginning is left out
            self._add(items, ids[-kept:], counted[-kept:], len(choice.encode()))


def question_problem(record: Any) -> str | None:
    """Return what is wrong with a record of a multiple-choice data set, None if it is valid."""
    if not isinstance(record, dict) or not {QUESTION, CHOICES, ANSWER} <= record.keys():
        return (
            f"no fields {QUESTION!r}, {CHOICES!r} and {ANSWER!r} (it has: {names_of(record)}); a line is "
            '{"question": "...", "choices": ["...", "..."], "answer": 0}'
        )
    question, choices, answer = record[QUESTION], record[CHOICES], record[ANSWER]
    if not isinstance(question, str) or not question.strip():
        return f"question is {_described(question)}; it must be a text that is not empty"
    if not isinstance(choices, list) or not all(isinstance(each, str) and each.strip() for each in choices):
        return "choices must be a list of texts that are not empty"
    if len(choices) < 2 or len(set(choices)) < len(choices):
        return (
            f"choices has {len(choices)} texts, {len(set(choices))} of them different; give at least 2, all different"
        )
    if type(answer) is not int or not 0 <= answer < len(choices):
        return f"answer is {_described(answer)}; it must be the number of a choice, 0 to {len(choices) - 1}"
    if has_lone_surrogate(question + "".join(choices)):
        return f"the question or a choice {LONE_SURROGATE}"
    return None


def prompt_problem(record: Any, *, needs_answer: bool) -> str | None:
    """Return what is wrong with a record of a data set of prompts, None if it is valid."""
    given = {PROMPT, MESSAGES} & record.keys() if isinstance(record, dict) else set()
    if len(given) != 1:
        return (
            f"it must have either the field {PROMPT!r} or {MESSAGES!r} (it has: {names_of(record)}); a line is "
            '{"prompt": "...", "answer": "..."}'
        )
    if given == {PROMPT}:
        if not isinstance(record[PROMPT], str) or not record[PROMPT].strip():
            return f"prompt is {_described(record[PROMPT])}; it must be a text that is not empty"
        if has_lone_surrogate(record[PROMPT]):
            return f"the prompt {LONE_SURROGATE}"
    else:
        found = messages_problem(record[MESSAGES], record, MESSAGES)
        if found is not None:
            return found[1]
        if record[MESSAGES][-1]["role"] == "assistant":
            return "messages ends with a message of the assistant; move its text to the field 'answer'"
    if ANSWER not in record:
        return f"no field {ANSWER!r}, with which what the model writes is compared" if needs_answer else None
    answer = record[ANSWER]
    answers = [answer] if isinstance(answer, str) else answer
    if not isinstance(answers, list) or not answers or not all(isinstance(each, str) for each in answers):
        return f"answer is {_described(answer)}; it must be a text, or a list of texts of which each counts as right"
    return None


def _described(value: Any) -> str:
    return repr(value)[:60] if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


def _space(question: str, choice: str) -> str:
    """Return what separates a question from a choice: the spaces that it ends with, or one where there is none."""
    spaces = question[len(question.rstrip(" ")) :]
    return spaces or ("" if question[-1].isspace() or choice[0].isspace() else " ")


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    for document in documents:
        batch.append(document)
        if len(batch) == _BATCH_DOCUMENTS:
            yield batch
            batch = []
    if batch:
        yield batch

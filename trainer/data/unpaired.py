"""Answers with a label, true for those that a model should prefer to give: TRL's formats of unpaired preference data,
plain texts and conversations, and conversations in one field."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from trainer.contract.labels import COMPLETION_FIELD, LABEL_FIELD, MESSAGES_FIELD, PROMPT_FIELD, labelled_answer_problem
from trainer.data.chat import ChatTemplate, Conversation, Messages
from trainer.data.documents import STRICT, RawObject, Reading, json_lines, row_problem
from trainer.data.encoding import Encoded
from trainer.data.masks import masked
from trainer.data.pairs import answer_tokens, chat_side, needed_template, plain_side


class LabelledAnswer(Conversation):
    """The text of an answer with its prompt. `is_desirable`: its label; `is_plain`: it is no conversation, which ends
    as its template defines."""

    is_desirable: bool
    is_plain: bool

    @classmethod
    def of(cls, side: Conversation, *, is_desirable: bool, is_plain: bool) -> "LabelledAnswer":
        """Return the text with its label."""
        made = cls(str(side), side.counted)
        made.is_desirable, made.is_plain = is_desirable, is_plain
        return made


def read_labelled_answers(
    objects: Iterable[RawObject], template: ChatTemplate | None, reading: Reading = STRICT
) -> Iterator[LabelledAnswer]:
    """Yield the answers of JSONL objects: `{"prompt": ..., "completion": ..., "label": true}` in each line, where
    prompt and completion are both texts or both lists of messages, or `{"messages": [...], "label": true}`, of which
    the answer is what follows the user's last message.

    `template`: that of the model, which conversations need. Raises TrainerError (DATA_ERROR) that names object and
    line.
    """
    for raw in objects:
        for place, record in json_lines(raw, reading):
            try:
                made = _labelled_answer(record, template)
            except (TemplateError, ValueError) as error:
                reading.on_problem(row_problem("invalid_message", place, str(error)))
                continue
            made.place = place
            yield made


def labelled_tokens(
    answer: LabelledAnswer, encoded: Encoded, before: Sequence[int], end_of_text: int
) -> NDArray[np.uint32]:
    """Return the tokens of an answer with its prompt and their marks: undesirable answers have that of rejected ones.
    `before` and `end_of_text`: what begins and ends plain texts.

    Raises PairProblem if the answer has no token of its own.
    """
    ends = (before, end_of_text) if answer.is_plain else None
    ids, counted = answer_tokens(answer, encoded, ends, "the answer")
    return masked(ids, counted, is_rejected=not answer.is_desirable)


def _labelled_answer(record: Any, template: ChatTemplate | None) -> LabelledAnswer:
    """Return the answer of a line. Raises ValueError that says what is wrong with it, TemplateError as the template."""
    problem = labelled_answer_problem(record) if isinstance(record, dict) else "is not a JSON object"
    if problem:
        raise ValueError(f"the line {problem}")
    is_desirable = record[LABEL_FIELD]
    if COMPLETION_FIELD in record:
        prompt, completion = record[PROMPT_FIELD], record[COMPLETION_FIELD]
    else:
        prompt, completion = _divided(record[MESSAGES_FIELD])
    if isinstance(prompt, str):
        side = plain_side(prompt, completion, "labelled")
        return LabelledAnswer.of(side, is_desirable=is_desirable, is_plain=True)
    side = chat_side(prompt, completion, record, needed_template(template), "labelled")
    return LabelledAnswer.of(side, is_desirable=is_desirable, is_plain=False)


def _divided(messages: Messages) -> tuple[Messages, Messages]:
    """Return (messages up to the user's last one, the answer after it). Raises ValueError without both."""
    last = max((number for number, message in enumerate(messages) if message["role"] == "user"), default=-1)
    if last < 0 or last == len(messages) - 1:
        raise ValueError(f"{MESSAGES_FIELD} has no message of the assistant after one of the user, which it answers")
    return messages[: last + 1], messages[last + 1 :]

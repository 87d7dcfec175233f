"""Pairs of answers to the same prompt, of which one is preferred: TRL's formats of preference data, plain texts and
conversations, each with the prompt in a field of its own or at the beginning of both answers."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from os.path import commonprefix
from typing import Any

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray

from trainer.contract.chat import TOOLS_FIELD, trained_messages
from trainer.data.chat import (
    ChatTemplate,
    Conversation,
    Messages,
    Tools,
    counted_tokens,
    messages_problem,
    with_parsed_arguments,
)
from trainer.data.documents import (
    LONE_SURROGATE,
    STRICT,
    Document,
    RawObject,
    Reading,
    has_lone_surrogate,
    json_lines,
    row_problem,
)
from trainer.data.encoding import Encoded
from trainer.data.masks import masked

PROMPT, CHOSEN, REJECTED = "prompt", "chosen", "rejected"


Answers = tuple[str, str, str] | tuple[Messages, Messages, Messages]
"""The prompt, the chosen answer and the rejected one, as texts or as messages."""


class PairProblem(ValueError):
    """Why a record is no pair. `kind`: one of those of `trainer.contract.data_findings`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Pair(Document):
    """The texts of a pair, one after the other. `sides`: the chosen answer and the rejected one, each with its prompt;
    `answers`: what they are made of. Texts, unlike conversations, do not end as a template defines."""

    sides: tuple[Conversation, Conversation]
    answers: Answers

    def __new__(cls, chosen: Conversation, rejected: Conversation, answers: Answers) -> "Pair":
        """Create the text with its sides."""
        made = super().__new__(cls, chosen + rejected)
        made.sides, made.answers = (chosen, rejected), answers
        return made

    @property
    def is_plain(self) -> bool:
        """Return whether prompt and answers are texts."""
        return isinstance(self.answers[0], str)


def read_pairs(
    objects: Iterable[RawObject], template: ChatTemplate | None, reading: Reading = STRICT
) -> Iterator[Pair]:
    """Yield the pairs of JSONL objects: `{"prompt": ..., "chosen": ..., "rejected": ...}` in each line, where all three
    are texts or all three lists of messages; without `prompt`, it is what the two others begin with.

    `template`: that of the model, which conversations need. Raises TrainerError (DATA_ERROR) that names object and
    line.
    """
    for raw in objects:
        for place, record in json_lines(raw, reading):
            try:
                made = _pair(record, template)
            except (TemplateError, ValueError) as error:
                kind = error.kind if isinstance(error, PairProblem) else "template_refuses"
                reading.on_problem(row_problem(kind, place, str(error)))
                continue
            made.place = place
            reading.on_document(made)
            yield made


def pair_tokens(
    pair: Pair, encodings: Sequence[Encoded], before: Sequence[int], end_of_text: int
) -> NDArray[np.uint32]:
    """Return the tokens of a pair with their marks, the chosen answer first. `encodings`: of its sides; `before` and
    `end_of_text`: what begins and ends plain texts.

    Raises PairProblem if an answer has no token of its own.
    """
    found = []
    for side, encoded, name in zip(pair.sides, encodings, (CHOSEN, REJECTED), strict=True):
        ends = (before, end_of_text) if pair.is_plain else None
        ids, counted = answer_tokens(side, encoded, ends, f"the {name} answer of the pair")
        found.append(masked(ids, counted, is_rejected=name == REJECTED))
    return np.concatenate(found)


def answer_tokens(
    side: Conversation, encoded: Encoded, ends: tuple[Sequence[int], int] | None, name: str
) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Return the tokens of an answer with its prompt, and which of them are the answer's. `ends`: what begins and ends
    a plain text; None for a conversation.

    Raises PairProblem, which calls the answer `name`, if it has no token of its own.
    """
    ids, counted = encoded.ids, counted_tokens(encoded.begins, side.counted)
    if ends is not None:
        before, end_of_text = ends
        ids = np.array([*before, *ids, end_of_text], dtype=np.uint32)
        counted = np.concatenate([np.zeros(len(before), dtype=bool), counted, [True]])
    if not counted[1:].any():
        raise PairProblem(
            "invalid_pair",
            f"{name} that begins with {side[:60]!r} has no token of its own: the tokenizer joins it with the prompt; "
            "correct or remove the line",
        )
    return ids, counted


def _pair(record: Any, template: ChatTemplate | None) -> Pair:
    """Return the pair of a line. Raises PairProblem, and what rendering a conversation raises."""
    if not isinstance(record, dict) or not {CHOSEN, REJECTED} <= record.keys():
        names = ", ".join(sorted(record)[:8]) if isinstance(record, dict) else f"a {type(record).__name__}"
        kind = "invalid_pair" if isinstance(record, dict) else "not_an_object"
        raise PairProblem(kind, f"no fields {CHOSEN!r} and {REJECTED!r} (it has: {names}); name the two answers so")
    fields = {name: record[name] for name in (PROMPT, CHOSEN, REJECTED) if record.get(name) is not None}
    kinds = {name: type(record[name]).__name__ for name in (PROMPT, CHOSEN, REJECTED) if name in record}
    if {type(value) for value in fields.values()} not in ({str}, {list}) or not {CHOSEN, REJECTED} <= fields.keys():
        found = ", ".join(f"{name} is a {kind}" for name, kind in kinds.items())
        message = f"prompt, chosen and rejected must all be strings or all lists of messages, and {found}"
        raise PairProblem("invalid_pair", message)
    chosen, rejected = fields[CHOSEN], fields[REJECTED]
    if isinstance(chosen, str):
        return _plain_pair(fields.get(PROMPT), chosen, rejected)
    return _chat_pair(fields, record, needed_template(template))


def needed_template(template: ChatTemplate | None) -> ChatTemplate:
    """Return the template that messages are rendered with. Raises ValueError without one."""
    if template is None:
        raise ValueError(
            "the answers are lists of messages, and the base model has no chat template; train it on conversations "
            "first, or write prompt and answers as strings"
        )
    return template


def _plain_pair(prompt: str | None, chosen: str, rejected: str) -> Pair:
    if prompt is None:
        prompt = _common_beginning(chosen, rejected)
        chosen, rejected = chosen[len(prompt) :], rejected[len(prompt) :]
    for name, answer in ((CHOSEN, chosen), (REJECTED, rejected)):
        if not answer:
            message = f"the {name} answer is empty, or the same as the beginning of the other; remove the line"
            raise PairProblem("invalid_pair", message)
    sides = [plain_side(prompt, answer, name) for name, answer in ((CHOSEN, chosen), (REJECTED, rejected))]
    return Pair(sides[0], sides[1], (prompt, chosen, rejected))


def plain_side(prompt: str, answer: str, name: str) -> Conversation:
    """Return a prompt with its answer, both plain texts. Raises PairProblem, which calls the answer `name`."""
    if has_lone_surrogate(prompt + answer):
        raise PairProblem("lone_surrogate", f"the {name} answer, or its prompt, {LONE_SURROGATE}")
    return Conversation(prompt + answer, [(len(prompt), len(prompt) + len(answer))])


def _common_beginning(chosen: str, rejected: str) -> str:
    """Return what both texts begin with, up to the space before the first word that differs: its token begins there."""
    common = commonprefix([chosen, rejected])
    word = len(list(takewhile(lambda letter: not letter.isspace(), reversed(common))))
    return common[: len(common) - word].rstrip(" ")


def _chat_pair(fields: dict[str, Messages], record: dict[str, Any], template: ChatTemplate) -> Pair:
    chosen, rejected, prompt = fields[CHOSEN], fields[REJECTED], fields.get(PROMPT)
    if prompt is None:
        same = [one for one, _ in takewhile(lambda both: both[0] == both[1], zip(chosen, rejected, strict=False))]
        prompt, chosen, rejected = same, chosen[len(same) :], rejected[len(same) :]
    sides = [
        chat_side(prompt, answer, record, template, name) for name, answer in ((CHOSEN, chosen), (REJECTED, rejected))
    ]
    return Pair(sides[0], sides[1], (prompt, chosen, rejected))


def chat_side(
    prompt: Messages, answer: Messages, record: dict[str, Any], template: ChatTemplate, name: str
) -> Conversation:
    """Return a prompt with one of its answers, of which the assistant's messages are the targets. Raises PairProblem,
    which calls the answer `name`, TemplateError as the template."""
    problem = messages_problem([*prompt, *answer], record, f"{PROMPT} and {name}")
    if problem is not None:
        raise PairProblem(*problem)
    if not any(trained_messages(answer)):
        message = f"the {name} answer has no message with the role assistant after the prompt"
        raise PairProblem("no_assistant_turn", message)
    before = [{**message, "weight": 0} if message["role"] == "assistant" else message for message in prompt]
    tools: Tools = record.get(TOOLS_FIELD)
    side = template.conversation(with_parsed_arguments([*before, *answer]), tools)
    if not any(stop > start for start, stop in side.counted):
        raise PairProblem("invalid_pair", f"the {name} answer is empty")
    return side

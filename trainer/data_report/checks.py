"""Check many documents at a time. What is found can be sent from one process to another."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainer.data.pairs import Answers
from trainer.data_report.conversations import Messages, check_conversation
from trainer.data_report.duplicates import Fingerprints, text_hash
from trainer.data_report.ngrams import words_of
from trainer.data_report.overlap import EvaluationText
from trainer.data_report.secrets import SecretsOfTexts
from trainer.data_report.text import Scripts, TextBatch, check_texts

Problem = tuple[int, str, str]
"""Number of the document, kind of the finding, detail."""


@dataclass
class Batch:
    """Documents as training has them, and what is looked at in each: nothing else, the messages of a conversation, or
    prompt and answers of a pair."""

    texts: list[str] = field(default_factory=list)
    contents: list[Messages | Answers | None] = field(default_factory=list)


@dataclass(frozen=True)
class Checked:
    """What was found in a batch. `prompts`: (document, hash of what comes before the first answer, of all messages).
    `pairs`: (document, hash of the prompt with the chosen answer, with the rejected one)."""

    problems: list[Problem]
    scripts: Scripts
    fingerprints: Fingerprints
    prompts: list[tuple[int, int, int]]
    pairs: list[tuple[int, int, int]]


class Checks:
    """Checks batches. `special_tokens`: texts that the tokenizer makes control tokens of."""

    def __init__(self, special_tokens: Sequence[str], evaluation: EvaluationText | None) -> None:
        self._special_tokens, self._evaluation = special_tokens, evaluation

    def __call__(self, batch: Batch) -> Checked:
        """Check documents."""
        texts = [_text(text, content) for text, content in zip(batch.texts, batch.contents, strict=True)]
        of_bytes = TextBatch(texts)
        words = words_of(of_bytes.data, of_bytes.begins)
        problems = [
            *_conversation_problems(batch.contents),
            *check_texts(of_bytes, self._special_tokens),
            *_secrets(texts),
        ]
        if self._evaluation is not None:
            for number, shared, total in self._evaluation.shared(words):
                problems.append((number, "evaluation_overlap", f"{shared} of {total} runs of words"))
        pairs = list(_pairs(batch.contents))
        problems += [(number, "identical_answers", "") for number, chosen, rejected in pairs if chosen == rejected]
        prints = Fingerprints.of(batch.texts, words)
        return Checked(problems, Scripts.of(of_bytes), prints, list(_prompts(batch.contents)), pairs)


def _text(text: str, content: Messages | Answers | None) -> str:
    """Return what is looked at of a document: without what the chat template adds, such as its special tokens."""
    if content is None:
        return text
    if isinstance(content, list):
        return "\n".join(_texts_of(content))
    return "\n".join(part if isinstance(part, str) else "\n".join(_texts_of(part)) for part in content)


def _conversation_problems(contents: Sequence[Messages | Answers | None]) -> Iterator[Problem]:
    """Yield the problems of conversations, and of both answers of pairs of them, each kind once for a document."""
    for number, content in enumerate(contents):
        found: dict[str, str] = {}
        for messages in _conversations(content):
            found = {**dict(check_conversation(messages)), **found}
        yield from ((number, kind, detail) for kind, detail in found.items())


def _conversations(content: Messages | Answers | None) -> list[Messages]:
    if isinstance(content, list):
        return [content]
    if content is None or isinstance(content[0], str):
        return []
    prompt, *answers = content
    return [[*prompt, *answer] for answer in answers]


def _pairs(contents: Sequence[Messages | Answers | None]) -> Iterator[tuple[int, int, int]]:
    for number, content in enumerate(contents):
        if isinstance(content, tuple):
            prompt, chosen, rejected = map(json.dumps, content)
            yield number, text_hash(prompt + chosen), text_hash(prompt + rejected)


def _secrets(texts: Sequence[str]) -> Iterator[Problem]:
    """Yield the secrets of texts with what may be shown of them, each kind once for a text."""
    seen: set[tuple[int, str]] = set()
    for number, (kind, _, _, shown) in SecretsOfTexts(texts).find():
        if (number, kind) not in seen:
            seen.add((number, kind))
            yield number, kind, shown


def _prompts(contents: Sequence[Messages | Answers | None]) -> Iterator[tuple[int, int, int]]:
    for number, messages in enumerate(contents):
        if isinstance(messages, list):
            first = next(place for place, message in enumerate(messages) if message["role"] == "assistant")
            if any((message.get("content") or "").strip() for message in messages[:first]):
                yield number, text_hash(json.dumps(messages[:first])), text_hash(json.dumps(messages))


def _texts_of(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the content of each message, and its calls as JSON."""
    for message in messages:
        yield message.get("content") or ""
        if message.get("tool_calls"):
            yield json.dumps(message["tool_calls"], ensure_ascii=False)

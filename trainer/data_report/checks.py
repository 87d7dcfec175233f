"""Check many documents at a time. What is found can be sent from one process to another."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """Documents as training has them, and the messages of those that are conversations."""

    texts: list[str] = field(default_factory=list)
    messages: list[Messages | None] = field(default_factory=list)


@dataclass(frozen=True)
class Checked:
    """What was found in a batch. `prompts`: (document, hash of what comes before the first answer, of all messages)."""

    problems: list[Problem]
    scripts: Scripts
    fingerprints: Fingerprints
    prompts: list[tuple[int, int, int]]


class Checks:
    """Checks batches. `special_tokens`: texts that the tokenizer makes control tokens of."""

    def __init__(self, special_tokens: Sequence[str], evaluation: EvaluationText | None) -> None:
        self._special_tokens, self._evaluation = special_tokens, evaluation

    def __call__(self, batch: Batch) -> Checked:
        """Check documents."""
        # Of a conversation without what the chat template adds, such as its special tokens.
        texts = [
            text if messages is None else "\n".join(_texts_of(messages))
            for text, messages in zip(batch.texts, batch.messages, strict=True)
        ]
        of_bytes = TextBatch(texts)
        words = words_of(of_bytes.data, of_bytes.begins)
        problems = [
            *_conversation_problems(batch.messages),
            *check_texts(of_bytes, self._special_tokens),
            *_secrets(texts),
        ]
        if self._evaluation is not None:
            for number, shared, total in self._evaluation.shared(words):
                problems.append((number, "evaluation_overlap", f"{shared} of {total} runs of words"))
        return Checked(
            problems, Scripts.of(of_bytes), Fingerprints.of(batch.texts, words), list(_prompts(batch.messages))
        )


def _conversation_problems(conversations: Sequence[Messages | None]) -> Iterator[Problem]:
    for number, messages in enumerate(conversations):
        if messages is not None:
            yield from ((number, kind, detail) for kind, detail in check_conversation(messages))


def _secrets(texts: Sequence[str]) -> Iterator[Problem]:
    """Yield the secrets of texts with what may be shown of them, each kind once for a text."""
    seen: set[tuple[int, str]] = set()
    for number, (kind, _, _, shown) in SecretsOfTexts(texts).find():
        if (number, kind) not in seen:
            seen.add((number, kind))
            yield number, kind, shown


def _prompts(conversations: Sequence[Messages | None]) -> Iterator[tuple[int, int, int]]:
    for number, messages in enumerate(conversations):
        if messages is not None:
            first = next(place for place, message in enumerate(messages) if message["role"] == "assistant")
            if any((message.get("content") or "").strip() for message in messages[:first]):
                yield number, text_hash(json.dumps(messages[:first])), text_hash(json.dumps(messages))


def _texts_of(messages: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the content of each message, and its calls as JSON."""
    for message in messages:
        yield message.get("content") or ""
        if message.get("tool_calls"):
            yield json.dumps(message["tool_calls"], ensure_ascii=False)

"""What is wrong with the roles and messages of a valid conversation."""

import re
from collections.abc import Iterator
from typing import Any

KNOWN_ROLES = {"system", "developer", "user", "assistant", "tool"}
_INSTRUCTIONS = {"system", "developer"}
_BOILERPLATE = re.compile(
    r"(?i)\b(?:as|i am|i'm) (?:just )?an? (?:(?:ai|artificial intelligence|large|machine learning)[ -])?"
    r"(?:language )?model\b"
)

Messages = list[dict[str, Any]]


def check_conversation(messages: Messages) -> Iterator[tuple[str, str]]:
    """Yield (kind, detail) of each problem, each kind once."""
    seen: set[str] = set()
    for kind, detail in _problems(messages):
        if kind not in seen:
            seen.add(kind)
            yield kind, detail


def _problems(messages: Messages) -> Iterator[tuple[str, str]]:
    roles = [message["role"] for message in messages]
    for number, (message, role) in enumerate(zip(messages, roles, strict=True)):
        before, detail = roles[number - 1] if number else "", f"message {number}"
        content = message.get("content") or ""
        if role not in KNOWN_ROLES:
            yield "unknown_role", f"{detail} has the role {role[:40]!r}"
        if role in _INSTRUCTIONS and number and before not in _INSTRUCTIONS:
            yield "late_system", detail
        if role in ("user", "assistant") and role == before:
            yield "same_role_twice", detail
        if role == "user" and not content.strip():
            yield "empty_prompt", detail
        if role == "tool" and not _answers_call(messages, number):
            yield "tool_without_call", detail
        if role == "assistant":
            yield from _answer_problems(message, content, detail)
            if "user" not in roles[:number]:
                yield "no_user_turn", detail
            is_last = number == len(messages) - 1
            if message.get("tool_calls") and not is_last and roles[number + 1] != "tool":
                yield "call_without_result", detail
    if roles[-1] != "assistant":
        yield "unanswered", f"the last message has the role {roles[-1][:40]!r}"


def _answer_problems(message: dict[str, Any], content: str, detail: str) -> Iterator[tuple[str, str]]:
    if not content.strip() and not message.get("tool_calls"):
        yield "empty_answer", detail
    if sum(line.lstrip().startswith("```") for line in content.split("\n")) % 2:
        yield "unclosed_code", detail
    if "model" in content and _BOILERPLATE.search(content):
        yield "assistant_boilerplate", detail


def _answers_call(messages: Messages, number: int) -> bool:
    """Return whether the message before this result, or before the results in front of it, has calls."""
    while number and messages[number]["role"] == "tool":
        number -= 1
    return messages[number]["role"] == "assistant" and bool(messages[number].get("tool_calls"))

"""Conversations of a data set: what a line of one contains, checked at the upload and where it is read."""

from typing import Any

from trainer.contract.base import JsonObject

TOOLS_FIELD = "tools"
"""Field of a line beside the messages: JSON schemas of the functions that the assistant may call."""
_WEIGHTS = (0, 1)


def conversation_problem(messages: Any, tools: Any = None) -> str:
    """Return why values are no list of messages and no list of tools, empty if they are.

    A message has a role and a content, both strings. One of the assistant may have `tool_calls`, and then no content,
    and a `weight`: with 0 it is not trained on.
    """
    if not isinstance(messages, list) or not messages:
        return "is not a list of messages"
    for number, message in enumerate(messages):
        problem = _message_problem(message)
        if problem:
            return f"[{number}] {problem}"
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        return f"stands beside {TOOLS_FIELD}, which must be a list of JSON objects"
    return ""


def trained_messages(messages: list[JsonObject]) -> list[bool]:
    """Return which messages are trained on: those of the assistant without the weight 0."""
    return [message["role"] == "assistant" and message.get("weight", 1) != 0 for message in messages]


def _message_problem(message: Any) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return "has no text in 'role'"
    calls, content = message.get("tool_calls"), message.get("content")
    if calls is not None and not (isinstance(calls, list) and all(_is_call(call) for call in calls)):
        return "has tool_calls that are no list of {'function': {'name': ..., 'arguments': ...}}"
    if not isinstance(content, str) and not (content is None and calls):
        return "has no text in 'content'"
    weight = message.get("weight")
    if weight is not None and (isinstance(weight, bool) or weight not in _WEIGHTS):
        return f"has the weight {weight!r}, which must be 0 (not trained on) or 1"
    return ""


def _is_call(call: Any) -> bool:
    if not isinstance(call, dict):
        return False
    function = _function(call)
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _function(call: JsonObject) -> Any:
    """Return the function of a call, which may also be given without its frame."""
    return call.get("function", call)

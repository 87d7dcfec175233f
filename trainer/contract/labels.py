"""Answers with a label: what a line of the format `unpaired` contains, checked at the upload and where it is read."""

from typing import Any

from trainer.contract.chat import TOOLS_FIELD, conversation_problem

PROMPT_FIELD, COMPLETION_FIELD, LABEL_FIELD, MESSAGES_FIELD = "prompt", "completion", "label", "messages"


def is_labelled_answer(record: dict[str, Any]) -> bool:
    """Return whether the object of a line is an answer with a label."""
    return not labelled_answer_problem(record)


def labelled_answer_problem(record: dict[str, Any]) -> str:
    """Return why the object of a line is no answer with a label, empty if it is one: `label` is true or false, and
    there are `prompt` and `completion`, both strings or both lists of messages, or `messages`."""
    if LABEL_FIELD not in record or not ({COMPLETION_FIELD, MESSAGES_FIELD} & record.keys()):
        names = ", ".join(sorted(record)[:8])
        needed = f"{COMPLETION_FIELD!r} and {LABEL_FIELD!r}"
        return f"has no fields {needed} (it has: {names}); name the answer and its label so"
    label = record[LABEL_FIELD]
    if label is not True and label is not False:
        return f"has the label {label!r}; write true for an answer to prefer, and false for one to avoid"
    if COMPLETION_FIELD not in record:
        return _messages_problem(MESSAGES_FIELD, record[MESSAGES_FIELD], record.get(TOOLS_FIELD))
    prompt, completion = record.get(PROMPT_FIELD), record[COMPLETION_FIELD]
    if isinstance(prompt, str) and isinstance(completion, str):
        return "" if completion else f"has an empty {COMPLETION_FIELD}; remove the line"
    if not isinstance(prompt, list) or not isinstance(completion, list):
        kinds = f"{PROMPT_FIELD} is a {type(prompt).__name__}, {COMPLETION_FIELD} is a {type(completion).__name__}"
        return f"must have a prompt and a completion that are both strings or both lists of messages, and {kinds}"
    return _messages_problem("prompt and completion", [*prompt, *completion], record.get(TOOLS_FIELD))


def _messages_problem(name: str, messages: Any, tools: Any) -> str:
    problem = conversation_problem(messages, tools)
    if not problem:
        return ""
    return f"has {name} that cannot be read: {name}{'' if problem.startswith('[') else ' '}{problem}"

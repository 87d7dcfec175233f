"""Render conversations with a chat template, and find the assistant's messages in the text: only these are targets.

Templates are Jinja, in Hugging Face's format; they run in a sandbox without a clock, so equal conversations always give
equal tokens. A template may mark the assistant's messages with `{% generation %}`. Without marks, a message is the text
after the prompt for it; if a template changes earlier messages as the conversation continues, only the last one is a
target. Messages of the assistant with the weight 0 are no targets.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import TemplateError, UndefinedError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray

from trainer.contract.chat import TOOLS_FIELD, conversation_problem, trained_messages
from trainer.contract.data import MixturePart
from trainer.contract.hugging_face import TEMPLATE_NAME, TOKENIZER_SETTINGS_NAME
from trainer.data.documents import (
    LONE_SURROGATE,
    STRICT,
    Document,
    Place,
    RawObject,
    Reading,
    RowProblem,
    data_error,
    has_lone_surrogate,
    json_lines,
    names_of,
    row_problem,
)

DEFAULT_TEMPLATE = """\
{%- for tool in tools or [] %}
{{- "### Tool:\\n" + tool | tojson + "\\n\\n" }}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == "assistant" %}
{{- "### Assistant:\\n" }}{% generation %}{{- message.content or "" }}
{%- for call in message.tool_calls or [] %}
{{- "### Call:\\n" + (call.function or call) | tojson + "\\n" }}
{%- endfor %}
{{- eos_token }}{% endgeneration %}{{- "\\n" }}
{%- else %}
{{- "### " + message.role | capitalize + ":\\n" + message.content + "\\n\\n" }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "### Assistant:\\n" }}{% endif %}
"""
"""For models that bring none: an answer ends with the token that ends a text."""

DEFAULT_FIELD = "messages"
_BEGIN, _END = "\ue0f1", "\ue0f2"  # private characters that no text has: where marked text begins and ends
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")

Messages = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None
Spans = list[tuple[int, int]]


class Conversation(Document):
    """The text of a conversation. `counted`: (start, stop) of the spans of characters that are targets."""

    counted: Spans

    def __new__(cls, text: str, counted: Spans) -> "Conversation":
        """Create the text with its counted spans."""
        made = super().__new__(cls, text)
        made.counted = counted
        return made


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}`"""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller: Callable[[], str]) -> str:
        return f"{_BEGIN}{caller()}{_END}"


class ChatTemplate:
    """A Jinja chat template, run in a sandbox."""

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        """Compile the template. Raises TrainerError (DATA_ERROR) for an invalid one."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        self._tokens = special_tokens
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise data_error(f"the chat template is not valid: {error}") from error

    @classmethod
    def from_model(cls, folder: Path | None, end_of_text: str) -> "ChatTemplate":
        """Return the template of a model in Hugging Face's layout; the default one if it has none or there is no
        model."""
        settings = _tokenizer_settings(folder)
        tokens = {name: _text_of(settings[name]) for name in _SPECIAL_TOKENS if settings.get(name)}
        return cls(template_of(folder, settings) or DEFAULT_TEMPLATE, {"eos_token": end_of_text, **tokens})

    def conversation(self, messages: Messages, tools: Tools = None) -> Conversation:
        """Render messages, and the tools that the assistant may call.

        Raises TemplateError if the template refuses them, ValueError if the text has no target, or lacks a call.
        """
        marked, trained = self._render(messages, tools), trained_messages(messages)
        for number, message in enumerate(messages):
            if message.get("tool_calls") and self._leaves_calls_out(messages, tools, number, marked):
                raise ValueError(
                    f"the chat template leaves the calls of message {number} out; use one that knows tools"
                )
        if _BEGIN in marked:
            made = _without_marks(marked)
            answers = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
            if all(trained[number] for number in answers):
                return made
            if len(made.counted) != len(answers):
                raise ValueError(
                    f"the chat template marks {len(made.counted)} spans for {len(answers)} messages of the assistant, "
                    "so that their weights have no span; leave the weights out"
                )
            spans = [span for span, number in zip(made.counted, answers, strict=True) if trained[number]]
            return Conversation(str(made), spans)
        spans = [
            span
            for number, counts in enumerate(trained)
            if counts and (span := self._answer(messages, tools, number, marked))
        ]
        if not spans:
            raise ValueError("the text that the chat template renders contains no message of the assistant to train on")
        return Conversation(marked, spans)

    def prompt(self, text: str) -> str:
        """Return the prompt that makes a model answer `text`."""
        return self.answer_prompt([{"role": "user", "content": text}])

    def answer_prompt(self, messages: Messages, tools: Tools = None) -> str:
        """Return the prompt that makes a model answer these messages. Raises TemplateError if the template refuses
        them."""
        return self._render(messages, tools, add_generation_prompt=True)

    def _leaves_calls_out(self, messages: Messages, tools: Tools, number: int, text: str) -> bool:
        """Return whether `text`, rendered from all messages, is the same without the calls of message `number`."""
        without = {"content": "", **messages[number], "tool_calls": None}
        without["content"] = without["content"] or ""
        try:
            return self._render([*messages[:number], without, *messages[number + 1 :]], tools) == text
        except TemplateError:  # it cannot do without them
            return False

    def _answer(self, messages: Messages, tools: Tools, number: int, text: str) -> tuple[int, int] | None:
        """Return the span of the assistant's message `number` in the text of all messages; None if the template changes
        it later."""
        prompt = self._render(messages[:number], tools, add_generation_prompt=True)
        until = self._render(messages[: number + 1], tools)
        if text.startswith(until) and until.startswith(prompt):
            return len(prompt), len(until)
        return None

    def _render(self, messages: Messages, tools: Tools, *, add_generation_prompt: bool = False) -> str:
        try:
            return self._template.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )  # fmt: skip
        except (TypeError, UndefinedError) as error:  # such as a template that adds to a content that is not there
            raise TemplateError(f"the chat template cannot render these messages: {error}") from error


def has_template(folder: Path | None) -> bool:
    """Return whether a folder has its own chat template."""
    return template_of(folder, _tokenizer_settings(folder)) is not None


def _tokenizer_settings(folder: Path | None) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if folder is not None and (folder / TOKENIZER_SETTINGS_NAME).exists():
        settings = json.loads((folder / TOKENIZER_SETTINGS_NAME).read_text())
    return settings


def template_of(folder: Path | None, settings: dict[str, Any]) -> str | None:
    """Return a folder's own chat template: a file, or an entry of `tokenizer_config.json` (there also by name)."""
    if folder is None:
        return None
    if (folder / TEMPLATE_NAME).exists():
        return (folder / TEMPLATE_NAME).read_text()
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = {each["name"]: each["template"] for each in found}.get("default")
    return found


def read_conversations(
    objects: Iterable[RawObject], part: MixturePart, template: ChatTemplate, reading: Reading = STRICT
) -> Iterator[Conversation]:
    """Yield the conversations of JSONL objects: `{"messages": [{"role": "user", "content": ...}, ...]}` in each line,
    and beside them `tools`, if the assistant calls some.

    Raises TrainerError (DATA_ERROR) that names object and line, unless `reading` does not.
    """
    field = DEFAULT_FIELD if part.text_field == MixturePart.model_fields["text_field"].default else part.text_field
    for raw in objects:
        for place, record in json_lines(raw, reading):
            problem = _problem(place, record, field)
            if problem is not None:
                reading.on_problem(problem)
                continue
            try:
                made = template.conversation(with_parsed_arguments(record[field]), record.get(TOOLS_FIELD))
            except (TemplateError, ValueError) as error:
                reading.on_problem(row_problem("template_refuses", place, str(error)))
                continue
            made.place = place
            reading.on_conversation(place, record[field])
            reading.on_document(made)
            yield made


def counted_tokens(begins: NDArray[np.int64], counted: Spans) -> NDArray[np.bool_]:
    """Return for each token whether its first character is in a target span. `begins`: first character of each."""
    found = np.zeros(len(begins), dtype=bool)
    for start, stop in counted:
        found |= (begins >= start) & (begins < stop)
    return found


def _problem(place: Place, record: Any, field: str) -> RowProblem | None:
    if not isinstance(record, dict) or field not in record:
        kind = "no_messages_field" if isinstance(record, dict) else "not_an_object"
        message = (
            f"no field {field!r} (it has: {names_of(record)}); set text_field to the field that contains the messages"
        )
        return row_problem(kind, place, message)
    messages = record[field]
    found = messages_problem(messages, record, field)
    if found is not None:
        return row_problem(found[0], place, found[1])
    if not any(trained_messages(messages)):
        message = (
            f"{field} has no message with the role assistant and a weight other than 0: there is nothing to train on"
        )
        return row_problem("no_assistant_turn", place, message)
    return None


def messages_problem(messages: Any, record: dict[str, Any], field: str) -> tuple[str, str] | None:
    """Return why values of a record, which errors name `field`, cannot be rendered as messages: the kind of the problem
    and its message, None if they can."""
    problem = conversation_problem(messages, record.get(TOOLS_FIELD))
    if problem:
        kind = "empty_conversation" if messages == [] else "invalid_message"
        return kind, f"{field}{problem}" if problem.startswith("[") else f"{field} {problem}"
    content = json.dumps(record, ensure_ascii=False)
    if has_lone_surrogate(content):
        return "lone_surrogate", f"{field} {LONE_SURROGATE}"
    if _BEGIN in content or _END in content:
        return "private_use_mark", f"{field} contains the private-use character U+E0F1 or U+E0F2; remove it"
    return None


def with_parsed_arguments(messages: Messages) -> Messages:
    """Return messages whose calls have their arguments as objects: some exports write them as JSON in a string, which
    templates would quote again."""
    if not any(message.get("tool_calls") for message in messages):
        return messages
    copied: Messages = json.loads(json.dumps(messages))
    for call in (call for message in copied for call in message.get("tool_calls") or []):
        function = call.get("function", call)
        with suppress(TypeError, ValueError):
            function["arguments"] = json.loads(function.get("arguments"))
    return copied


def _without_marks(marked: str) -> Conversation:
    text, spans = "", []
    for number, piece in enumerate(marked.split(_BEGIN)):
        if number == 0:
            text += piece
            continue
        answer, _, rest = piece.partition(_END)
        spans.append((len(text), len(text) + len(answer)))
        text += answer + rest
    return Conversation(text, spans)


def _text_of(token: Any) -> str:
    return str(token["content"]) if isinstance(token, dict) else str(token)


def _to_json(value: Any, indent: int | None = None, *, ensure_ascii: bool = False, sort_keys: bool = False) -> str:
    """Serialize to JSON without the HTML escapes of Jinja's own `tojson`."""
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii, sort_keys=sort_keys)


def _raise(message: str) -> str:
    raise TemplateError(message)

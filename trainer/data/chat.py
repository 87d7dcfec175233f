"""Render conversations with a chat template, and find the assistant's messages in the text: only these are targets.

Templates are Jinja, in Hugging Face's format; they run in a sandbox without a clock, so equal conversations always give
equal tokens. A template may mark the assistant's messages with `{% generation %}`. Without marks, a message is the text
after the prompt for it; if a template changes earlier messages as the conversation continues, only the last one is a
target.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainer.contract.data import MixturePart
from trainer.contract.hugging_face import TEMPLATE_NAME, TOKENIZER_SETTINGS_NAME
from trainer.data.documents import RawObject, data_error, json_lines

DEFAULT_TEMPLATE = """\
{%- for message in messages %}
{%- if message.role == "assistant" %}
{{- "### Assistant:\\n" }}{% generation %}{{- message.content + eos_token }}{% endgeneration %}{{- "\\n" }}
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
Spans = list[tuple[int, int]]


class Conversation(str):
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
        settings: dict[str, Any] = {}
        if folder is not None and (folder / TOKENIZER_SETTINGS_NAME).exists():
            settings = json.loads((folder / TOKENIZER_SETTINGS_NAME).read_text())
        tokens = {name: _text_of(settings[name]) for name in _SPECIAL_TOKENS if settings.get(name)}
        return cls(template_of(folder, settings) or DEFAULT_TEMPLATE, {"eos_token": end_of_text, **tokens})

    def conversation(self, messages: Messages) -> Conversation:
        """Render messages. Raises TemplateError if the template refuses them, ValueError if the text has no target."""
        marked = self._render(messages)
        if _BEGIN in marked:
            return _without_marks(marked)
        spans = [span for number in range(len(messages)) if (span := self._answer(messages, number, marked))]
        if not spans:
            raise ValueError("the text that the chat template renders contains no message of the assistant")
        return Conversation(marked, spans)

    def prompt(self, text: str) -> str:
        """Return the prompt that makes a model answer `text`."""
        return self._render([{"role": "user", "content": text}], add_generation_prompt=True)

    def _answer(self, messages: Messages, number: int, text: str) -> tuple[int, int] | None:
        """Return the span of message `number` in the text of all messages; None if it is not the assistant's."""
        if messages[number]["role"] != "assistant":
            return None
        prompt = self._render(messages[:number], add_generation_prompt=True)
        until = self._render(messages[: number + 1])
        if text.startswith(until) and until.startswith(prompt):
            return len(prompt), len(until)
        return None

    def _render(self, messages: Messages, *, add_generation_prompt: bool = False) -> str:
        return self._template.render(
            messages=messages, tools=None, documents=None, add_generation_prompt=add_generation_prompt, **self._tokens
        )


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


def read_conversations(objects: Iterable[RawObject], part: MixturePart, template: ChatTemplate) -> Iterator[str]:
    """Yield the conversations of JSONL objects: `{"messages": [{"role": "user", "content": ...}, ...]}` in each line.

    Raises TrainerError (DATA_ERROR) that names object and line.
    """
    field = DEFAULT_FIELD if part.text_field == MixturePart.model_fields["text_field"].default else part.text_field
    for raw in objects:
        for place, record in json_lines(raw):
            problem = _problem(record, field)
            if problem:
                raise data_error(f"{place}: {problem}")
            try:
                yield template.conversation(record[field])
            except (TemplateError, ValueError) as error:
                raise data_error(f"{place}: {error}") from error


def counted_tokens(offsets: list[tuple[int, int]], counted: Spans) -> list[bool]:
    """Return for each token whether its first character is in a target span. `offsets`: characters of each token."""
    return [any(start <= begin < stop for start, stop in counted) for begin, _ in offsets]


def _problem(record: Any, field: str) -> str:
    if not isinstance(record, dict) or field not in record:
        names = ", ".join(sorted(record)[:8]) if isinstance(record, dict) else f"a {type(record).__name__}"
        return f"no field {field!r} (it has: {names}); set text_field to the field that contains the messages"
    messages = record[field]
    if not isinstance(messages, list) or not messages:
        return f"{field} must be a list of messages, and not empty"
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not all(isinstance(message.get(name), str) for name in ("role", "content")):
            return f"{field}[{number}] must have a role and a content, both strings"
        if _BEGIN in message["content"] or _END in message["content"]:
            return f"{field}[{number}] contains the private-use character U+E0F1 or U+E0F2; remove it"
    if all(message["role"] != "assistant" for message in messages):
        return f"{field} has no message with the role assistant, so there is nothing to train on"
    return ""


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

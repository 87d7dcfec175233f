"""Kinds of findings of the data report: severity, what it means, and what to do."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["critical", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
"""From the most severe on."""


@dataclass(frozen=True)
class FindingKind:
    """`title`: as a noun phrase. `remedy`: what to do."""

    severity: Severity
    title: str
    remedy: str


_REMOVE = "remove or correct these rows; training ends at the first of them"
_REVOKE = "revoke it where it was issued, then remove it from the data: a model can repeat what it has learned"
_PERSONAL = "remove it or replace it by a placeholder unless you may train on it"

FINDINGS: dict[str, FindingKind] = {
    # Rows that training refuses.
    "not_utf8": FindingKind("critical", "bytes that are not UTF-8", "convert the file, such as with iconv -t utf-8"),
    "row_too_long": FindingKind("critical", "lines above the size limit", "divide them into several documents"),
    "not_json": FindingKind("critical", "lines that are not JSON", _REMOVE),
    "not_parquet": FindingKind("critical", "files that are no readable parquet", "write the file again"),
    "not_an_object": FindingKind("critical", "lines that are no JSON object", _REMOVE),
    "no_text_field": FindingKind("critical", "rows without the text field", "set training.data.text_field, or add it"),
    "text_not_string": FindingKind("critical", "texts that are no string", _REMOVE),
    "lone_surrogate": FindingKind("critical", "half surrogate pairs", _REMOVE),
    "no_messages_field": FindingKind("critical", "rows without the field of messages", "set text_field, or add it"),
    "empty_conversation": FindingKind("critical", "conversations without messages", _REMOVE),
    "invalid_message": FindingKind("critical", "invalid messages, weights, calls or tools", _REMOVE),
    "private_use_mark": FindingKind("critical", "private-use characters U+E0F1 or U+E0F2", _REMOVE),
    "no_assistant_turn": FindingKind("critical", "conversations without an answer to train on", _REMOVE),
    "template_refuses": FindingKind("critical", "conversations that the chat template refuses", _REMOVE),
    "invalid_pair": FindingKind("critical", "pairs that lack an answer, or mix texts and messages", _REMOVE),
    "no_documents": FindingKind("critical", "no document at all", "add files with text"),
    "too_few_tokens": FindingKind(
        "critical", "a split with less than one sequence", "add text, or set a shorter training.sequence_length"
    ),
    # Conversations.
    "empty_answer": FindingKind("warning", "answers without text or calls", "remove these conversations"),
    "empty_prompt": FindingKind("warning", "messages of the user without text", "remove these conversations"),
    "unanswered": FindingKind("warning", "conversations that do not end with an answer", "add the answer, or cut it"),
    "no_user_turn": FindingKind("warning", "answers before any message of the user", "add the prompt, or remove them"),
    "same_role_twice": FindingKind("warning", "two messages of the user or assistant in a row", "join the messages"),
    "late_system": FindingKind("warning", "system messages after the first message", "move them to the beginning"),
    "unknown_role": FindingKind(
        "warning", "roles other than system, developer, user, assistant and tool", "rename the role"
    ),
    "tool_without_call": FindingKind("warning", "results of tools without a call before them", "add the call"),
    "call_without_result": FindingKind("info", "calls without a result before the next answer", "add the result"),
    "unclosed_code": FindingKind("info", "answers with an unclosed code block, perhaps cut off", "complete them"),
    "assistant_boilerplate": FindingKind(
        "info", "answers in which the assistant describes itself as a language model", "remove them, or rewrite them"
    ),
    "conflicting_answers": FindingKind(
        "info", "equal prompts with different answers", "leave one answer unless the variety is intended"
    ),
    # Pairs of answers.
    "identical_answers": FindingKind(
        "warning", "pairs of which both answers are the same", "remove them: nothing is learned from them"
    ),
    "contradicting_pairs": FindingKind(
        "warning", "pairs that prefer the answer which an earlier pair rejects", "remove one of the two"
    ),
    # Lengths.
    "longer_than_sequence": FindingKind(
        "warning", "documents longer than a sequence", "set a longer training.sequence_length"
    ),
    "nothing_learned": FindingKind(
        "warning", "conversations with no learned token in what a sequence takes of them",
        "set a longer training.sequence_length, or shorten the prompts",
    ),
    "empty_text": FindingKind("warning", "rows without text, which training leaves out", "remove them"),
    # Text.
    "replacement_character": FindingKind("warning", "replacement characters (U+FFFD)", "decode the source again"),
    "mojibake": FindingKind("warning", "UTF-8 that was decoded as Latin-1", "decode the source as UTF-8"),
    "control_characters": FindingKind("warning", "control characters", "remove them"),
    "invisible_characters": FindingKind(
        "warning", "zero-width characters inside words, or bidirectional controls", "remove them"
    ),
    "mixed_script_words": FindingKind(
        "warning", "words of Latin letters mixed with Cyrillic ones", "replace the look-alike letters"
    ),
    "special_tokens": FindingKind(
        "warning", "special tokens of the tokenizer in the text, which become control tokens",
        "remove them unless they are intended",
    ),
    "repeated_lines": FindingKind("warning", "documents that repeat one line", "remove the repetitions"),
    "repeated_characters": FindingKind("info", "runs of 64 or more equal letters or digits", "shorten them"),
    "unbroken_run": FindingKind(
        "warning", "runs of 500 or more characters without a space, such as encoded files", "remove them"
    ),
    "few_letters": FindingKind("info", "documents of which few characters are letters", "remove them if unintended"),
    "html_markup": FindingKind("info", "HTML tags or entities", "extract the text"),
    "placeholder_text": FindingKind("info", "placeholder text (lorem ipsum)", "remove it"),
    # Repetition between documents.
    "exact_duplicate": FindingKind("warning", "copies of an earlier document", "remove the copies"),
    "near_duplicate": FindingKind(
        "warning", "documents nearly equal to an earlier one", "remove them unless the variety is intended"
    ),
    "evaluation_overlap": FindingKind(
        "critical", "documents that share text with evaluation data", "remove them: scores would measure memory"
    ),
    # Secrets and personal data.
    "private_key": FindingKind("critical", "private keys", _REVOKE),
    "aws_key": FindingKind("critical", "AWS access key ids", _REVOKE),
    "google_key": FindingKind("critical", "Google API keys", _REVOKE),
    "github_token": FindingKind("critical", "GitHub tokens", _REVOKE),
    "gitlab_token": FindingKind("critical", "GitLab tokens", _REVOKE),
    "slack_token": FindingKind("critical", "Slack tokens", _REVOKE),
    "stripe_key": FindingKind("critical", "Stripe keys", _REVOKE),
    "model_api_key": FindingKind("critical", "API keys that begin with sk-", _REVOKE),
    "hugging_face_token": FindingKind("critical", "Hugging Face tokens", _REVOKE),
    "npm_token": FindingKind("critical", "npm tokens", _REVOKE),
    "json_web_token": FindingKind("critical", "JSON web tokens", _REVOKE),
    "password_in_url": FindingKind("critical", "URLs with a password", _REVOKE),
    "card_number": FindingKind("warning", "card numbers (valid by Luhn)", _PERSONAL),
    "iban": FindingKind("warning", "IBANs (valid checksum)", _PERSONAL),
    "email": FindingKind("warning", "e-mail addresses", _PERSONAL),
    "phone_number": FindingKind("info", "international phone numbers", _PERSONAL),
    "social_security_number": FindingKind("warning", "US social security numbers", _PERSONAL),
    "ip_address": FindingKind("info", "public IPv4 addresses", _PERSONAL),
}  # fmt: skip

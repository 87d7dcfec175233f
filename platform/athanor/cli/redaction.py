"""Replace what may be a secret in text and JSON that leaves the organisation. Pure.

Secrets are found by the names beside them and by the forms of well-known keys. A secret without either is not found:
read a support bundle before you send it.
"""

import re
from collections.abc import Iterable
from typing import Any

MASK = "***"
# Names of fields and variables that hold secrets, also as a part of a longer name: HF_TOKEN, clientSecret.
_WORDS = (
    "passw(?:or)?d|passphrase|secret|api[_-]?key|access[_-]?key|private[_-]?key|credential|authorization|cookie|"
    "signature"
)
_NAME = rf"[\w.-]*(?:{_WORDS})[\w.-]*|[\w.-]*[_-](?:token|key)|\btoken"
_SECRET_NAME = re.compile(rf"{_WORDS}|(?:^|[_-])(?:token|key)$|[a-z]Token$", re.IGNORECASE)
_PATTERNS = tuple(
    (re.compile(pattern, flags), replacement)
    for pattern, flags, replacement in (
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL, MASK),
        # A name and its value: password=..., "apiKey": "two words", Authorization: Bearer ..., --token ...
        (
            rf"""((?:{_NAME})["']?\s*[:=]\s*|--(?:{_NAME})\s+)"""
            r"""(?:"[^"]*"|'[^']*'|(?:(?:bearer|basic|token)\s+)?[^\s"',;&)}\]]+)""",
            re.IGNORECASE,
            rf"\g<1>{MASK}",
        ),
        (r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.IGNORECASE, rf"\g<1> {MASK}"),
        (r"(\b[a-z][a-z0-9+.-]*://)[^\s/@\"']*@", re.IGNORECASE, rf"\g<1>{MASK}@"),  # user and password of an address
        (r"([?&](?:X-Amz-[\w-]+|sig|sv|se|st|key|code)=)[^&\s\"']+", re.IGNORECASE, rf"\g<1>{MASK}"),
        (r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?", 0, MASK),  # JSON Web Tokens
        (r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", 0, MASK),
        # Tokens of Athanor, Hugging Face, GitHub, GitLab, OpenAI, Slack, Google, Standard Webhooks, npm and PyPI.
        (
            r"\b(?:ath_|athinv_|hf_|gh[oprsu]_|github_pat_|glpat-|sk-|xox[abeprs]-|AIza|whsec_|npm_|pypi-)[\w.-]{10,}",
            0,
            MASK,
        ),
        (r"https://hooks\.slack\.com/services/\S+", 0, f"https://hooks.slack.com/services/{MASK}"),
        (r"\b[\w.+-]+@(?=[\w-]+\.[\w.-]+)", 0, f"{MASK}@"),  # the person of a mail address
    )
)


def redact_text(text: str, known: Iterable[str] = ()) -> str:
    """Return the text with MASK in place of secrets, of which `known` are replaced wherever they occur."""
    for value in known:
        text = text.replace(value, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact(value: Any, known: Iterable[str] = ()) -> Any:
    """Return JSON with its texts redacted, and each text in a field with the name of a secret replaced."""
    if isinstance(value, str):
        return redact_text(value, known)
    if isinstance(value, list):
        return [redact(each, known) for each in value]
    if isinstance(value, dict):
        return {
            redact_text(str(name), known): _without_texts(each)
            if _SECRET_NAME.search(str(name))
            else redact(each, known)
            for name, each in value.items()
        }
    return value


def _without_texts(value: Any) -> Any:
    """Return a value with the same structure and numbers, and no text."""
    if isinstance(value, str):
        return MASK if value else ""
    if isinstance(value, list):
        return [_without_texts(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_texts(each) for name, each in value.items()}
    return value

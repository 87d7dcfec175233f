"""Secrets and personal data, found by pattern. What only looks like one, such as a placeholder, is left out."""

import ipaddress
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

_RESERVED_DOMAINS = re.compile(
    r"(?:^|\.)(?:example\.(?:com|org|net)|example|test|invalid|localhost|local)$", re.IGNORECASE
)
_PLACEHOLDER = re.compile(r"(?i)^(?:pass(?:word|wd)?|pwd|secret|user(?:name)?|your.*|x+|\*+|\.+|[<${\[].*)$")
_MIN_DISTINCT = 8
IBAN_LENGTHS = {
    "AD": 24, "AE": 23, "AT": 20, "BE": 16, "BG": 22, "BR": 29, "CH": 21, "CY": 28, "CZ": 24, "DE": 22, "DK": 18,
    "EE": 20, "ES": 24, "FI": 18, "FR": 27, "GB": 22, "GR": 27, "HR": 21, "HU": 28, "IE": 22, "IL": 23, "IS": 26,
    "IT": 27, "LI": 21, "LT": 20, "LU": 20, "LV": 21, "MC": 27, "MT": 31, "NL": 18, "NO": 15, "PL": 28, "PT": 25,
    "RO": 24, "RS": 22, "SA": 24, "SE": 24, "SI": 19, "SK": 24, "TR": 26, "UA": 29,
}  # fmt: skip
"""Length of an IBAN by country (registry of ISO 13616)."""


@dataclass(frozen=True)
class Pattern:
    """`anchors`: one of these texts is in every match, so that others need no search. `check`: whether a match counts.
    `shown`: how many of its first characters the report may show, those that are the same for all such secrets."""

    kind: str
    anchors: tuple[str, ...]
    expression: re.Pattern[str]
    check: Callable[[str], bool] = lambda text: True
    shown: int = 0


def is_luhn_valid(digits: str) -> bool:
    """Return whether the last digit is the check digit of the others (ISO/IEC 7812-1)."""
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(each - 9 if each > 9 else each for each in doubled) % 10 == 0


def is_iban(text: str) -> bool:
    """Return whether a text without spaces has the length of its country and a valid checksum (ISO 7064, MOD 97-10)."""
    if len(text) != IBAN_LENGTHS.get(text[:2]):
        return False
    return int("".join(str(int(char, 36)) for char in text[4:] + text[:4])) % 97 == 1


def _is_card(text: str) -> bool:
    digits = re.sub(r"\D", "", text)
    has_issuer = re.match(r"3[47]|4|5[1-5]|2[2-7]|6011|65", digits) is not None
    return has_issuer and len(set(digits)) > 2 and is_luhn_valid(digits)


def _is_mixed(text: str) -> bool:
    """Return whether a token has as many different characters as random ones have."""
    return len(set(text)) >= _MIN_DISTINCT and any(char.isdigit() for char in text) and "EXAMPLE" not in text


def _is_personal_address(text: str) -> bool:
    name, _, domain = text.partition("@")
    return name != "git" and not _RESERVED_DOMAINS.search(domain)


def _has_password(url: str) -> bool:
    host = url.rpartition("@")[2]
    password = url.rpartition("@")[0].rpartition(":")[2]
    return not _PLACEHOLDER.match(password) and not _RESERVED_DOMAINS.search(host)


def _is_phone_number(text: str) -> bool:
    return 9 <= sum(char.isdigit() for char in text) <= 15


def _is_public_address(text: str) -> bool:
    try:
        return ipaddress.IPv4Address(text).is_global
    except ValueError:
        return False


def _token(kind: str, anchors: tuple[str, ...], expression: str, shown: int) -> Pattern:
    return Pattern(kind, anchors, re.compile(rf"(?<![A-Za-z0-9_-])(?:{expression})"), _is_mixed, shown)


PATTERNS = (
    Pattern(
        "private_key",
        ("PRIVATE KEY",),
        re.compile(
            r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----(?:\s|\\[nr])*(?:[A-Za-z-]+: [^\n]*\n\s*)*"
            r"[A-Za-z0-9+/=]{16,}[\s\S]*?(?:-----END|\Z)"
        ),
    ),
    _token("aws_key", ("AKIA", "ASIA"), r"(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Za-z0-9])", 4),
    _token("google_key", ("AIza",), r"AIza[0-9A-Za-z_-]{35}(?![0-9A-Za-z_-])", 4),
    _token(
        "github_token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{60,255}",
        4,
    ),
    _token("gitlab_token", ("glpat-",), r"glpat-[A-Za-z0-9_-]{20,}", 6),
    _token("slack_token", ("xox",), r"xox[abprs]-[A-Za-z0-9-]{20,}", 5),
    _token("stripe_key", ("k_live_",), r"[sr]k_live_[A-Za-z0-9]{16,}", 8),
    _token("model_api_key", ("sk-",), r"sk-[A-Za-z0-9_-]{32,}", 3),
    _token("hugging_face_token", ("hf_",), r"hf_[A-Za-z0-9]{30,}", 3),
    _token("npm_token", ("npm_",), r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9])", 4),
    _token("json_web_token", ("eyJ",), r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}", 3),
    Pattern(
        "password_in_url",
        ("://",),
        re.compile(r"(?<![A-Za-z0-9])[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{1,64}:[^\s/@]{3,64}@[\w.-]+"),
        _has_password,
    ),
    Pattern(
        "email",
        ("@",),
        re.compile(
            r"(?<![A-Za-z0-9._%+/:-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}"
        ),
        _is_personal_address,
    ),
    Pattern("phone_number", ("+",), re.compile(r"(?<![\w+])\+[1-9](?:[ .()-]{0,2}\d){8,14}(?!\d)"), _is_phone_number),
)
_WITH_DIGITS = (
    Pattern("card_number", (), re.compile(r"(?<![\w.-])\d(?:[ -]?\d){12,18}(?![\w-])"), _is_card),
    Pattern(
        "social_security_number",
        (),
        re.compile(r"(?<![\w.-])(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\w-])"),
    ),
    Pattern("ip_address", (), re.compile(r"(?<![\w.-])\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)"), _is_public_address),
)
_IBAN_START = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d\d(?= ?[A-Z0-9]{4})")
_DIGITS = re.compile(r"\d[\d. -]{5}")
"""Before each of what `_WITH_DIGITS` and an IBAN has; most texts have none."""

Match = tuple[str, int, int, str]
"""Kind, begin, end, and what the report may show of it."""


class SecretsOfTexts:
    """Which patterns can match in which of many texts: those with a text that is in every match."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._joined = texts, "\n".join(texts)
        self._ends = list(accumulate(len(text) + 1 for text in texts))

    def find(self) -> Iterator[tuple[int, Match]]:
        """Yield (number of the text, match) of what `find_secrets` finds in each text, by pattern."""
        for pattern in PATTERNS:
            for number in sorted({number for anchor in pattern.anchors for number in self._having(anchor)}):
                yield from ((number, match) for match in _matches(pattern, self._texts[number]))
        for number in self._with_digits():
            yield from ((number, match) for match in _matches_with_digits(self._texts[number]))

    def _having(self, anchor: str) -> Iterator[int]:
        """Yield the numbers of the texts that have an anchor, which has no line end."""
        place = self._joined.find(anchor)
        while place >= 0:
            number = bisect_right(self._ends, place)
            yield number
            place = self._joined.find(anchor, self._ends[number])

    def _with_digits(self) -> Iterator[int]:
        found = _DIGITS.search(self._joined)
        while found:
            number = bisect_right(self._ends, found.start())
            yield number
            found = _DIGITS.search(self._joined, self._ends[number])


def find_secrets(text: str) -> Iterator[Match]:
    """Yield secrets and personal data in a text."""
    for pattern in PATTERNS:
        for anchor in pattern.anchors:
            if anchor in text:
                yield from _matches(pattern, text)
                break
    if _DIGITS.search(text):
        yield from _matches_with_digits(text)


def hide_secrets(text: str) -> str:
    """Return a text without what `find_secrets` finds in it."""
    for _, start, stop, shown in sorted(find_secrets(text), key=lambda match: -match[1]):
        text = f"{text[:start]}{shown or '…'}{text[stop:]}"
    return text


def _matches(pattern: Pattern, text: str) -> Iterator[Match]:
    for match in pattern.expression.finditer(text):
        if pattern.check(match[0]):
            shown = f"{match[0][: pattern.shown]}… ({len(match[0])} characters)" if pattern.shown else ""
            yield pattern.kind, match.start(), match.end(), shown


def _matches_with_digits(text: str) -> Iterator[Match]:
    for pattern in _WITH_DIGITS:
        yield from _matches(pattern, text)
    yield from _ibans(text)


def _ibans(text: str) -> Iterator[Match]:
    for start in _IBAN_START.finditer(text):
        length, taken, end = IBAN_LENGTHS.get(start[0][:2], 0), "", start.start()
        while end < len(text) and len(taken) < length:
            if text[end] != " ":
                taken += text[end]
            end += 1
        is_complete = end == len(text) or not text[end].isalnum()
        if is_complete and taken.isascii() and taken.isalnum() and is_iban(taken):
            yield "iban", start.start(), end, ""

"""A corpus of JSON lines with planted defects of more than 50 kinds, clean rows, and rows that only look defective."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_ROW_BYTES, SEQUENCE_LENGTH = 100_000, 4096
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
SYLLABLES = [
    first + second for first in ("b", "cl", "d", "f", "gr", "l", "m", "r", "t") for second in ("a", "en", "o", "u")
]


class Maker:
    """Random texts of words that no two rows share in long runs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._vocabulary = ["".join(self.random.choices(SYLLABLES, k=self.random.randint(1, 4))) for _ in range(5000)]
        self.clean: list[str] = []  # texts of clean rows, of which there may be copies
        self.pairs: list[dict[str, Any]] = []  # clean pairs
        self.evaluation = [self.words(40) for _ in range(50)]

    def words(self, count: int) -> str:
        return " ".join(self.random.choices(self._vocabulary, k=count))

    def text(self) -> str:
        sentences = [
            self.words(self.random.randint(6, 14)).capitalize() + "." for _ in range(self.random.randint(5, 9))
        ]
        return " ".join(sentences)

    def with_text(self, planted: str) -> str:
        return f"{self.text()} {planted} {self.text()}"

    def token(self, alphabet: str, count: int) -> str:
        """Random characters, at least one digit among them, as in tokens."""
        body = self.random.choices(alphabet, k=count - 1)
        body.insert(self.random.randrange(count), self.random.choice(DIGITS[2:8]))
        return "".join(body)

    def card(self) -> str:
        digits = "4" + "".join(self.random.choices(DIGITS, k=14))
        return digits + str(luhn_digit(digits))

    def iban(self) -> str:
        account = "".join(self.random.choices(DIGITS, k=18))
        check = 98 - int(f"{account}131400") % 97  # D is 13, E is 14
        return f"DE{check:02}{account}"


def luhn_digit(digits: str) -> int:
    total = sum(sum(divmod(int(digit) * (2 - place % 2), 10)) for place, digit in enumerate(reversed(digits)))
    return -total % 10


Make = Callable[[Maker], Any]


@dataclass(frozen=True)
class Defect:
    """`make`: the value of the row's field, or the row as bytes. `findings`: the kinds that the report must find."""

    name: str
    make: Make
    findings: set[str]


def found(name: str, make: Make, finding: str = "", *others: str) -> Defect:
    return Defect(name, make, {finding or name.replace(" ", "_"), *others})


def key_block(maker: Maker, label: str) -> str:
    lines = [maker.token(LETTERS + DIGITS + "+/", 64) for _ in range(4)]
    return f"-----BEGIN {label}-----\n" + "\n".join(lines) + f"\n-----END {label}-----"


def one_word_changed(maker: Maker) -> str:
    words = maker.random.choice([text for text in maker.clean if len(text.split()) >= 55]).split()
    words[maker.random.randrange(10, len(words) - 10)] = "otherwise"
    return " ".join(words)


TEXT_DEFECTS = [
    found("not UTF-8", lambda m: b'{"text": "caf\xe9"}', "not_utf8"),
    found("line too long", lambda m: m.words(30_000), "row_too_long"),
    found("line cut off", lambda m: json.dumps({"text": m.text()})[:-30].encode(), "not_json"),
    found("two objects in a line", lambda m: b'{"text": "a"} {"text": "b"}', "not_json"),
    found("nested too deeply", lambda m: b"[" * 90_000, "not_json"),
    found("a list", lambda m: b'["text"]', "not_an_object"),
    found("other field", lambda m: json.dumps({"body": m.text()}).encode(), "no_text_field"),
    found("null", lambda m: None, "text_not_string"),
    found("number", lambda m: 17, "text_not_string"),
    found("half a surrogate pair", lambda m: m.with_text("\ud83d"), "lone_surrogate"),
    found("blank", lambda m: " \n\t", "empty_text"),
    found("replacement character", lambda m: m.with_text("caf\ufffd")),
    found("decoded as Latin-1", lambda m: m.with_text("café".encode().decode("latin-1")), "mojibake"),
    found("bell", lambda m: m.with_text("\x07"), "control_characters"),
    found("terminal colour", lambda m: m.with_text("\x1b[31mred\x1b[0m"), "control_characters"),
    found("right-to-left override", lambda m: m.with_text("access\u202elevel"), "invisible_characters"),
    found("zero-width space in a word", lambda m: m.with_text("pass\u200bword"), "invisible_characters"),
    found("Cyrillic letter in a Latin word", lambda m: m.with_text("p\u0430ypal"), "mixed_script_words"),
    found("end of text in the text", lambda m: m.with_text("<|endoftext|>"), "special_tokens"),
    found("one line over and over", lambda m: "\n".join([m.words(6)] * 8), "repeated_lines"),
    found("one letter over and over", lambda m: m.with_text("a" * 120), "repeated_characters"),
    found("encoded file", lambda m: m.with_text(m.token(LETTERS + DIGITS + "+/", 900)), "unbroken_run"),
    found("numbers only", lambda m: " ".join(str(m.random.random()) for _ in range(40)), "few_letters"),
    found("HTML tags", lambda m: m.with_text('<div class="x">content</div>'), "html_markup"),
    found("HTML entities", lambda m: m.with_text("salt&nbsp;&amp;&nbsp;pepper"), "html_markup"),
    found("placeholder text", lambda m: m.with_text("Lorem ipsum dolor sit amet")),
    found("copy", lambda m: m.random.choice(m.clean), "exact_duplicate"),
    found("copy with one word changed", one_word_changed, "near_duplicate"),
    found("evaluation row", lambda m: m.with_text(m.random.choice(m.evaluation)), "evaluation_overlap"),
    found("private key", lambda m: m.with_text(key_block(m, "RSA PRIVATE KEY"))),
    found("OpenSSH key", lambda m: m.with_text(key_block(m, "OPENSSH PRIVATE KEY")), "private_key"),
    found("AWS key", lambda m: m.with_text("AKIA" + m.token("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16)), "aws_key"),
    found("Google key", lambda m: m.with_text("AIza" + m.token(LETTERS + DIGITS, 35)), "google_key"),
    found("GitHub token", lambda m: m.with_text("ghp_" + m.token(LETTERS + DIGITS, 36)), "github_token"),
    found("fine-grained GitHub token", lambda m: m.with_text("github_pat_" + m.token(LETTERS, 82)), "github_token"),
    found("GitLab token", lambda m: m.with_text("glpat-" + m.token(LETTERS + DIGITS, 20)), "gitlab_token"),
    found("Slack token", lambda m: m.with_text("xoxb-" + m.token(DIGITS + LETTERS, 40)), "slack_token"),
    found("Stripe key", lambda m: m.with_text("sk_live_" + m.token(LETTERS + DIGITS, 24)), "stripe_key"),
    found("model API key", lambda m: m.with_text("sk-proj-" + m.token(LETTERS + DIGITS, 48)), "model_api_key"),
    found("Hugging Face token", lambda m: m.with_text("hf_" + m.token(LETTERS + DIGITS, 34)), "hugging_face_token"),
    found("npm token", lambda m: m.with_text("npm_" + m.token(LETTERS + DIGITS, 36))),
    found(
        "JSON web token",
        lambda m: m.with_text(f"eyJ{m.token(LETTERS, 30)}.eyJ{m.token(LETTERS, 40)}.{m.token(LETTERS, 43)}"),
        "json_web_token",
    ),
    found(
        "password in URL",
        lambda m: m.with_text(f"postgres://app:{m.token(LETTERS, 12)}@db.acme.io/"),
        "password_in_url",
    ),
    found("card number", lambda m: m.with_text(m.card())),
    found(
        "card number in groups",
        lambda m: m.with_text(" ".join(card[at : at + 4] for card in [m.card()] for at in (0, 4, 8, 12))),
        "card_number",
    ),
    found("IBAN", lambda m: m.with_text(m.iban()), "iban"),
    found("e-mail address", lambda m: m.with_text(f"{m.words(1)}.{m.words(1)}@acme-mail.io"), "email"),
    found("phone number", lambda m: m.with_text("+49 30 " + "".join(m.random.choices(DIGITS[1:], k=8)))),
    found("social security number", lambda m: m.with_text(f"{m.random.randint(100, 600)}-45-6789")),
    found("IP address", lambda m: m.with_text(f"93.184.{m.random.randint(1, 250)}.34"), "ip_address"),
]  # fmt: skip


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any, **others: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **others}


def turns(maker: Maker, *more: dict[str, Any]) -> list[dict[str, Any]]:
    return [user(maker.text()), assistant(maker.text()), *more]


CALL = [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]
PROMPT = "Choose a word for me, any word that you like."
CHAT_DEFECTS = [
    found("other field", lambda m: json.dumps({"chat": turns(m)}).encode(), "no_messages_field"),
    found("no messages", lambda m: [], "empty_conversation"),
    found("messages as text", lambda m: m.text(), "invalid_message"),
    found("no role", lambda m: [{"content": m.text()}, assistant(m.text())], "invalid_message"),
    found("no content", lambda m: [user(None), assistant(m.text())], "invalid_message"),
    found("weight of a half", lambda m: [user(m.text()), assistant(m.text(), weight=0.5)], "invalid_message"),
    found("calls without a name", lambda m: [user(m.text()), assistant("", tool_calls=[{"id": 1}])], "invalid_message"),
    found(
        "tools as text",
        lambda m: json.dumps({"messages": turns(m), "tools": "weather"}).encode(),
        "invalid_message",
    ),
    found("private-use mark", lambda m: turns(m, user("\ue0f1"), assistant(m.text())), "private_use_mark"),
    found("no assistant", lambda m: [user(m.text())], "no_assistant_turn"),
    found("answers of weight 0", lambda m: [user(m.text()), assistant(m.text(), weight=0)], "no_assistant_turn"),
    found(
        "template cannot render",
        lambda m: turns(m, {"role": "user", "content": None, "tool_calls": CALL}),
        "template_refuses",
    ),
    found("empty answer", lambda m: [user(m.text()), assistant("")]),
    found("empty prompt", lambda m: [user(" "), assistant(m.text())]),
    found("unanswered", lambda m: turns(m, user(m.text()))),
    found("answer without prompt", lambda m: [assistant(m.text())], "no_user_turn"),
    found("two prompts", lambda m: [user(m.text()), user(m.text()), assistant(m.text())], "same_role_twice"),
    found("two answers", lambda m: turns(m, assistant(m.text())), "same_role_twice"),
    found(
        "late system",
        lambda m: turns(m, {"role": "system", "content": m.text()}, user(m.text()), assistant(m.text())),
    ),
    found("human instead of user", lambda m: [{"role": "human", "content": m.text()}, *turns(m)], "unknown_role"),
    found("tool without call", lambda m: turns(m, {"role": "tool", "content": "12 C"}, assistant(m.text()))),
    found(
        "call without result",
        lambda m: [user(m.text()), assistant("", tool_calls=CALL), user(m.text()), assistant(m.text())],
    ),
    found(
        "code not closed",
        lambda m: [user(m.text()), assistant(f"{m.text()}\n```python\nprint(1)\n")],
        "unclosed_code",
    ),
    found("assistant boilerplate", lambda m: [user(m.text()), assistant(f"As an AI language model, {m.text()}")]),
    found(
        "longer than sequence",
        lambda m: [user(m.text()), assistant(m.words(4000))],
    ),
    found(
        "prompt longer than sequence",
        lambda m: [user(m.words(4000)), assistant(m.text())],
        "longer_than_sequence",
        "nothing_learned",
    ),
    found("same prompt, other answer", lambda m: [user(PROMPT), assistant(m.text())], "conflicting_answers"),
    found(
        "e-mail in a call",
        lambda m: [user(m.text()), assistant(None, tool_calls=[{"name": "mail", "arguments": f"{m.words(1)}@a-b.io"}])],
        "email",
    ),
    found("e-mail in an answer", lambda m: [user(m.text()), assistant(f"{m.text()} {m.words(1)}@acme.io")], "email"),
]  # fmt: skip


def pair(maker: Maker, **fields: Any) -> bytes:
    """A line with a prompt and two answers, as texts."""
    record = {"prompt": maker.text(), "chosen": f" {maker.text()}", "rejected": f" {maker.text()}", **fields}
    if not fields:
        maker.pairs.append(record)
    return json.dumps({name: value for name, value in record.items() if value is not None}).encode()


def same_answers(maker: Maker, **fields: Any) -> bytes:
    answer = f" {maker.text()}"
    return pair(maker, chosen=answer, rejected=answer, **fields)


def chat_pair(maker: Maker, *prompt: dict[str, Any]) -> bytes:
    answers = {name: [assistant(maker.text())] for name in ("chosen", "rejected")}
    return pair(maker, prompt=list(prompt) or [user(maker.text())], **answers)


def opposite_pair(maker: Maker) -> bytes:
    earlier = maker.pairs.pop()
    return pair(maker, prompt=earlier["prompt"], chosen=earlier["rejected"], rejected=earlier["chosen"])


PAIR_DEFECTS = [
    found("not an object", lambda m: b'["chosen"]'),
    found("no rejected answer", lambda m: pair(m, rejected=None), "invalid_pair"),
    found("empty answer", lambda m: pair(m, chosen=""), "invalid_pair"),
    found("texts and messages", lambda m: pair(m, chosen=[assistant(m.text())]), "invalid_pair"),
    found("same answers without a prompt", lambda m: same_answers(m, prompt=None), "identical_answers"),
    found("same answers", same_answers, "identical_answers"),
    found("opposite of another pair", opposite_pair, "contradicting_pairs", "near_duplicate"),
    found("half a surrogate pair", lambda m: pair(m, chosen=" \ud83d"), "lone_surrogate"),
    found("two prompts", lambda m: chat_pair(m, user(m.text()), user(m.text())), "same_role_twice"),
    found("answer before a prompt", lambda m: chat_pair(m, {"role": "system", "content": m.text()}), "no_user_turn"),
    found("no content", lambda m: chat_pair(m, user(None)), "invalid_message"),
    found("longer than sequence", lambda m: pair(m, chosen=f" {m.words(4000)}")),
    found("e-mail in the rejected answer", lambda m: pair(m, rejected=f" {m.words(1)}@acme.io is wrong"), "email"),
]  # fmt: skip

HALF = "This sentence is in many rows of the corpus, the same in each of them, so that they share some runs of words."
TEXT_DECOYS: list[Make] = [
    lambda m: m.with_text("4111 1111 1111 1112"),  # not valid by Luhn
    lambda m: m.with_text("DE89370400440532013001"),  # another checksum
    lambda m: m.with_text("joe@example.com, git@github.com, @handle and a@b"),
    lambda m: m.with_text("AKIAIOSFODNN7EXAMPLE, sk-short, hf_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"),
    lambda m: m.with_text("ghp_" + "x" * 36),
    lambda m: m.with_text("postgres://user:password@localhost/main and redis://app:${PASSWORD}@db.acme.io"),
    lambda m: m.with_text("-----BEGIN PRIVATE KEY----- is how a key begins."),
    lambda m: m.with_text("version 1.2.3.4.5, v10.11.12.13, 192.168.0.1, 10.0.0.1, 127.0.0.1"),
    lambda m: m.with_text("2024-05-06 12:30:45, 000-12-3456, 123-45-67890, 1+1=2, +1"),
    lambda m: m.with_text("if a < b and c > d: x = y << 2 & mask"),
    lambda m: m.with_text("Δx, 5 μm, naïve café, iPhone'ом, USB-кабель"),
    lambda m: "Съешь ещё этих мягких французских булок, да выпей чаю. " + str(m.random.random()),
    lambda m: "敏捷的棕色狐狸跳過懶狗，" + "".join(chr(m.random.randint(0x4E00, 0x9000)) for _ in range(60)),
    lambda m: "\n".join(f"def {word}():\n    pass" for word in m.words(12).split()),
    lambda m: "\n".join(["}"] * 6 + [m.words(5) for _ in range(5)]),
    lambda m: f"{HALF} {m.text()} {m.text()}",
    lambda m: m.with_text(" ".join(m.random.choice(m.evaluation).split()[:10])),  # ten words, not thirteen
    lambda m: m.with_text("a" * 40 + " lorem " + "1234567890123456789012345678901234567890"),
]
CHAT_DECOYS: list[Make] = [
    lambda m: [user(m.text()), assistant("", tool_calls=CALL), {"role": "tool", "content": "12"}, assistant(m.text())],
    lambda m: [user(m.text()), assistant("", tool_calls=CALL)],
    lambda m: [{"role": "system", "content": m.text()}, *turns(m)],
    lambda m: [user(m.text()), assistant(f"{m.text()}\n```python\nprint(1)\n```\nThat is all.")],
    lambda m: [user(m.text()), assistant(f"A language model is an estimate. {m.text()}")],
    lambda m: turns(m, user(m.text()), assistant(m.text(), weight=0), user(m.text()), assistant(m.text())),
]  # fmt: skip


PAIR_DECOYS: list[Make] = [
    chat_pair,
    lambda m: pair(m, prompt=None, chosen=f"{HALF} {m.text()}", rejected=f"{HALF} {m.text()}"),
    lambda m: pair(m, prompt="The same prompt, with other answers."),
]
CORPORA: dict[str, tuple[list[Defect], list[Make], Make]] = {
    "text": (TEXT_DEFECTS, TEXT_DECOYS, Maker.text),
    "chat": (CHAT_DEFECTS, CHAT_DECOYS, turns),
    "pairs": (PAIR_DEFECTS, PAIR_DECOYS, pair),
}
"""Form -> rows with defects, rows that only look defective, a clean row."""


@dataclass
class Planted:
    """A corpus. `findings`: what the report must find in each row that has a defect; `names`: the defect of the row."""

    path: Path
    evaluation: Path
    findings: dict[int, set[str]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    rows: int = 0


def write_corpus(folder: Path, form: str, each: int, clean: int, seed: int = 1) -> Planted:
    """Write `each` rows of every defect, at random among `clean` ones, of a form of CORPORA."""
    maker, (kinds, decoys, plain) = Maker(seed), CORPORA[form]
    planted = Planted(folder / f"{form}.jsonl", folder / "evaluation.jsonl")
    planted.evaluation.write_text("".join(json.dumps({"question": row}) + "\n" for row in maker.evaluation))
    defects = [defect for defect in kinds for _ in range(each)]
    makes: list[Make | Defect] = [*defects, *(decoys * each), *([plain] * clean)]
    maker.random.shuffle(makes)
    # Copies come after what they copy.
    first: list[Make] = [plain] * 20
    if form == "chat":
        first.append(lambda m: [user(PROMPT), assistant(m.text())])
    with planted.path.open("wb") as file:
        for number, made in enumerate([*first, *makes], start=1):
            value = (made.make if isinstance(made, Defect) else made)(maker)
            if isinstance(made, Defect):
                planted.findings[number], planted.names[number] = made.findings, made.name
            elif made is Maker.text:
                maker.clean.append(value)
            file.write(_line(value, "messages" if form == "chat" else "text") + b"\n")
            planted.rows = number
    return planted


def _line(value: Any, name: str) -> bytes:
    return value if isinstance(value, bytes) else json.dumps({name: value}).encode()


def score(planted: Planted, found: dict[int, set[str]]) -> Iterator[tuple[str, int, float, float]]:
    """Yield (kind of finding, planted rows, precision, recall)."""
    for kind in sorted({kind for kinds in [*planted.findings.values(), *found.values()] for kind in kinds}):
        expected = {row for row, kinds in planted.findings.items() if kind in kinds}
        flagged = {row for row, kinds in found.items() if kind in kinds}
        right = len(expected & flagged)
        yield kind, len(expected), right / max(1, len(flagged)), right / max(1, len(expected))

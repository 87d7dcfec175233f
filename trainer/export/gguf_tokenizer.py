"""Describe a tokenizer in the metadata of GGUF: byte-level BPE with a pre-tokenizer that llama.cpp knows by name."""

import json
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from trainer.contract.hugging_face import TOKENIZER_NAME
from trainer.data.tokenizer import ids_before_text
from trainer.export.folder import user_error


class TokenKind(IntEnum):
    """The type of a token, `tokenizer.ggml.token_type` of the GGUF specification."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_OTHERS}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_OTHERS}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# By the patterns that divide a text in turn, whether these end with GPT-2's, and `ignore_merges`.
_PRE_TOKENIZERS: dict[tuple[tuple[str, ...], bool, bool], str] = {
    ((), True, False): "gpt-2",
    ((r"\p{N}",), True, False): "smollm",
    ((r"\p{N}{1,1}",), True, False): "smollm",
    ((_LLAMA3,), False, True): "llama-bpe",
    ((_QWEN2,), False, False): "qwen2",
    ((_TEKKEN,), False, True): "tekken",
}


@dataclass(frozen=True)
class GgufTokenizer:
    """The vocabulary with the kind of each token, merges in their order, and the name of the pre-tokenizer.

    `begin`: the id that is put in front of each text, or None.
    """

    tokens: list[str]
    kinds: list[TokenKind]
    merges: list[str]
    pre_tokenizer: str
    begin: int | None


def read_tokenizer(folder: Path, vocab_size: int) -> GgufTokenizer:
    """Return the tokenizer of a folder, with unused tokens up to `vocab_size`. Raises TrainerError (USER_ERROR) that
    names what GGUF cannot express."""
    path = folder / TOKENIZER_NAME
    try:
        content = json.loads(path.read_text())
        tokenizer = Tokenizer.from_file(str(path))
    except FileNotFoundError as error:
        raise user_error(f"{folder} has no {TOKENIZER_NAME}: give the folder of an exported model") from error
    except Exception as error:  # tokenizers raises nothing narrower for a file that it cannot read
        raise user_error(f"{path} cannot be read: {error}; download the model again") from error
    model = content["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        kind = "BPE with byte_fallback" if model.get("byte_fallback") else model.get("type")
        raise _inexpressible(path, f"model {kind}", "only byte-level BPE, as of GPT-2, Llama 3 and Qwen, is written")
    pre_tokenizer = _pre_tokenizer(path, content)
    tokens, kinds = [f"[UNUSED{number}]" for number in range(vocab_size)], [TokenKind.UNUSED] * vocab_size
    for text, number in model["vocab"].items():
        tokens[_checked(path, number, vocab_size)], kinds[number] = text, TokenKind.NORMAL
    for added in content.get("added_tokens", []):
        stripped = [name for name in ("lstrip", "rstrip", "single_word") if added.get(name)]
        if stripped:
            raise _inexpressible(path, f"token {added['content']!r} with {stripped[0]}", "it has no such property")
        number = _checked(path, added["id"], vocab_size)
        tokens[number] = added["content"]
        kinds[number] = TokenKind.CONTROL if added["special"] else TokenKind.USER_DEFINED
    begin = ids_before_text(tokenizer)
    without = len(tokenizer.encode("a", add_special_tokens=False).ids)
    if len(begin) > 1 or len(tokenizer.encode("a").ids) != len(begin) + without:
        raise _inexpressible(path, "post_processor", "only one token in front of a text is written")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    return GgufTokenizer(tokens, kinds, merges, pre_tokenizer, begin[0] if begin else None)


def _pre_tokenizer(path: Path, content: dict[str, Any]) -> str:
    """Return llama.cpp's name for how texts are divided before merges."""
    normalizer = (content.get("normalizer") or {}).get("type")
    found = content.get("pre_tokenizer") or {}
    steps = found["pretokenizers"] if found.get("type") == "Sequence" else [found]
    *splits, last = [each for each in steps if each] or [{}]
    patterns = tuple(_pattern(each) for each in splits)
    of_gpt2 = bool(last.get("use_regex", True))
    name = _PRE_TOKENIZERS.get((patterns, of_gpt2, bool(content["model"].get("ignore_merges"))))
    # llama.cpp leaves out the NFC that tokenizers of Qwen begin with.
    is_plain = normalizer is None or (normalizer == "NFC" and name == "qwen2")
    if name is None or last.get("type") != "ByteLevel" or last.get("add_prefix_space") or not is_plain:
        raise _inexpressible(
            path,
            f"pre_tokenizer {json.dumps(found)[:200]} (normalizer {normalizer})",
            "known are those of GPT-2, Llama 3, Qwen2, Tekken and this trainer with `digits: whole` or `single`",
        )
    return name


def _pattern(step: dict[str, Any]) -> str:
    """Return the regular expression of a step that divides; a step of another kind has none that is known."""
    if step.get("type") == "Digits" and step.get("individual_digits"):
        return r"\p{N}"
    if step.get("type") != "Split" or step.get("behavior") != "Isolated" or step.get("invert"):
        return f"{step.get('type')}"
    return str(step["pattern"].get("Regex", ""))


def _checked(path: Path, number: int, vocab_size: int) -> int:
    if not 0 <= number < vocab_size:
        raise user_error(f"{path} has the token id {number}, but config.json has the vocab_size {vocab_size}; fix it")
    return number


def _inexpressible(path: Path, what: str, known: str) -> Exception:
    return user_error(f"{path}: GGUF cannot express its {what}: {known}; keep this model as safetensors")

"""Other forms of a model compute the same, as programs of others read them."""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
import typer
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from athanor.cli import conversion
from athanor.cli.conversion import Form
from tests.trainer.families import LENGTH, SIZES, export, our_model
from trainer.contract.data import TokenizerSpec
from trainer.contract.model_signature import ExportRecord, fingerprint_of, new_private_key, public_half, sign
from trainer.contract.models import ModelShape, MoEShape
from trainer.contract.positions import RopeScaling
from trainer.data.tokenizer import train_tokenizer
from trainer.errors import TrainerError
from trainer.export.gguf_tokenizer import TokenKind, read_tokenizer
from trainer.export.quantized import QuantizedFolder
from trainer.export.read import load_exported
from trainer.standalone.convert import HeldOut, convert

VOCABULARY = 320
WIDE = {**SIZES, "hidden_size": 64, "intermediate_size": 96}
FAMILIES = {
    "llama": ModelShape(**WIDE),
    "llama-wide-heads": ModelShape(**WIDE, head_dim=32, tie_embeddings=True, rope_theta=500.0),
    "mistral": ModelShape(**WIDE, sliding_window=LENGTH),
    "qwen2": ModelShape(**WIDE, attention_bias=True, tie_embeddings=True, rope_theta=1e6),
    "qwen3": ModelShape(**WIDE, qk_norm=True, head_dim=128, pad_token_id=61),
}
SCALED = {
    "llama-linear": ModelShape(**WIDE, rope_scaling=RopeScaling(kind="linear", factor=2.5)),
    "llama-3.1": ModelShape(**WIDE, rope_theta=500.0, rope_scaling=RopeScaling(factor=8.0, original_length=16)),
    "qwen3-linear": ModelShape(**WIDE, qk_norm=True, head_dim=128, rope_scaling=RopeScaling(kind="linear", factor=2.5)),
}
"""Models with scaled positions, which `transformers` leaves out when it reads GGUF."""
WORDS = ["the gold of the lead", "mercury and sulphur, salt", "as above, so below", "the work of the sun is complete"]
TOKENS = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def write_model(folder: Path, shape: ModelShape, digits: str = "whole") -> Path:
    """Write a random model in fp32 with a tokenizer."""
    export(our_model(shape, VOCABULARY), folder)
    train_tokenizer(WORDS, TokenizerSpec(vocab_size=280, digits=digits)).save(str(folder / "tokenizer.json"))
    return folder


def write_words(path: Path) -> Path:
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in WORDS))
    return path


def our_logits(folder: Path) -> torch.Tensor:
    with torch.inference_mode():
        return load_exported(folder)[0].float()(TOKENS)


def their_logits(folder: Path, **options: Any) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    with torch.inference_mode():
        return model(TOKENS).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_equal_logits_from_gguf(family: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", FAMILIES[family])
    convert(folder, tmp_path / "model.gguf", "gguf", "f32", None)
    theirs = their_logits(tmp_path, gguf_file="model.gguf")
    torch.testing.assert_close(theirs, our_logits(folder), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SCALED)
def test_gguf_has_the_scaling_of_positions(name: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SCALED[name])
    convert(folder, tmp_path / "model.gguf", "gguf", "f32", None)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    factors = {each.name: torch.from_numpy(np.array(each.data)) for each in reader.tensors}.get("rope_freqs.weight")
    if factors is None:
        family = name.partition("-")[0]
        assert reader.fields[f"{family}.rope.scaling.type"].contents() == "linear"
        factors = reader.fields[f"{family}.rope.scaling.factor"].contents()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    model.model.rotary_emb.inv_freq /= factors  # what llama.cpp does with them
    with torch.inference_mode():
        torch.testing.assert_close(model.eval()(TOKENS).logits, our_logits(folder), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(our_logits(folder), their_logits(folder), rtol=1e-4, atol=1e-4)


def their_loss(folder: Path, tokenizer: Tokenizer, **options: Any) -> tuple[float, int]:
    """Return the mean loss of a token of WORDS, and the number of tokens, as `transformers` computes them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    total, count = 0.0, 0
    for text in WORDS:
        tokens = torch.tensor([[0, *tokenizer.encode(text).ids, 0]])
        with torch.inference_mode():
            total += model(tokens, labels=tokens).loss.item() * (tokens.shape[1] - 1)
        count += tokens.shape[1] - 1
    return total / count, count


@pytest.mark.parametrize(
    ("family", "precision"),
    [
        ("llama", "f16"), ("llama", "q8_0"), ("llama", "int4"), ("mistral", "int8"), ("qwen2", "bf16"),
        ("qwen2", "int8"), ("qwen2", "int4"), ("qwen3", "q4_0"), ("qwen3", "int8"), ("qwen3", "int4"),
    ],
)  # fmt: skip
def test_the_reported_loss_is_that_of_transformers(family: str, precision: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", FAMILIES[family])
    data = write_words(tmp_path / "held-out.jsonl")
    form = precision if precision.startswith("int") else "gguf"
    made = convert(folder, tmp_path / "out", form, precision, HeldOut([data], "auto", "text", LENGTH))
    loss, tokenizer = made["loss"], Tokenizer.from_file(str(folder / "tokenizer.json"))
    before, count = their_loss(folder, tokenizer)
    if form == "gguf":
        after, _ = their_loss(tmp_path, tokenizer, gguf_file="out")
        assert made["size_bytes"] == (tmp_path / "out").stat().st_size
    else:
        after, _ = their_loss(tmp_path / "out", tokenizer)
    assert (loss["documents"], loss["tokens"]) == (len(WORDS), count)
    assert loss["original"]["value"] == pytest.approx(before, abs=2e-5)
    assert loss["converted"]["value"] == pytest.approx(after, abs=2e-5)
    difference = loss["difference"]
    assert difference["value"] == pytest.approx(loss["converted"]["value"] - loss["original"]["value"], abs=1e-9)
    assert difference["low"] < difference["value"] < difference["high"]
    assert difference["value"] != 0.0


def test_a_quantized_model_in_several_files_is_loaded_complete(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", FAMILIES["qwen2"])
    model, _ = load_exported(folder)
    logits = []
    for name, largest in (("one", 2**30), ("many", 20_000)):
        (tmp_path / name).mkdir()
        config = json.loads((folder / "config.json").read_text())
        shapes = {each: tensor.shape for each, tensor in model.state_dict().items()}
        writer = QuantizedFolder(folder, config, model.shape, shapes, "int8", tmp_path / name, largest)
        for each, tensor in model.state_dict().items():
            writer.add(each, tensor)
        writer.finish()
        logits.append(their_logits(tmp_path / name))
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    assert torch.equal(*logits)


def byte_level(*steps: Any, ignore_merges: bool = False, use_regex: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last]) if steps else last
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, special_tokens=["<|end|>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(WORDS, trainer)
    return tokenizer


# The regular expressions of Llama 3's and Qwen2's tokenizer.json.
DIGITS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = pre_tokenizers.Split(Regex(DIGITS % r"\p{N}{1,3}"), "isolated")
QWEN2 = pre_tokenizers.Split(Regex(DIGITS % r"\p{N}"), "isolated")

TEKKEN = pre_tokenizers.Split(  # Mistral's
    Regex(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
        r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "isolated",
)


@pytest.mark.parametrize(
    ("tokenizer", "name"),
    [
        (byte_level(), "gpt-2"),
        (byte_level(pre_tokenizers.Digits(individual_digits=True)), "smollm"),
        (train_tokenizer(WORDS, TokenizerSpec(vocab_size=280, digits="single")), "smollm"),
        (byte_level(LLAMA3, ignore_merges=True, use_regex=False), "llama-bpe"),
        (byte_level(QWEN2, use_regex=False), "qwen2"),
        (byte_level(TEKKEN, ignore_merges=True, use_regex=False), "tekken"),
    ],
)
def test_the_pre_tokenizer_is_named_as_llama_cpp_knows_it(tokenizer: Tokenizer, name: str, tmp_path: Path) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert read_tokenizer(tmp_path, VOCABULARY).pre_tokenizer == name


def with_prefix_space() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


def lower_case() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def with_end() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <|end|>", special_tokens=[("<|end|>", 0)])
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "named"),
    [
        (byte_level(LLAMA3, use_regex=False), "pre_tokenizer"),  # merges within words that Llama 3 takes complete
        (train_tokenizer(WORDS, TokenizerSpec(vocab_size=280, digits="triples")), "pre_tokenizer"),
        (Tokenizer(models.WordLevel({"a": 0}, unk_token="a")), "model WordLevel"),
        (Tokenizer(models.BPE({"a": 0}, [], byte_fallback=True)), "model BPE with byte_fallback"),
        (with_prefix_space(), "pre_tokenizer"),
        (lower_case(), "normalizer Lowercase"),
        (with_end(), "post_processor"),
    ],
)
def test_a_tokenizer_that_gguf_cannot_express_is_refused_by_name(
    tokenizer: Tokenizer, named: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", FAMILIES["llama"])
    tokenizer.save(str(folder / "tokenizer.json"))
    with pytest.raises(TrainerError, match=f"GGUF cannot express its {named}|GGUF cannot express its .*{named}"):
        convert(folder, tmp_path / "model.gguf", "gguf", "f16", None)
    assert [each.name for each in tmp_path.iterdir()] == ["model"], "nothing half-written"


def test_transformers_reads_the_same_tokens_from_gguf(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", FAMILIES["qwen2"])
    tokenizer = byte_level(QWEN2, use_regex=False)
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    convert(folder, tmp_path / "model.gguf", "gguf", "f16", None)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["tokenizer.ggml.add_bos_token"] is True
    assert fields["tokenizer.ggml.bos_token_id"] == fields["tokenizer.ggml.eos_token_id"] == 0
    assert fields["tokenizer.chat_template"] == "{{ messages }}"
    kinds = fields["tokenizer.ggml.token_type"]
    assert len(kinds) == VOCABULARY
    for text, kind in (("<|im_start|>", TokenKind.CONTROL), ("<tool>", TokenKind.USER_DEFINED)):
        assert kinds[tokenizer.token_to_id(text)] == kind
    assert kinds[tokenizer.get_vocab_size()] == TokenKind.UNUSED
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in (*WORDS, "<|im_start|>salt 1234 don't", "Äther\n\n  gold"):
        ours = tokenizer.encode(text, add_special_tokens=False).ids
        assert theirs(text, add_special_tokens=False)["input_ids"] == ours, text


@pytest.mark.parametrize("form", ["gguf", "int8"])
def test_another_family_is_refused_by_name(form: str, tmp_path: Path) -> None:
    shape = ModelShape(**SIZES, qk_norm=True, moe=MoEShape(num_experts=4, experts_per_token=2, expert_size=24))
    folder = write_model(tmp_path / "model", shape)
    with pytest.raises(TrainerError, match=f"family qwen3_moe, which is not converted to {form}: only llama, mistral"):
        convert(folder, tmp_path / "out", form, "f16", None)


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (ModelShape(**WIDE, sliding_window=9), "sliding_window of 9"),
        (
            ModelShape(**WIDE, qk_norm=True, rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_length=24)),
            "rope_scaling of the kind yarn",
        ),
        (
            ModelShape(**WIDE, attention_bias=True, rope_scaling=RopeScaling(factor=8.0, original_length=16)),
            "rope_scaling of the kind llama3, which is not converted to GGUF for qwen2: linear can be",
        ),
    ],
)
def test_what_gguf_computes_otherwise_is_refused_by_name(shape: ModelShape, named: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", shape)
    with pytest.raises(TrainerError, match=named):
        convert(folder, tmp_path / "out", "gguf", "f16", None)
    assert not list(tmp_path.glob("out*"))


def test_an_existing_output_and_a_folder_without_a_model_are_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", FAMILIES["llama"])
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(TrainerError, match="mine exists: choose another name"):
        convert(folder, tmp_path / "mine", "gguf", "f16", None)
    assert (tmp_path / "mine").read_text() == "mine"
    (folder / "tokenizer.json").unlink()
    with pytest.raises(TrainerError, match="has no tokenizer.json"):
        convert(folder, tmp_path / "out", "gguf", "f16", None)
    (folder / "config.json").unlink()
    with pytest.raises(TrainerError, match="has no config.json"):
        convert(folder, tmp_path / "out", "gguf", "f16", None)


def test_an_interrupted_download_beside_the_output_stays(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", FAMILIES["llama"])
    partial = tmp_path / "out.partial"  # as `athanor download` names it
    partial.mkdir()
    convert(folder, tmp_path / "out", "int8", "f16", None)
    assert partial.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "out", "out.partial"]


def test_too_little_space_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "model", FAMILIES["llama"])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2**20))
    with pytest.raises(TrainerError, match="free some, or choose another disk"):
        convert(folder, tmp_path / "new" / "out", "gguf", "f16", None)
    assert not (tmp_path / "new").exists()


def test_values_beyond_f16_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    model = our_model(FAMILIES["llama"], VOCABULARY)
    with torch.no_grad():
        model.get_parameter("blocks.1.mlp.up.weight")[3, 5] = 1e6
    export(model, tmp_path / "model")
    byte_level().save(str(tmp_path / "model" / "tokenizer.json"))
    with pytest.raises(TrainerError, match="blocks.1.mlp.up.weight has values above 65504.*choose bf16"):
        convert(tmp_path / "model", tmp_path / "out.gguf", "gguf", "f16", None)
    assert not list(tmp_path.glob("out*"))


PRIVATE_KEY = new_private_key()
PUBLIC_KEY = public_half(PRIVATE_KEY)


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    """A signed model beside the file of its key."""
    folder = write_model(tmp_path / "model", FAMILIES["llama"])
    (tmp_path / "key.pem").write_text(PUBLIC_KEY)
    record = ExportRecord(
        team="red", job="job_1", attempt="att_1", artifact="art_1", step=5, signed_at="2026-01-02T03:04:05+00:00"
    )
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    (folder / "model.sig").write_text(json.dumps(sign(digests, "tiny", record, PRIVATE_KEY)))
    return folder


def command(folder: Path, form: Form, **options: Any) -> int:
    """Run `athanor model convert` in this process, which starts the conversion in one of its own."""
    try:
        conversion.convert(folder, folder.with_name("out"), form, **options)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def test_the_command_reports_the_loss_and_what_is_signed(signed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = [write_words(signed.with_name("held-out.jsonl"))]
    assert command(signed, Form.INT8, data=data, key=signed.with_name("key.pem")) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "held-out loss: " in shown
    assert f"n = {len(WORDS)} documents" in shown
    assert "95 % confidence interval" in shown
    assert f"step 5 of job_1 (art_1), as signed by the key {fingerprint_of(PUBLIC_KEY)}; the result is not" in shown
    names = {path.name for path in signed.with_name("out").iterdir()}
    assert names == {"config.json", "model.safetensors", "tokenizer.json"}, "no signature of other files"


@pytest.mark.slow
def test_the_command_says_that_a_signature_was_not_verified(signed: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert command(signed, Form.GGUF) == 0
    assert "was not verified (--key does), and the result is not signed" in " ".join(capfd.readouterr().out.split())
    assert command(signed, Form.GGUF) == 1
    assert "out exists: choose another name, or remove it first" in " ".join(capfd.readouterr().err.split())


def test_an_altered_model_is_not_converted(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (signed / "tokenizer.json").write_text("{}")
    assert command(signed, Form.GGUF, key=signed.with_name("key.pem")) == 5
    assert "tokenizer.json was altered" in capsys.readouterr().err
    assert not signed.with_name("out").exists()


def test_a_precision_is_for_gguf_alone(signed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(signed, Form.INT4, precision=conversion.Precision.F16) == 2
    assert "--precision is for --to gguf" in capsys.readouterr().err

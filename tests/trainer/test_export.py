"""What is exported loads elsewhere and computes the same."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from tests.trainer.runs import FinishedRun, run_alone, tiny_training
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.export.generate import generate
from trainer.export.read import load_exported

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    training = tiny_training()
    shape = training.model.shape.model_copy(update={"tie_embeddings": request.param, "rope_theta": 500.0})
    training = training.model_copy(update={"model": training.model.model_copy(update={"shape": shape})})
    return run_alone(tmp_path_factory.mktemp("export") / "run", training, processes=2)


def test_transformers_computes_equal_logits(run: FinishedRun) -> None:
    theirs = transformers.LlamaForCausalLM.from_pretrained(run.output / "model", dtype=torch.float32).eval()
    ours, _ = load_exported(run.output / "model")
    tokens = torch.randint(0, ours.vocab_size, (2, 32), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


def test_transformers_loads_the_tokenizer(run: FinishedRun) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(run.output / "model")
    _, ours = load_exported(run.output / "model")
    text = "gold is made of lead"
    assert theirs(text)["input_ids"] == ours.encode(text).ids
    assert theirs.eos_token == "<|endoftext|>"
    assert theirs.decode(theirs(text)["input_ids"]) == text


def test_the_exported_model_has_learnt_what_the_run_reports(run: FinishedRun) -> None:
    assert min(run.series("evaluation/loss").values()) < 4.0
    model, tokenizer = load_exported(run.output / "model")
    tokens = torch.tensor([tokenizer.encode("gold is made of lead " * 20).ids[:33]])
    with torch.no_grad():
        loss = model(tokens[:, :-1], tokens[:, 1:]).item() / 32
    assert loss < 4.6


def test_the_same_seed_samples_the_same_text(run: FinishedRun) -> None:
    model, tokenizer = load_exported(run.output / "model")
    settings = {"tokens": 40, "temperature": 0.9, "window": 32}
    first = generate(model, tokenizer, "gold ", seed=3, **settings)
    assert first == generate(model, tokenizer, "gold ", seed=3, **settings)
    assert first != generate(model, tokenizer, "gold ", seed=4, **settings)
    assert len(first) <= 40


def test_the_likeliest_tokens_are_those_of_whole_sequences(run: FinishedRun) -> None:
    model, tokenizer = load_exported(run.output / "model")
    window = 12
    seen, expected = tokenizer.encode("gold is").ids, list[int]()
    for _ in range(30):
        with torch.no_grad():
            expected.append(int(model(torch.tensor([seen]))[0, -1].argmax()))
        seen.append(expected[-1])
        seen = seen if len(seen) <= window else seen[-window // 2 :]
    assert generate(model, tokenizer, "gold is", tokens=30, temperature=0.0, seed=1, window=window) == expected


def test_generate_prints_the_prompt_and_what_follows(run: FinishedRun) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainer.export.generate", run.output / "model", "--prompt", "gold is", "--tokens", "9"],
        capture_output=True, text=True, cwd=run.output, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("gold is")
    assert len(done.stdout) > len("gold is\n")


def test_generate_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trainer.export.generate", tmp_path],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == EXIT_STATUS[EndClass.USER_ERROR]
    assert done.stderr.strip().endswith("has no config.json: give the folder of an exported model")

"""Held-out loss after equal tokens: ours with its defaults, against a tuned reference loop of the same shape.

The reference is `transformers`' Llama with its own initial weights and torch's AdamW, written as one does by hand; its
learning rate is the best of a grid, under the trainer's schedule, which did better than a cosine. Both see the same
sequences in the same order, and are evaluated on the same held-out ones.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from tests.bench.trainer_rivals import llama_config
from trainer.contract.training import TrainingSpec
from trainer.data.corpus import Corpus
from trainer.data.loader import RankShare, validation_batches
from trainer.data.source import PreparedSource, Source
from trainer.optim.learning_rate import learning_rate
from trainer.storage.folder import FolderStorage

RATES = (2e-3, 3e-3, 4e-3)
AIM = 0.005


def training_of(steps: int, seed: int) -> dict[str, Any]:
    """Return the spec: a Llama of a million parameters on Python sources, with the defaults of the optimizer."""
    return {
        "model": {"preset": "llama-1m"},
        "data": {"source": "builtin:python-stdlib"},
        "tokenizer": {"vocab_size": 2048},
        "steps": steps,
        "tokens_per_step": 8192,
        "sequence_length": 128,
        "schedule": {"warmup_steps": steps // 20},
        "evaluation": {"every_steps": steps, "sequences": 256},
        "seed": seed,
    }


def run_ours(spec: dict[str, Any], folder: Path) -> float:
    """Train with `python -m trainer`. Return the held-out loss."""
    job = folder / "job.yaml"
    job.write_text(yaml.safe_dump({"version": 1, "name": "loss", "training": spec}))
    command = [sys.executable, "-m", "trainer", str(job), "--output", str(folder / "run")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (folder / "run" / "progress.jsonl").read_text().splitlines()]
    losses = [line["data"]["loss"] for line in lines if line.get("type") == "evaluation"]
    return float(losses[-1])


def run_reference(training: TrainingSpec, dataset: Path, rate: float) -> float:
    """Train the reference loop. Return the held-out loss."""
    import transformers

    torch.manual_seed(training.seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_config(training)))
    decayed = [each for each in model.parameters() if each.dim() > 1]
    plain = [each for each in model.parameters() if each.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))
    place = PreparedSource("data", dataset, None, "")
    corpus = Corpus([place], training, FolderStorage(dataset))
    sequences = training.batch_size_schedule.full
    for step in range(training.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * learning_rate(training, step) / training.peak_learning_rate
        rows = corpus.rows(np.arange(step * sequences, (step + 1) * sequences))
        loss = loss_of(model, torch.from_numpy(rows.tokens_BS), torch.from_numpy(rows.targets_BS))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    source = Source(place, "validation", training.data, training.sequence_length, FolderStorage(dataset))
    with torch.no_grad():
        found = [
            loss_of(model, batch.tokens_BS, batch.targets_BS).item()
            for batch in validation_batches(source, training.evaluation.sequences, RankShare(0, 1, 64))
        ]
    return statistics.fmean(found)


def loss_of(model: Any, tokens_BS: torch.Tensor, targets_BS: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=tokens_BS.long()).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets_BS.flatten().long())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    ours: list[float] = []
    reference: dict[float, list[float]] = {rate: [] for rate in RATES}
    for seed in options.seeds:
        spec = training_of(options.steps, seed)
        with tempfile.TemporaryDirectory() as folder:
            ours.append(run_ours(spec, Path(folder)))
            print(f"seed {seed}: ours {ours[-1]:.4f}", flush=True)
            (dataset,) = (path for path in Path(folder, "run", "work", "datasets").iterdir() if path.is_dir())
            for rate in RATES:
                reference[rate].append(run_reference(TrainingSpec.model_validate(spec), dataset, rate))
                print(f"seed {seed}: reference with rate {rate:g} {reference[rate][-1]:.4f}", flush=True)
    means = {rate: statistics.fmean(losses) for rate, losses in reference.items()}
    rate, best = min(means.items(), key=lambda each: each[1])
    mean = statistics.fmean(ours)
    print(f"ours {mean:.4f}, reference {best:.4f} (rate {rate:g}): {mean / best - 1:+.2%} (aim: at most {AIM:+.1%})")
    print(json.dumps({"trainer loss": {"ours": mean, "reference": means, "tokens": options.steps * 8192}}))


if __name__ == "__main__":
    main()

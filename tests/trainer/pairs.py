"""Preference data for tests, and runs that train on it."""

import json
import random
from pathlib import Path
from typing import Any

from tests.trainer.runs import WORDS, FinishedRun, tiny_training
from trainer.contract.training import TrainingSpec
from trainer.data.chat import ChatTemplate
from trainer.export.folder import with_base

PAIRS: dict[str, Any] = {
    "source": "dataset:tiny", "format": "preference", "packing": "documents", "long_documents": "drop",
}  # fmt: skip
DPO: dict[str, Any] = {"loss": "dpo"}
UNPAIRED: dict[str, Any] = {**PAIRS, "format": "unpaired"}
CHAT = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
                    "{% if add_generation_prompt %}[assistant]{% endif %}", {})  # fmt: skip


def pairs(count: int = 200) -> list[dict[str, str]]:
    """Prompts of four words, with an answer that is to be preferred because it ends in gold, not in lead."""
    chosen = random.Random(2)
    rows = []
    for _ in range(count):
        prompt = " ".join(chosen.choices(WORDS, k=4))
        middle = " ".join(chosen.choices(WORDS, k=2))
        rows.append({"prompt": prompt, "chosen": f" {middle} gold", "rejected": f" {middle} lead"})
    return rows


def labelled(count: int = 200) -> list[dict[str, Any]]:
    """One answer of each of `pairs`: the label is true for those that end in gold."""
    chosen = random.Random(3)
    rows: list[dict[str, Any]] = []
    for pair in pairs(count):
        label = chosen.random() < 0.5
        rows.append({"prompt": pair["prompt"], "completion": pair["chosen" if label else "rejected"], "label": label})
    return rows


def write_pairs(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def preferring(base: FinishedRun, **changes: Any) -> TrainingSpec:
    """A spec that trains the model of another run on pairs."""
    fields = {
        "model": {"base": str(base.output / "model")},
        "tokenizer": {},
        "data": PAIRS,
        "preference": DPO,
        "sequence_length": 64,
        "tokens_per_step": 256,
        "optimizer": {"learning_rate": 3e-3},
        **changes,
    }
    return with_base(tiny_training(**fields), base.output / "model")

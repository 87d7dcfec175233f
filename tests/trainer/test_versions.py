"""The versions that an attempt reports, and the digest of the trainer's source."""

import subprocess
from pathlib import Path

import torch

from tests.trainer.runs import run_alone, tiny_training
from trainer.training.versions import SOURCE, source_digest

COMMAND = "find . -name '*.py' | LC_ALL=C sort | xargs sha256sum | sha256sum"


def test_the_digest_is_what_the_command_in_the_docs_prints(tmp_path: Path) -> None:
    for name, text in {"b.py": "b = 1\n", "a-b/c.py": "", "a/b.py": "x", "a/notes.txt": "not source"}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for package in (tmp_path, SOURCE):
        printed = subprocess.run(COMMAND, cwd=package, shell=True, check=True, capture_output=True, text=True)
        assert printed.stdout.split()[0] == source_digest(package)
    before = source_digest(tmp_path)
    (tmp_path / "a" / "b.py").write_text("y")
    assert source_digest(tmp_path) != before


def test_an_attempt_reports_what_it_runs(tmp_path: Path) -> None:
    run = run_alone(tmp_path / "run", tiny_training(steps=1, schedule={"warmup_steps": 1}), processes=2)
    (found,) = run.events("software.found")
    assert (found["torch"], found["trainer_sha256"]) == (torch.__version__, source_digest())
    assert found["python"].startswith("3.")

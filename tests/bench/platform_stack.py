"""A private stack for a benchmark, ended with it, and one API client of its first user."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from deploy.local.handle import StackHandle


@contextmanager
def private_stack() -> Iterator[StackHandle]:
    with tempfile.TemporaryDirectory(prefix="athanor-bench-") as folder:
        Path(folder).chmod(0o755)  # under root PostgreSQL runs as another user
        stack = StackHandle(Path(folder) / "data")
        stack.up()
        try:
            yield stack
        finally:
            stack.down()
            for process in stack.job_processes():
                process.kill()


def api(stack: StackHandle) -> httpx.Client:
    credentials = stack.credentials
    return httpx.Client(
        base_url=f"{credentials['url']}/api/v1",
        headers={"Authorization": f"Bearer {credentials['token']}"},
        timeout=60.0,
    )


def small_job(vocab_size: int = 2048, steps: int = 5) -> dict[str, object]:
    """The demo's model for a few steps. Another vocabulary is another preparation of the data."""
    return {
        "version": 1,
        "name": "bench",
        "resources": {"processes_per_node": 2, "accelerator": "cpu"},
        "training": {
            "model": {"preset": "llama-1m"},
            "data": {"source": "builtin:python-stdlib"},
            "tokenizer": {"vocab_size": vocab_size},
            "steps": steps,
            "tokens_per_step": 2048,
            "sequence_length": 256,
            "schedule": {"warmup_steps": 1},
            "evaluation": {"every_steps": 1000, "sequences": 1},
        },
    }

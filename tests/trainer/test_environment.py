"""Environment variables of worker processes: what passes, what does not, and what is set by default."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.runs import run_alone, tiny_training

PASSED = {
    "NCCL_DEBUG": "INFO", "CUBLAS_WORKSPACE_CONFIG": ":16:8", "NVSHMEM_HEAP": "1G", "SHARP_COLL_LOG_LEVEL": "3",
    "OFI_NCCL_PROTOCOL": "RDMA", "IBV_FORK_SAFE": "1", "MLX5_SINGLE_THREADED": "1", "RDMAV_FORK_SAFE": "1",
    "TRITON_CACHE_DIR": "/scratch/triton", "TORCH_NCCL_BLOCKING_WAIT": "0", "FI_PROVIDER": "efa", "UCX_TLS": "rc",
    "NCCL_IB_PKEY": "1",
}  # fmt: skip
DROPPED = {
    "AWS_SECRET_ACCESS_KEY": "x", "HF_TOKEN": "x", "DATABASE_URL": "x", "TRITON_REGISTRY_TOKEN": "x",
    "NVIDIA_API_SECRET": "x", "OFI_PASSWORD": "x", "IBVX": "x",
}  # fmt: skip
SHOW = """
import json, os
from trainer.agent.environment import drop_unknown_variables, set_allocator_default
drop_unknown_variables()
set_allocator_default()
print(json.dumps(dict(os.environ)))
"""


def environment_after(**variables: str) -> dict[str, str]:
    """Return what a process started with these variables leaves to its children."""
    started = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    done = subprocess.run([sys.executable, "-c", SHOW], env=started, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_settings_of_fabrics_and_kernels_pass_and_secrets_do_not() -> None:
    left = environment_after(**PASSED, **DROPPED)
    assert PASSED.items() <= left.items()
    assert not DROPPED.keys() & left.keys()


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_allocator_settings_of_the_node_are_not_replaced(name: str) -> None:
    left = environment_after(**{name: "max_split_size_mb:512"})
    assert {key: value for key, value in left.items() if "ALLOC_CONF" in key} == {name: "max_split_size_mb:512"}


def test_segments_of_the_allocator_are_expandable_by_default() -> None:
    assert environment_after()["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


RECORD = """
import json, os, sys
from pathlib import Path
from trainer.training.device import record_collectives
record_collectives(Path(sys.argv[1]))
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith("TORCH_")}))
"""


DEFAULTS = {
    "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_DUMP_TEMP_FILE": "/folder/nccl-trace-rank-",
}  # fmt: skip
OLDER_NAMES = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "9", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/t",
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), [({}, DEFAULTS), (OLDER_NAMES, OLDER_NAMES)])
def test_collectives_are_recorded_unless_the_node_says_otherwise(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    started = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), **given}
    program = [sys.executable, "-c", RECORD, "/folder"]
    done = subprocess.run(program, env=started, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected


STRICT = """
import os, torch
from trainer.training.device import use_deterministic_algorithms
use_deterministic_algorithms()
print(torch.are_deterministic_algorithms_enabled(), os.environ["CUBLAS_WORKSPACE_CONFIG"])
try:
    torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
except RuntimeError as error:
    print("refused" if "put_" in str(error) else error)
"""


@pytest.mark.parametrize(("given", "workspace"), [({}, ":4096:8"), ({"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, ":16:8")])
def test_deterministic_mode_refuses_operations_and_keeps_the_workspace_of_the_node(
    given: dict[str, str], workspace: str
) -> None:
    started = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2]), **given}
    done = subprocess.run([sys.executable, "-c", STRICT], env=started, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", workspace, "refused"]


@pytest.mark.parametrize("preset", ["llama-1m", "moe-1m"])
def test_a_deterministic_run_on_cpus_computes_what_another_does(tmp_path: Path, preset: str) -> None:
    fields = {
        "model": {"preset": preset}, "steps": 2, "schedule": {"warmup_steps": 1}, "data": {"source": "dataset:tiny",
        "packing": "documents"}, "evaluation": {"every_steps": 2, "sequences": 8, "prompts": ["the"]},
    }  # fmt: skip
    runs = [
        run_alone(tmp_path / str(strict), tiny_training(**fields, deterministic=strict), processes=2)
        for strict in (False, True)
    ]
    assert [run.events("settings.resolved")[0]["deterministic"] for run in runs] == [False, True]
    assert runs[0].series("train/loss") == runs[1].series("train/loss")
    assert len(runs[1].series("train/loss")) == 2

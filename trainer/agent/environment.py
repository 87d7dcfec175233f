"""Environment variables of the agent, and the filter of those that worker processes inherit."""

import os

from trainer.contract import environment as names

_KNOWN = {
    names.AGENT_URL, names.ATTEMPT_TOKEN, names.NODE_INDEX, names.NODE_NAME, names.NODE_ADDRESS, names.NODE_TOPOLOGY,
    names.WORK_DIR, names.CACHE_DIR, names.CHECKPOINT_DIR, names.DIE_WITH_PARENT,
    names.INTERRUPTION_NOTICE,
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "COLUMNS", "LINES",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "HOSTNAME",
    "CC", "CXX", "MASTER_ADDR", "SSL_CERT_FILE", "SSL_CERT_DIR",
}  # fmt: skip
_KNOWN_PREFIXES = (
    "PYTHON", "LC_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "MALLOC_", "TORCH", "PYTORCH_", "GLOO_", "NCCL_",
    "UCX_", "FI_", "CUDA_", "NVIDIA_", "ROCR_", "HIP_", "RAYON_", "CUBLAS_", "NVSHMEM_", "SHARP_", "OFI_", "IBV_",
    "MLX5_", "RDMAV_", "TRITON_",
)  # fmt: skip
_SECRET_WORDS = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL")
_ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


def require(name: str) -> str:
    """Return an environment variable that a backend sets. Raises SystemExit without it."""
    value = os.environ.get(name)
    if not value:
        raise SystemExit(
            f"{name} is not set; `python -m trainer.agent` is started by a backend, which sets it. "
            "To train without a platform use `python -m trainer job.yaml`"
        )
    return value


def drop_unknown_variables() -> None:
    """Delete all environment variables that are not in an allow list: a node's shell may have cloud or database keys.

    Processes started later inherit the remaining ones. A prefix does not let through a name that means a secret.
    """
    for name in list(os.environ):
        is_secret = any(word in name for word in _SECRET_WORDS)
        if name not in _KNOWN and (is_secret or not name.startswith(_KNOWN_PREFIXES)):
            del os.environ[name]


def set_allocator_default() -> None:
    """Let torch's GPU allocator grow its segments, which avoids most fragmentation, unless the node configures it.

    To be called before torch is imported. torch 2.9 renamed PYTORCH_CUDA_ALLOC_CONF to PYTORCH_ALLOC_CONF and reads
    both, the older name first (CUDAAllocatorConfig.h). CPU runs do not read it.
    """
    if not any(name in os.environ for name in _ALLOCATOR_SETTINGS):
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"


def take_mlflow_variables() -> dict[str, str]:
    """Return the MLflow variables of the user's shell, for the MLflow sink of a standalone run."""
    return {name: value for name, value in os.environ.items() if name.startswith("MLFLOW_")}

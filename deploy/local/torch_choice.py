"""Which build of torch pip is about to fetch: a CUDA build is several GB, and useless without a GPU."""

import json
import os
import re
import shutil
import ssl
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_PREFIXES = ("nvidia-", "cuda-", "triton")
CERTIFICATE_NAMES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
HEAD_SECONDS = 10.0
GIGABYTE = 1_000_000_000


def torch_index_options() -> list[str]:
    """ATHANOR_TORCH=cpu, a folder of wheels, or an index address; unset leaves the choice to pip."""
    choice = os.environ.get("ATHANOR_TORCH", "")
    if not choice:
        return []
    if choice == "cpu":
        return ["--extra-index-url", CPU_INDEX]
    if Path(choice).is_dir():
        return ["--find-links", choice]
    return ["--extra-index-url", choice]


def explain_torch_download(python: str, repository: Path, options: list[str]) -> None:
    """On a machine without an NVIDIA GPU, say beforehand that pip would fetch CUDA, and how not to."""
    if has_nvidia_gpu() or _has_torch(python):
        return
    urls = _cuda_downloads(_resolve(python, repository, options))
    if not urls:
        return
    total, unknown = _sizes(urls)
    amount = f"{total / 1e9:.1f} GB" if total >= GIGABYTE else f"{total / 1e6:.0f} MB" if total else "several GB"
    more = f" and {unknown} files of unknown size" if unknown and total else ""
    print(
        f"NOTE: pip is about to fetch the CUDA build of torch ({amount}{more}), and this machine has no "
        "NVIDIA GPU.\n"
        "      The CPU build is about 0.2 GB and trains the same here. To take it, stop (Ctrl-C) and run\n"
        "        make demo ATHANOR_TORCH=cpu                  from PyTorch's own index\n"
        "        make demo ATHANOR_TORCH=/folder/of/wheels    or set PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL\n"
        "      Going on with the CUDA build.",
        flush=True,
    )


def has_nvidia_gpu() -> bool:
    """Return whether this machine has an NVIDIA driver."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _has_torch(python: str) -> bool:
    command = [python, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)"]
    return subprocess.run(command, check=False).returncode == 0


def _resolve(python: str, repository: Path, options: list[str]) -> list[dict[str, Any]]:
    """Return what pip would install for the pinned torch; empty if pip fails, as the real run then reports why."""
    command = [
        python, "-m", "pip", "install", "--dry-run", "--quiet", "--disable-pip-version-check",
        "--ignore-installed", "--report", "-", *options, "-c", "constraints.txt", "torch",
    ]  # fmt: skip
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    if result.returncode:
        return []
    found: list[dict[str, Any]] = json.loads(result.stdout)["install"]
    return found


def _cuda_downloads(resolved: list[dict[str, Any]]) -> list[str]:
    """Addresses of torch and its CUDA libraries when this resolution holds any such library, else none."""
    by_name = {
        re.sub(r"[-_.]+", "-", entry["metadata"]["name"]).lower(): entry["download_info"]["url"] for entry in resolved
    }
    libraries = [url for name, url in by_name.items() if name.startswith(CUDA_PREFIXES)]
    return [by_name["torch"], *libraries] if libraries and "torch" in by_name else []


def _sizes(urls: list[str]) -> tuple[int, int]:
    """Return the sum of the sizes that the server reports, and the number of files without a size."""
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(_size, urls))
    return sum(size or 0 for size in sizes), sum(size is None for size in sizes)


def _size(url: str) -> int | None:
    if not url.startswith(("http://", "https://")):
        path = Path(url.removeprefix("file://"))
        return path.stat().st_size if path.exists() else None
    certificates = next((os.environ[n] for n in CERTIFICATE_NAMES if os.environ.get(n)), None)
    request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - http(s) only, checked above
    try:
        context = ssl.create_default_context(cafile=certificates)
        with urllib.request.urlopen(request, timeout=HEAD_SECONDS, context=context) as answer:  # noqa: S310
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None

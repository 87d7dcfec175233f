"""What is said before pip fetches a CUDA build. pip itself resolves, from wheels made here."""

import os
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.local import torch_choice


def make_wheel(folder: Path, name: str, version: str, requires: list[str] | None = None) -> None:
    information = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires or [])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "#" * 3_000_000)
        wheel.writestr(f"{information}/METADATA", metadata)
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all pip may see, and an empty constraints.txt beside it."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(torch_choice, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(torch_choice, "_has_torch", lambda _: False)
    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    return tmp_path


def test_a_cuda_build_is_announced_with_its_size_and_the_way_to_the_cpu_build(index: Path, capsys) -> None:
    make_wheel(index, "nvidia_cublas", "13.0")
    make_wheel(index, "torch", "2.13.0", ["nvidia-cublas==13.0"])
    torch_choice.explain_torch_download(sys.executable, index, [])
    said = capsys.readouterr().out
    assert "CUDA build of torch (6 MB)" in said
    assert "ATHANOR_TORCH=cpu" in said


def test_a_cpu_build_needs_no_word(index: Path, capsys) -> None:
    make_wheel(index, "torch", "2.13.0+cpu")
    torch_choice.explain_torch_download(sys.executable, index, [])
    assert capsys.readouterr().out == ""


def test_the_cpu_build_wins_when_both_are_offered(index: Path, tmp_path_factory, capsys) -> None:
    make_wheel(index, "nvidia_cublas", "13.0")
    make_wheel(index, "torch", "2.13.0", ["nvidia-cublas==13.0"])
    other = tmp_path_factory.mktemp("cpu")
    make_wheel(other, "torch", "2.13.0+cpu")
    torch_choice.explain_torch_download(sys.executable, index, ["--find-links", str(other)])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("", []),
        ("cpu", ["--extra-index-url", torch_choice.CPU_INDEX]),
        ("https://wheels.example/simple", ["--extra-index-url", "https://wheels.example/simple"]),
        ("/", ["--find-links", "/"]),
    ],
)
def test_athanor_torch_becomes_options_of_pip(
    monkeypatch: pytest.MonkeyPatch, choice: str, expected: list[str]
) -> None:
    monkeypatch.setenv("ATHANOR_TORCH", choice)
    assert torch_choice.torch_index_options() == expected

"""Job files and --set, before any request is sent."""

from pathlib import Path

import pytest

from athanor.cli.errors import CliError, ExitCode
from athanor.cli.spec_file import apply_settings, read_spec


def test_a_setting_reaches_a_nested_field_and_leaves_the_original_alone() -> None:
    spec = {"training": {"steps": 200, "seed": 1}}
    changed = apply_settings(spec, ["training.steps=50", "labels.run=a b", "training.data.source=dataset:x"])
    assert changed["training"] == {"steps": 50, "seed": 1, "data": {"source": "dataset:x"}}
    assert changed["labels"] == {"run": "a b"}
    assert spec == {"training": {"steps": 200, "seed": 1}}


@pytest.mark.parametrize("setting", ["training.steps", "=5", "training..steps=5", "training.steps.deep=1", "a=[1"])
def test_a_setting_that_cannot_be_applied_is_a_usage_error_that_names_it(setting: str) -> None:
    with pytest.raises(CliError) as caught:
        apply_settings({"training": {"steps": 200}}, [setting])
    assert caught.value.exit_code == ExitCode.USAGE
    assert repr(setting) in str(caught.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a: [1\nb: 2", "line 2"),
        (b"- just\n- a list", "no mapping"),
        (b"name: \xff", "not UTF-8 (byte 6)"),
    ],
)
def test_a_file_that_is_no_spec_is_refused_with_the_place(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(CliError, match=expected.replace("(", r"\(").replace(")", r"\)")) as caught:
        read_spec(path)
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CliError, match="absent.yaml"):
        read_spec(tmp_path / "absent.yaml")

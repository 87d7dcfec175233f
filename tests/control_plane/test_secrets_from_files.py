"""Secrets from files: `<name>_FILE` for each secret of the environment, and what is refused."""

import os
from pathlib import Path

import pytest

from athanor.config import env
from athanor.config.env import BOOTSTRAP_PASSWORD, Environment, EnvironmentProblem, read, read_secret

SECRETS = {str(field.alias): name for name, field in Environment.model_fields.items() if not field.repr}


def secret_file(folder: Path, content: str = "s3cret-value-of-the-test\n", mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(content)
    path.chmod(mode)
    return path


def problem(variables: dict[str, str]) -> str:
    with pytest.raises(EnvironmentProblem) as refused:
        read(variables)
    return str(refused.value)


def test_what_is_secret_by_its_name_may_come_from_a_file() -> None:
    words = ("KEY", "SECRET", "PASSWORD", "DATABASE_URL", "BROKER_URL", "METRICS_TOKEN")
    named = {str(field.alias) for field in Environment.model_fields.values()}
    assert {name for name in named if any(word in name for word in words)} == set(SECRETS)


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_a_secret_from_its_file_is_that_of_the_variable(tmp_path: Path, name: str) -> None:
    found = read({f"{name}_FILE": str(secret_file(tmp_path))})
    assert getattr(found, SECRETS[name]) == "s3cret-value-of-the-test"
    assert "s3cret" not in repr(found)


def test_the_first_password_may_come_from_a_file(tmp_path: Path) -> None:
    path = secret_file(tmp_path, "correct horse\r\n")
    assert read_secret(BOOTSTRAP_PASSWORD, {f"{BOOTSTRAP_PASSWORD}_FILE": str(path)}) == "correct horse"
    read({f"{BOOTSTRAP_PASSWORD}_FILE": str(path)})


def test_a_setting_that_is_no_secret_comes_from_no_file(tmp_path: Path) -> None:
    assert "unknown environment variable ATHANOR_PUBLIC_URL_FILE" in problem(
        {"ATHANOR_PUBLIC_URL_FILE": str(secret_file(tmp_path))}
    )


def test_variable_and_file_are_not_both_given(tmp_path: Path) -> None:
    given = {"ATHANOR_MASTER_KEY": "from-the-variable", "ATHANOR_MASTER_KEY_FILE": str(secret_file(tmp_path))}
    answer = problem(given)
    assert "ATHANOR_MASTER_KEY and ATHANOR_MASTER_KEY_FILE are both set" in answer
    assert "from-the-variable" not in answer


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    """As compose passes `${NAME:-}`."""
    path = str(secret_file(tmp_path))
    assert read({"ATHANOR_MASTER_KEY": "", "ATHANOR_MASTER_KEY_FILE": path}).master_key == "s3cret-value-of-the-test"
    assert read({"ATHANOR_MASTER_KEY": "given", "ATHANOR_MASTER_KEY_FILE": ""}).master_key == "given"


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o644, 0o606])
def test_a_file_that_others_may_open_is_refused_and_its_remedy_works(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path, mode=mode)
    answer = problem({"ATHANOR_SECRET_KEY_FILE": str(path)})
    assert f"chmod o= {path}" in answer
    assert "s3cret" not in answer
    path.chmod(mode & ~0o007)
    assert read({"ATHANOR_SECRET_KEY_FILE": str(path)}).secret_key == "s3cret-value-of-the-test"


def test_the_secrets_of_a_container_may_be_readable_but_never_writable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(env, "SECRETS_OF_CONTAINERS", tmp_path)
    path = secret_file(tmp_path, mode=0o444)
    assert read({"ATHANOR_SECRET_KEY_FILE": str(path)}).secret_key == "s3cret-value-of-the-test"
    path.chmod(0o646)
    assert "change the file" in problem({"ATHANOR_SECRET_KEY_FILE": str(path)})


@pytest.mark.parametrize("content", ["", "\n", "x" * (env.SECRET_BYTES + 1)])
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: str) -> None:
    assert "expected text of 1 to" in problem({"ATHANOR_SECRET_KEY_FILE": str(secret_file(tmp_path, content))})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "absent"
    assert problem({"DATABASE_URL_FILE": str(path)}) == f"athanor: DATABASE_URL_FILE={path}: {os.strerror(2)}"


@pytest.mark.parametrize("source", ["ATHANOR_METRICS_TOKEN", "ATHANOR_METRICS_TOKEN_FILE"])
def test_a_refused_secret_is_not_printed(tmp_path: Path, source: str) -> None:
    value = "tooshort"
    given = str(secret_file(tmp_path, value)) if source.endswith("_FILE") else value
    with pytest.raises(EnvironmentProblem) as refused:
        read({source: given})
    assert "environment variable ATHANOR_METRICS_TOKEN: " in str(refused.value)
    assert value not in str(refused.value)
    assert refused.value.__cause__ is None

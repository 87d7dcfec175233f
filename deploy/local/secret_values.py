"""Secrets of one data folder, made once. Losing `master_key` loses every model; nothing here is ever printed."""

import secrets
import subprocess
import sys
from pathlib import Path

from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json, write_json

S3_ACCOUNT = "athanor"
S3_ACCESS_KEY = f"{S3_ACCOUNT}:platform"  # Swift's tempauth takes ACCOUNT:USER as the access key
_MADE = (
    "secret_key",
    "database_password",
    "database_owner_password",
    "database_migration_password",
    "s3_secret_key",
    "valkey_password",
    "admin_password",
)


def load_or_make(folder: DataFolder) -> dict[str, str]:
    """Return the secrets of stores and web by name. Missing ones are generated; existing ones never change."""
    path = folder.root / "secrets.json"
    known: dict[str, str] = read_json(path) or {}
    missing = [name for name in _MADE if name not in known]
    if not missing:
        return known
    if folder.postgres.exists() and not known:
        raise StackError(
            f"{path} is gone while {folder.root} holds data sealed with it: restore the file, "
            "or set ATHANOR_DATA_DIR to an empty folder"
        )
    for name in missing:
        known[name] = secrets.token_urlsafe(12 if name == "admin_password" else 32)
    write_json(path, known)
    return known


def load_or_make_master_key(folder: DataFolder, repository: Path, environment: dict[str, str]) -> str:
    """Return the master key, a Tink keyset. The platform itself generates it, so that one place knows its format.

    Raise StackError instead of generating one beside a database whose keys another master key encrypted.
    """
    path = folder.root / "secrets.json"
    known = load_or_make(folder)
    if "master_key" in known:
        return known["master_key"]
    result = _manage(repository, environment, "generate_master_key")
    key = result.stdout.strip()
    if result.returncode or not key:
        raise StackError("`python manage.py generate_master_key` failed", result.stderr)
    checked = _manage(repository, {**environment, "ATHANOR_MASTER_KEY": key}, "check", "--database=default")
    if checked.returncode:
        raise StackError(
            f"{path} has no master_key, and a new one does not fit the database: restore the file from a copy, or set "
            "ATHANOR_DATA_DIR to an empty folder",
            checked.stderr,
        )
    write_json(path, {**known, "master_key": key})
    return key


def _manage(repository: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "manage.py", *arguments]
    return subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)

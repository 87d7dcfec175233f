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
    """Return the master key, a Tink keyset. The platform itself generates it, so that one place knows its format."""
    path = folder.root / "secrets.json"
    known = load_or_make(folder)
    if "master_key" in known:
        return known["master_key"]
    result = subprocess.run(
        [sys.executable, "manage.py", "generate_master_key"],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    key = result.stdout.strip()
    if result.returncode or not key:
        raise StackError("`python manage.py generate_master_key` failed", result.stderr)
    write_json(path, {**known, "master_key": key})
    return key

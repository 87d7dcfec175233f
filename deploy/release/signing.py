"""Checksums of a release, signed with an SSH key (`ssh-keygen -Y sign`), so that a reader needs OpenSSH alone."""

import hashlib
import subprocess
from pathlib import Path

from deploy.local.errors import StackError

CHECKSUMS = "SHA256SUMS"
NAMESPACE = "athanor-release"
_CHUNK = 1 << 20


def require_key(key: Path) -> None:
    """Raise StackError unless the file is a private SSH key that can be used without a question."""
    done = subprocess.run(
        ["ssh-keygen", "-y", "-P", "", "-f", str(key)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        made = "`ssh-keygen -t ed25519 -f release_key` makes one"
        raise StackError(f"--key {key}: not a private SSH key without a passphrase ({made})", done.stderr)


def sign(folder: Path, key: Path) -> None:
    """Write the checksums of all files in the folder, their signature, and check it."""
    sums = "".join(f"{_digest(file)}  {file.name}\n" for file in sorted(folder.iterdir()))
    checksums = folder / CHECKSUMS
    checksums.write_text(sums)
    _ssh_keygen("-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(checksums))
    _ssh_keygen("-Y", "check-novalidate", "-n", NAMESPACE, "-s", f"{checksums}.sig", given=sums)


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _ssh_keygen(*arguments: str, given: str = "") -> None:
    done = subprocess.run(["ssh-keygen", *arguments], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError("the checksums could not be signed", done.stderr)

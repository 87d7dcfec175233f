"""`athanor model verify` and `athanor signing-key`."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from athanor.cli import signatures
from tests.trainer.test_model_signature import FILES, signed_folder
from trainer.contract.model_signature import (
    fingerprint_of,
    new_private_key,
    provenance,
    public_half,
    sign_statement,
)

PRIVATE_KEY = new_private_key()
PUBLIC_KEY = public_half(PRIVATE_KEY)
FINGERPRINT = fingerprint_of(PUBLIC_KEY)
KEYS = "GET /api/v1/teams/team_1/signing-keys"


def row(state: str = "active", **changes: Any) -> dict[str, Any]:
    return {
        "id": "sgk_1", "state": state, "fingerprint": FINGERPRINT, "public_key": PUBLIC_KEY, "revocation_reason": "",
        "created_at": "2026-01-02T03:04:05Z", "retired_at": None, "revoked_at": None, "revoked_by": None, **changes,
    }  # fmt: skip


REVOKED = row("revoked", revocation_reason="it\nleaked", revoked_at="2026-02-02T03:04:05Z", revoked_by="hal")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A signed model, beside the file of the key."""
    (tmp_path / "team.pub.pem").write_text(PUBLIC_KEY)
    return signed_folder(tmp_path / "model", PRIVATE_KEY)


@pytest.fixture
def team(server, answer) -> Any:
    server.answer("GET /api/v1/teams", answer({"items": [{"id": "team_1", "name": "red"}], "next_cursor": None}))
    server.answer(KEYS, answer({"items": [row()], "next_cursor": None}))
    return server


def exit_code(folder: Path, **options: Any) -> int:
    """Run `athanor model verify` in this process."""
    try:
        signatures.verify(folder, folder.with_name("team.pub.pem"), **options)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def test_verify_needs_no_server_and_names_what_was_signed_by_which_key(athanor, folder, capsys) -> None:
    for name in ("ATHANOR_URL", "ATHANOR_TOKEN"):
        del athanor.environment[name]
    result = athanor("model", "verify", "model", "--key", "team.pub.pem")
    assert result.returncode == 0, result.stderr
    assert f"{len(FILES)} files as signed, model 'tiny' of team red: step 5 of job_1 (art_1)" in result.stdout
    assert FINGERPRINT in result.stdout
    assert exit_code(folder, as_json=True) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["fingerprint"], shown["record"]["artifact"], set(shown["files"])) == (
        FINGERPRINT,
        "art_1",
        set(FILES),
    )


def provenance_file(folder: Path, files: dict[str, str], private_key: str = PRIVATE_KEY) -> Path:
    path = folder.with_name("made.json")
    path.write_text(json.dumps(sign_statement(provenance(files, {"runDetails": {}}), private_key)))
    return path


def test_verify_accepts_the_provenance_of_exactly_these_files(folder, capsys) -> None:
    assert exit_code(folder, as_json=True) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert exit_code(folder, provenance=provenance_file(folder, files)) == 0
    assert f"made.json is the provenance of these files, signed by the key {FINGERPRINT}" in capsys.readouterr().out
    other = {**files, "config.json": "0" * 64}
    assert exit_code(folder, provenance=provenance_file(folder, other)) == 5
    assert "the provenance of other files than these: config.json differ" in capsys.readouterr().err
    assert exit_code(folder, provenance=provenance_file(folder, files, new_private_key())) == 5
    assert "not among the given ones" in capsys.readouterr().err
    assert exit_code(folder, provenance=folder / "model.sig") == 5
    assert "it signs something other than a provenance" in capsys.readouterr().err


def test_verify_lists_each_difference_and_exits_with_5(folder, capsys) -> None:
    (folder / "config.json").write_text("[]")
    (folder / "weights" / "model.safetensors").unlink()
    (folder / "extra.py").write_text("import os")
    assert exit_code(folder) == 5
    seen = capsys.readouterr().err
    for text in ("config.json was altered", "model.safetensors is missing", "extra.py was not signed"):
        assert text in seen


@pytest.mark.parametrize("content", ["", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "private"])
def test_a_file_that_holds_no_public_key_is_refused(folder, capsys, content: str) -> None:
    folder.with_name("team.pub.pem").write_text(PRIVATE_KEY if content == "private" else content)
    assert exit_code(folder) == 2
    assert "team.pub.pem is no key file" in capsys.readouterr().err


def test_the_exported_list_of_revoked_keys_makes_verify_refuse(athanor, server, team, answer, folder, capsys) -> None:
    server.answer(KEYS, answer({"items": [REVOKED], "next_cursor": None}))
    exported = athanor("signing-key", "list", "--revoked")
    assert exported.stdout == f"{FINGERPRINT} it leaked (2026-02-02T03:04:05Z)\n"
    revoked = folder.with_name("revoked.txt")
    revoked.write_text(exported.stdout)
    assert exit_code(folder, revoked=revoked) == 5
    assert "revoked: it leaked (2026-02-02T03:04:05Z)" in capsys.readouterr().err
    revoked.write_text("")
    assert exit_code(folder, revoked=revoked) == 0, "the list of a team without revoked keys"
    revoked.write_text("not a fingerprint\n")
    assert exit_code(folder, revoked=revoked) == 2


def test_show_prints_the_pem_of_the_active_key(athanor, server, team, answer) -> None:
    assert athanor("signing-key", "show", "--public").stdout == PUBLIC_KEY
    server.answer(KEYS, answer({"items": [], "next_cursor": None}))
    result = athanor("signing-key", "show", "--public")
    assert (result.returncode, result.stdout) == (4, "")
    assert "athanor signing-key rotate" in " ".join(result.stderr.split())


def test_rotate_and_revoke_send_what_they_say(athanor, server, team, answer) -> None:
    server.answer("POST /api/v1/teams/team_1/signing-keys:rotate", answer(row(), 201))
    server.answer("POST /api/v1/signing-keys/sgk_1:revoke", answer(REVOKED))
    assert FINGERPRINT in athanor("signing-key", "rotate").stdout
    result = athanor("signing-key", "revoke", FINGERPRINT, "--reason", "it leaked", "--yes")
    assert result.returncode == 0, result.stderr
    assert "list --revoked" in result.stdout
    (sent,) = [seen.body for seen in server.seen if seen.path.endswith(":revoke")]
    assert json.loads(sent) == {"reason": "it leaked"}

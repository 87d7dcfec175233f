"""`athanor model verify` and `athanor signing-key`."""

import json
from typing import Any

import pytest

from tests.trainer.test_model_signature import FILES, signed_folder
from trainer.contract.model_signature import fingerprint_of, new_private_key, public_half

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
def offline(athanor, monkeypatch) -> Any:
    """The command line without the address of a server and without a token, beside a folder `model` and its key."""
    monkeypatch.delenv("ATHANOR_URL", raising=False)
    monkeypatch.delenv("ATHANOR_TOKEN", raising=False)
    signed_folder(athanor.home / "model", PRIVATE_KEY)
    (athanor.home / "team.pub.pem").write_text(PUBLIC_KEY)
    return athanor


@pytest.fixture
def team(server, answer) -> Any:
    server.answer("GET /api/v1/teams", answer({"items": [{"id": "team_1", "name": "red"}], "next_cursor": None}))
    server.answer(KEYS, answer({"items": [row()], "next_cursor": None}))
    return server


def test_verify_names_what_was_signed_and_by_which_key(offline) -> None:
    result = offline("model", "verify", "model", "--key", "team.pub.pem")
    assert result.returncode == 0, result.stderr
    assert f"{len(FILES)} files as signed, model 'tiny' of team red: step 5 of job_1 (art_1)" in result.stdout
    assert FINGERPRINT in result.stdout
    shown = json.loads(offline("model", "verify", "model", "--key", "team.pub.pem", "--json").stdout)
    assert (shown["fingerprint"], shown["record"]["artifact"], set(shown["files"])) == (
        FINGERPRINT,
        "art_1",
        set(FILES),
    )


def test_verify_lists_each_difference_and_exits_with_5(offline) -> None:
    model = offline.home / "model"
    (model / "config.json").write_text("[]")
    (model / "weights" / "model.safetensors").unlink()
    (model / "extra.py").write_text("import os")
    result = offline("model", "verify", "model", "--key", "team.pub.pem")
    assert result.returncode == 5
    for text in ("config.json was altered", "model.safetensors is missing", "extra.py was not signed"):
        assert text in result.stderr


@pytest.mark.parametrize("content", ["", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "private"])
def test_a_file_that_holds_no_public_key_is_refused(offline, content: str) -> None:
    (offline.home / "team.pub.pem").write_text(PRIVATE_KEY if content == "private" else content)
    result = offline("model", "verify", "model", "--key", "team.pub.pem")
    assert result.returncode == 2
    assert "team.pub.pem is no key file" in " ".join(result.stderr.split())


def test_the_exported_list_of_revoked_keys_makes_verify_refuse(offline, server, team, answer) -> None:
    server.answer(KEYS, answer({"items": [REVOKED], "next_cursor": None}))
    exported = offline("signing-key", "list", "--revoked")
    assert exported.stdout == f"{FINGERPRINT} it leaked (2026-02-02T03:04:05Z)\n"
    (offline.home / "revoked.txt").write_text(exported.stdout)
    command = ("model", "verify", "model", "--key", "team.pub.pem", "--revoked", "revoked.txt")
    result = offline(*command)
    assert result.returncode == 5
    assert "revoked: it leaked (2026-02-02T03:04:05Z)" in " ".join(result.stderr.split())
    (offline.home / "revoked.txt").write_text("")
    assert offline(*command).returncode == 0, "the list of a team without revoked keys"
    (offline.home / "revoked.txt").write_text("not a fingerprint\n")
    assert offline(*command).returncode == 2


def test_show_prints_the_pem_of_the_active_key(athanor, server, team, answer) -> None:
    assert athanor("signing-key", "show", "--public").stdout == PUBLIC_KEY
    assert FINGERPRINT in athanor("signing-key", "list").stdout.replace("\n", "")
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
    assert athanor("signing-key", "show", "sgk_2").returncode == 4

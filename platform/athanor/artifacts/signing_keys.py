"""Signing keys of teams (ECDSA P-256), and the signatures that they make of exported models.

One key of a team is active and signs; it is created when it is first needed. A rotation or a revocation destroys the
private half of the key it replaces. Signatures by a retired key stay valid; those by a revoked one are refused.
"""

import json
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.accounts.selectors import Principal
from athanor.artifacts import keys, manifests
from athanor.artifacts.models import Artifact, SigningKey
from athanor.core import encryption, tenancy
from athanor.core.errors import Conflict, NotFound
from trainer.contract import model_signature
from trainer.contract.model_signature import ExportRecord

ACTIVE = {"retired_at": None, "revoked_at": None}


def keys_of(team: Team) -> QuerySet[SigningKey]:
    """Return the team's signing keys, newest first."""
    return SigningKey.objects.filter(team=team).select_related("revoked_by").order_by("-id")


def key_of(principal: Principal, key_id: str) -> SigningKey:
    """Return a signing key of one of the caller's teams, or raise NotFound."""
    row = SigningKey.objects.select_related("team").filter(pk=key_id, team_id__in=principal.team_ids).first()
    if row is None:
        raise NotFound("signing key", key_id)
    return row


def rotate(team: Team, user: User) -> SigningKey:
    """Create a key that signs from now on, and return it. Destroy the private half of the active one, if there is one.

    Signatures by earlier keys stay valid.
    """
    with transaction.atomic():
        keyset = keys.locked_team_keyset(team)
        old = SigningKey.objects.filter(team=team, **ACTIVE).first()
        if old is not None:
            old.retired_at, old.wrapped = timezone.now(), _without_private_half(keyset, old)
            old.save(update_fields=["retired_at", "wrapped"])
        made = _create(team, keyset)
        before = {"fingerprint": old.fingerprint} if old else {}
        _audit("signing_key.rotate", made, user, before=before, after={"fingerprint": made.fingerprint})
    return made


def revoke(row: SigningKey, reason: str, user: User) -> SigningKey:
    """Revoke a key, and destroy its private half. Return it; one that is revoked already is returned unchanged.

    If it is the active one, the next signature creates another.
    """
    with transaction.atomic():
        keyset = keys.locked_team_keyset(row.team)
        locked = SigningKey.objects.select_related("team", "revoked_by").get(pk=row.pk)
        if locked.revoked_at is None:
            locked.revoked_at, locked.revoked_by, locked.revocation_reason = timezone.now(), user, reason
            locked.wrapped = _without_private_half(keyset, locked)
            locked.save(update_fields=["revoked_at", "revoked_by", "revocation_reason", "wrapped"])
            _audit("signing_key.revoke", locked, user, after={"fingerprint": locked.fingerprint, "reason": reason})
    return locked


def sign(artifact: Artifact, user: User) -> dict[str, Any]:
    """Return the signature of an exported model by its team's active key, as a Sigstore bundle.

    Its digests are those of the export's authenticated manifest; no file is read. Raise Conflict for an artifact that
    is not a model, or an export that does not contain the digests.
    """
    digests = _digests_to_sign(artifact)
    private_key = _key_for(artifact, user, "artifact.sign")
    record = ExportRecord(
        team=artifact.owner.name,
        job=artifact.job_id or "",
        attempt=artifact.attempt_id or "",
        artifact=artifact.id,
        step=artifact.step,
        signed_at=timezone.now().isoformat(timespec="seconds"),
    )
    return model_signature.sign(digests, artifact.name, record, private_key)


def sign_provenance(artifact: Artifact, predicate: dict[str, Any], user: User) -> dict[str, Any]:
    """Return a provenance of the files of an exported model, signed by its team's active key. Raise Conflict as `sign`
    does. `predicate`: of SLSA."""
    statement = model_signature.provenance(_digests_to_sign(artifact), predicate)
    return model_signature.sign_statement(statement, _key_for(artifact, user, "artifact.sign_provenance"))


def signature_file(artifact: Artifact, user: User) -> bytes | None:
    """Return the content of `model.sig` for an exported model; None for what cannot be signed."""
    return None if digests_of(artifact) is None else json.dumps(sign(artifact, user)).encode()


def _digests_to_sign(artifact: Artifact) -> dict[str, str]:
    digests = digests_of(artifact)
    if digests is None:
        raise Conflict(
            "not_signable",
            f"{artifact.id} ({artifact.kind} of {artifact.job_id}) cannot be signed: its manifest does not contain the "
            "SHA-256 of its files",
            remedy="models are signed that were exported since signatures exist: run the job again for one",
        )
    return digests


def _key_for(artifact: Artifact, user: User, action: str) -> str:
    """Return the private half of the active key of the artifact's team, and record what it is used for."""
    team = artifact.owner
    with tenancy.including([team.id]):  # of a shared export: the reader's session sees none of the owner's keys
        key, private_key = _active(team)
        facts = {"job": artifact.job_id, "step": artifact.step, "fingerprint": key.fingerprint}
        audit.record(action, actor=user, target=("artifact", artifact.id), team_id=team.id, after=facts)
    return private_key


def digests_of(artifact: Artifact) -> dict[str, str] | None:
    """Return the SHA-256 of each file of an exported model by path; None if its manifest does not contain them.

    Raise Conflict for a forged manifest.
    """
    if artifact.kind != Artifact.Kind.MODEL:
        return None
    files = manifests.of_stored(artifact).files
    digests = {file.path: file.plaintext_sha256 for file in files if file.plaintext_sha256 is not None}
    return digests if digests and len(digests) == len(files) else None


def owner_of(row: SigningKey) -> str:
    """Return the associated data of a private key: moved to another row or team, it does not decrypt."""
    return f"signing-key:{row.team_id}:{row.fingerprint}"


def _active(team: Team) -> tuple[SigningKey, str]:
    """Return the team's active key and its private half, in the caller's transaction; create it if there is none."""
    found = SigningKey.objects.filter(team=team, **ACTIVE).annotate(team_wrapped=keys.TEAM_WRAPPED).first()
    if found is not None:
        return found, keys.opened(found, owner_of(found))
    keyset = keys.locked_team_keyset(team)
    row = SigningKey.objects.filter(team=team, **ACTIVE).first() or _create(team, keyset)
    return row, encryption.unwrap(keyset, row.wrapped, owner_of(row))


def _create(team: Team, keyset: str) -> SigningKey:
    private_key = model_signature.new_private_key()
    public_key = model_signature.public_half(private_key)
    row = SigningKey(team=team, public_key=public_key, fingerprint=model_signature.fingerprint_of(public_key))
    row.wrapped = encryption.wrap(keyset, private_key, owner_of(row))
    row.save(force_insert=True)
    return row


def _without_private_half(keyset: str, row: SigningKey) -> bytes:
    """Return what replaces a private key that is destroyed. It is wrapped like one, so that rotations need no rule."""
    return encryption.wrap(keyset, "", owner_of(row))


def _audit(action: str, row: SigningKey, user: User, **facts: Any) -> None:
    audit.record(action, actor=user, target=("signing_key", row.id), team_id=row.team_id, **facts)

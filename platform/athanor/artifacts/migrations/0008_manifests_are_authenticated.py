from typing import Any

from django.db import migrations

from athanor.core import encryption
from athanor.core.errors import Misconfigured
from trainer.contract.manifest import CheckpointManifest, DatasetManifest, LogManifest, ModelManifest, ProfileManifest
from trainer.contract.encryption import Encryptor, authenticate

OF_ARTIFACTS = {"model": ModelManifest, "log": LogManifest, "profile": ProfileManifest}


def add_tags(apps: Any, schema_editor: Any) -> None:
    """Authenticate every manifest as it is now. One whose key or content cannot be read stays without, and is refused."""
    alias = schema_editor.connection.alias

    def rows(name: str) -> Any:
        return apps.get_model("artifacts", name).objects.using(alias)

    def sealer(owner: str) -> Encryptor:
        key = rows("DataKey").get(owner=owner)
        team_key = rows("TeamKey").get(team_id=key.team_id)
        keyset = encryption.unwrap_by_master(team_key.wrapped, key.team_id)
        return Encryptor(encryption.unwrap(keyset, key.wrapped, owner))

    def add(row: Any, kind: Any, owner: str, **facts: Any) -> None:
        try:
            manifest = authenticate(kind.model_validate({**row.manifest, **facts}), sealer(owner))
        except (Misconfigured, ValueError, rows("DataKey").model.DoesNotExist, rows("TeamKey").model.DoesNotExist):
            return
        row.manifest = manifest.model_dump(mode="json")
        row.save(update_fields=["manifest"])

    for row in rows("Checkpoint").filter(deleted_at=None).iterator(chunk_size=100):
        add(row, CheckpointManifest, row.job_id)
    for row in rows("Artifact").iterator(chunk_size=100):
        facts: dict[str, Any] = {"job_id": row.job_id, "attempt_id": row.attempt_id}
        if row.kind == "log":
            facts["step"] = row.step
        if row.kind == "profile":
            facts |= {"number": 1, "node_rank": 0, "last_step": row.step}
        add(row, OF_ARTIFACTS[row.kind], row.job_id, **facts)
    for row in rows("PreparedDataset").iterator(chunk_size=100):
        add(row, DatasetManifest, row.dataset_id)


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0007_teamsecret_destinations")]

    operations = [migrations.RunPython(add_tags, migrations.RunPython.noop)]

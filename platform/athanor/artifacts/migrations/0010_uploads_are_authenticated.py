from typing import Any

from django.db import migrations

from athanor.core import encryption
from athanor.core.errors import Misconfigured
from trainer.contract.manifest import StoredFile, UploadManifest
from trainer.contract.encryption import Encryptor, authenticate


def add_tags(apps: Any, schema_editor: Any) -> None:
    """Authenticate the list of files of every upload as it is now. One whose key cannot be read stays without."""
    alias = schema_editor.connection.alias

    def rows(name: str) -> Any:
        return apps.get_model("artifacts", name).objects.using(alias)

    for row in rows("Dataset").filter(origin="sealed").iterator(chunk_size=100):
        key = rows("DataKey").filter(owner=row.id).first()
        team_key = rows("TeamKey").filter(team_id=row.team_id).first()
        if key is None or team_key is None:
            continue
        try:
            keyset = encryption.unwrap_by_master(team_key.wrapped, row.team_id)
            sealer = Encryptor(encryption.unwrap(keyset, key.wrapped, row.id))
        except Misconfigured:
            continue
        files = [StoredFile.model_validate(file) for file in row.files]
        row.tag = authenticate(UploadManifest(dataset_id=row.id, files=files), sealer).tag
        row.save(update_fields=["tag"])


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0009_deletions")]

    operations = [migrations.RunPython(add_tags, migrations.RunPython.noop)]

from typing import Any

from django.db import migrations, models

from athanor.accounts.audit_chain import KEY_OWNER, head_mac
from athanor.core import encryption

# An UPDATE by the runtime role can only move the head forward; TRUNCATE and DELETE it has no right to.
FORWARD_ONLY = """
CREATE FUNCTION athanor_audit_head_moves_forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit trail is append-only: its head cannot go from record % back to %', OLD.seq, NEW.seq;
END $$;
CREATE TRIGGER audit_head_moves_forward BEFORE UPDATE ON accounts_audithead
    FOR EACH ROW WHEN (NEW.seq < OLD.seq OR NEW.id <> OLD.id)
    EXECUTE FUNCTION athanor_audit_head_moves_forward();
"""
UNDO = """
DROP TRIGGER audit_head_moves_forward ON accounts_audithead;
DROP FUNCTION athanor_audit_head_moves_forward();
"""


def authenticate(apps: Any, schema_editor: Any) -> None:
    """Authenticate the head that an earlier version wrote, as it is now."""
    for head in apps.get_model("accounts", "AuditHead").objects.using(schema_editor.connection.alias).all():
        key = encryption.unwrap_by_master(head.wrapped_key, KEY_OWNER).encode()
        head.mac = head_mac(key, head.seq, head.digest)
        head.save(update_fields=["mac"])


class Migration(migrations.Migration):
    dependencies = [("accounts", "0009_tokens_end")]

    operations = [
        migrations.AddField(
            model_name="audithead",
            name="mac",
            field=models.CharField(blank=True, default="", max_length=64),
        ),
        migrations.RunPython(authenticate, migrations.RunPython.noop),
        migrations.RunSQL(FORWARD_ONLY, UNDO),
    ]

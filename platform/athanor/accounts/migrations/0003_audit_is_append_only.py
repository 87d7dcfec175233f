from django.db import migrations

# Row triggers: TRUNCATE, which only the tables' owner may do, is left to empty test databases.
APPEND_ONLY = """
CREATE FUNCTION athanor_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit trail is append-only: record % cannot be changed or removed', OLD.seq;
END $$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON accounts_auditevent
    FOR EACH ROW EXECUTE FUNCTION athanor_audit_is_append_only();
"""
UNDO = """
DROP TRIGGER audit_is_append_only ON accounts_auditevent;
DROP FUNCTION athanor_audit_is_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_tenancy_and_audit")]

    operations = [
        migrations.RunSQL(APPEND_ONLY, UNDO),
        # Whoever administered the platform before there were platform roles still does.
        migrations.RunSQL(
            "UPDATE accounts_user SET platform_role = 'platform_admin' WHERE is_superuser", migrations.RunSQL.noop
        ),
    ]

from django.db import migrations

from athanor.core.tenancy import protect, through

# Row triggers: TRUNCATE, which only the tables' owner may do, is left to empty test databases.
APPEND_ONLY = """
CREATE FUNCTION athanor_ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger of budgets is append-only: line % cannot be changed or removed', OLD.id;
END $$;
CREATE TRIGGER ledger_is_append_only BEFORE UPDATE OR DELETE ON budgets_transfer
    FOR EACH ROW EXECUTE FUNCTION athanor_ledger_is_append_only();
"""
UNDO = """
DROP TRIGGER ledger_is_append_only ON budgets_transfer;
DROP FUNCTION athanor_ledger_is_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [("budgets", "0001_initial"), ("jobs", "0004_row_security")]

    operations = [
        migrations.RunSQL(APPEND_ONLY, UNDO),
        protect("budgets_transfer", "team_id = '' OR athanor_sees(team_id)"),
        protect("budgets_usagehour"),
        protect("budgets_recentuse"),
        through("budgets_reservation", "jobs_job", "job_id"),
        through("budgets_meter", "jobs_job", "job_id"),
    ]

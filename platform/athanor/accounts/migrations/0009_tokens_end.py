from datetime import timedelta

from django.apps.registry import Apps
from django.conf import settings
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.models import Q
from django.utils import timezone

# Whatever changes the role, a form, single sign-on or SQL: no token made under another role has its power.
DROP_SCOPE = """
CREATE FUNCTION athanor_drop_platform_scope() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE accounts_apitoken SET scopes = scopes - 'platform' WHERE user_id = NEW.id AND scopes @> '["platform"]';
    RETURN NULL;
END $$;
CREATE TRIGGER platform_scope_goes_with_the_role AFTER UPDATE OF platform_role ON accounts_user
    FOR EACH ROW WHEN (OLD.platform_role IS DISTINCT FROM NEW.platform_role)
    EXECUTE FUNCTION athanor_drop_platform_scope();
UPDATE accounts_apitoken SET scopes = scopes - 'platform'
    WHERE scopes @> '["platform"]' AND user_id IN (SELECT id FROM accounts_user WHERE platform_role = 'none');
"""
UNDO = """
DROP TRIGGER platform_scope_goes_with_the_role ON accounts_user;
DROP FUNCTION athanor_drop_platform_scope();
"""


def cap_lives(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    """Tokens made before there was a longest life end that long after the upgrade."""
    latest = timezone.now() + timedelta(days=settings.ATHANOR.token_max_days)
    tokens = apps.get_model("accounts", "ApiToken").objects.using(schema_editor.connection.alias)
    rows = tokens.filter(revoked_at=None)
    rows.filter(Q(expires_at=None) | Q(expires_at__gt=latest)).update(expires_at=latest)


class Migration(migrations.Migration):
    dependencies = [("accounts", "0008_offers_and_token_lineage")]

    operations = [
        migrations.RunPython(cap_lives, migrations.RunPython.noop),
        migrations.RunSQL(DROP_SCOPE, UNDO),
    ]

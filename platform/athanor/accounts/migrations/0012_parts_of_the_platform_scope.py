from django.db import migrations

# Like migration 0009, for each part of the scope: none outlives the role that it is a part of.
DROP_SCOPES = """
CREATE OR REPLACE FUNCTION athanor_drop_platform_scope() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE accounts_apitoken SET scopes = (
        SELECT coalesce(jsonb_agg(scope), '[]') FROM jsonb_array_elements_text(scopes) scope
        WHERE scope <> 'platform' AND scope NOT LIKE 'platform:%'
    ) WHERE user_id = NEW.id AND scopes::text LIKE '%"platform%';
    RETURN NULL;
END $$;
"""


class Migration(migrations.Migration):
    dependencies = [("accounts", "0011_progressive_sign_in_delays")]

    operations = [
        migrations.RunSQL(DROP_SCOPES, migrations.RunSQL.noop),
    ]

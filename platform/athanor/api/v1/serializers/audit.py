"""Serializers of the audit trail."""

from rest_framework import serializers

from athanor.accounts.models import AuditEvent


class AuditEventSerializer(serializers.Serializer[AuditEvent]):
    """A record of the audit trail."""

    seq = serializers.IntegerField(help_text="Number of the record, from 1 without gaps.")
    time = serializers.DateTimeField(help_text="Time of the record, ISO 8601 in UTC.")
    action = serializers.CharField(help_text="What was done, such as `job.submit`.")
    actor = serializers.CharField(
        help_text="Username of the person or service account, or the part of the platform that acted."
    )
    actor_id = serializers.CharField(allow_blank=True, help_text="Id of the user. Empty if none acted.")
    token_id = serializers.CharField(allow_blank=True, help_text="Id of the token of the request. Empty without one.")
    team_id = serializers.CharField(allow_blank=True, help_text="Id of the team concerned. Empty if it concerns none.")
    target_type = serializers.CharField(help_text="Kind of what was acted on, such as `job`.")
    target_id = serializers.CharField(help_text="Id of what was acted on.")
    address = serializers.CharField(allow_blank=True, help_text="IP address of the request. Empty without a request.")
    request_id = serializers.CharField(allow_blank=True, help_text="Id of the request. Empty without one.")
    before = serializers.JSONField(help_text="Facts before the change. Null if there were none.")
    after = serializers.JSONField(help_text="Facts after the change. Null if there are none.")
    previous = serializers.CharField(allow_blank=True, help_text="Digest of the record before. Empty for the first.")
    digest = serializers.CharField(help_text="Digest of this record, which covers `previous`; hexadecimal.")

from django.urls import path, register_converter

from athanor.api.v1 import (
    artifacts,
    audit,
    budgets,
    bulk,
    catalog,
    clusters,
    costs,
    datasets,
    events,
    jobs,
    metrics,
    operations,
    prices,
    profiles,
    projects,
    queue,
    quotas,
    session,
    team_secrets,
    teams,
    telemetry,
    tokens,
    webhooks,
)


class PublicId:
    """An id such as job_01J...; it leaves `:action` behind it alone."""

    regex = r"[A-Za-z0-9_]{1,60}"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


class Name(PublicId):
    """A name that others give: of a node, of a pool."""

    regex = r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"


register_converter(PublicId, "id")
register_converter(Name, "name")

urlpatterns = [
    path("session", session.SessionView.as_view()),
    path("tokens", tokens.TokensView.as_view()),
    path("tokens/<id:token_id>", tokens.TokenView.as_view()),
    path("tokens/<id:token_id>:rotate", tokens.TokenRotateView.as_view()),
    path("teams", teams.TeamsView.as_view()),
    path("teams/<id:team_id>", teams.TeamView.as_view()),
    path("teams/<id:team_id>/members", teams.MembersView.as_view()),
    path("teams/<id:team_id>/members/<id:user_id>", teams.MemberView.as_view()),
    path("teams/<id:team_id>/invitations", teams.InvitationsView.as_view()),
    path("teams/<id:team_id>/service-accounts", teams.ServiceAccountsView.as_view()),
    path("teams/<id:team_id>/secrets", team_secrets.SecretsView.as_view()),
    path("secrets/<id:secret_id>", team_secrets.SecretView.as_view()),
    path("invitations:accept", teams.AcceptView.as_view()),
    path("invitations/<id:invitation_id>", teams.InvitationView.as_view()),
    path("service-accounts/<id:account_id>", teams.ServiceAccountView.as_view()),
    path("service-accounts/<id:account_id>/tokens", teams.ServiceAccountTokensView.as_view()),
    path("webhooks", webhooks.WebhooksView.as_view()),
    path("webhooks/<id:webhook_id>", webhooks.WebhookView.as_view()),
    path("webhooks/<id:webhook_id>:test", webhooks.WebhookTestView.as_view()),
    path("webhooks/<id:webhook_id>:rotate_secret", webhooks.WebhookSecretView.as_view()),
    path("webhooks/<id:webhook_id>/deliveries", webhooks.DeliveriesView.as_view()),
    path("deliveries/<id:delivery_id>", webhooks.DeliveryView.as_view()),
    path("deliveries/<id:delivery_id>:redeliver", webhooks.RedeliverView.as_view()),
    path("events", events.EventsView.as_view()),
    path("admin/sweepers", operations.SweepersView.as_view()),
    path("admin/orphans", operations.OrphansView.as_view()),
    path("admin/orphans:cancel", operations.OrphanCancelView.as_view()),
    path("admin/orphans:observe", operations.OrphanObserveView.as_view()),
    path("audit", audit.AuditView.as_view()),
    path("audit:export", audit.AuditExportView.as_view()),
    path("quotas", quotas.QuotasView.as_view()),
    path("quotas:preview", quotas.QuotaPreviewView.as_view()),
    path("quotas/document", quotas.QuotaDocumentView.as_view()),
    path("quotas/usage", quotas.QuotaUsageView.as_view()),
    path("queue", queue.QueueView.as_view()),
    path("quotas/settings", quotas.AdmissionSettingsView.as_view()),
    path("budgets", budgets.BudgetsView.as_view()),
    path("budgets/<id:budget_id>", budgets.BudgetView.as_view()),
    path("budgets/<id:budget_id>/statement", budgets.BudgetStatementView.as_view()),
    path("budgets/<id:budget_id>/statement:export", budgets.BudgetExportView.as_view()),
    path("costs", costs.CostsView.as_view()),
    path("costs:export", costs.CostsExportView.as_view()),
    path("prices", prices.PricesView.as_view()),
    path("prices/<id:pool_id>", prices.PoolPriceView.as_view()),
    path("series", prices.SeriesListView.as_view()),
    path("series/<id:series_id>", prices.SeriesView.as_view()),
    path("series/<id:series_id>:fetch", prices.SeriesFetchView.as_view()),
    path("series/<id:series_id>/points", prices.SeriesPointsView.as_view()),
    path("projects", projects.ProjectsView.as_view()),
    path("projects/<id:project_id>", projects.ProjectView.as_view()),
    path("jobs", jobs.JobsView.as_view()),
    path("jobs:plan", jobs.PlanView.as_view()),
    path("jobs:cancel", bulk.BulkCancelView.as_view()),
    path("jobs:pause", bulk.BulkPauseView.as_view()),
    path("jobs:resume", bulk.BulkResumeView.as_view()),
    path("jobs/<id:job_id>", jobs.JobView.as_view()),
    path("jobs/<id:job_id>:cancel", jobs.CancelView.as_view()),
    path("jobs/<id:job_id>:pause", jobs.PauseView.as_view()),
    path("jobs/<id:job_id>:resume", jobs.ResumeView.as_view()),
    path("jobs/<id:job_id>:fork", jobs.ForkView.as_view()),
    path("jobs/<id:job_id>:retry", jobs.RetryView.as_view()),
    path("jobs/<id:job_id>:profile", profiles.ProfileView.as_view()),
    path("jobs/<id:job_id>/profiles", profiles.ProfilesView.as_view()),
    path("jobs/<id:job_id>/events", events.JobEventsView.as_view()),
    path("jobs/<id:job_id>/metrics", metrics.MetricsView.as_view()),
    path("metrics:query", metrics.MetricsQueryView.as_view()),
    path("jobs/<id:job_id>/logs", telemetry.LogsView.as_view()),
    path("jobs/<id:job_id>/attempts/<int:attempt_number>/output", telemetry.OutputView.as_view()),
    path("jobs/<id:job_id>/checkpoints", artifacts.CheckpointsView.as_view()),
    path("jobs/<id:job_id>/artifacts", artifacts.ArtifactsView.as_view()),
    path("artifacts/<id:artifact_id>", artifacts.ArtifactView.as_view()),
    path("artifacts/<id:artifact_id>:download", artifacts.ArtifactDownloadView.as_view()),
    path("artifacts/<id:artifact_id>/archive", artifacts.ArchiveView.as_view()),
    path("checkpoints/<id:checkpoint_id>:download", artifacts.CheckpointDownloadView.as_view()),
    path("datasets", datasets.DatasetsView.as_view()),
    path("datasets/<id:dataset_id>/preparations", datasets.PreparationsView.as_view()),
    path("presets", catalog.PresetsView.as_view()),
    path("spec/schema", catalog.SpecSchemaView.as_view()),
    path("clusters", clusters.ClustersView.as_view()),
    path("clusters:check", clusters.ClusterCheckView.as_view()),
    path("clusters:kinds", clusters.ClusterKindsView.as_view()),
    path("clusters/<id:cluster_id>", clusters.ClusterView.as_view()),
    path("clusters/<id:cluster_id>:probe", clusters.ClusterProbeView.as_view()),
    path("clusters/<id:cluster_id>:sync_teams", clusters.ClusterTeamsView.as_view()),
    path("clusters/<id:cluster_id>/probes", clusters.ClusterProbesView.as_view()),
    path("clusters/<id:cluster_id>/queue", clusters.ClusterQueueView.as_view()),
    path("clusters/<id:cluster_id>/pools/<name:pool_name>", clusters.PoolView.as_view()),
    path("clusters/<id:cluster_id>/nodes", clusters.NodesView.as_view()),
    path("clusters/<id:cluster_id>/nodes/<name:node_name>/incidents", clusters.NodeIncidentsView.as_view()),
    path("clusters/<id:cluster_id>/nodes/<name:node_name>:drain", clusters.NodeDrainView.as_view()),
    path("clusters/<id:cluster_id>/nodes/<name:node_name>:undrain", clusters.NodeUndrainView.as_view()),
    path("clusters/<id:cluster_id>/nodes/<name:node_name>:quarantine", clusters.NodeQuarantineView.as_view()),
    path("clusters/<id:cluster_id>/nodes/<name:node_name>:release", clusters.NodeReleaseView.as_view()),
]

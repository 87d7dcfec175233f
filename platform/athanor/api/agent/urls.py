"""Addresses of the API for compute nodes."""

from django.urls import path

from athanor.api.agent import views

urlpatterns = [
    path("run", views.RunView.as_view()),
    path("keys", views.KeysView.as_view()),
    path("heartbeat", views.HeartbeatView.as_view()),
    path("rendezvous", views.RendezvousView.as_view()),
    path("metrics", views.BatchView.as_view(kind="metrics")),
    path("logs", views.BatchView.as_view(kind="logs")),
    path("progress", views.BatchView.as_view(kind="progress")),
    path("system", views.BatchView.as_view(kind="system")),
    path("storage:presign", views.PresignView.as_view()),
    path("checkpoints", views.CheckpointsView.as_view()),
    path("checkpoints:read", views.ReadCheckpointView.as_view()),
    path("checkpoints:damaged", views.DamagedCheckpointsView.as_view()),
    path("rollbacks", views.RollbacksView.as_view()),
    path("artifacts", views.ArtifactsView.as_view()),
    path("evaluations", views.EvaluationsView.as_view()),
    path("replays", views.ReplaysView.as_view()),
    path("datasets", views.DatasetsView.as_view()),
    path("preparations:claim", views.ClaimPreparationView.as_view()),
    path("preparations:release", views.ReleasePreparationView.as_view()),
    path("preparations:register", views.RegisterPreparationView.as_view()),
    path("data-reports", views.DataReportsView.as_view()),
    path("profiles", views.ProfilesView.as_view()),
    path("end", views.EndView.as_view()),
]

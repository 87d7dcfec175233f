"""Where a run's metrics go besides the platform."""

from typing import Annotated

from pydantic import Field

from trainer.contract.base import SpecModel

MLFLOW_SECRETS = ("mlflow-tracking-token", "mlflow-tracking-username", "mlflow-tracking-password")


class MlflowSpec(SpecModel):
    """One run of an MLflow experiment for the whole job, all retries included. Needs the extra `mlflow` on the nodes.

    Credentials are secrets of the team that the job lists in `secrets`: `mlflow-tracking-token`, or
    `mlflow-tracking-username` and `mlflow-tracking-password`. Their destinations must include the server."""

    tracking_uri: Annotated[str, Field(min_length=1, max_length=500, examples=["https://mlflow.example.org"])]
    """Address of the tracking server. On the platform it begins with `http://` or `https://`, contains no credentials,
    and is a public https address or one that the administrator allows."""
    experiment: Annotated[str, Field(min_length=1, max_length=200)] = "athanor"
    """Name of the experiment. It is created if it does not exist."""
    run_name: Annotated[
        Annotated[str, Field(min_length=1, max_length=200)] | None, Field(examples=["llama-1m-baseline"])
    ] = None
    """Name of the run in MLflow. Without it, the name of the job."""


class TelemetrySpec(SpecModel):
    """Where metrics are sent besides the platform."""

    mlflow: MlflowSpec | None = None
    """MLflow server to send metrics and parameters to. If the server is slow or unreachable, its points are dropped and
    an event is recorded; the run continues."""

    def named(self, name: str) -> "TelemetrySpec":
        """With the job's name as the name of the run, where none is given."""
        if self.mlflow is None or self.mlflow.run_name is not None:
            return self
        return TelemetrySpec(mlflow=self.mlflow.model_copy(update={"run_name": name}))

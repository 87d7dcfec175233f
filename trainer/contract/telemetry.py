"""Where a run's metrics go besides the platform."""

from typing import Annotated

from pydantic import Field

from trainer.contract.base import SpecModel

MLFLOW_SECRETS = ("mlflow-tracking-token", "mlflow-tracking-username", "mlflow-tracking-password")


class MlflowSpec(SpecModel):
    """One run of an MLflow experiment for the whole job, over all its restarts. Needs the extra `mlflow` on the nodes.

    Credentials are secrets of the team that the job names in `secrets`: mlflow-tracking-token, or
    mlflow-tracking-username and mlflow-tracking-password."""

    tracking_uri: Annotated[str, Field(min_length=1, max_length=500)]
    experiment: Annotated[str, Field(min_length=1, max_length=200)] = "athanor"
    run_name: Annotated[str, Field(min_length=1, max_length=200)] | None = None


class TelemetrySpec(SpecModel):
    """`mlflow`: its server is also sent the metrics; whether it answers makes no difference to the run."""

    mlflow: MlflowSpec | None = None

    def named(self, name: str) -> "TelemetrySpec":
        """With the job's name as the name of the run, where none is given."""
        if self.mlflow is None or self.mlflow.run_name is not None:
            return self
        return TelemetrySpec(mlflow=self.mlflow.model_copy(update={"run_name": name}))

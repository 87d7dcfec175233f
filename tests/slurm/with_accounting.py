"""What only a cluster with slurmdbd can show. Run by `make slurm`, not by `make test`: it needs MariaDB."""

from athanor.backends.base import Cause, Presence
from deploy.local.handle import wait_until
from tests.backends.cases.slurm import SlurmCase
from tests.slurm.cluster import SlurmCluster


def test_one_that_was_cancelled_and_forgotten_is_known_to_the_accounting(
    slurm_commands: SlurmCase, slurm: SlurmCluster
) -> None:
    slurm.configure(min_job_age_seconds=2)
    try:
        submission = slurm_commands.submission()
        handle = slurm_commands.backend.submit(submission)
        wait_until(lambda: slurm_commands.starts(handle) == 1, "it has started", 30)
        slurm.run("scancel", handle.backend_id)
        (slurm.log_directory / f"{handle.backend_name}.end").unlink(missing_ok=True)
        name = f"--name={handle.backend_name}"
        wait_until(lambda: not slurm.run("squeue", "-h", "--states=all", name).strip(), "Slurm forgot it", 100)
    finally:
        slurm.configure(min_job_age_seconds=600)
    (slurm.log_directory / f"{handle.backend_name}.end").unlink(missing_ok=True)
    ended = slurm_commands.observe(handle)
    assert (ended.presence, ended.cause) == (Presence.FINISHED, Cause.CANCELLED)
    (slurm.log_directory / f"{handle.backend_name}.begun").unlink()
    assert slurm_commands.backend.submit(submission) == handle


def test_teams_get_accounts_once(slurm_commands: SlurmCase, slurm: SlurmCluster) -> None:
    slurm_commands.use("", account_prefix="ath_", teams={"vision": {"account": "eyes"}})
    assert len(slurm_commands.backend.sync_teams(["Research", "vision"])) == 2
    assert slurm_commands.backend.sync_teams(["Research", "vision"]) == []
    accounts = slurm.run("sacctmgr", "-nP", "show", "associations", "user=root", "format=Account").split()
    assert {"ath_research", "eyes"} <= set(accounts)


def test_the_health_check_reports_it(slurm_commands: SlurmCase) -> None:
    assert slurm_commands.backend.check_health().facts["accounting"] is True

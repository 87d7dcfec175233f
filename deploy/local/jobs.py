"""Processes of jobs that this machine's stack has started."""

import psutil

from deploy.local.folder import DataFolder


def job_processes(folder: DataFolder) -> list[psutil.Process]:
    """Return the agents and trainers of the local backend of a data folder, also those of an earlier stack."""
    marker = str(folder.jobs)
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ATHANOR_WORK_DIR", "").startswith(marker):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def kill_jobs(folder: DataFolder) -> None:
    """Send SIGKILL to every process of a job and wait until they have ended."""
    victims = job_processes(folder)
    for victim in victims:
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(victims, timeout=10)

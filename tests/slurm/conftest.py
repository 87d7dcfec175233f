from tests.backends.cases.slurm import slurm_commands, slurm_rest, slurm_rest_address, slurm_ssh, ssh_server
from tests.slurm.fixtures import slurm, slurm_session

__all__ = ["slurm", "slurm_commands", "slurm_rest", "slurm_rest_address", "slurm_session", "slurm_ssh", "ssh_server"]

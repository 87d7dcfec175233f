from tests.slurm.fixtures import slurm, slurm_session

__all__ = ["slurm", "slurm_session"]

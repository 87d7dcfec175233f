"""The cluster that the other tests rely on is a real one."""

from tests.slurm.cluster import NODES, SlurmCluster


def test_a_step_runs_on_every_node_with_the_gpus_that_it_asked_for(slurm: SlurmCluster) -> None:
    said = slurm.run("srun", "--nodes=4", "--ntasks-per-node=1", "sh", "-c", 'echo "$SLURMD_NODENAME"')
    assert sorted(said.split()) == list(NODES)
    said = slurm.run("srun", "--gres=gpu:a100:2", "sh", "-c", 'echo "$SLURMD_NODENAME"')
    assert said.strip() in ("n3", "n4")

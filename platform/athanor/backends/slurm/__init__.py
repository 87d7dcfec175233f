"""A Slurm cluster, by its commands (here or over ssh) or by slurmrestd.

An attempt is one batch job, named after the attempt, whose script starts one agent on each node by `srun`. Files in
`log_directory`, which all nodes share, outlive what Slurm remembers: NAME.log (what the agents wrote), NAME.begun (made
once, O_EXCL, with the id of the job: an attempt never runs twice) and NAME.end (its exit status).
"""

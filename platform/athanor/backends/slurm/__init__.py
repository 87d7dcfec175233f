"""A Slurm cluster, by its commands (here or over ssh) or by slurmrestd.

An attempt is one batch job, named after the attempt, whose script starts one agent on each node by `srun`. Files in
`log_directory`, which all nodes share, outlive Slurm's own records: NAME.log (the agents' output), NAME.begun (created
once, O_EXCL, with the id of the job: an attempt never runs twice) and NAME.end (its exit status).
"""

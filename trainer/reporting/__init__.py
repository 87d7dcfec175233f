"""Reports of a run: phases, step statistics, throughput, profiles; the spool on disk; sinks for other tools.

`step_clock`, `stats`, `throughput` and `profiling` import torch; `spool`, `log_format` and `sinks` must not: the agent
uses them too.
"""

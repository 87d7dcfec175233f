"""Operating clusters: registration, pools, quarantine and drain, inventory and health checks, orphaned objects.

May import: dispatch and below. Known to reconcilers, api and workers. The records of clusters, pools and nodes are in
athanor.clusters, which jobs refer to. Invariant: nothing here decides anything about a job.
"""

"""One agent per node: it prepares data, starts and watches the worker processes, and speaks to the platform.

May import: everything of the trainer that is free of torch. Must never import torch: it has to start quickly,
and it must go on when a worker takes the accelerator's runtime down with it.
"""

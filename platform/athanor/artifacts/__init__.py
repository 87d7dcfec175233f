"""What jobs read and write in the object store: data sets, checkpoints, models, logs, and their keys.

May import: jobs and below. Invariants: every object is ciphertext; a checkpoint or artifact exists only when its
manifest does, and is registered only after each part was found in the store with its size.
"""

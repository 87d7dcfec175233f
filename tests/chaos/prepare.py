"""Makes the clusters of a chaos run, as an administrator would in the admin: `prepare.py NAME=ADDRESS=SLOTS ...`

A program of its own, under the environment of the stack that it prepares.
"""

import os
import sys

import django


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "athanor.config.settings")
    django.setup()
    from athanor.clusters.models import Cluster, Pool  # Django must be ready

    for word in sys.argv[1:]:
        name, address, slots = word.split("=")
        cluster, _ = Cluster.objects.update_or_create(
            name=name, defaults={"kind": "fake", "config": {"address": address, "timeout_seconds": 5.0}}
        )
        Pool.objects.update_or_create(
            cluster=cluster, name="cpu", defaults={"slots_per_node": int(slots), "memory_bytes": 1 << 40}
        )


if __name__ == "__main__":
    main()

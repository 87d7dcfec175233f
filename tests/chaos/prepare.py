"""Makes the clusters of a chaos run, as an administrator would in the admin: `prepare.py NAME=ADDRESS=SLOTS ...`

A program of its own, under the environment of the stack that it prepares.
"""

import os
import sys

import django


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "athanor.config.settings")
    django.setup()
    from athanor.clusters import server_config  # Django must be ready
    from athanor.clusters.models import Cluster, Pool

    for word in sys.argv[1:]:
        name, address, slots = word.split("=")
        server_config.write(name, "fake", {"address": address, "timeout_seconds": 5.0}, replace=True)
        cluster, _ = Cluster.objects.update_or_create(name=name, defaults={"kind": "fake", "config": {}})
        Pool.objects.update_or_create(
            cluster=cluster, name="cpu", defaults={"slots_per_node": int(slots), "memory_bytes": 1 << 40}
        )


if __name__ == "__main__":
    main()

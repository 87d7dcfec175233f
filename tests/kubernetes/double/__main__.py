"""`python -m tests.kubernetes.double FOLDER [NODES]`: a cluster until this ends; prints the path of its kubeconfig."""

import signal
import sys
from pathlib import Path

from tests.kubernetes.double.cluster import running_cluster


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with running_cluster(Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 2) as cluster:
        print(cluster.kubeconfig(), flush=True)
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())

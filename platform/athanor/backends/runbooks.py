"""Which runbook covers which finding of a health check. Pure data."""

from athanor.core.runbooks import shared_path

PAGES: dict[str, tuple[str, ...]] = {
    "unreachable": ("answer", "api server", "token"),
    "addresses": ("platform_address", "object_store", "network"),
    "nodes": ("nodes", "pools", "partition", "gres", "topology"),
    "slurm-settings": (
        "version", "configuration", "accounting", "MinJobAge", "AccountingStoreFlags", "SelectType",
        "EnforcePartLimits", "preemption",
    ),
    "slurm-account": ("log directory", "command", "user", "tls"),
    "kubernetes-rights": ("rights", "confinement", "pod security"),
    "kubernetes-settings": ("kueue", "priorities", "clock"),
    "local-machine": ("directory", "disk", "agent", "torch", "memory"),
}  # fmt: skip
"""Pages of docs/runbooks/findings/, each with the checks (`Finding.check`) that it covers."""


def runbook_of_check(check: str) -> str:
    """Return the path of the runbook for a finding; "" for a check without one, as a backend of your own may have."""
    return shared_path("findings", PAGES, check)

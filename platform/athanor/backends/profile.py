"""What all kinds of clusters have in common: the fabric, and where nodes store data.

Part of a backend's configuration, as `profile`.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from trainer.contract import environment as names

AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00\n]*$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Part(BaseModel):
    """A part of a cluster's configuration: immutable, unknown fields are errors. The string below a field is its
    description in the JSON schema, from which the dashboard makes its form."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Fabric(StrEnum):
    """The network between the nodes."""

    INFINIBAND = "infiniband"
    ROCE = "roce"
    EFA = "efa"
    ETHERNET = "ethernet"


class Locality(StrEnum):
    """Where prepared data, models and copies of the newest checkpoints are stored while jobs use them."""

    NODE_CACHE = "node_cache"  # `cache_directory`, on each node's own disk: read once by each node
    SHARED_SCRATCH = "shared_scratch"  # `cache_directory`, on a shared file system: read once for all nodes
    STREAM = "stream"  # nowhere: read from the store when needed, a bounded part in the job's own folder


class ClusterProfile(Part):
    """The network between the nodes, and where they store data."""

    fabric: Fabric = Fabric.ETHERNET
    """Network between the nodes."""
    interfaces: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,^=-]*$")] = ""
    """Network interfaces that peers are reached by, as NCCL and gloo name them, such as `eth0,eth1`. Empty: the
    library chooses."""
    hcas: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,:^=-]*$")] = ""
    """InfiniBand or RoCE adapters to use, as NCCL_IB_HCA takes them. Empty: all that are found."""
    roce_gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    """GID index of the RoCE adapters, as they are set up. There is no usual value."""
    roce_traffic_class: Annotated[int, Field(ge=0, le=255)] | None = None
    """Traffic class of the RoCE switches, as they are set up. There is no usual value."""
    locality: Locality = Locality.NODE_CACHE
    """Where prepared data, models and copies of the newest checkpoints are stored while jobs use them: `node_cache`,
    the cache directory on each node's own disk; `shared_scratch`, the cache directory on a shared file system;
    `stream`, read from the object store when needed."""
    cache_directory: AbsolutePath | None = None
    """Directory of the nodes for cached data. Without it nothing is cached."""
    interruption_notice: Annotated[str, Field(pattern=r"^(/|https?://)[^\x00-\x20]+$", max_length=500)] | None = None
    """File or address on a node where a spot machine's provider announces that it reclaims the machine."""
    environment: dict[VariableName, str] = {}
    """More environment variables for all agents of the cluster. They win over those that follow from the fabric."""

    def variables(self, accelerator: str, nodes: int) -> dict[str, str]:
        """Return the agents' environment variables that follow from the profile."""
        chosen = fabric_variables(self, accelerator) if nodes > 1 else {}
        if self.cache_directory is not None and self.locality is not Locality.STREAM:
            chosen[names.CACHE_DIR] = self.cache_directory
            chosen[names.CHECKPOINT_DIR] = f"{self.cache_directory.rstrip('/')}/checkpoints"
        if self.interruption_notice is not None:
            chosen[names.INTERRUPTION_NOTICE] = self.interruption_notice
        return {**chosen, **self.environment}


def fabric_variables(profile: ClusterProfile, accelerator: str) -> dict[str, str]:
    """Return settings of the communication library. What NCCL detects by itself is omitted."""
    chosen: dict[str, str] = {}
    if profile.interfaces:
        # A node has interfaces that peers cannot reach (bridges of containers, management): the first is often one.
        chosen["NCCL_SOCKET_IFNAME"] = profile.interfaces
        if not profile.interfaces.startswith("^"):  # gloo takes names only, not what to leave out
            chosen["GLOO_SOCKET_IFNAME"] = profile.interfaces.removeprefix("=")
    if accelerator == "cpu":
        return chosen
    if profile.fabric is Fabric.ETHERNET:
        chosen["NCCL_IB_DISABLE"] = "1"  # adapters that are there but not cabled would be tried first, and time out
        return chosen
    if profile.fabric is Fabric.EFA:
        chosen["FI_PROVIDER"] = "efa"  # else libfabric may fall back to TCP without a word
        chosen["FI_EFA_USE_HUGE_PAGE"] = "0"  # forked data workers otherwise fail to map memory that the parent pinned
        return chosen
    if profile.hcas:
        chosen["NCCL_IB_HCA"] = profile.hcas
    if profile.fabric is Fabric.ROCE:
        # RoCE v1 addresses do not pass a router; which index is v2 depends on the adapter, so it is configured.
        if profile.roce_gid_index is not None:
            chosen["NCCL_IB_GID_INDEX"] = str(profile.roce_gid_index)
        # Without it the traffic is in the queue of everything else, which drops: collectives then wait for retries.
        if profile.roce_traffic_class is not None:
            chosen["NCCL_IB_TC"] = str(profile.roce_traffic_class)
    # A fabric's link that flaps for some seconds is not the end of a run: 4.096 us x 2^22 is 17 s a try, 7 tries.
    chosen["NCCL_IB_TIMEOUT"] = "22"
    return chosen

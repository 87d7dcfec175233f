"""Configuration of a Kubernetes cluster: how it is reached, what runs there, what its teams may use."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from athanor.backends.profile import AbsolutePath, ClusterProfile

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
LabelKey = Annotated[
    str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?|Ki)?$")]
Port = Annotated[int, Field(ge=1, le=65535)]


class Part(BaseModel):
    """A part of the configuration: immutable, unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PullPolicy(StrEnum):
    """When the image is pulled."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class PodSecurity(StrEnum):
    """The Pod Security level that the teams' namespaces enforce."""

    RESTRICTED = "restricted"
    BASELINE = "baseline"
    PRIVILEGED = "privileged"


class Toleration(Part):
    """As in a pod; without `key`, all taints."""

    key: str = ""
    operator: Annotated[str, Field(pattern="^(Exists|Equal)$")] = "Exists"
    value: str = ""
    effect: Annotated[str, Field(pattern="^(|NoSchedule|PreferNoSchedule|NoExecute)$")] = ""

    def manifest(self) -> dict[str, Any]:
        """Return it as in a pod's specification."""
        said = {"key": self.key, "operator": self.operator, "value": self.value, "effect": self.effect}
        return {name: value for name, value in said.items() if value}


class PoolConfig(Part):
    """The nodes of one of our pools. `spot`: their machines may be reclaimed, which is no fault of the job."""

    node_selector: dict[LabelKey, LabelValue] = {}
    tolerations: tuple[Toleration, ...] = ()
    spot: bool = False
    runtime_class: Name | None = None


class Egress(Part):
    """Whereto pods may connect besides each other and the name service: the platform, the object store."""

    cidr: Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]
    ports: tuple[Port, ...] = ()


class Security(Part):
    """What a container may. The defaults are what Pod Security `restricted` asks for, and more."""

    run_as_user: Annotated[int, Field(ge=0)] = 1000
    run_as_group: Annotated[int, Field(ge=0)] = 1000
    seccomp: bool = True
    drop_capabilities: bool = True
    read_only_root: bool = True
    level: PodSecurity = PodSecurity.RESTRICTED


class CacheVolume(Part):
    """What lies at the profile's `cache_directory`; neither: an emptyDir, which each attempt finds empty."""

    claim: Name | None = None
    host_path: AbsolutePath | None = None


class KubernetesConfig(Part):
    """`kubeconfig_file` with `context`, or neither: the credentials of the pod that the platform runs in.

    `namespace_prefix` names our namespaces and marks what is ours: two installations of Athanor on one cluster need
    two.
    `accelerators`: the resource that nodes count each kind of accelerator by; `images`: where a kind needs another than
    `image`. `priority_classes`: of low, normal, high.
    `topology_labels`: labels of nodes that name the switches above them, outermost first. `queue`: Kueue's LocalQueue,
    by team in `queues`. `quota`: the hard limits of a ResourceQuota, by team in `quotas`.
    """

    kubeconfig_file: AbsolutePath | None = None
    context: str | None = None
    timeout_seconds: Annotated[float, Field(gt=0, le=14)] = 10.0
    watch: bool = True

    namespace_prefix: Annotated[str, Field(pattern=r"^[a-z][-a-z0-9]{0,19}$")] = "athanor"
    image: Annotated[str, Field(min_length=1, pattern=r"^\S+$")]
    image_pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    image_pull_secrets: tuple[Name, ...] = ()
    command: Annotated[list[str], Field(min_length=1)] = ["python3", "-m", "trainer.agent"]
    work_directory: AbsolutePath = "/athanor/work"

    accelerators: dict[str, str | None] = {"cpu": None, "nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
    images: dict[str, str] = {}
    cpus_per_process: Annotated[float, Field(gt=0)] = 1.0
    memory_bytes_per_process: Annotated[int, Field(gt=0)] | None = None
    shared_memory_bytes: Annotated[int, Field(ge=0)] = 8 * 2**30
    work_bytes: Annotated[int, Field(gt=0)] | None = None
    pools: dict[str, PoolConfig] = {}
    distinct_nodes: bool = True
    topology_labels: tuple[LabelKey, ...] = ()
    priority_classes: dict[Annotated[str, Field(pattern="^(low|normal|high)$")], Name] = {}
    lost_node_seconds: Annotated[int, Field(ge=0, le=3600)] = 30
    stop_grace_seconds: Annotated[int, Field(ge=1, le=3600)] = 90
    keep_finished_seconds: Annotated[int, Field(ge=60)] = 24 * 3600
    labels: dict[LabelKey, LabelValue] = {}
    annotations: dict[LabelKey, str] = {}

    security: Security = Security()
    cache: CacheVolume = CacheVolume()
    network_policy: bool = True
    egress: tuple[Egress, ...] = ()
    quota: dict[LabelKey, Quantity] = {}
    quotas: dict[str, dict[LabelKey, Quantity]] = {}
    queue: Name | None = None
    queues: dict[str, Name] = {}

    profile: ClusterProfile = ClusterProfile()

    @model_validator(mode="after")
    def _agrees(self) -> "KubernetesConfig":
        if self.context is not None and self.kubeconfig_file is None:
            raise ValueError("context: names an entry of kubeconfig_file, which is not given; give both or neither")
        if self.cache.claim and self.cache.host_path:
            raise ValueError("cache: give claim or host_path, not both")
        if (self.cache.claim or self.cache.host_path) and self.profile.cache_directory is None:
            raise ValueError("cache: profile.cache_directory says where it lies in the containers; give it too")
        if self.cache.host_path and self.security.level is not PodSecurity.PRIVILEGED:
            raise ValueError(
                f"cache.host_path: Pod Security {self.security.level.value} allows no host paths; "
                "use cache.claim, or set security.level to privileged"
            )
        if self.security.level is PodSecurity.RESTRICTED and (
            self.security.run_as_user == 0 or not self.security.seccomp or not self.security.drop_capabilities
        ):
            raise ValueError(
                "security.level: restricted needs run_as_user other than 0, seccomp and drop_capabilities; "
                "leave them, or set level to baseline"
            )
        return self

    def queue_of(self, team: str) -> str | None:
        """Return the Kueue LocalQueue of a team; None without one."""
        return self.queues.get(team, self.queue)

    def quota_of(self, team: str) -> dict[str, str]:
        """Return the hard limits of a team's ResourceQuota."""
        return self.quotas.get(team, self.quota)

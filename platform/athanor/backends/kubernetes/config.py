"""Configuration of a Kubernetes cluster: how it is reached, what runs there, what its teams may use."""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from athanor.backends.profile import AbsolutePath, ClusterProfile, Part
from trainer.contract.units import DURATION, SIZE

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
LabelKey = Annotated[
    str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|[kMGTPE]i?|Ki)?$")]
Cidr = Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+/[0-9]{1,3}$")]
ClaimName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
Port = Annotated[int, Field(ge=1, le=65535)]


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
    """A toleration, as in a pod."""

    key: str = ""
    """Key of the taint. Empty: all taints."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """`Exists`, or `Equal` to compare the value."""
    value: str = ""
    """Value of the taint."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint. Empty: all effects."""

    def manifest(self) -> dict[str, Any]:
        """Return it as in a pod's specification."""
        said = {"key": self.key, "operator": self.operator, "value": self.value, "effect": self.effect}
        return {name: value for name, value in said.items() if value}


class PoolConfig(Part):
    """The nodes of one of our pools."""

    node_selector: dict[LabelKey, LabelValue] = {}
    """Labels of the nodes that belong to the pool."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of the nodes that its pods tolerate."""
    spot: bool = False
    """Whether the provider may reclaim the machines, which is no fault of the job."""
    runtime_class: Name | None = None
    """RuntimeClass of its pods."""
    scheduler: Name | None = None
    """Scheduler of its pods. Without it, the cluster's default one."""
    resources: dict[LabelKey, Quantity] = {}
    """More resources of each pod, such as `rdma/hca: "1"`, `vpc.amazonaws.com/efa: "4"` or `hugepages-2Mi: 2Gi`."""
    resource_claims: dict[ClaimName, Name] = {}
    """ResourceClaimTemplate of each device that pods claim (dynamic resource allocation), by the name of the claim."""
    annotations: dict[LabelKey, str] = {}
    """Additional annotations of its pods, such as `k8s.v1.cni.cncf.io/networks`."""
    host_network: bool = False
    """Whether its pods use the network of their node, which no NetworkPolicy limits. Needs `security.level:
    privileged`."""
    lock_memory: bool = False
    """Whether its pods have the capability IPC_LOCK, as RDMA may require. Needs `security.level: privileged`."""


class NameService(Part):
    """Where pods find the name service."""

    namespace: Name | None = None
    """Namespace of its pods."""
    cidr: Cidr | None = None
    """Or range of its addresses, such as `169.254.20.10/32` of NodeLocal DNSCache."""
    ports: Annotated[tuple[Port, ...], Field(min_length=1)] = (53,)
    """Ports of it."""

    @model_validator(mode="after")
    def _agrees(self) -> "NameService":
        if (self.namespace is None) == (self.cidr is None):
            raise ValueError("give namespace or cidr, and not both")
        return self


class Egress(Part):
    """Whereto pods may connect besides each other and the name service: the platform, the object store."""

    cidr: Cidr
    """Range of addresses, such as `10.0.0.0/8`."""
    ports: tuple[Port, ...] = ()
    """Ports. Empty: all ports."""


class Security(Part):
    """What a container may. The defaults are what Pod Security `restricted` asks for, and more."""

    run_as_user: Annotated[int, Field(ge=0)] | None = 1000
    """User id of the processes. `null`: the cluster chooses it from the range of the namespace, as OpenShift does."""
    run_as_group: Annotated[int, Field(ge=0)] | None = 1000
    """Group id of the processes. `null`: as for `run_as_user`."""
    seccomp: bool = True
    """Whether system calls are limited to the runtime's default profile."""
    drop_capabilities: bool = True
    """Whether containers run without Linux capabilities."""
    read_only_root: bool = True
    """Whether the root file system is read-only."""
    level: PodSecurity = PodSecurity.RESTRICTED
    """Pod Security level that the teams' namespaces enforce."""


class CacheVolume(Part):
    """What lies at the profile's `cache_directory`; neither: an emptyDir, which each attempt finds empty."""

    claim: Name | None = None
    """PersistentVolumeClaim."""
    host_path: AbsolutePath | None = None
    """Directory of the node."""


class KubernetesConfig(Part):
    """A Kubernetes cluster. Without `kubeconfig_file` the platform uses the credentials of the pod that it runs in."""

    kubeconfig_file: AbsolutePath | None = None
    """Kubeconfig by which the cluster is reached. Without it, the credentials of the pod that the platform runs in."""
    context: str | None = None
    """Context of the kubeconfig. Needs `kubeconfig_file`."""
    timeout_seconds: Annotated[float, Field(gt=0, le=14), DURATION] = 10.0
    """Time limit of a request to the cluster."""
    watch: bool = True
    """Whether changes are watched. Without it, each observation lists the objects."""

    namespace_prefix: Annotated[str, Field(pattern=r"^[a-z][-a-z0-9]{0,19}$")] = "athanor"
    """Prefix of the teams' namespaces. Two installations of Athanor on one cluster need different ones."""
    image: Annotated[str, Field(min_length=1, pattern=r"^\S+$")]
    """Container image of the agent and the trainer."""
    image_pull_policy: PullPolicy = PullPolicy.IF_NOT_PRESENT
    """When the image is pulled."""
    image_pull_secrets: tuple[Name, ...] = ()
    """Names of the secrets by which images are pulled."""
    command: Annotated[list[str], Field(min_length=1)] = ["python3", "-m", "trainer.agent"]
    """Command that runs as the agent in each pod."""
    work_directory: AbsolutePath = "/athanor/work"
    """Directory of the container in which an attempt's files are."""

    accelerators: dict[str, str | None] = {"cpu": None, "nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
    """Resource by which nodes count each kind of accelerator, such as `nvidia.com/gpu`. Empty for processor cores."""
    images: dict[str, str] = {}
    """Image by kind of accelerator, where it needs another than `image`."""
    cpus_per_process: Annotated[float, Field(gt=0)] = 1.0
    """CPU cores requested for each process, where the spec says nothing."""
    memory_bytes_per_process: Annotated[int, Field(gt=0), SIZE] | None = None
    """Memory requested for each process, where the spec says nothing. Without it, 90 % of the process's share of the
    pool's memory."""
    shared_memory_bytes: Annotated[int, Field(ge=0), SIZE] = 8 * 2**30
    """Size of `/dev/shm`, which is a part of the pod's memory."""
    work_bytes: Annotated[int, Field(gt=0), SIZE] | None = None
    """Size of the scratch folder of a pod. Without it there is no limit. With it, a pod requests as much ephemeral
    storage of its node."""
    temporary_bytes: Annotated[int, Field(gt=0), SIZE] = 8 * 2**30
    """Size of `/tmp` of a pod, on the disk of its node."""
    pools: dict[str, PoolConfig] = {}
    """Nodes of each pool, by the name of the pool."""
    distinct_nodes: bool = True
    """Whether the pods of a job are on different nodes."""
    topology_labels: tuple[LabelKey, ...] = ()
    """Labels of nodes that name the switches above them, outermost first."""
    priority_classes: dict[Literal["low", "normal", "high"], Name] = {}
    """PriorityClass by the priority of a job: `low`, `normal` or `high`."""
    lost_node_seconds: Annotated[int, Field(ge=0, le=3600), DURATION] = 30
    """Time that pods stay on a node that does not answer, after the cluster has called it lost."""
    stop_grace_seconds: Annotated[int, Field(ge=1, le=3600), DURATION] = 90
    """Time between SIGTERM and SIGKILL: long enough to save a checkpoint."""
    room_seconds: Annotated[int, Field(ge=30, le=24 * 3600), DURATION] = 600
    """Time for which pods of an attempt may wait for nodes before it ends, and its job waits in the platform's queue
    again, where it holds no slots. Longer than an autoscaler needs to add a node. Not in a queue of Kueue."""
    keep_finished_seconds: Annotated[int, Field(ge=60, le=365 * 24 * 3600), DURATION] = 24 * 3600
    """Time after which a finished Job is removed, with its Secret, Service and NetworkPolicy."""
    labels: dict[LabelKey, LabelValue] = {}
    """Additional labels of all objects."""
    annotations: dict[LabelKey, str] = {}
    """Additional annotations of all objects."""

    security: Security = Security()
    """What a container may do."""
    cache: CacheVolume = CacheVolume()
    """Volume at the profile's `cache_directory`."""
    network_policy: bool = True
    """Whether a NetworkPolicy limits the connections of pods."""
    name_services: tuple[NameService, ...] = (NameService(namespace="kube-system"),)
    """Name services that pods may connect to. OpenShift: `{namespace: openshift-dns, ports: [5353]}`."""
    egress: tuple[Egress, ...] = ()
    """Addresses that pods may connect to, besides each other and the name service: the platform and the object
    store."""
    quota: dict[LabelKey, Quantity] = {}
    """Hard limits of the ResourceQuota of each team, such as `requests.cpu`."""
    quotas: dict[str, dict[LabelKey, Quantity]] = {}
    """Hard limits by team, instead of `quota`."""
    queue: Name | None = None
    """LocalQueue of Kueue that jobs are submitted to."""
    queues: dict[str, Name] = {}
    """LocalQueue of Kueue by team."""
    queue_priorities: dict[Literal["low", "normal", "high"], Name] = {}
    """WorkloadPriorityClass of Kueue by the priority of a job: `low`, `normal` or `high`."""

    profile: ClusterProfile = ClusterProfile()
    """The network between the nodes, and where they store data."""

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
        for name, pool in self.pools.items():
            if (pool.host_network or pool.lock_memory) and self.security.level is not PodSecurity.PRIVILEGED:
                raise ValueError(
                    f"pools.{name}: Pod Security {self.security.level.value} allows neither host_network nor "
                    "lock_memory; leave them, or set security.level to privileged on the server"
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

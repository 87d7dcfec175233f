"""What the API server asks of a pod before it exists: namespace, account, quota, Pod Security `restricted`."""

from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.selectors import Object
from tests.kubernetes.double.store import Store
from tests.kubernetes.double.times import amount

ENFORCE = "pod-security.kubernetes.io/enforce"
WARN = "pod-security.kubernetes.io/warn"
ALLOWED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def admit_pod(store: Store, pod: Object) -> None:
    namespace, spec = pod["metadata"]["namespace"], pod["spec"]
    account = spec.get("serviceAccountName", "default")
    if account != "default" and store.find("serviceaccounts", namespace, account) is None:
        name = pod["metadata"]["name"]
        raise ApiError(
            403, f'pods "{name}" is forbidden: error looking up service account {namespace}/{account}: '
            f'serviceaccount "{account}" not found',
        )  # fmt: skip
    if name := spec.get("priorityClassName"):
        found = store.find("priorityclasses", "", name)
        if found is None:
            raise ApiError(
                403, f'pods "{pod["metadata"]["name"]}" is forbidden: no PriorityClass with name {name} was found'
            )
        spec["priority"] = found["value"]
    _secure(store, pod)
    _within_quota(store, pod)


def requests(pod: Object) -> dict[str, float]:
    total: dict[str, float] = {"pods": 1.0}
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        for name, quantity in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            total[name] = total.get(name, 0.0) + amount(quantity)
    return total


def _within_quota(store: Store, pod: Object) -> None:
    namespace = pod["metadata"]["namespace"]
    living = [
        other for other in store.all("pods", namespace) if other["status"]["phase"] not in ("Succeeded", "Failed")
    ]
    for quota in store.all("resourcequotas", namespace):
        for name, hard in quota["spec"]["hard"].items():
            resource = name.removeprefix("requests.")
            wanted = requests(pod).get(resource)
            if wanted is None:
                if resource in ("cpu", "memory"):
                    raise ApiError(
                        403, f'pods "{pod["metadata"]["name"]}" is forbidden: failed quota: '
                        f"{quota['metadata']['name']}: must specify {name} for: agent",
                    )  # fmt: skip
                continue
            used = sum(requests(other).get(resource, 0.0) for other in living)
            if used + wanted > amount(hard):
                raise ApiError(
                    403, f'pods "{pod["metadata"]["name"]}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, '
                    f"requested: {name}={wanted:g}, used: {name}={used:g}, limited: {name}={hard}",
                )  # fmt: skip


def warning_of(store: Store, job: Object) -> str:
    """A Job is not refused for its pods; its creator gets a warning."""
    namespace = store.get("namespaces", "", job["metadata"]["namespace"])
    if (namespace["metadata"].get("labels") or {}).get(WARN) != "restricted":
        return ""
    wrong = violations(job["spec"]["template"]["spec"])
    return f"would violate PodSecurity 'restricted:latest': {', '.join(wrong)}" if wrong else ""


def _secure(store: Store, pod: Object) -> None:
    namespace = store.get("namespaces", "", pod["metadata"]["namespace"])
    if (namespace["metadata"].get("labels") or {}).get(ENFORCE) != "restricted":
        return
    if wrong := violations(pod["spec"]):
        name = pod["metadata"]["name"]
        raise ApiError(403, f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {", ".join(wrong)}')


def violations(spec: Object) -> list[str]:
    wrong: list[str] = []
    for volume in spec.get("volumes") or []:
        wrong += [
            f"restricted volume types ({kind})" for kind in volume if kind != "name" and kind not in ALLOWED_VOLUMES
        ]
    wrong += [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    outer = spec.get("securityContext") or {}
    for container in spec["containers"]:
        inner = container.get("securityContext") or {}
        if inner.get("allowPrivilegeEscalation") is not False:
            wrong.append("allowPrivilegeEscalation != false")
        if "ALL" not in (inner.get("capabilities") or {}).get("drop", []):
            wrong.append("unrestricted capabilities")
        if inner.get("runAsNonRoot", outer.get("runAsNonRoot")) is not True:
            wrong.append("runAsNonRoot != true")
        if inner.get("runAsUser", outer.get("runAsUser")) == 0:
            wrong.append("runAsUser=0")
        profile = (inner.get("seccompProfile") or outer.get("seccompProfile") or {}).get("type")
        if profile not in ("RuntimeDefault", "Localhost"):
            wrong.append("seccompProfile")
    return wrong

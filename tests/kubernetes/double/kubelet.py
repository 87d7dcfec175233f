"""What nodes do: a pod that is bound to one becomes a process of this machine.

Simpler than a node: one container a pod, no image (the command runs as it is, with the variables of
`image_environment`), no mounts: where a variable or an argument begins with the mount path of an emptyDir volume (but
/tmp and /dev/shm, which are this machine's), it is given a folder of the pod's own instead. Pods have addresses of
127.0.0.0/8.
"""

import base64
import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.kubernetes.double.loop import Loop
from tests.kubernetes.double.pods import is_over
from tests.kubernetes.double.selectors import Object
from tests.kubernetes.double.store import Change, Store, set_condition

REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")


class NotReadyYet(Exception):
    """A container that waits: reason and message."""


class Running:
    """A pod's process."""

    def __init__(self, pod: Object, process: "subprocess.Popen[bytes]", descriptor: int) -> None:
        self.pod = pod
        self.process = process
        self.descriptor = descriptor
        self.asked_at: float | None = None
        self.is_overdue = False


class Kubelet:
    """Of all nodes."""

    def __init__(self, store: Store, loop: Loop, folder: Path, image_environment: dict[str, str]) -> None:
        self.image_environment = image_environment
        self.missing_images: set[str] = set()
        self.dead_nodes: set[str] = set()
        self._store = store
        self._loop = loop
        self._folder = folder
        self._running: dict[str, Running] = {}
        self._addresses = 0
        store.listen(self._hear)

    def log_of(self, pod: Object) -> Path:
        return self._folder / str(pod["metadata"]["uid"]) / "log"

    def process_of(self, pod: Object) -> int | None:
        found = self._running.get(pod["metadata"]["uid"])
        return found.process.pid if found else None

    def kill_all(self) -> None:
        for one in list(self._running.values()):
            _kill(one.process)
            one.process.wait()

    def kill_node(self, name: str) -> None:
        """Kill its processes immediately, without a report."""
        self.dead_nodes.add(name)
        for one in list(self._running.values()):
            if one.pod["spec"]["nodeName"] == name:
                _kill(one.process)

    def revive_node(self, name: str) -> None:
        self.dead_nodes.discard(name)
        for pod in list(self._store.all("pods")):
            if pod["spec"].get("nodeName") == name and not is_over(pod):
                self._finish(pod, 137, "ContainerStatusUnknown")

    def _hear(self, change: Change) -> None:
        if change.plural == "pods" and change.item["spec"].get("nodeName"):
            uid = change.item["metadata"]["uid"]
            self._loop.soon(("kubelet", uid), lambda: self._sync(change.item))
        elif change.plural == "secrets":
            self._loop.soon("kubelet retries", self._retry)

    def _retry(self) -> None:
        for pod in list(self._store.all("pods")):
            if pod["spec"].get("nodeName") and pod["metadata"]["uid"] not in self._running and not is_over(pod):
                self._sync(pod)

    def _sync(self, seen: Object) -> None:
        metadata = seen["metadata"]
        running = self._running.get(metadata["uid"])
        pod = self._store.find("pods", metadata["namespace"], metadata["name"])
        if pod is None or pod["metadata"]["uid"] != metadata["uid"]:
            if running is not None:
                _kill(running.process)
            return
        if (
            pod["spec"]["nodeName"] in self.dead_nodes
            or is_over(pod)
            or "synthetic" in pod["metadata"].get("labels", {})
        ):
            return
        if "deletionTimestamp" in pod["metadata"]:
            self._end(pod, running)
        elif running is None:
            self._start(pod)

    def _end(self, pod: Object, running: Running | None) -> None:
        if running is None:
            self._finish(pod, None, "")
            return
        grace = pod["metadata"]["deletionGracePeriodSeconds"]
        if grace == 0:
            _kill(running.process)
        elif running.asked_at is None:
            running.asked_at = time.monotonic()
            with contextlib.suppress(ProcessLookupError):
                running.process.send_signal(signal.SIGTERM)
            self._loop.later(grace, lambda: _kill(running.process))

    def _start(self, pod: Object) -> None:
        container = pod["spec"]["containers"][0]
        try:
            self._pull(container)
            environment = self._environment(pod, container)
        except NotReadyYet as waiting:
            reason, message = waiting.args
            self._tell(pod, {"waiting": {"reason": reason, "message": message}})
            return
        self._addresses += 1
        address = f"127.{1 + self._addresses // 62500}.{1 + self._addresses // 250 % 250}.{1 + self._addresses % 250}"
        place = self._folder / pod["metadata"]["uid"]
        place.mkdir(parents=True, exist_ok=True)
        mounts = self._mounts(pod, container, place)
        environment = {name: _mapped(value, mounts) for name, value in environment.items()}
        for name, value in environment.items():
            if value == "\0podIP":
                environment[name] = address
        command = [
            _mapped(_expanded(part, environment), mounts)
            for part in [*(container.get("command") or []), *(container.get("args") or [])]
        ]
        try:
            with (place / "log").open("ab") as log:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=place,
                    env={**self.image_environment, **environment},
                )  # fmt: skip
        except OSError as error:
            self._finish(pod, 128, "StartError", f"failed to create containerd task: {error}")
            return
        running = Running(pod, process, os.pidfd_open(process.pid))
        self._running[pod["metadata"]["uid"]] = running
        self._loop.on_readable(running.descriptor, lambda: self._ended(running))
        self._tell(pod, {"running": {"startedAt": self._store.now()}}, address)
        if deadline := pod["spec"].get("activeDeadlineSeconds"):
            self._loop.later(deadline, lambda: self._overdue(running))

    def _overdue(self, running: Running) -> None:
        """It was active for longer than its own deadline, which runs from its start."""
        if self._running.get(running.pod["metadata"]["uid"]) is not running:
            return
        running.is_overdue = True
        with contextlib.suppress(ProcessLookupError):
            running.process.send_signal(signal.SIGTERM)
        self._loop.later(running.pod["spec"]["terminationGracePeriodSeconds"], lambda: _kill(running.process))

    def _pull(self, container: Object) -> None:
        image = container["image"]
        if image in self.missing_images:
            raise NotReadyYet("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {image}: not found')

    def _environment(self, pod: Object, container: Object) -> dict[str, str]:
        found: dict[str, str] = {}
        for one in container.get("env") or []:
            source = one.get("valueFrom")
            if source is None:
                found[one["name"]] = _expanded(one.get("value", ""), found)
            elif "fieldRef" in source:
                found[one["name"]] = _field(pod, source["fieldRef"]["fieldPath"])
            else:
                found[one["name"]] = self._secret(pod, source["secretKeyRef"])
        return found

    def _secret(self, pod: Object, wanted: Object) -> str:
        namespace = pod["metadata"]["namespace"]
        secret = self._store.find("secrets", namespace, wanted["name"])
        if secret is None:
            raise NotReadyYet("CreateContainerConfigError", f'secret "{wanted["name"]}" not found')
        if wanted["key"] not in (secret.get("data") or {}):
            raise NotReadyYet(
                "CreateContainerConfigError",
                f"couldn't find key {wanted['key']} in Secret {namespace}/{wanted['name']}",
            )
        return base64.b64decode(secret["data"][wanted["key"]]).decode()

    def _mounts(self, pod: Object, container: Object, place: Path) -> dict[str, str]:
        own = {volume["name"] for volume in pod["spec"].get("volumes") or [] if "emptyDir" in volume}
        mounts = {}
        for mount in container.get("volumeMounts") or []:
            if mount["name"] in own and mount["mountPath"] not in ("/dev/shm", "/tmp"):
                folder = place / mount["name"]
                folder.mkdir(exist_ok=True)
                mounts[mount["mountPath"]] = str(folder)
        return mounts

    def _ended(self, running: Running) -> None:
        os.close(running.descriptor)
        status = running.process.wait()
        pod = running.pod
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)  # a container's end is the end of all in it
        del self._running[pod["metadata"]["uid"]]
        if pod["spec"]["nodeName"] in self.dead_nodes:
            return
        code = status if status >= 0 else 128 - status
        self._finish(pod, code, "Completed" if code == 0 else "Error", is_overdue=running.is_overdue)

    def oom_kill(self, pod: Object) -> None:
        """As the kernel does when the container's memory limit is passed."""
        running = self._running[pod["metadata"]["uid"]]
        self._finish(pod, 137, "OOMKilled")
        _kill(running.process)

    def _finish(
        self, pod: Object, code: int | None, reason: str, message: str = "", *, is_overdue: bool = False
    ) -> None:
        """Say how the container ended; a pod that is to be deleted needs no kubelet any more."""

        def update(draft: Object) -> None:
            if not is_over(draft):
                draft["status"]["phase"] = "Succeeded" if code == 0 and not is_overdue else "Failed"
                if is_overdue:
                    said = "Pod was active on the node longer than the specified deadline"
                    draft["status"].update(reason="DeadlineExceeded", message=said)
                for one in draft["status"].get("containerStatuses") or [_container_status(draft)]:
                    if code is not None:
                        ended: Object = {"exitCode": code, "reason": reason, "finishedAt": self._store.now()}
                        if message:
                            ended["message"] = message
                        ended["startedAt"] = (one["state"].get("running") or {}).get("startedAt", ended["finishedAt"])
                        one.update(state={"terminated": ended}, ready=False)
                    draft["status"]["containerStatuses"] = [one]
                set_condition(draft, "Ready", "False", "PodFailed", "", self._store.now())
            if "deletionTimestamp" in draft["metadata"]:
                draft["metadata"]["deletionGracePeriodSeconds"] = 0

        self._store.change("pods", pod, update)

    def _tell(self, pod: Object, state: dict[str, Any], address: str = "") -> None:
        def update(draft: Object) -> None:
            status = _container_status(draft)
            status.update(state=state, ready="running" in state, started="running" in state)
            draft["status"]["containerStatuses"] = [status]
            draft["status"].setdefault("startTime", self._store.now())
            if address:
                draft["status"].update(phase="Running", podIP=address, podIPs=[{"ip": address}], hostIP="127.0.0.1")
                set_condition(draft, "Ready", "True", "", "", self._store.now())

        self._store.change("pods", pod, update)


def _container_status(pod: Object) -> Object:
    container = pod["spec"]["containers"][0]
    return {
        "name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0, "ready": False,
        "state": {}, "lastState": {},
    }  # fmt: skip


def _field(pod: Object, path: str) -> str:
    if path == "status.podIP":
        return "\0podIP"
    section, _, rest = path.partition(".")
    if "[" in rest:
        name, _, key = rest.partition("[")
        return str((pod[section].get(name) or {}).get(key.strip("]'\""), ""))
    return str(pod[section][rest])


def _expanded(text: str, known: dict[str, str]) -> str:
    """`$(NAME)` is the value of a variable that was named before, `$$` is one dollar."""
    return REFERENCE.sub(lambda found: "$" if found[0] == "$$" else known.get(found[1], found[0]), text)


def _mapped(value: str, mounts: dict[str, str]) -> str:
    for path, folder in mounts.items():
        if value == path or value.startswith(path + "/"):
            return folder + value.removeprefix(path)
    return value


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.returncode is not None:
        return  # its number may be another's by now
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

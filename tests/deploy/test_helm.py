"""What the chart renders: valid objects that fit each other, restricted pods, and nothing secret in the open."""

import json
import re
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings
from django.urls import resolve
from kubernetes import client as models

from athanor.config.env import FOREIGN_NAMES, Environment, read
from deploy.local.environment import REPOSITORY
from tests.deploy import helm
from tests.deploy.programs import parse
from tests.kubernetes.double.admission import violations
from tests.kubernetes.double.errors import ApiError
from tests.kubernetes.double.policies import Policy
from tests.kubernetes.double.schema import Schemas
from tests.kubernetes.double.store import Kind

pytestmark = helm.needs_helm
BY_NAME = {path.name.removesuffix("-values.yaml"): path for path in helm.VALUES}
SECRET = re.compile(r".*(_KEY|_SECRET|_TOKEN|_PASSWORD)|(ATHANOR_MIGRATION_)?DATABASE_URL|CELERY_BROKER_URL")
KNOWN = {str(field.alias) for field in Environment.model_fields.values()} | FOREIGN_NAMES
KUBERNETES = REPOSITORY / "deploy" / "kubernetes"
COMPONENTS = ("web", "worker", "beat")


@pytest.fixture(params=BY_NAME)
def values(request: pytest.FixtureRequest) -> Path:
    return BY_NAME[request.param]


@pytest.fixture
def objects(values: Path) -> list[helm.Object]:
    return helm.render(values)


def model_of(one: helm.Object) -> str | None:
    """Return the name of the model of a kind, or None for a custom resource."""
    group, _, version = one["apiVersion"].rpartition("/")
    if "." in group and not group.endswith(".k8s.io"):
        return None
    return f"{version.capitalize()}{one['kind']}"


def problems(kind: str, value: Any, path: str = "") -> list[str]:
    """Compare a value with the models of Kubernetes' own client: unknown and missing fields, and wrong types."""
    if match := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(value, list):
            return [f"{path}: {value!r} is no list"]
        return [found for i, one in enumerate(value) for found in problems(match[1], one, f"{path}[{i}]")]
    if match := re.fullmatch(r"dict[(\[]str, (.+)[)\]]", kind):
        if not isinstance(value, dict):
            return [f"{path}: {value!r} is no object"]
        return [found for name, one in value.items() for found in problems(match[1], one, f"{path}.{name}")]
    simple = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}
    if kind in simple:
        is_right = isinstance(value, simple[kind]) and (kind in ("bool", "object") or not isinstance(value, bool))
        return [] if is_right else [f"{path}: {value!r} is no {kind}"]
    model = getattr(models, kind)
    if not isinstance(value, dict):
        return [f"{path}: {value!r} is no {kind}"]
    fields = {outer: model.openapi_types[name] for name, outer in model.attribute_map.items()}
    found = [f"{path}.{name}: unknown field" for name in value if name not in fields]
    for name, one in value.items():
        found += problems(fields[name], one, f"{path}.{name}") if name in fields else []
    try:
        model(**{name: value.get(outer) for name, outer in model.attribute_map.items()})
    except ValueError as error:
        found.append(f"{path}: {error}")
    return found


def test_every_object_is_valid_for_kubernetes(objects: list[helm.Object]) -> None:
    schemas = Schemas.found()
    for one in objects:
        name = model_of(one)
        if name is None:
            assert one["kind"] in ("ServiceMonitor", "PodMonitor")
            continue
        assert problems(name, one) == [], one["metadata"]["name"]
        group, _, version = one["apiVersion"].rpartition("/")
        if schemas is not None:
            assert schemas.problems(Kind(group, version, "", one["kind"], True), one) == []


def test_an_invalid_object_is_found() -> None:
    deployment = helm.of_kind(helm.render(BY_NAME["minimal"]), "Deployment")["athanor-worker"]
    pod = deployment["spec"]["template"]["spec"]
    (program,) = pod["containers"]
    broken_pod = {**pod, "enableServiceLinks": "no", "containers": [{**program, "imagePullPolcy": "Always"}]}
    broken = {**deployment, "spec": {"replica": 2, "template": {"spec": broken_pod}}}
    assert set(problems("V1Deployment", broken)) == {
        ".spec.replica: unknown field",
        ".spec: Invalid value for `selector`, must not be `None`",
        ".spec.template.spec.containers[0].imagePullPolcy: unknown field",
        ".spec.template.spec.enableServiceLinks: 'no' is no bool",
    }


@pytest.mark.parametrize("values", helm.VALUES, ids=lambda path: path.name)
def test_lint_has_no_complaint(values: Path) -> None:
    done = helm.run("lint", "--strict", str(helm.CHART), "-f", str(values))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_pods_are_restricted(objects: list[helm.Object]) -> None:
    for template in helm.pods(objects).values():
        assert violations(template["spec"]) == []
        security = helm.container(template)["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert "initContainers" not in template["spec"]
        assert helm.container(template)["resources"]["limits"]["memory"]


def test_only_web_and_worker_have_a_token_and_only_for_jobs_in_the_cluster(values: Path) -> None:
    objects = helm.render(values)
    in_cluster = yaml.safe_load(values.read_text()).get("inCluster", {}).get("enabled", False)
    bound = {
        subject["name"]
        for binding in helm.of_kind(objects, "ClusterRoleBinding").values()
        for subject in binding["subjects"]
    }
    assert bool(bound) == in_cluster
    for component, template in helm.pods(objects).items():
        has_token = template["spec"]["automountServiceAccountToken"]
        assert has_token == (in_cluster and component in ("web", "worker"))
        assert (template["spec"]["serviceAccountName"] in bound) == has_token
    for account in helm.of_kind(objects, "ServiceAccount").values():
        assert account["automountServiceAccountToken"] is False


def test_no_variable_of_a_service_reaches_the_platform(objects: list[helm.Object]) -> None:
    """A Service `athanor` would set ATHANOR_PORT_80_TCP and others, which config/env.py refuses."""
    for template in helm.pods(objects).values():
        assert template["spec"]["enableServiceLinks"] is False


def secrets_of(values: Path) -> dict[str, dict[str, str]]:
    """Return Secrets with all keys that a set of values refers to."""
    made = {name: f"the value of {name}" for name in sorted(KNOWN) if SECRET.fullmatch(name)}
    of_others = yaml.safe_load(values.read_text())["secrets"].get("from", {})
    return {"athanor": made, **{one["name"]: {} for one in of_others.values()}} | {
        one["name"]: {other["key"]: "x" for other in of_others.values() if other["name"] == one["name"]}
        for one in of_others.values()
    }


def test_the_platform_knows_every_variable_and_takes_its_value(values: Path, objects: list[helm.Object]) -> None:
    added = {one["name"] for one in yaml.safe_load(values.read_text()).get("extraEnv", [])} | {"POD_IP", "SLURM_CONF"}
    for template in helm.pods(objects).values():
        variables = helm.environment(template, secrets_of(values))
        assert set(variables) - KNOWN - added == set()
        taken = read(variables)
        assert taken.allowed_hosts.split(",")[1:3] == ["10.1.2.3", "[10.1.2.3]"]
        assert bool(taken.trusted_proxies) == taken.public_url.startswith("https:")


def test_secrets_are_references_and_in_no_command_line(objects: list[helm.Object]) -> None:
    assert helm.of_kind(objects, "Secret") == {}
    for template in helm.pods(objects).values():
        for one in helm.container(template)["env"]:
            if SECRET.fullmatch(one["name"]):
                assert set(one) == {"name", "valueFrom"}, one["name"]
                assert set(one["valueFrom"]) == {"secretKeyRef"}
        assert "$(" not in " ".join(helm.container(template)["args"])


def test_every_secret_that_the_values_may_name_is_used() -> None:
    schema = json.loads((helm.CHART / "values.schema.json").read_text())
    used = {
        one["name"]
        for values in helm.VALUES
        for template in helm.pods(helm.render(values)).values()
        for one in helm.container(template)["env"]
        if "secretKeyRef" in one.get("valueFrom", {})
    }
    assert used == set(schema["$defs"]["secretName"]["enum"])


def test_the_owner_of_the_tables_and_the_first_password_are_for_the_job_alone(objects: list[helm.Object]) -> None:
    for component, template in helm.pods(objects).items():
        names = {one["name"] for one in helm.container(template)["env"]}
        alone = {"ATHANOR_MIGRATION_DATABASE_URL", "ATHANOR_BOOTSTRAP_PASSWORD"}
        assert names & alone == (alone if component == "prepare" else set())


def test_every_command_is_one_of_the_programs(objects: list[helm.Object]) -> None:
    for component, template in helm.pods(objects).items():
        found = parse(*helm.container(template)["args"])
        assert found.program == ("manage" if component == "prepare" else component)
        for kind in ("startupProbe", "livenessProbe"):
            if command := helm.container(template).get(kind, {}).get("exec", {}).get("command"):
                assert command[:3] == ["python", "-m", "athanor.config.program"]
                assert parse(*command[3:]).program == "healthy"


def test_started_ready_and_live_are_three_questions(objects: list[helm.Object]) -> None:
    web = helm.container(helm.pods(objects)["web"])
    assert web["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert web["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert web["livenessProbe"]["exec"]["command"][-1] == "healthy"  # no store is requested
    for kind in ("startupProbe", "readinessProbe"):
        assert resolve(web[kind]["httpGet"]["path"])
        assert web[kind]["httpGet"]["port"] in {port["name"] for port in web["ports"]}
    for component in COMPONENTS:
        program = helm.container(helm.pods(objects)[component])
        patience = program["startupProbe"]["periodSeconds"] * program["startupProbe"]["failureThreshold"]
        assert patience > parse(*program["args"]).await_migrations
        assert program["livenessProbe"]["exec"]["command"][-1] == "healthy"


def test_migrations_run_before_anything_of_the_release_is_there(values: Path) -> None:
    objects = helm.render(values)
    hooks = {(one["kind"], one["metadata"]["name"]) for one in objects if weight(one) is not None}
    if not yaml.safe_load(values.read_text()).get("prepare", {}).get("enabled", True):
        assert hooks == set()
        return
    assert hooks == {("ServiceAccount", f"{prefix(objects)}-prepare"), ("Job", f"{prefix(objects)}-prepare")}
    (job,) = helm.of_kind(objects, "Job").values()
    account = helm.of_kind(objects, "ServiceAccount")[job["spec"]["template"]["spec"]["serviceAccountName"]]
    for one in (job, account):
        assert one["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert (weight(account) or 0) < (weight(job) or 0)
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    args = helm.container(job["spec"]["template"])["args"]
    assert args[:2] == ["manage", "prepare"]
    assert "--no-local-cluster" in args  # the image has no trainer


def weight(one: helm.Object) -> int | None:
    found = one["metadata"].get("annotations", {}).get("helm.sh/hook-weight")
    return None if found is None else int(found)


def prefix(objects: list[helm.Object]) -> str:
    (web,) = [one["metadata"]["name"] for one in objects if one["kind"] == "Service"]
    return str(web).removesuffix("-web")


def test_beat_is_one_pod_that_ends_before_the_next_one_starts(objects: list[helm.Object]) -> None:
    beat = helm.of_kind(objects, "Deployment")[f"{prefix(objects)}-beat"]["spec"]
    assert (beat["replicas"], beat["strategy"]) == (1, {"type": "Recreate"})
    assert f"{prefix(objects)}-beat" not in helm.of_kind(objects, "PodDisruptionBudget"), "it would block drains"


def test_selectors_select_the_pods_that_they_are_for(objects: list[helm.Object]) -> None:
    labels = {component: template["metadata"]["labels"] for component, template in helm.pods(objects).items()}

    def selected(selector: helm.Object) -> set[str]:
        wanted = selector.get("matchLabels", {}).items()
        rules = selector.get("matchExpressions", [])
        return {
            component
            for component, found in labels.items()
            if wanted <= found.items() and all(found[rule["key"]] in rule["values"] for rule in rules)
        }

    name = prefix(objects)
    for deployment, one in helm.of_kind(objects, "Deployment").items():
        assert selected(one["spec"]["selector"]) == {deployment.removeprefix(f"{name}-")}
    (service,) = helm.of_kind(objects, "Service").values()
    assert selected({"matchLabels": service["spec"]["selector"]}) == {"web"}
    for budget, one in helm.of_kind(objects, "PodDisruptionBudget").items():
        assert selected(one["spec"]["selector"]) == {budget.removeprefix(f"{name}-")}
    of_policy = {name: set(labels), f"{name}-web": {"web"}, f"{name}-metrics": {"worker", "beat"}}
    for policy, one in helm.of_kind(objects, "NetworkPolicy").items():
        assert selected(one["spec"]["podSelector"]) == of_policy[policy]
    for template in helm.pods(objects).values():
        for spread in template["spec"].get("topologySpreadConstraints", []):
            assert selected(spread["labelSelector"]) == {template["metadata"]["labels"]["app.kubernetes.io/component"]}


def test_the_network_is_closed_but_for_what_is_named() -> None:
    objects = helm.render(BY_NAME["production"])
    policies = helm.of_kind(objects, "NetworkPolicy")
    closed, web = policies["athanor"]["spec"], policies["athanor-web"]["spec"]
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in closed
    named = yaml.safe_load(BY_NAME["production"].read_text())["networkPolicy"]
    assert closed["egress"][1:] == named["egress"]
    assert closed["egress"][0]["ports"] == [{"protocol": name, "port": 53} for name in ("UDP", "TCP")]
    assert web["ingress"] == [{"from": named["ingressFrom"], "ports": [{"protocol": "TCP", "port": "http"}]}]


def test_the_rights_on_jobs_are_those_of_the_manifest() -> None:
    objects = helm.render(BY_NAME["production"])
    manifest = list(yaml.safe_load_all((KUBERNETES / "rbac.yaml").read_text()))
    (expected,) = [one["rules"] for one in manifest if one["kind"] == "ClusterRole"]
    (role,) = helm.of_kind(objects, "ClusterRole").values()
    (binding,) = helm.of_kind(objects, "ClusterRoleBinding").values()
    assert role["rules"] == expected
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = {"kind": "ServiceAccount", "name": "athanor-jobs", "namespace": helm.NAMESPACE}
    assert binding["subjects"] == [account]
    assert "athanor-jobs" in helm.of_kind(objects, "ServiceAccount")


def test_the_admission_policy_confines_the_account_of_the_chart() -> None:
    objects = helm.render(BY_NAME["production"])
    (policy,) = helm.of_kind(objects, "ValidatingAdmissionPolicy").values()
    (binding,) = helm.of_kind(objects, "ValidatingAdmissionPolicyBinding").values()
    original, of_binding = yaml.safe_load_all((KUBERNETES / "admission-policy.yaml").read_text())
    assert policy["spec"]["validations"] == original["spec"]["validations"]
    assert policy["spec"]["matchConstraints"] == original["spec"]["matchConstraints"]
    assert binding["spec"] == {**of_binding["spec"], "policyName": policy["metadata"]["name"]}

    def request(user: str) -> helm.Object:
        resource = {"group": "batch", "resource": "jobs"}
        return {"resource": resource, "operation": "CREATE", "name": "evil", "userInfo": {"username": user}}

    elsewhere = {"metadata": {"name": "kube-system", "labels": {}}}
    with pytest.raises(ApiError, match="only in namespaces that it has made"):
        Policy(policy).check(request("system:serviceaccount:training:athanor-jobs"), {}, None, elsewhere)
    Policy(policy).check(request("system:serviceaccount:training:other"), {}, None, elsewhere)


def test_the_web_scales_by_its_load() -> None:
    objects = helm.render(BY_NAME["production"])
    (scaler,) = helm.of_kind(objects, "HorizontalPodAutoscaler").values()
    web = helm.of_kind(objects, "Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]
    assert "replicas" not in web["spec"], "an upgrade would undo what the autoscaler has chosen"
    assert helm.container(web["spec"]["template"])["resources"]["requests"]["cpu"]
    assert (scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]) == (3, 12)


def test_the_ingress_leads_to_the_web_with_the_certificate() -> None:
    (ingress,) = helm.of_kind(helm.render(BY_NAME["production"]), "Ingress").values()
    assert ingress["spec"]["tls"] == [{"hosts": ["athanor.example"], "secretName": "athanor-tls"}]
    (rule,) = ingress["spec"]["rules"]
    assert rule["host"] == "athanor.example"
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "athanor-web", "port": {"name": "http"}}


def test_images_by_digest_with_the_secrets_of_their_registry() -> None:
    values = BY_NAME["external-clusters"]
    digest = yaml.safe_load(values.read_text())["image"]["digest"]
    for template in helm.pods(helm.render(values)).values():
        assert helm.container(template)["image"] == f"registry.example/athanor/platform@{digest}"
        assert template["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    image = helm.container(helm.pods(helm.render(BY_NAME["minimal"]))["web"])["image"]
    assert image == f"registry.example/athanor/platform:{project_version()}"


def test_files_of_clusters_are_where_the_image_looks_for_them() -> None:
    containerfile = (REPOSITORY / "deploy" / "images" / "platform.Containerfile").read_text()
    (folder,) = re.findall(r"ATHANOR_CLUSTER_CONFIG_DIR=(\S+)", containerfile)
    for template in helm.pods(helm.render(BY_NAME["external-clusters"])).values():
        mount = {"name": "clusters", "mountPath": folder, "readOnly": True}
        assert mount in helm.container(template)["volumeMounts"]
        assert {"name": "clusters", "secret": {"secretName": "athanor-clusters"}} in template["spec"]["volumes"]


def test_monitors_scrape_ports_of_the_pods_with_the_token_of_the_secret() -> None:
    objects = helm.render(BY_NAME["monitored"])
    (of_web,) = helm.of_kind(objects, "ServiceMonitor").values()
    (of_pods,) = helm.of_kind(objects, "PodMonitor").values()
    (endpoint,) = of_web["spec"]["endpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "athanor", "key": "ATHANOR_METRICS_TOKEN"}}
    assert resolve(endpoint["path"])
    exempt = settings.SECURE_REDIRECT_EXEMPT
    assert any(re.search(one, endpoint["path"].lstrip("/")) for one in exempt), "a scrape is plain http to the pod"
    (service,) = helm.of_kind(objects, "Service").values()
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert of_web["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    for one in (of_web, of_pods):
        # The alert AthanorDown looks at scrape jobs with names that begin with athanor.
        assert {pod["metadata"]["labels"][one["spec"]["jobLabel"]] for pod in helm.pods(objects).values()} == {
            "athanor"
        }
    for component in ("worker", "beat"):
        program = helm.container(helm.pods(objects)[component])
        assert program["ports"] == [{"name": "metrics", "containerPort": 9464}]
        assert "--metrics=0.0.0.0:9464" in program["args"]
        assert "ATHANOR_METRICS_TOKEN" not in {one["name"] for one in program["env"]}
    assert of_pods["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"


def test_a_packaged_chart_renders_the_same(tmp_path: Path) -> None:
    """What deploy/kubernetes gives it by links is in the package, and the values of the tests are not."""
    done = helm.run("package", str(helm.CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (package,) = tmp_path.iterdir()
    with tarfile.open(package) as archive:
        assert not [name for name in archive.getnames() if "/ci/" in name]
    values = BY_NAME["production"]
    rendered = helm.run("template", "athanor", str(package), "--namespace", helm.NAMESPACE, "-f", str(values))
    assert [one for one in yaml.safe_load_all(rendered.stdout) if one] == helm.render(values)


def test_the_chart_has_the_version_of_the_platform() -> None:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == project_version()


def project_version() -> str:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return str(project["project"]["version"])

"""Read the environment of the server; an unknown ATHANOR_ name is refused. Names: docs/operations/settings.md."""

import difflib
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from athanor.artifacts.buckets import parse_grants
from athanor.clusters.server_config import allowed_urls
from athanor.config.forwarded import parse_proxies

REPOSITORY = Path(__file__).resolve().parents[3]

ANCHOR_PLACE = re.compile(r"file:/.+|store|s3://[^/]+(/.*)?|syslog|syslog://[^/:]+:[0-9]+")

MIN_METRICS_TOKEN_LENGTH = 16

BOOTSTRAP_PASSWORD = "ATHANOR_BOOTSTRAP_PASSWORD"  # noqa: S105 - the name of a variable
# Read by other programs of this repository, and harmless here.
FOREIGN_NAMES = frozenset(
    {
        "ATHANOR_DATA_DIR",
        "ATHANOR_PORT",
        "ATHANOR_TORCH",
        "ATHANOR_URL",
        "ATHANOR_TOKEN",
        BOOTSTRAP_PASSWORD,
        f"{BOOTSTRAP_PASSWORD}_FILE",
    }
)

# Container engines mount secrets there, readable by all users of the container, which has one.
SECRETS_OF_CONTAINERS = Path("/run/secrets")
SECRET_BYTES = 64 * 1024


def _secret(default: str, alias: str) -> Any:
    """Return a field that may come from the file of `<alias>_FILE`; its value is in no error and no representation."""
    return Field(default, alias=alias, repr=False)


class Environment(BaseModel):
    """The variables with their defaults and limits."""

    model_config = ConfigDict(frozen=True)

    database_url: str = _secret("postgresql://127.0.0.1:5432/athanor", "DATABASE_URL")
    # The role that owns the tables, for `manage.py migrate` alone; empty: DATABASE_URL's.
    migration_database_url: str = _secret("", "ATHANOR_MIGRATION_DATABASE_URL")
    audit_anchors: str = Field("", alias="ATHANOR_AUDIT_ANCHORS")
    celery_broker_url: str = _secret("redis://127.0.0.1:6379/0", "CELERY_BROKER_URL")
    secret_key: str = _secret("", "ATHANOR_SECRET_KEY")
    master_key: str = _secret("", "ATHANOR_MASTER_KEY")
    previous_master_key: str = _secret("", "ATHANOR_PREVIOUS_MASTER_KEY")
    s3_endpoint: str = Field("", alias="ATHANOR_S3_ENDPOINT")
    s3_region: str = Field("us-east-1", alias="ATHANOR_S3_REGION")
    s3_access_key: str = _secret("", "ATHANOR_S3_ACCESS_KEY")
    s3_secret_key: str = _secret("", "ATHANOR_S3_SECRET_KEY")
    s3_bucket: str = Field("athanor", alias="ATHANOR_S3_BUCKET")
    data_buckets: str = Field("", alias="ATHANOR_DATA_BUCKETS")
    public_url: str = Field("http://127.0.0.1:8700", alias="ATHANOR_PUBLIC_URL")
    allowed_hosts: str = Field("127.0.0.1,localhost", alias="ATHANOR_ALLOWED_HOSTS")
    # Addresses and networks of reverse proxies, separated by commas: their X-Forwarded-* headers are read.
    trusted_proxies: str = Field("", alias="ATHANOR_TRUSTED_PROXIES")
    debug: bool = Field(False, alias="ATHANOR_DEBUG")
    local_backend_dir: Path = Field(REPOSITORY / ".athanor" / "local-backend", alias="ATHANOR_LOCAL_BACKEND_DIR")
    cluster_config_dir: Path = Field(REPOSITORY / ".athanor" / "clusters", alias="ATHANOR_CLUSTER_CONFIG_DIR")
    cluster_urls: str = Field("", alias="ATHANOR_CLUSTER_URLS")
    dashboard_dir: Path = Field(REPOSITORY / "frontend" / "dist", alias="ATHANOR_DASHBOARD_DIR")
    docs_dir: Path = Field(REPOSITORY / "build" / "docs", alias="ATHANOR_DOCS_DIR")
    rate_limit_per_minute: int = Field(30_000, ge=0, alias="ATHANOR_RATE_LIMIT_PER_MINUTE")
    # The longest life of an API token, and so of all that it makes.
    token_max_days: int = Field(365, ge=1, le=3650, alias="ATHANOR_TOKEN_MAX_DAYS")
    # Who must have a second factor to use the dashboard and /admin/ with a password.
    require_second_factor: Literal["off", "admins", "everyone"] = Field("off", alias="ATHANOR_REQUIRE_SECOND_FACTOR")
    # Days after the OpenID provider last confirmed a user for which their tokens and sessions work; 0: no limit.
    sign_on_max_age_days: int = Field(30, ge=0, le=3650, alias="ATHANOR_SIGN_ON_MAX_AGE_DAYS")
    # Minutes between two requests to the provider to confirm a user, where it gives refresh tokens; 0: at sign-in only.
    sign_on_check_minutes: int = Field(60, ge=0, le=1440, alias="ATHANOR_SIGN_ON_CHECK_MINUTES")
    # Days after a job's end for which its metrics at each resolution, and its log lines, are kept; 0: for ever.
    metrics_days_1x: int = Field(90, ge=0, alias="ATHANOR_METRICS_DAYS_1X")
    metrics_days_16x: int = Field(365, ge=0, alias="ATHANOR_METRICS_DAYS_16X")
    metrics_days_256x: int = Field(0, ge=0, alias="ATHANOR_METRICS_DAYS_256X")
    logs_days: int = Field(90, ge=0, alias="ATHANOR_LOGS_DAYS")
    # Days for which admission decisions are stored (the newest 20,000 at most), and for which results of simulations,
    # incidents of nodes and judged start estimates are; 0: for ever.
    decisions_days: int = Field(30, ge=0, le=36_500, alias="ATHANOR_DECISIONS_DAYS")
    history_days: int = Field(365, ge=0, le=36_500, alias="ATHANOR_HISTORY_DAYS")
    # Days for which something deleted can be restored before its objects go.
    undo_days: int = Field(7, ge=0, alias="ATHANOR_UNDO_DAYS")
    # Age in hours at which an object under a job's prefix that no manifest names is deleted.
    unreferenced_hours: int = Field(24, ge=2, alias="ATHANOR_UNREFERENCED_HOURS")
    # GiB of stored checkpoints that are read and compared with their manifests in an hour, by all workers; 0: none.
    scrub_gib_per_hour: int = Field(20, ge=0, alias="ATHANOR_SCRUB_GIB_PER_HOUR")
    # Folders with the platform's data, separated by commas, and the MiB that new work leaves free on their disks.
    disks: str = Field("", alias="ATHANOR_DISKS")
    disk_reserve_mib: int = Field(300, ge=0, alias="ATHANOR_DISK_RESERVE_MIB")
    outbound_allow: str = Field("", alias="ATHANOR_OUTBOUND_ALLOW")
    webhook_allow: str = Field("", alias="ATHANOR_WEBHOOK_ALLOW")
    # The sender of mails; needed where ATHANOR_SMTP_HOST is set.
    mail_from: str = Field("", alias="ATHANOR_MAIL_FROM")
    # The mail server for notifications of users; empty: no mail. Nothing is sent over an unencrypted connection unless
    # the security is `none`.
    smtp_host: str = Field("", alias="ATHANOR_SMTP_HOST")
    smtp_port: int = Field(587, ge=1, le=65_535, alias="ATHANOR_SMTP_PORT")
    smtp_security: Literal["starttls", "tls", "none"] = Field("starttls", alias="ATHANOR_SMTP_SECURITY")
    smtp_username: str = Field("", alias="ATHANOR_SMTP_USERNAME")
    smtp_password: str = _secret("", "ATHANOR_SMTP_PASSWORD")
    oidc_issuer: str = Field("", alias="ATHANOR_OIDC_ISSUER")
    oidc_client_id: str = Field("", alias="ATHANOR_OIDC_CLIENT_ID")
    oidc_client_secret: str = _secret("", "ATHANOR_OIDC_CLIENT_SECRET")
    oidc_name: str = Field("single sign-on", alias="ATHANOR_OIDC_NAME")
    oidc_scopes: str = Field("openid profile email groups", alias="ATHANOR_OIDC_SCOPES")
    oidc_groups_claim: str = Field("groups", alias="ATHANOR_OIDC_GROUPS_CLAIM")
    oidc_group_roles: str = Field("", alias="ATHANOR_OIDC_GROUP_ROLES")
    log_level: str = Field("INFO", alias="ATHANOR_LOG_LEVEL")
    log_format: Literal["text", "json"] = Field("text", alias="ATHANOR_LOG_FORMAT")
    # Whether spans are exported with OTLP over HTTP; where to, the OTEL_* variables of OpenTelemetry's SDK say.
    traces: Literal["off", "otlp"] = Field("off", alias="ATHANOR_TRACES")
    # What a scrape of /metrics sends as Authorization: Bearer; empty: /metrics is off.
    metrics_token: str = _secret("", "ATHANOR_METRICS_TOKEN")
    # Shared by the processes of one machine, of the prometheus-client library; none: each process counts for itself.
    metrics_folder: Path | None = Field(None, alias="PROMETHEUS_MULTIPROC_DIR")

    @property
    def disk_folders(self) -> list[Path]:
        """Return the folders of ATHANOR_DISKS."""
        return [Path(folder.strip()) for folder in self.disks.split(",") if folder.strip()]

    @field_validator("audit_anchors")
    @classmethod
    def _check_anchors(cls, value: str) -> str:
        for place in filter(None, (part.strip() for part in value.split(","))):
            if not ANCHOR_PLACE.fullmatch(place):
                raise ValueError(
                    f"{place!r} is none of file:/PATH, store, s3://BUCKET/PREFIX, syslog, syslog://HOST:PORT"
                )
        return value

    @field_validator("metrics_token")
    @classmethod
    def _token_is_long(cls, value: str) -> str:
        if value and len(value) < MIN_METRICS_TOKEN_LENGTH:
            raise ValueError(
                f"give at least {MIN_METRICS_TOKEN_LENGTH} characters, such as `openssl rand -hex 32` prints"
            )
        return value

    @field_validator("smtp_host")
    @classmethod
    def _mail_has_a_sender(cls, value: str, info: ValidationInfo) -> str:
        if value and "@" not in info.data.get("mail_from", ""):
            raise ValueError("set ATHANOR_MAIL_FROM too, to an address such as athanor@example.com")
        return value

    @field_validator("data_buckets")
    @classmethod
    def _grants_name_teams(cls, text: str) -> str:
        parse_grants(text)
        return text

    @field_validator("trusted_proxies")
    @classmethod
    def _proxies_are_networks(cls, text: str) -> str:
        parse_proxies(text)
        return text

    @field_validator("cluster_urls")
    @classmethod
    def _urls_are_origins(cls, text: str) -> str:
        allowed_urls(text)
        return text


class EnvironmentProblem(SystemExit):
    """A configuration error, printed without a traceback for the operator."""


def read(variables: Mapping[str, str] = os.environ) -> Environment:
    """Return the validated environment. Raise EnvironmentProblem for unknown ATHANOR_ names and invalid values."""
    known = {str(field.alias) for field in Environment.model_fields.values()}
    secrets = {str(field.alias) for field in Environment.model_fields.values() if not field.repr}
    names = known | {f"{name}_FILE" for name in secrets}
    for name in sorted(variables):
        if name.startswith("ATHANOR_") and not name.startswith("ATHANOR_TEST_") and name not in names | FOREIGN_NAMES:
            nearest = difflib.get_close_matches(name, names, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else ""
            raise EnvironmentProblem(f"athanor: unknown environment variable {name}{hint}")
    values = {name: variables[name] for name in known if name in variables}
    for name in secrets:
        if variables.get(f"{name}_FILE"):
            values[name] = read_secret(name, variables)
    try:
        return Environment.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        shown = name if name in secrets else f"{name}={first['input']!r}"
        raise EnvironmentProblem(f"athanor: environment variable {shown}: {first['msg']}") from (
            None if name in secrets else error
        )


def read_secret(name: str, variables: Mapping[str, str] = os.environ) -> str:
    """Return the value of a variable, or the content of the file that `<name>_FILE` names; "" if neither is set.

    Raise EnvironmentProblem if both are set, or if the file is empty, cannot be read, or may be read or changed by
    other users.
    """
    variable = f"{name}_FILE"
    if not variables.get(variable):
        return variables.get(name, "")
    if variables.get(name):
        raise EnvironmentProblem(f"athanor: {name} and {variable} are both set: unset one")
    path = Path(variables[variable])
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            content = file.read(SECRET_BYTES + 1)
    except OSError as error:
        raise EnvironmentProblem(f"athanor: {variable}={path}: {error.strerror}") from error
    refused = stat.S_IWOTH if SECRETS_OF_CONTAINERS in path.parents else stat.S_IROTH | stat.S_IWOTH
    if found.st_mode & refused:
        raise EnvironmentProblem(
            f"athanor: {variable}={path}: every user of this machine may read or change the file "
            f"(mode {stat.S_IMODE(found.st_mode):04o}): run `chmod o= {path}`, or mount the secret with mode 0440"
        )
    try:
        value = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        value = ""
    if not value or len(content) > SECRET_BYTES:
        raise EnvironmentProblem(f"athanor: {variable}={path}: expected text of 1 to {SECRET_BYTES} bytes")
    return value

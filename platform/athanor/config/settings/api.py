"""Django REST framework and the OpenAPI document."""

from athanor.api.resources import TAGS
from athanor.backends.facts import NodeState
from athanor.jobs.states import AttemptStatus, JobStatus
from athanor.jobs.timeline import OF_WALL_TIME, Activity

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "athanor.api.authentication.ApiTokenAuthentication",
        "athanor.api.authentication.DashboardSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_THROTTLE_CLASSES": ["athanor.api.throttling.CallerThrottle"],
    "DEFAULT_RENDERER_CLASSES": ["athanor.api.renderers.FastJSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["athanor.api.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "athanor.api.schema.DocumentedSchema",
    "EXCEPTION_HANDLER": "athanor.api.errors.handle",
    "UNAUTHENTICATED_USER": None,
    "URL_FORMAT_OVERRIDE": None,  # `format` is a parameter of ours: the format of an upload
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Athanor",
    "DESCRIPTION": (
        "Training as a service: submit a job spec, follow the run, download the model.\n\n"
        "Send `Authorization: Bearer TOKEN`, or the dashboard's session cookie with an `X-CSRFToken` header. Times are "
        "ISO 8601 in UTC, sizes are bytes, durations are seconds. Amounts of money are decimal numbers in a pool's "
        "currency where a field is a price, and whole millionths of the currency where a field adds them up; each "
        "field says which. A list returns `items` and, where it has pages, `next_cursor`: send it as `cursor` for the "
        "next page. Errors are RFC 9457 problems (`application/problem+json`) with a stable `code`, what is wrong in "
        "`detail` and, where there is one, what to do in `remedy`."
    ),
    "TAGS": TAGS,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "athanor.api.schema.describe_responses",
        "athanor.api.schema.add_examples",
    ],
    "VERSION": "1.0.0",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": r"/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "ENUM_NAME_OVERRIDES": {
        "JobStatusEnum": [status.value for status in JobStatus],
        "AttemptStatusEnum": [status.value for status in AttemptStatus],
        "NodeStateEnum": [state.value for state in NodeState],
        "ActivityEnum": [activity.value for activity in OF_WALL_TIME],
        "SlotActivityEnum": [activity.value for activity in Activity],
        "PriceSeriesKindEnum": ["price", "carbon"],
        "StateEnum": ["pending", "delivered", "failed"],  # of a delivery
        "SimulationStateEnum": ["waiting", "running", "done", "failed"],
        "PreflightUnitEnum": ["flop_per_second", "bytes_per_second", "seconds"],
        "SystemUnitEnum": ["fraction", "bytes", "celsius", "watts", "megahertz", "count"],
        "UnitEnum": ["slot_hours", "money"],  # of a budget
        "FormatEnum": ["auto", "text", "jsonl", "parquet", "chat", "preference", "unpaired"],  # of a data set
        "EvaluationJobSpecPrecisionEnum": ["auto", "fp32", "bf16"],
        "SeverityEnum": ["slow", "broken"],  # of a finding about a node
        "AlertSeverityEnum": ["info", "warning", "critical"],
        "WebhookFormatEnum": ["cloudevents", "slack", "openlineage"],
        "AlertStateEnum": ["pending", "firing", "resolved"],
        "NotificationKindEnum": ["firing", "resolved"],
        "CheckpointStateEnum": "athanor.artifacts.models.Checkpoint.State",
    },
}

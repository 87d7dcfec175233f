"""Serializers of the model registry: models, versions, aliases, and previews of their deletion."""

from rest_framework import serializers

from athanor.api.bodies import RequestSerializer
from athanor.api.v1.serializers.common import NamedSerializer
from athanor.api.v1.serializers.deletions import DependentSerializer
from athanor.artifacts.evaluations import ALL_METRICS, ComparedResult, Comparison, Difference
from athanor.artifacts.models import EvaluationResult, ModelAlias, ModelGrant, ModelVersion, RegisteredModel
from athanor.artifacts.registry import RegistryPreview
from athanor.specs.v1 import ALIAS_PATTERN, MAX_ALIAS, MAX_NAME, NAME_PATTERN

MAX_CARD = 100_000
MAX_TAGS, MAX_TAG = 50, 63
TAG = r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$"
CARD_HELP = "Model card, in Markdown: what the model is for, its data, limits and licence."
TAGS_HELP = "Words to find it by, such as `chat` or `german`: letters, digits and `._/:-`."
ALIAS_HELP = "Alias to point to the version, such as `candidate`. It is created, or moved if the model has it."
MAX_NUMBER = 2**31 - 1


class AliasSerializer(serializers.Serializer[ModelAlias]):
    """A name for one version of a model."""

    name = serializers.CharField(help_text="Name of the alias, such as `production`.")
    version = serializers.IntegerField(source="version.number", help_text="Number of the version that it names.")
    moved_by = serializers.CharField(
        source="moved_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the account that pointed it there. Null if the account is gone.",
    )
    moved_at = serializers.DateTimeField(help_text="Time at which it was pointed there, ISO 8601 in UTC.")


class ModelSerializer(serializers.Serializer[RegisteredModel]):
    """A model of a team, with numbered versions."""

    id = serializers.CharField()
    team = NamedSerializer()
    name = serializers.CharField(help_text="Name, unique in the team. It does not change.")
    card = serializers.CharField(allow_blank=True, help_text=CARD_HELP)
    tags = serializers.ListField(child=serializers.CharField(), help_text=TAGS_HELP)
    versions = serializers.IntegerField(source="num_versions", help_text="Number of its versions.")
    last_version = serializers.IntegerField(
        help_text="Highest number that a version has had; 0 before the first. Numbers are not used again."
    )
    aliases = AliasSerializer(many=True, help_text="Its aliases, by name.")
    created_by = serializers.CharField(
        source="created_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the person or service account that created it. Null if the account is gone.",
    )
    is_shared = serializers.BooleanField(
        help_text="Whether it belongs to another team (`team`), which shares it with one of yours: it can be read, "
        "downloaded and used as a base, and not changed."
    )
    created_at = serializers.DateTimeField()


class ModelGrantSerializer(serializers.Serializer[ModelGrant]):
    """Read access to all versions of a model for another team."""

    team = NamedSerializer(help_text="The team that may read the model.")
    granted_by = serializers.CharField(
        source="granted_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the administrator who shared it. Null if the account is gone.",
    )
    created_at = serializers.DateTimeField()


class NewModelSerializer(RequestSerializer):
    """A model to create."""

    name = serializers.RegexField(NAME_PATTERN, max_length=MAX_NAME, help_text="Name, unique in the team.")
    team = serializers.CharField(
        required=False, help_text="Name or id of the team. May be left out if you belong to one team only."
    )
    card = serializers.CharField(
        required=False, allow_blank=True, trim_whitespace=False, max_length=MAX_CARD, help_text=CARD_HELP
    )
    tags = serializers.ListField(
        child=serializers.RegexField(TAG, max_length=MAX_TAG), required=False, max_length=MAX_TAGS, help_text=TAGS_HELP
    )
    artifact = serializers.CharField(
        required=False, help_text="Id of an artifact of kind `model`, which becomes version 1."
    )
    job = serializers.CharField(required=False, help_text="Id of a job: its newest model becomes version 1.")
    alias = serializers.RegexField(
        ALIAS_PATTERN, max_length=MAX_ALIAS, required=False, help_text="Alias to point to version 1."
    )


class DestinationSerializer(RequestSerializer):
    """The model that an import becomes a version of, from the parameters of the request."""

    name = serializers.RegexField(NAME_PATTERN, max_length=MAX_NAME)
    alias = serializers.RegexField(ALIAS_PATTERN, max_length=MAX_ALIAS, required=False)
    tags = serializers.ListField(child=serializers.RegexField(TAG, max_length=MAX_TAG), max_length=MAX_TAGS)


class ModelChangesSerializer(RequestSerializer):
    """Changes of a model. Its name and its versions stay."""

    card = serializers.CharField(
        required=False, allow_blank=True, trim_whitespace=False, max_length=MAX_CARD, help_text=CARD_HELP
    )
    tags = serializers.ListField(
        child=serializers.RegexField(TAG, max_length=MAX_TAG), required=False, max_length=MAX_TAGS, help_text=TAGS_HELP
    )


class ResultSerializer(serializers.Serializer[EvaluationResult]):
    """A metric of an exported model, computed by an evaluation job."""

    evaluation = serializers.CharField(source="name", help_text="Name of the evaluation, from `evaluation.tasks`.")
    metric = serializers.ChoiceField(
        choices=ALL_METRICS,
        help_text="`loss` of a token, in nats; `bits_per_byte`; `accuracy`, the share of questions of which the right "
        "choice is the likeliest; `accuracy_normalised`, the same by the log-likelihood per byte.",
    )
    value = serializers.FloatField(help_text="Its value.")
    n = serializers.IntegerField(help_text="Number of documents or questions.")
    tokens = serializers.IntegerField(help_text="Number of tokens that count.")
    standard_error = serializers.FloatField(
        allow_null=True, help_text="Standard error of the value. Null for a single document."
    )
    low = serializers.FloatField(
        allow_null=True, help_text="Lower end of its 95 % confidence interval (Wilson's for an accuracy)."
    )
    high = serializers.FloatField(allow_null=True, help_text="Upper end of the interval.")
    data_source = serializers.CharField(source="source", help_text="The data set, as the spec names it.")
    dataset = serializers.CharField(source="dataset_id", allow_null=True, help_text="Id of the data set.")
    trained_on = serializers.ListField(
        child=serializers.CharField(),
        allow_null=True,
        help_text="Ids of jobs in the model's lineage that trained on the same data set: if there are any, the value "
        "says little about other data. Null if what the model was trained on is not completely on record.",
    )
    job = NamedSerializer(help_text="The evaluation job.")
    created_at = serializers.DateTimeField(help_text="Time at which it was registered, ISO 8601 in UTC.")


class VersionSerializer(serializers.Serializer[ModelVersion]):
    """A version of a model: the export of a job, or an imported model. It never changes."""

    number = serializers.IntegerField(help_text="Number of the version within its model, from 1.")
    model = NamedSerializer(help_text="The model.")
    job = NamedSerializer(
        source="made_by",
        allow_null=True,
        help_text="The job that made it, with its name at that time. Null if it was imported, not trained here.",
    )
    not_trainable = serializers.CharField(
        allow_blank=True, help_text="Why no job can start from an imported version. Empty if one can, and of an export."
    )
    attempt = serializers.IntegerField(
        source="attempt_number",
        allow_null=True,
        help_text="Number of the job's attempt that exported it. Null if the model is shared by another team, "
        "or was imported.",
    )
    step = serializers.IntegerField(
        source="artifact.step", help_text="Optimizer step of the exported weights; 0 if imported."
    )
    artifact = serializers.CharField(
        source="artifact_id", help_text="Id of the artifact, for `POST /artifacts/{artifact_id}:download`."
    )
    size_bytes = serializers.IntegerField(
        source="artifact.size_bytes", help_text="Size of the encrypted files in bytes."
    )
    metrics = serializers.DictField(
        source="artifact.metrics",
        child=serializers.FloatField(),
        help_text="Values by name, as the job reported them with the export.",
    )
    digest = serializers.CharField(
        help_text="SHA-256 of the artifact's manifest, which contains the digests of all files; hexadecimal."
    )
    aliases = serializers.ListField(
        source="alias_names", child=serializers.CharField(), help_text="Names of the aliases that name it."
    )
    evaluations = ResultSerializer(
        many=True, help_text="The newest result of each metric of each evaluation of it, by their names."
    )
    created_by = serializers.CharField(
        source="created_by.username",
        allow_null=True,
        default=None,
        help_text="Username of the account that registered it. Null if the account is gone.",
    )
    created_at = serializers.DateTimeField()


class NewVersionSerializer(RequestSerializer):
    """An export to register: give either `artifact` or `job`."""

    artifact = serializers.CharField(required=False, help_text="Id of an artifact of kind `model`.")
    job = serializers.CharField(required=False, help_text="Id of a job: its newest model is registered.")
    alias = serializers.RegexField(ALIAS_PATTERN, max_length=MAX_ALIAS, required=False, help_text=ALIAS_HELP)


class AliasTargetSerializer(RequestSerializer):
    """The version that an alias names."""

    version = serializers.IntegerField(min_value=1, max_value=MAX_NUMBER, help_text="Number of the version.")
    require = serializers.ListField(
        child=serializers.CharField(max_length=200),
        required=False,
        max_length=20,
        help_text="Requirements that the newest results of the version must meet, such as `accuracy>=0.8` or "
        "`held-out.loss<=2.1`: `[EVALUATION.]METRIC`, one of `>=`, `<=`, `>` and `<`, and a number. If one is not met, "
        "the alias is not moved.",
    )


class DifferenceSerializer(serializers.Serializer[Difference]):
    """A result minus that of the version that is compared with."""

    value = serializers.FloatField(help_text="The difference.")
    low = serializers.FloatField(
        allow_null=True,
        help_text="Lower end of its 95 % confidence interval. Paired: Newcombe's method 10 for scores of 0 and 1, else "
        "from the variance of the items' differences. Not paired: from the intervals of both results.",
    )
    high = serializers.FloatField(allow_null=True, help_text="Upper end of the interval.")
    is_significant = serializers.BooleanField(
        allow_null=True,
        help_text="Whether the p-value is below 0.05, or without one, whether the interval does not contain 0. Null if "
        "it is not known.",
    )
    is_paired = serializers.BooleanField(
        help_text="Whether it is from the results of each item, which are stored of up to 20,000 items. Without "
        "them the two results are taken as independent, and small differences may not be found."
    )
    p_value = serializers.FloatField(
        allow_null=True,
        help_text="Two-sided p-value of McNemar's exact test, for paired scores of 0 and 1. Null otherwise.",
    )
    is_better = serializers.BooleanField(
        help_text="Whether the result is better: higher for an accuracy, lower for the others."
    )


class ComparedResultSerializer(serializers.Serializer[ComparedResult]):
    """A result of a version, beside that of the version that it is compared with."""

    version = serializers.IntegerField(source="version.number", help_text="Number of the version.")
    aliases = serializers.ListField(
        source="version.alias_names", child=serializers.CharField(), help_text="Names of the aliases that name it."
    )
    result = ResultSerializer(help_text="The newest result of this metric of this evaluation.")
    difference = DifferenceSerializer(
        allow_null=True,
        help_text="The difference to the version that is compared with. Null without one, for that version itself, "
        "and if it has no result of the same evaluation on as many items of the same data set.",
    )


class ComparisonSerializer(serializers.Serializer[Comparison]):
    """The evaluations of the versions of a model."""

    against = serializers.IntegerField(
        source="against.number", allow_null=True, default=None, help_text="Number of the version compared with."
    )
    items = ComparedResultSerializer(
        source="results", many=True, help_text="The results, by evaluation and metric, newest version first."
    )


class RegistryPreviewSerializer(serializers.Serializer[RegistryPreview]):
    """What deleting a model or a version would remove. Artifacts are not deleted."""

    model = NamedSerializer(help_text="The model.")
    versions = VersionSerializer(many=True, help_text="The versions, newest first.")
    aliases = AliasSerializer(many=True, help_text="Aliases that name one of them. While there are any, it is refused.")
    blocked_by = DependentSerializer(
        many=True,
        help_text=(
            "Unfinished jobs that start from one of them. While there are any, it is refused. At most 20 are listed."
        ),
    )
    used_by = DependentSerializer(
        many=True, help_text="Finished jobs that started from one of them. Their records stay. At most 20 are listed."
    )
    grants = ModelGrantSerializer(
        many=True,
        help_text="Other teams that can read the model. Deleting the model ends that, and they lose a deleted version; "
        "their jobs do not prevent it.",
    )

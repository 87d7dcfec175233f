"""Serializers of data sets."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from athanor.api.v1.serializers.common import NamedSerializer, ReasonSerializer, enum_values
from athanor.artifacts import data_reports, previews
from athanor.artifacts.dataset_diff import Diff, RowCounts
from athanor.artifacts.inspection import Inspection
from athanor.artifacts.models import DataReport, Dataset, PreparedDataset
from athanor.artifacts.previews import Preparation
from athanor.jobs.models import Job
from athanor.jobs.states import JobStatus


class PreparationJobSerializer(serializers.Serializer[Job]):
    """A job that only tokenises a data set."""

    id = serializers.CharField()
    name = serializers.CharField(help_text="Name of the job.")
    status = serializers.ChoiceField(choices=enum_values(JobStatus), help_text="Status of the job.")
    reason = serializers.SerializerMethodField(help_text="Why it waits or ended. Null if there is nothing to say.")

    @staticmethod
    @extend_schema_field(ReasonSerializer(allow_null=True))
    def get_reason(job: Job) -> dict[str, str] | None:
        """Return why the job waits or ended, None without a reason."""
        return job.explanation


class PreparationSerializer(serializers.Serializer[Preparation]):
    """How tokenising a data set goes."""

    state = serializers.ChoiceField(
        choices=["none", "running", "ready", "failed"],
        help_text=(
            "`none`: the first job that trains on it tokenises it. `running`: a job tokenises it now. `ready`: at "
            "least one tokenised form is stored. `failed`: the latest job that tokenised it failed."
        ),
    )
    job = PreparationJobSerializer(allow_null=True, help_text="The latest job that only tokenises it. Null if none.")
    tokens = serializers.SerializerMethodField(help_text="Tokens of the newest tokenised form. Null if there is none.")

    @staticmethod
    def get_tokens(found: Preparation) -> int | None:
        """Return the number of tokens, for training and for validation."""
        if found.ready is None:
            return None
        return int(found.ready.manifest["train_tokens"]) + int(found.ready.manifest["validation_tokens"])


class FoundSerializer(serializers.Serializer[DataReport]):
    """Numbers of kinds of findings in a data report."""

    critical = serializers.IntegerField(help_text="Kinds that end training, make scores worthless or leak a secret.")
    warning = serializers.IntegerField(help_text="Kinds that should be looked at.")
    info = serializers.IntegerField(help_text="Kinds that can be intended.")


class NewestReportSerializer(serializers.Serializer[DataReport]):
    """The newest data report of a data set, without its content."""

    id = serializers.CharField()
    digest = serializers.CharField(help_text="SHA-256 of the report as JSON. Equal data and settings give equal ones.")
    job_id = serializers.CharField(help_text="Job that made it.")
    findings = serializers.SerializerMethodField(help_text="Numbers of kinds of findings, by severity.")
    created_at = serializers.DateTimeField()

    @staticmethod
    @extend_schema_field(FoundSerializer)
    def get_findings(row: DataReport) -> dict[str, int]:
        """Return the number of kinds of findings by severity."""
        return data_reports.counts_of(row)


class DatasetSerializer(serializers.Serializer[Dataset]):
    """Text of a team to train on: of an upload, one version."""

    id = serializers.CharField()
    team = NamedSerializer()
    name = serializers.CharField(help_text="Name within the team. Jobs name the data set by it.")
    version = serializers.IntegerField(
        help_text="Number of the version, which is not used again after its deletion. 1 for data that is not an upload."
    )
    aliases = serializers.ListField(
        child=serializers.CharField(), source="alias_names", help_text="Aliases that name this version."
    )
    spec_source = serializers.CharField(help_text="What a spec writes in `source` to train on this version.")
    origin = serializers.CharField(
        help_text=(
            "`sealed` for an upload, which is stored encrypted; `plain` for an S3 prefix that is read in "
            "place; `builtin` for text of the platform."
        )
    )
    format = serializers.CharField(
        help_text=(
            "What the files hold: `text`, `jsonl` (text in a field of JSON lines), `chat` (conversations), "
            "`preference` (pairs), `unpaired` (answers with a label), `parquet`, or `auto` for files of several "
            "formats and data that is not an upload."
        )
    )
    text_field = serializers.CharField(
        help_text=(
            "Field with the text, or with the messages of a conversation, that jobs read unless their spec names "
            "another. Empty if there is none or it is not known."
        )
    )
    fields_with_text = serializers.ListField(
        child=serializers.CharField(),
        source="fields",
        allow_null=True,
        help_text="Fields of the first line, or columns, that hold text. Null if they are not known.",
    )
    size_bytes = serializers.IntegerField(help_text="Size in bytes; 0 if the data set is not an upload.")
    documents = serializers.IntegerField(allow_null=True, help_text="Number of documents. Null if it is not known.")
    preparation = PreparationSerializer(help_text="How tokenising it goes.")
    report = NewestReportSerializer(allow_null=True, help_text="Its newest data report. Null without one.")
    created_at = serializers.DateTimeField()


class UploadedFileSerializer(serializers.Serializer[Any]):
    """A file of an upload."""

    path = serializers.CharField(help_text="Name under which it is stored.")
    size_bytes = serializers.SerializerMethodField(help_text="Size in bytes.")

    @staticmethod
    def get_size_bytes(file: dict[str, Any]) -> int:
        """Return the size of the content, before encryption."""
        return sum(part["plaintext_size"] for part in file["parts"])


class TokenisedFormSerializer(serializers.Serializer[PreparedDataset]):
    """A tokenised form of a data set."""

    recipe = serializers.CharField(help_text="Digest of all that decides the tokens, such as the tokenizer.")
    fingerprint = serializers.CharField(
        source="manifest.fingerprint", help_text="Digest of the tokens and the tokenizer."
    )
    vocab_size = serializers.IntegerField(
        source="manifest.vocab_size", help_text="Number of entries in the vocabulary."
    )
    train_tokens = serializers.IntegerField(source="manifest.train_tokens", help_text="Tokens to train on.")
    validation_tokens = serializers.IntegerField(
        source="manifest.validation_tokens", help_text="Tokens held out for evaluation."
    )
    documents = serializers.IntegerField(source="manifest.documents", help_text="Number of documents.")
    size_bytes = serializers.IntegerField(help_text="Size in the object store, in bytes.")
    job_id = serializers.CharField(help_text="Job that tokenised it.")
    created_at = serializers.DateTimeField()


class DatasetDetailSerializer(DatasetSerializer):
    """A data set with its files and tokenised forms."""

    created_by = serializers.CharField(
        source="created_by.username", allow_null=True, default=None, help_text="Name of the user who uploaded it."
    )
    digest = serializers.SerializerMethodField(
        help_text=(
            "SHA-256 over the encrypted content of all files. It never changes, since a data set never changes. "
            "Empty for data that is not an upload."
        )
    )
    files = UploadedFileSerializer(many=True, help_text="Files of the upload.")
    tokenised_forms = serializers.SerializerMethodField(help_text="Tokenised forms that jobs may use, newest first.")

    @staticmethod
    def get_digest(row: Dataset) -> str:
        """Return the digest of the content."""
        return previews.digest(row) if row.files else ""

    @staticmethod
    @extend_schema_field(TokenisedFormSerializer(many=True))
    def get_tokenised_forms(row: Dataset) -> Any:
        """Return the tokenised forms."""
        forms: Any = previews.tokenised_forms(row)
        return TokenisedFormSerializer(forms, many=True).data


class DiffSideSerializer(serializers.Serializer[Dataset]):
    """A version that is compared."""

    id = serializers.CharField()
    name = serializers.CharField(help_text="Name of the data set.")
    version = serializers.IntegerField(help_text="Number of the version.")
    size_bytes = serializers.IntegerField(help_text="Size in bytes.")
    documents = serializers.IntegerField(allow_null=True, help_text="Number of documents. Null if it is not known.")


class RowCountsSerializer(serializers.Serializer[RowCounts]):
    """Numbers of rows: lines that are not blank. Two are equal if their bytes are, without spaces around them."""

    added = serializers.IntegerField(help_text="Rows that only the second version has.")
    removed = serializers.IntegerField(help_text="Rows that only the first version has.")
    common = serializers.IntegerField(help_text="Rows of both. A row that occurs several times counts as often.")


class DiffSerializer(serializers.Serializer[Diff]):
    """The difference between two versions. Files are compared by their names."""

    before = DiffSideSerializer(help_text="The first version, named by `from`.")
    after = DiffSideSerializer(help_text="The second version.")
    added = serializers.ListField(child=serializers.CharField(), help_text="Files that only the second version has.")
    removed = serializers.ListField(child=serializers.CharField(), help_text="Files that only the first version has.")
    changed = serializers.ListField(child=serializers.CharField(), help_text="Files of both with different content.")
    same = serializers.ListField(child=serializers.CharField(), help_text="Files of both with equal content.")
    unknown = serializers.ListField(
        child=serializers.CharField(), help_text="Files of both, of equal size, of which no content was compared."
    )
    rows = RowCountsSerializer(allow_null=True, help_text="Differences of rows. Null if they were not compared.")
    note = serializers.CharField(help_text="Why something was not compared. Empty if everything was.")


class InspectionSerializer(serializers.Serializer[Inspection]):
    """What a sample of a file shows."""

    format = serializers.CharField(
        help_text="Detected format: `text`, `jsonl`, `chat`, `preference`, `unpaired` or `parquet`."
    )
    text_field = serializers.CharField(
        help_text="Field to train on, or field with the messages of a conversation. Empty if you have to choose."
    )
    fields_with_text = serializers.ListField(
        child=serializers.CharField(),
        source="fields",
        allow_null=True,
        help_text="Fields of the first line, or columns, that hold text. Null for plain text.",
    )
    rows = serializers.ListField(
        child=serializers.JSONField(),
        help_text="First rows: lines of text, or objects. Texts are cut after 2,000 characters.",
    )
    documents = serializers.IntegerField(allow_null=True, help_text="Number of rows, if parquet says it.")
    note = serializers.CharField(help_text="What to know before training on it. Empty if there is nothing.")


class ForgottenSerializer(serializers.Serializer[Any]):
    """Result of discarding tokenised forms."""

    forgotten = serializers.IntegerField(help_text="Number of tokenised forms that were discarded.")

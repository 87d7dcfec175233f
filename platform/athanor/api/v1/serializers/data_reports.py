"""Serializers of data reports (trainer.contract.data_report)."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from athanor.api.v1.serializers.datasets import NewestReportSerializer
from athanor.artifacts.models import DataReport
from trainer.contract.data_findings import SEVERITIES


class FoundAtSerializer(serializers.Serializer[Any]):
    """A place of a finding."""

    object = serializers.CharField(help_text="Name of the file.")
    row = serializers.IntegerField(help_text="Line or row, from 1. 0 if it is no row.")
    detail = serializers.CharField(help_text="What was found there, without secrets. Can be empty.")


class DataFindingSerializer(serializers.Serializer[Any]):
    """Rows with the same problem."""

    kind = serializers.CharField(help_text="Kind of the finding, such as `near_duplicate`.")
    severity = serializers.ChoiceField(
        choices=SEVERITIES,
        help_text="`critical`: ends training, makes scores worthless or leaks a secret. `warning`: should be looked "
        "at. `info`: can be intended.",
    )
    title = serializers.CharField(help_text="What was counted.")
    count = serializers.IntegerField(help_text="Number of rows.")
    share = serializers.FloatField(help_text="Share of all rows that are not blank, 0 to 1.")
    places = FoundAtSerializer(many=True, help_text="The first places.")
    remedy = serializers.CharField(help_text="What to do.")


class SplitReportSerializer(serializers.Serializer[Any]):
    """One split of a source."""

    documents = serializers.IntegerField(help_text="Number of documents.")
    tokens = serializers.IntegerField(help_text="Number of tokens.")
    learned_tokens = serializers.IntegerField(help_text="Tokens that count in the loss.")
    text_bytes = serializers.IntegerField(help_text="Size of its text as UTF-8, in bytes.")


class LengthsSerializer(serializers.Serializer[Any]):
    """Lengths of the documents of the training split, in tokens."""

    bounds = serializers.ListField(child=serializers.IntegerField(), help_text="Upper bounds of the classes.")
    counts = serializers.ListField(
        child=serializers.IntegerField(), help_text="Documents in each class, and above the last bound."
    )
    longest = serializers.IntegerField(help_text="Length of the longest document.")
    mean = serializers.FloatField(help_text="Mean length.")
    cut_documents = serializers.IntegerField(help_text="Documents longer than a sequence.")
    lost_tokens = serializers.IntegerField(help_text="Tokens of these that are not trained on.")


class PackingSerializer(serializers.Serializer[Any]):
    """Sequences of the training split with each way of packing."""

    none = serializers.IntegerField(help_text="Sequences of the concatenated stream.")
    documents = serializers.IntegerField(help_text="Sequences filled with complete documents.")
    alone = serializers.IntegerField(help_text="Sequences if each had a single document.")
    padding = serializers.FloatField(help_text="Share of the sequences of complete documents that is padding, 0 to 1.")


class OverlapSerializer(serializers.Serializer[Any]):
    """The comparison with evaluation data."""

    ngram = serializers.IntegerField(help_text="Number of words in a row that must agree.")
    rows = serializers.IntegerField(help_text="Rows of the evaluation data.")
    too_short = serializers.IntegerField(help_text="Rows with fewer words, which are not compared.")


class PreviewTokenSerializer(serializers.Serializer[Any]):
    """A token as the model sees it."""

    text = serializers.CharField(help_text="Text of the token, decoded alone. Empty where it is hidden.")
    learned = serializers.BooleanField(help_text="Whether it counts in the loss.")
    hidden = serializers.BooleanField(help_text="Whether the report hides it, since it can be part of a secret.")


class PreviewDocumentSerializer(serializers.Serializer[Any]):
    """A document as the model sees it."""

    object = serializers.CharField(help_text="Name of the file.")
    row = serializers.IntegerField(help_text="Line or row, from 1. 0 if it is no row.")
    tokens = PreviewTokenSerializer(many=True, help_text="The first tokens.")
    omitted = serializers.IntegerField(help_text="Number of tokens that follow.")
    answer = serializers.ChoiceField(
        choices=["chosen", "rejected"], required=False, help_text="Which answer of a pair. Absent for other data."
    )


class PairReportSerializer(serializers.Serializer[Any]):
    """The answers of pairs, of both splits."""

    pairs = serializers.IntegerField(help_text="Number of pairs.")
    chosen_mean = serializers.FloatField(help_text="Mean number of learned tokens of the chosen answers.")
    rejected_mean = serializers.FloatField(help_text="Mean number of learned tokens of the rejected answers.")
    chosen_longer = serializers.FloatField(help_text="Share of the pairs of which the chosen answer is longer, 0 to 1.")


class SourceReportSerializer(serializers.Serializer[Any]):
    """The report of one source."""

    format = serializers.CharField(help_text="Format as which it was read.")
    read_bytes = serializers.IntegerField(help_text="Bytes that were read.")
    rows = serializers.IntegerField(help_text="Rows that are not blank, valid or not.")
    vocab_size = serializers.IntegerField(help_text="Number of entries in the vocabulary. 0 if there is no document.")
    splits = serializers.DictField(child=SplitReportSerializer(), help_text="`train` and `validation`.")
    lengths = LengthsSerializer(help_text="Lengths of the documents to train on.")
    packing = PackingSerializer(help_text="Sequences with each way of packing.")
    scripts = serializers.DictField(
        child=serializers.FloatField(), help_text="Share of the letters by script, such as `LATIN`."
    )
    overlap = OverlapSerializer(allow_null=True, help_text="Comparison with evaluation data. Null if there was none.")
    findings = DataFindingSerializer(many=True, help_text="Findings, the worst first.")
    preview = PreviewDocumentSerializer(many=True, help_text="Documents as the model sees them.")
    pairs = PairReportSerializer(required=False, help_text="Their answers. Absent for other data than pairs.")

    def get_fields(self) -> dict[str, Any]:
        """Return the fields; `source` is an attribute of each serializer, so it cannot be written as the others are."""
        return {"source": serializers.CharField(help_text="The source, as the spec names it."), **super().get_fields()}


class ReportContentSerializer(serializers.Serializer[Any]):
    """What a data report contains."""

    version = serializers.IntegerField(help_text="Version of the format.")
    sequence_length = serializers.IntegerField(help_text="Length of a training sequence, in tokens.")
    packing = serializers.CharField(help_text="Way of packing that the job named: `none` or `documents`.")
    long_documents = serializers.CharField(help_text="What becomes of longer documents: `cut`, `truncate` or `drop`.")
    sources = SourceReportSerializer(many=True, help_text="One for each time that the job read the data set.")


class DataReportSerializer(NewestReportSerializer):
    """A data report of a data set. `context["report"]`: its content."""

    report = serializers.SerializerMethodField(help_text="The report.")

    @extend_schema_field(ReportContentSerializer)
    def get_report(self, _: DataReport) -> Any:
        """Return the content as JSON."""
        return self.context["report"].model_dump(mode="json")

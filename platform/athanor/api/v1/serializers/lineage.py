"""Serializers of lineage: a graph of what was made from what."""

from rest_framework import serializers

from athanor.artifacts.lineage import Cut, Edge, Kind, Lineage, Node, Relation


class LineageNodeSerializer(serializers.Serializer[Node]):
    """Something in a lineage."""

    id = serializers.CharField(
        help_text="Its id, which `of` takes, too, except of downloads, deleted versions and what is not stored here. A "
        "version is `mdl_...@NUMBER`, an alias `mdl_...@ALIAS`, a tokenised data set `prep_NUMBER`."
    )
    kind = serializers.ChoiceField(
        choices=[kind.value for kind in Kind],
        help_text="`dataset`; `prepared`, a tokenised data set; `report`, a data report; `job`; "
        "`checkpoint`; `model`, the export of a job; "
        "`version` and `alias` of a registered model; `download`, all downloads by one account; `external`, a base "
        "model in a bucket of another owner.",
    )
    name = serializers.CharField(
        allow_blank=True,
        help_text="Name of the object, for people. Empty for a job or model of a team that is not yours (`hidden`).",
    )
    state = serializers.CharField(
        help_text="Status of a job. Of stored objects `stored`, or of checkpoints `intact`, `damaged`, `diverged` or "
        "`retired`; `discarded` of a tokenised data set that no further job uses; `deleted` within the undo window, "
        "`purged` after it. Of versions `registered` or `deleted`. `builtin`, `external` of data that is not stored. "
        "`current` of aliases, `recorded` of downloads, `hidden` of a job of a team that is "
        "not yours, and of a base model that its team no longer shares with yours."
    )
    digest = serializers.CharField(
        allow_null=True,
        help_text="SHA-256, hexadecimal: of a job that of its spec, of a data report that of its content, of other "
        "stored objects that of their manifest, which "
        "contains the digests of all stored parts. Null where nothing is on record.",
    )
    time = serializers.DateTimeField(
        allow_null=True,
        help_text="Time of its creation; of an alias that of its last move, of downloads that of the newest.",
    )
    made_by = serializers.CharField(
        allow_null=True, help_text="Id of the job that made it; null for other kinds, and for models of other teams."
    )


class LineageEdgeSerializer(serializers.Serializer[Edge]):
    """How one node was made from another: the target is RELATION the source."""

    source_id = serializers.CharField(source="source", help_text="Id of the node that came first.")
    target_id = serializers.CharField(source="target", help_text="Id of the node that was made from it.")
    relation = serializers.ChoiceField(
        choices=[relation.value for relation in Relation],
        help_text="`prepared_from` a data set; `trained_on` a data set, or its tokenised form that was usable while "
        "the job ran; `prepares` a data set; `evaluated_on` a data set; `replayed_on` a data set; `report_on` a data "
        "set; `reports_on` a data set, of the job that makes the report; `base`, the model that training started from; "
        "`evaluates` a model; `forked_from` a job; `replays` a job; "
        "`exports` a checkpoint; `made_by` a job; `version_of` an export; "
        "`alias_of` a version; `download_of` an export or a checkpoint.",
    )
    reference = serializers.CharField(
        allow_blank=True,
        help_text="What the spec named a base model by, such as `model:bot@production`; empty if by its id.",
    )


class LineageSerializer(serializers.Serializer[Lineage]):
    """What an object was made of, and what was made from it."""

    of = serializers.CharField(source="root", help_text="Id of the requested object.")
    nodes = LineageNodeSerializer(many=True, help_text="The object, then what is related to it, the nearest first.")
    edges = LineageEdgeSerializer(many=True, help_text="How the nodes are related.")
    cut = serializers.ListField(
        child=serializers.ChoiceField(choices=[cut.value for cut in Cut]),
        help_text="Why the lineage may be incomplete: the limits `nodes` and `depth`; `team`: it does not show what a "
        "model of another team was made of. Empty if it is complete.",
    )

"""Serializers of the results of replays."""

from typing import Any

from rest_framework import serializers

from athanor.api.v1.serializers.common import NamedSerializer
from athanor.artifacts.models import ReplayedSegment


class TensorDifferenceSerializer(serializers.Serializer[Any]):
    """A tensor of the replayed state that differs from the stored one."""

    name = serializers.CharField(
        help_text="Name in the checkpoint: `model/` and a parameter, or another part of the state, such as `exp_avg/`."
    )
    largest = serializers.FloatField(
        allow_null=True, help_text="Largest difference of an element. Null if one is not finite."
    )
    relative = serializers.FloatField(
        allow_null=True,
        help_text="Norm of the difference: of a parameter relative to that of what the steps of the segment changed in "
        "it, of other state relative to the stored tensor. Null if that is 0, or the difference is not finite.",
    )


class ReplayedSegmentSerializer(serializers.Serializer[ReplayedSegment]):
    """The result of a segment of a replay."""

    replay = NamedSerializer(source="job", help_text="The job that computed it again.")
    replayed = NamedSerializer(help_text="The job that was replayed.")
    number = serializers.IntegerField(help_text="Number of the segment in the replay, from 0.")
    start = serializers.CharField(
        allow_blank=True,
        help_text="Id of the checkpoint that it begins with. Empty for one that begins before the first step.",
    )
    end = serializers.CharField(help_text="Id of the checkpoint that the result was compared with.")
    first_step = serializers.IntegerField(help_text="Steps done at `start`.")
    last_step = serializers.IntegerField(help_text="Steps done at `end`.")
    verdict = serializers.ChoiceField(
        choices=ReplayedSegment.Verdict.choices,
        help_text="`equal`: all bits are; `within_tolerance`: equal bits could not be expected (`is_exact`), and no "
        "tensor differs by more than the tolerance; `differs`; or `not_comparable`: a checkpoint cannot be read.",
    )
    is_exact = serializers.BooleanField(
        help_text="Whether equal bits could be expected: the same mesh, micro-batches, accelerator and version of "
        "torch, and on a GPU `training.deterministic`."
    )
    tolerance = serializers.FloatField(help_text="`replay.tolerance` of the spec. It counts unless `is_exact`.")
    tensors = serializers.IntegerField(help_text="Number of tensors that were compared.")
    differing = serializers.IntegerField(help_text="Number of those of which not all bits are equal.")
    differences = TensorDifferenceSerializer(many=True, help_text="The ten tensors with the largest difference.")
    because = serializers.CharField(
        allow_blank=True, help_text="Why it differs or cannot be compared, or why equal bits could not be expected."
    )
    created_at = serializers.DateTimeField(help_text="Time at which it was registered, ISO 8601 in UTC.")

"""Results of replays: segments of finished jobs, computed again and compared."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.api.access import get_principal
from athanor.api.pagination import paginated_response
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.replays import ReplayedSegmentSerializer
from athanor.artifacts import replays
from athanor.jobs.selectors import job_of


class ReplaysView(APIView):
    """Requests to `/jobs/{job_id}/replays`."""

    @extend_schema(
        operation_id="jobs_replays",
        responses={200: page_serializer("ReplayedSegmentPage", ReplayedSegmentSerializer), **PROBLEMS},
    )
    def get(self, request: Request, job_id: str) -> Response:
        """List the results of replays.

        Returns the results of all replays of a job, and those of the job itself if it is a replay, the newest replay
        first. A segment that is still to be computed is not listed."""
        rows = replays.results_of(job_of(get_principal(request), job_id))
        return paginated_response([ReplayedSegmentSerializer(row).data for row in rows])

"""/queue: waiting jobs by pool, why they wait, and start estimates. Members see only sums of other teams' jobs."""

from typing import Any

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.accounts.selectors import Principal
from athanor.api.access import get_principal
from athanor.api.pagination import paginated_response
from athanor.api.parameters import IntegerParameter
from athanor.api.v1.serializers.common import PROBLEMS, page_serializer
from athanor.api.v1.serializers.jobs import serialize_wait
from athanor.api.v1.serializers.queue import PoolQueueSerializer
from athanor.jobs.models import Job
from athanor.jobs.queue import Queue, queues
from athanor.specs.v1 import PRIORITY_VALUES

MAX_JOBS_PER_POOL = 500
PRIORITIES = {value: name for name, value in PRIORITY_VALUES.items()}
LIMIT = IntegerParameter(
    "limit", "Maximum number of jobs per pool.", min_value=1, max_value=MAX_JOBS_PER_POOL, default=100
)


class QueueView(APIView):
    """Requests to `/queue`."""

    @extend_schema(
        operation_id="queue_show",
        parameters=[
            OpenApiParameter(
                "pool", str, description="Only this pool, as `CLUSTER/NAME`, or the pools of this cluster."
            ),
            LIMIT.openapi,
        ],
        responses={200: page_serializer("QueuePage", PoolQueueSerializer), **PROBLEMS},
    )
    def get(self, request: Request) -> Response:
        """Show the queue.

        Returns the waiting jobs of each pool in the order of the last admission cycle. Members see the jobs of their
        teams, and sums over all teams; platform administrators and auditors see all jobs."""
        principal = get_principal(request)
        found = queues(
            principal,
            whole=Permission.OVERSEE in principal.platform,
            max_jobs=LIMIT.read(request),
            pool=request.query_params.get("pool", ""),
        )
        return paginated_response([PoolQueueSerializer(_queue(principal, each)).data for each in found])


def _queue(principal: Principal, queue: Queue) -> dict[str, Any]:
    pool = queue.pool
    return {
        "pool": str(pool),
        "cluster": pool.cluster,
        "accelerator": pool.accelerator,
        "enabled": pool.cluster.enabled,
        "slots": pool.slots,
        "spare_slots": pool.spare_slots,
        "slots_used": queue.slots_used,
        "waiting_jobs": queue.waiting_jobs,
        "waiting_slots": queue.waiting_slots,
        "waiting_teams": queue.waiting_teams,
        "jobs": [_job(principal, job) for job in queue.jobs],
    }


def _job(principal: Principal, job: Job) -> dict[str, Any]:
    mine = job.team_id in principal.team_ids
    return {
        "id": job.id,
        "name": job.name if mine else None,
        "mine": mine,
        "team": job.team,
        "priority": PRIORITIES.get(job.priority, str(job.priority)),
        "slots": job.slots,
        "queued_at": job.queued_at,
        "desired": job.desired,
        "reason": job.explanation,
        "wait": serialize_wait(job),
    }

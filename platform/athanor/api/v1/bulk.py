"""POST /jobs:ACTION: the same action on several jobs, with a result for each."""

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.selectors import Principal
from athanor.api.access import check_may_write, get_principal
from athanor.api.bodies import parse_body
from athanor.api.errors import handle
from athanor.api.v1.serializers.bulk import BulkResultSerializer, BulkSerializer
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.jobs import JobSummarySerializer
from athanor.core.errors import AthanorError
from athanor.jobs import selectors, services
from athanor.jobs.states import FINAL, JobStatus


class BulkView(APIView):
    """Base of the actions on several jobs; `service` is the action on one."""

    service: ClassVar[services.JobAction]

    def answer(self, request: Request) -> Response:
        """Act on each job of the body. Return the result of each."""
        ids = parse_body(request, BulkSerializer)["ids"]
        principal = get_principal(request)
        items = [self._one(principal, job_id) for job_id in dict.fromkeys(ids)]
        return Response({"items": items})

    def _one(self, principal: Principal, job_id: str) -> dict[str, Any]:
        try:
            job = selectors.job_of(principal, job_id)
            check_may_write(principal, job.team_id)
            was_final = JobStatus(job.status) in FINAL
            type(self).service(job_id, principal.user.username)
        except AthanorError as error:
            refused = handle(error, {})
            assert refused is not None
            return {"id": job_id, "status": refused.status_code, "job": None, "problem": refused.data}
        shown = JobSummarySerializer(selectors.job_of(principal, job_id)).data
        return {"id": job_id, "status": 200 if was_final else 202, "job": shown, "problem": None}


class BulkCancelView(BulkView):
    """Requests to `/jobs:cancel`."""

    service = services.request_stop

    @extend_schema(
        operation_id="jobs_cancel_many", request=BulkSerializer, responses={200: BulkResultSerializer, **PROBLEMS}
    )
    def post(self, request: Request) -> Response:
        """Cancel several jobs.

        Cancels up to 200 jobs, each on its own. The response has the result for each id, so some may be refused
        while others succeed."""
        return self.answer(request)


class BulkPauseView(BulkView):
    """Requests to `/jobs:pause`."""

    service = services.request_pause

    @extend_schema(
        operation_id="jobs_pause_many", request=BulkSerializer, responses={200: BulkResultSerializer, **PROBLEMS}
    )
    def post(self, request: Request) -> Response:
        """Pause several jobs.

        Pauses up to 200 jobs, each on its own. The response has the result for each id, so some may be refused while
        others succeed."""
        return self.answer(request)


class BulkResumeView(BulkView):
    """Requests to `/jobs:resume`."""

    service = services.request_resume

    @extend_schema(
        operation_id="jobs_resume_many", request=BulkSerializer, responses={200: BulkResultSerializer, **PROBLEMS}
    )
    def post(self, request: Request) -> Response:
        """Resume several jobs.

        Resumes up to 200 jobs, each on its own. The response has the result for each id, so some may be refused
        while others succeed."""
        return self.answer(request)

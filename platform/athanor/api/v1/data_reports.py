"""/datasets/{dataset_id}/report: what a model would see of a data set, and what is wrong with it."""

from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from athanor.accounts.roles import Permission
from athanor.api.access import check, get_principal
from athanor.api.transfers import transfer
from athanor.api.v1.serializers.common import PROBLEMS
from athanor.api.v1.serializers.data_reports import DataReportSerializer
from athanor.artifacts import data_reports
from athanor.artifacts.selectors import dataset_of


class DataReportView(APIView):
    """Requests to `/datasets/{dataset_id}/report`."""

    @extend_schema(
        operation_id="datasets_report",
        parameters=[
            OpenApiParameter("job", str, description="Id of a job: the report that it made. Without it: the newest.")
        ],
        responses={200: DataReportSerializer, **PROBLEMS},
    )
    def get(self, request: Request, dataset_id: str) -> Response:
        """Show the data report of a data set.

        Decrypts the report. The request is recorded in the audit trail. A token needs the scope `artifacts`. Returns
        404 if no job has made a report yet; a job with `prepare.report` makes one."""
        principal = get_principal(request)
        dataset = dataset_of(principal, dataset_id)
        check(principal, Permission.DOWNLOAD, dataset.team_id)
        row = data_reports.find(dataset, request.query_params.get("job", ""))
        with transfer(principal.user):
            context = {"report": data_reports.read(row, principal.user)}
            return Response(DataReportSerializer(row, context=context).data)

"""`manage.py verify_audit`: check the audit trail."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from athanor.accounts import audit, audit_export
from athanor.accounts.models import AuditHead
from athanor.compliance import audit_anchors
from athanor.config import database_roles


class Command(BaseCommand):
    """The command; `help` describes it."""

    help = (
        "Check the audit trail against its chain, its head and the anchors outside the database; name every record "
        "that was changed, removed or inserted. Fails if any was."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the arguments."""
        parser.add_argument("--file", help="check an export (GET /api/v1/audit:export) instead; needs no database")
        parser.add_argument(
            "--anchors", action="append", default=[], metavar="FILE", help="anchors more, one a line, as from syslog"
        )
        parser.add_argument("--require-anchors", action="store_true", help="fail when there is no anchor to check")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the command."""
        if options["file"]:
            self._check_file(Path(options["file"]))
            return
        found = audit_anchors.read(tuple(options["anchors"]))
        problems = [*found.problems, *audit.verify(found.anchors)]
        for problem in problems:
            self.stderr.write(problem)
        head = AuditHead.objects.filter(pk=audit.HEAD).first()
        end = f"{head.seq} records, the last with digest {head.digest}" if head else "no records yet"
        if problems:
            raise CommandError(f"the audit trail is broken in {len(problems)} places ({end})")
        self.stdout.write(f"the audit trail is whole: {end}")
        if found.anchors:
            newest = max(found.anchors, key=lambda anchor: anchor.seq)
            self.stdout.write(
                f"{len(found.anchors)} anchors agree, the newest with record {newest.seq} of {newest.time}; what was "
                "recorded after it could have been replaced by an older copy of the database"
            )
        else:
            configured = audit_anchors.places()
            remedy = (
                f"None is at {', '.join(configured)} yet; a worker writes the first within five minutes"
                if configured
                else "Set ATHANOR_AUDIT_ANCHORS, or give --anchors FILE"
            )
            self.stdout.write(
                "no anchor: this check cannot know whether all of the trail, or its end, was removed together with its "
                f"head or replaced by an older copy. {remedy}"
            )
        if excess := database_roles.excess_rights():
            self.stdout.write(
                f"the database role of this command may {excess} the audit trail: give web and workers a role of their "
                "own (docs/operations/audit.md)"
            )
        if options["require_anchors"] and not found.anchors:
            raise CommandError("there is no anchor to check the audit trail against")

    def _check_file(self, path: Path) -> None:
        with path.open("rb") as handle:
            problems = list(audit_export.verify_file(handle))
        for problem in problems:
            self.stderr.write(problem)
        if problems:
            raise CommandError(f"{path} is no intact export of the audit trail: {len(problems)} problems")
        self.stdout.write(f"{path} is an intact export of the audit trail")

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from athanor.accounts import audit
from athanor.accounts.models import AuditHead


class Command(BaseCommand):
    help = "Check the audit trail's chain; name every record that was changed, removed or inserted. Fails if any was."

    def handle(self, *args: Any, **options: Any) -> None:
        problems = 0
        for problem in audit.verify():
            problems += 1
            self.stderr.write(problem)
        head = AuditHead.objects.filter(pk=audit.HEAD).first()
        end = f"{head.seq} records, the last with digest {head.digest}" if head else "no records yet"
        if problems:
            raise CommandError(f"the audit trail is broken in {problems} places ({end})")
        self.stdout.write(f"the audit trail is whole: {end}")

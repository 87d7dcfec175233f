"""Apart from the table's making: PostgreSQL alters no table with events of the same transaction pending."""

from typing import ClassVar

from django.db import migrations

from athanor.core import tenancy


class Migration(migrations.Migration):
    dependencies: ClassVar = [("jobs", "0007_projects")]
    operations: ClassVar = [tenancy.protect("jobs_project")]

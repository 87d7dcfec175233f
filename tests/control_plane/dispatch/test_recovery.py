"""Every end of an attempt maps to a reason."""

from enum import StrEnum

import pytest

from athanor.backends.base import Cause
from athanor.dispatch.recovery import REASON_OF_CAUSE
from athanor.jobs.reasons import MEANINGS, REASON_OF_END, Reason
from trainer.contract.run import EndClass


@pytest.mark.parametrize(("table", "members"), [(REASON_OF_END, EndClass), (REASON_OF_CAUSE, Cause)])
def test_every_end_and_every_cause_has_a_reason_that_ends_an_attempt(
    table: dict[StrEnum, Reason], members: type[StrEnum]
) -> None:
    missing = set(members) - set(table)
    assert missing == set(), "add it to the table in athanor/dispatch/recovery.py"
    assert set(table) == set(members)
    assert all(MEANINGS[reason].final is not None for reason in table.values())

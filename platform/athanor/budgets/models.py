"""Budgets, their periods and ledger, meters, prices, series, and usage."""

from typing import ClassVar

from django.db import models
from django.utils import timezone

from athanor.accounts.models import Team, User
from athanor.budgets.periods import Every
from athanor.clusters.models import Cluster, Pool
from athanor.core import ids
from athanor.jobs.models import Attempt, Job
from athanor.quotas.models import QuotaNode


class Budget(models.Model):
    """A limit on what the subtree of a quota node may spend in each calendar period (UTC).

    `amount`: slot-seconds, or millionths of the currency. Without `accelerator` it covers all of them. When
    `soft_percent` of it is spent, the charged teams are warned; a hard budget never reserves more than is available.
    """

    class Unit(models.TextChoices):
        SLOT_HOURS = "slot_hours"
        MONEY = "money"

    class Period(models.TextChoices):
        DAY = Every.DAY.value
        MONTH = Every.MONTH.value
        QUARTER = Every.QUARTER.value

    id = models.CharField(primary_key=True, max_length=40, default=ids.budget_id, editable=False)
    node = models.ForeignKey(QuotaNode, on_delete=models.PROTECT, related_name="budgets")
    name = models.CharField(max_length=100)
    unit = models.CharField(max_length=10, choices=Unit.choices)
    currency = models.CharField(max_length=3, blank=True, default="")
    accelerator = models.CharField(max_length=40, blank=True, default="")
    period = models.CharField(max_length=10, choices=Period.choices)
    amount = models.BigIntegerField()
    soft_percent = models.PositiveSmallIntegerField(default=80)
    hard = models.BooleanField(default=False)
    active = models.BooleanField(default=True)
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["node", "name"], name="budget_name_is_unique_in_its_node"),
            models.CheckConstraint(condition=models.Q(amount__gte=0), name="budget_amount_is_not_negative"),
        ]

    def __str__(self) -> str:
        return self.name


class BudgetPeriod(models.Model):
    """One period of a budget, with the balances of its accounts (ledger.py).

    Balances are sums over its transfers, written with them under this row's lock. `allowance` is what is available:
    below zero if more was spent than the amount or, for a soft budget, reserved.
    """

    budget = models.ForeignKey(Budget, on_delete=models.PROTECT, related_name="periods")
    start = models.DateTimeField()
    end = models.DateTimeField()
    source = models.BigIntegerField(default=0)
    allowance = models.BigIntegerField(default=0)
    reserved = models.BigIntegerField(default=0)
    spent = models.BigIntegerField(default=0)
    lost = models.BigIntegerField(default=0)
    rate_per_day = models.BigIntegerField(default=0)  # of what runs now, written by the meter
    warned_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["budget", "start"], name="one_period_per_budget_and_start"),
            models.CheckConstraint(condition=models.Q(reserved__gte=0, spent__gte=0), name="balances_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.budget_id} from {self.start:%Y-%m-%d}"

    @property
    def amount(self) -> int:
        """Return the period's amount: what was opened and adjusted."""
        return self.allowance + self.reserved + self.spent


class Transfer(models.Model):
    """A line of the ledger: `amount` moves from account `debit` to account `credit` of a period. Immutable.

    Team, job and attempt are ids and not foreign keys: a line outlives them. Lines without a team change the amount
    itself.
    """

    class Account(models.TextChoices):
        SOURCE = "source"
        ALLOWANCE = "allowance"
        RESERVED = "reserved"
        SPENT = "spent"
        LOST = "lost"

    class Kind(models.TextChoices):
        OPEN = "open"
        ADJUST = "adjust"
        RESERVE = "reserve"
        COMMIT = "commit"
        OVERRUN = "overrun"
        RELEASE = "release"
        REFUND = "refund"
        FAULT = "fault"

    period = models.ForeignKey(BudgetPeriod, on_delete=models.PROTECT, related_name="transfers")
    debit = models.CharField(max_length=10, choices=Account.choices)
    credit = models.CharField(max_length=10, choices=Account.choices)
    amount = models.BigIntegerField()
    kind = models.CharField(max_length=10, choices=Kind.choices)
    time = models.DateTimeField()
    team_id = models.CharField(max_length=40, blank=True, default="")
    job_id = models.CharField(max_length=40, blank=True, default="")
    attempt_id = models.CharField(max_length=40, blank=True, default="")
    price = models.BigIntegerField(null=True)  # millionths for a slot-hour, when it was written

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["period", "team_id", "id"], name="transfers_of_a_team"),
            models.Index(fields=["attempt_id"], condition=~models.Q(attempt_id=""), name="transfers_of_an_attempt"),
        ]
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(condition=models.Q(amount__gt=0), name="a_transfer_moves_something"),
            models.CheckConstraint(condition=~models.Q(debit=models.F("credit")), name="a_transfer_has_two_accounts"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount}: {self.debit} to {self.credit}"


class Reservation(models.Model):
    """What a live job has reserved in a period. There is one for each current budget that it is charged to."""

    period = models.ForeignKey(BudgetPeriod, on_delete=models.CASCADE, related_name="reservations")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="+")
    amount = models.BigIntegerField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["job", "period"], name="one_reservation_per_job_and_period"),
            models.CheckConstraint(condition=models.Q(amount__gte=0), name="a_reservation_is_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.amount} for {self.job_id}"


class SpentHour(models.Model):
    """What was spent of a period in an hour, for burn-down charts, without team or job."""

    period = models.ForeignKey(BudgetPeriod, on_delete=models.CASCADE, related_name="hours")
    hour = models.DateTimeField()
    spent = models.BigIntegerField(default=0)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["period", "hour"], name="one_spent_hour_per_period")
        ]

    def __str__(self) -> str:
        return f"{self.spent} at {self.hour}"


class Meter(models.Model):
    """Until when an attempt is metered, in whole seconds from its launch, and its totals.

    `rest`: the remainder of the division by 3600 in the cost (tariff.py). `closed`: it has ended and is counted
    completely. `saved_*`, for jobs with a ceiling: the cost if it had started when it was submitted, minus the actual
    cost; may be negative.
    """

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="meter")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="meters")
    slots = models.PositiveIntegerField()
    began_at = models.DateTimeField()
    metered_until = models.DateTimeField()
    due_at = models.DateTimeField()
    rest = models.PositiveIntegerField(default=0)
    slot_seconds = models.BigIntegerField(default=0)
    cost = models.BigIntegerField(default=0)
    milligrams = models.BigIntegerField(default=0)
    fault_slot_seconds = models.BigIntegerField(default=0)
    fault_cost = models.BigIntegerField(default=0)
    saved_cost = models.BigIntegerField(default=0)
    saved_milligrams = models.BigIntegerField(default=0)
    closed = models.BooleanField(default=False)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["due_at"], condition=models.Q(closed=False), name="open_meters")
        ]

    def __str__(self) -> str:
        return f"meter of {self.attempt_id}"


class PoolPricing(models.Model):
    """Pricing facts of a pool. `watts_per_slot`: None if unknown; its carbon is then not counted."""

    pool = models.OneToOneField(Pool, primary_key=True, on_delete=models.CASCADE, related_name="pricing")
    spot = models.BooleanField(default=False)
    watts_per_slot = models.PositiveIntegerField(null=True)

    class Meta:
        db_table = "budgets_poolterms"

    def __str__(self) -> str:
        return f"pricing of {self.pool_id}"


class PriceRule(models.Model):
    """A pricing rule (`Rule` in tariff.py). The first of a pool's rules that applies, by `position`, sets its price."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="price_rules")
    position = models.PositiveSmallIntegerField()
    weekdays = models.JSONField(default=list)
    from_hour = models.PositiveSmallIntegerField(default=0)
    to_hour = models.PositiveSmallIntegerField(default=24)
    zone = models.CharField(max_length=60, default="UTC")
    price = models.BigIntegerField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["pool", "position"], name="one_price_rule_per_place")
        ]

    def __str__(self) -> str:
        return f"{self.price} in {self.pool_id}"


class Series(models.Model):
    """Values over time: the price of a pool, or the carbon intensity of a cluster's grid.

    A point is valid until the next one, for `stale_seconds` at most. With `url` it is fetched from there
    (series_fetch.py): `mapping` says where the response has times and values.
    """

    class Kind(models.TextChoices):
        PRICE = "price"
        CARBON = "carbon"

    id = models.CharField(primary_key=True, max_length=40, default=ids.series_id, editable=False)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    pool = models.OneToOneField(Pool, null=True, on_delete=models.CASCADE, related_name="price_series")
    cluster = models.OneToOneField(Cluster, null=True, on_delete=models.CASCADE, related_name="carbon_series")
    stale_seconds = models.PositiveIntegerField(default=7200)
    url = models.CharField(max_length=2000, blank=True, default="")
    mapping = models.JSONField(default=dict)
    fetch_seconds = models.PositiveIntegerField(default=3600)
    fetch_at = models.DateTimeField(null=True)
    asked_at = models.DateTimeField(null=True)
    fetched_at = models.DateTimeField(null=True)
    problem = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.CheckConstraint(
                condition=models.Q(kind="price", pool__isnull=False, cluster__isnull=True)
                | models.Q(kind="carbon", pool__isnull=True, cluster__isnull=False),
                name="prices_are_of_pools_and_carbon_of_clusters",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.pool_id or self.cluster_id}"


class SeriesPoint(models.Model):
    """A point. `value`: millionths of the currency for a slot-hour, or milligrams of CO2 per kWh."""

    series = models.ForeignKey(Series, on_delete=models.CASCADE, related_name="points")
    time = models.DateTimeField()
    value = models.BigIntegerField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["series", "time"], name="one_point_per_series_and_time")
        ]

    def __str__(self) -> str:
        return f"{self.value} at {self.time}"


class UsageHour(models.Model):
    """The usage of a pool by a job in an hour. Rows of earlier versions, summed by project, have no job.

    `cost` in millionths of the pool's currency; `fault_*` is the part that infrastructure faults lost, which is not
    charged.
    """

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+", db_index=False)
    project = models.CharField(max_length=100)
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="+")
    accelerator = models.CharField(max_length=40)
    job = models.ForeignKey(Job, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    # That of the job, so that sums by person read no jobs.
    created_by = models.ForeignKey(User, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    hour = models.DateTimeField()
    slot_seconds = models.BigIntegerField(default=0)
    cost = models.BigIntegerField(default=0)
    milligrams = models.BigIntegerField(default=0)
    fault_slot_seconds = models.BigIntegerField(default=0)
    fault_cost = models.BigIntegerField(default=0)
    saved_cost = models.BigIntegerField(default=0)
    saved_milligrams = models.BigIntegerField(default=0)

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["hour", "job", "accelerator"], name="one_usage_per_hour_and_job")
        ]
        indexes: ClassVar[list[models.Index]] = [models.Index(fields=["team", "hour"], name="usage_of_a_team")]

    def __str__(self) -> str:
        return f"{self.slot_seconds} of {self.accelerator} for {self.team_id} at {self.hour}"


class JobGoodput(models.Model):
    """Until when the usage hours of a job are divided (goodput_hours.py). Created with the job's first meter.

    `due_at`: when they are divided again. `final`: the job has ended and is divided completely.
    """

    job = models.OneToOneField(Job, primary_key=True, on_delete=models.CASCADE, related_name="+")
    counted_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField()
    final = models.BooleanField(default=False)

    class Meta:
        indexes: ClassVar[list[models.Index]] = [
            models.Index(fields=["due_at"], condition=models.Q(final=False), name="goodput_to_count")
        ]

    def __str__(self) -> str:
        return f"goodput of {self.job_id}"


class UsagePart(models.Model):
    """A part of a usage hour: what its slots were held for. The parts of an hour sum to it as it was when divided.

    `phase`: of a start-up. `cause`: the reason of the interruption that caused it, empty if that is not known, null if
    none did.
    """

    usage = models.ForeignKey(UsageHour, on_delete=models.CASCADE, related_name="parts")
    # That of the usage: a policy that reads it costs no join.
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+", db_index=False)
    activity = models.CharField(max_length=20)
    phase = models.CharField(max_length=60, blank=True, default="")
    cause = models.CharField(max_length=40, blank=True, null=True)  # noqa: DJ001 - not known is not none
    slot_seconds = models.BigIntegerField()
    cost = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.slot_seconds} of {self.activity}"


class UsageInterruption(models.Model):
    """Interruptions of a job in a usage hour, by reason: of attempts, and restarts in place.

    `reason`: its code, empty if it is not known. `refunded`: the part of the hour's `fault_cost` of attempts that ended
    for it, then or later.
    """

    usage = models.ForeignKey(UsageHour, on_delete=models.CASCADE, related_name="interruptions")
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+", db_index=False)
    reason = models.CharField(max_length=40, blank=True)
    in_place = models.BooleanField()
    count = models.PositiveIntegerField()
    steps_lost = models.BigIntegerField()
    refunded = models.BigIntegerField()

    def __str__(self) -> str:
        return f"{self.count} of {self.reason}"


class RecentUse(models.Model):
    """Recent slot-seconds of a team, halved every `half_life_seconds`, as of a moment (usage.py)."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    accelerator = models.CharField(max_length=40)
    half_life_seconds = models.PositiveIntegerField()
    as_of = models.DateTimeField()
    slot_seconds = models.FloatField()

    class Meta:
        constraints: ClassVar[list[models.BaseConstraint]] = [
            models.UniqueConstraint(fields=["team", "accelerator"], name="one_recent_use_per_team_and_accelerator")
        ]

    def __str__(self) -> str:
        return f"{self.slot_seconds} of {self.accelerator} for {self.team_id}"

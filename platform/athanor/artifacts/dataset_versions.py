"""Versions of uploaded data sets: numbered uploads of one name, and aliases, each of which names one version.

A version is a row of its own, with its own key, tokenised forms and reports, and never changes. Numbers of deleted
versions are not used again, so a number never comes to mean other data. Numbers are given, and aliases moved, under the
lock on the team; a version is locked against its deletion while an alias is pointed to it.
"""

from difflib import get_close_matches

from django.db import transaction
from django.db.models import Max, OuterRef, Q, QuerySet
from django.utils import timezone

from athanor.accounts import audit
from athanor.accounts.models import Team, User
from athanor.artifacts.models import Dataset, DatasetAlias
from athanor.core.errors import Conflict, Invalid, NotFound

MAX_LISTED = 5


def versions(team: Team) -> QuerySet[Dataset]:
    """Return the versions of the team's uploads that are not deleted."""
    return Dataset.objects.filter(team=team, origin=Dataset.Origin.SEALED, deletion=None)


def later_versions() -> QuerySet[Dataset]:
    """Return the later versions of the same data set that are not deleted, for a subquery on data sets."""
    same = Dataset.objects.filter(team=OuterRef("team"), name=OuterRef("name"), deletion=None)
    return same.filter(version__gt=OuterRef("version"))


def find(team: Team, reference: str) -> Dataset:
    """Return the version that `NAME` (the newest), `NAME@NUMBER` or `NAME@ALIAS` names. Raise LookupError that says
    what there is."""
    name, at, which = reference.partition("@")
    rows = versions(team).filter(name=name).order_by("-version")
    if not at:
        found = rows.first()
    elif which.isdecimal():
        found = rows.filter(version=int(which)).first()
    else:
        found = rows.filter(aliases__name=which).first()
    if found is not None:
        return found
    numbers = list(rows.values_list("version", flat=True)[: MAX_LISTED + 1])
    if not numbers:
        names = set(versions(team).values_list("name", flat=True))
        nearest = get_close_matches(name, names, n=1)
        hint = f"did you mean dataset:{nearest[0]}?" if nearest else "upload it first: athanor dataset add"
        raise LookupError(f"team {team.name} has no data set {name!r}; {hint}")
    if which.isdecimal():
        known = ", ".join(map(str, numbers[:MAX_LISTED])) + (", ..." if len(numbers) > MAX_LISTED else "")
        raise LookupError(
            f"data set {name!r} has no version {which} (it has {known}); `athanor dataset versions {name}` lists them"
        )
    aliases = ", ".join(
        DatasetAlias.objects.filter(team=team, dataset_name=name).order_by("name").values_list("name", flat=True)
    )
    raise LookupError(
        f"data set {name!r} has no alias {which!r} (its aliases: {aliases or 'none'}); name one of these or a version, "
        f"or create it: athanor dataset alias {name} {which} VERSION"
    )


def next_number(team: Team, name: str) -> int:
    """Return the number of the next version of a data set. The caller has locked the team."""
    rows = Dataset.objects.filter(Q(name=name) | Q(deletion__name=name), team=team)
    return (rows.aggregate(last=Max("version"))["last"] or 0) + 1


def check_name(team: Team, name: str, *, is_new_version: bool) -> None:
    """Raise Conflict if the team has a data set of this name, or, for a new version of one, NotFound if it has none."""
    exists = versions(team).filter(name=name).exists()
    if exists and not is_new_version:
        raise taken(name)
    if is_new_version and not exists:
        remedy = "check the name, or leave new_version (--new-version) out to begin a data set"
        raise NotFound("data set", name, remedy=remedy)


def taken(name: str) -> Conflict:
    """Return the error for a name that the team has given to a data set already."""
    return Conflict(
        "dataset_exists",
        f"the team has a data set {name!r}",
        remedy="choose another name, or add a version of it: --new-version, or new_version=true",
    )


def point_alias(version: Dataset, name: str, actor: User) -> Dataset:
    """Point an alias of a data set to this version; create it if there is none. Idempotent.

    Raise Invalid for data that is not an upload, NotFound for a version that was deleted meanwhile.
    """
    if version.origin != Dataset.Origin.SEALED:
        detail = f"{version} is not an upload, and has no versions"
        raise Invalid("no_versions", detail, remedy="aliases name versions of uploaded data sets")
    with transaction.atomic():
        row = _locked(version)
        known = DatasetAlias.objects.filter(team=row.team, dataset_name=row.name, name=name)
        before = known.values_list("version__version", flat=True).first()
        if before != row.version:
            DatasetAlias.objects.update_or_create(
                team=row.team, dataset_name=row.name, name=name,
                defaults={"version": row, "moved_by": actor, "moved_at": timezone.now()},
            )  # fmt: skip
            _audit("dataset.alias_move", row, actor, name, before=before, after=row.version)
    return row


def remove_alias(version: Dataset, name: str, actor: User) -> None:
    """Remove an alias; the version that it names stays. Raise NotFound if it does not name this version."""
    with transaction.atomic():
        row = _locked(version)
        if not DatasetAlias.objects.filter(version=row, name=name).delete()[0]:
            raise NotFound("alias", f"{row}: {name}", remedy=f"see its aliases: athanor dataset versions {row.name}")
        _audit("dataset.alias_remove", row, actor, name, before=row.version, after=None)


def _locked(version: Dataset) -> Dataset:
    """Return a version, locked against its deletion, after its team. Raise NotFound if it is deleted."""
    Team.objects.select_for_update(no_key=True).get(pk=version.team_id)
    rows = Dataset.objects.select_for_update(no_key=True, of=("self",)).select_related("team")
    row = rows.filter(pk=version.pk, deletion=None).first()
    if row is None:
        raise NotFound("dataset", version.pk)
    return row


def _audit(action: str, row: Dataset, actor: User, alias: str, *, before: int | None, after: int | None) -> None:
    """Record that an alias names another version, None for no version."""
    audit.record(
        action,
        actor=actor,
        target=("dataset", row.id),
        team_id=row.team_id,
        before={"dataset": row.name, "alias": alias, "version": before},
        after={"dataset": row.name, "alias": alias, "version": after},
    )

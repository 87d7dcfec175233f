from difflib import get_close_matches
from typing import NoReturn

from django.db.models import QuerySet

from athanor.clusters.models import Cluster, Pool
from athanor.core.errors import FieldProblem, Invalid


def enabled_clusters() -> QuerySet[Cluster]:
    return Cluster.objects.filter(enabled=True).prefetch_related("pools").order_by("name")


def pool_for(cluster_name: str | None, accelerator: str) -> Pool:
    """The pool a spec's `resources` name; without a cluster, the first that has the accelerator."""
    usable = Pool.objects.filter(cluster__enabled=True).select_related("cluster").order_by("cluster__name", "name")
    named = usable.filter(cluster__name=cluster_name) if cluster_name is not None else usable
    found = named.filter(accelerator=accelerator).first()
    return found or _refuse(list(usable), cluster_name, accelerator)


def _refuse(pools: list[Pool], cluster_name: str | None, accelerator: str) -> NoReturn:
    names = sorted({pool.cluster.name for pool in pools})
    if cluster_name is not None:
        if cluster_name not in names:
            raise _unknown("/resources/cluster", "cluster", cluster_name, names)
        pools = [pool for pool in pools if pool.cluster.name == cluster_name]
    raise _unknown("/resources/accelerator", "accelerator", accelerator, sorted({p.accelerator for p in pools}))


def _unknown(pointer: str, what: str, value: str, choices: list[str]) -> Invalid:
    nearest = get_close_matches(value, choices, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"there is: {', '.join(choices) or 'none'}"
    problem = FieldProblem(pointer, f"unknown_{what}", f"{what} {value!r} is not here; {hint}")
    return Invalid("invalid_spec", problem.detail, remedy=hint, problems=(problem,))

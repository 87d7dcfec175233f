"""`make quota-demo`: quotas, borrowing, a reclaim with a checkpoint and a budget's stop, on the running stack.

Two teams share the slots of this machine. Everything is done through the API as an administrator would, each step waits
for what it says, and what was changed is put back at the end.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from deploy.local.administrator import Administrator
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json
from deploy.local.handle import wait_until

RED, BLUE, BUDGET = "quota-demo-red", "quota-demo-blue", "quota-demo"
PATIENCE_SECONDS = 240.0
TIME_LIMIT_SECONDS = 3600
FINAL = ("succeeded", "failed", "cancelled", "expired")
console = Console(highlight=False)


class Demo:
    """The steps of the demo of quotas and budgets."""

    def __init__(self, api: Administrator) -> None:
        self._api = api.call
        self._jobs: list[str] = []
        self._of_red: list[str] = []
        self._victim = ""

    def play(self) -> None:
        """Play all steps, and put everything back."""
        pool = self._pool()
        half = max(pool["slots"] // 2, 1)
        with self._teams(), self._settings():
            try:
                self._edit(pool["accelerator"], half)
                self._borrow(pool, half)
                self._return(self._reclaim(pool, half))
                self._stop_by_budget(pool)
            finally:
                self._end_jobs()

    def _pool(self) -> Any:
        for cluster in self._api("GET", "clusters")["items"]:
            if cluster["kind"] == "local" and cluster["enabled"]:
                pool = cluster["pools"][0]
                return {**pool, "cluster": cluster["name"], "slots": pool["nodes"] * pool["slots_per_node"]}
        raise StackError("no cluster of kind local is enabled; the demonstration runs on this very machine")

    @contextmanager
    def _teams(self) -> Iterator[None]:
        known = {team["name"] for team in self._api("GET", "teams")["items"]}
        for name in (RED, BLUE):
            if name not in known:
                self._api("POST", "teams", {"name": name})
        try:
            yield
        finally:
            ours = [node for node in self._nodes() if node["name"] in (RED, BLUE)]
            taken = dict.fromkeys(grant["accelerator"] for node in ours for grant in node["grants"])
            self._api("PATCH", "quotas", {"changes": [{"node": name, "grants": taken} for name in (RED, BLUE)]})
            console.print("\nthe quotas of both teams are taken away again")

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """Nobody is protected: people do not want to watch for ten minutes."""
        before = self._api("GET", "quotas/settings")
        self._api("PUT", "quotas/settings", {**before, "protected_seconds": 0})
        try:
            yield
        finally:
            self._api("PUT", "quotas/settings", before)

    def _edit(self, accelerator: str, half: int) -> None:
        _title("1. a quota edit")
        changes = {
            "changes": [{"node": name, "grants": {accelerator: {"nominal": half}}} for name in (RED, BLUE)],
        }
        for line in self._api("POST", "quotas:preview", changes)["differences"]:
            console.print(f"   would change: {line}")
        self._api("PATCH", "quotas", changes)
        console.print(f"   each team now has {half} of {accelerator}, and may borrow what the other leaves idle")

    def _borrow(self, pool: Any, half: int) -> None:
        _title("2. a borrow")
        own = self._submit(RED, pool, half, "own")
        self._until(own, "running")
        borrowing = self._submit(RED, pool, half, "borrowing")
        self._until(borrowing, "running")
        share = self._share(RED, pool["accelerator"])
        console.print(f"   {RED} uses {share['used']} slots, {share['borrowed']} of them borrowed")
        if share["borrowed"] != half:
            raise StackError(f"{RED} should borrow {half} slots and borrows {share['borrowed']}")
        self._wait(lambda: any(self._checkpoints(job) for job in (own, borrowing)), "a checkpoint is in the store")

    def _reclaim(self, pool: Any, half: int) -> str:
        _title("3. a reclaim with a checkpoint")
        claimant = self._submit(BLUE, pool, half, "claimant")
        self._until(claimant, "running")
        victims = [job for job in self._jobs if self._job(job)["preemptions"]]
        if len(victims) != 1:
            raise StackError(f"one job should have been asked to make room, {len(victims)} were")
        [victim] = victims
        job = self._job(victim)
        steps = [checkpoint["step"] for checkpoint in self._checkpoints(victim)]
        console.print(f"   {job['name']} gave its slots back: {job['reason']['message']}")
        console.print(f"   its newest checkpoint is of step {max(steps)}; now it is {job['status']}")
        console.print(f"   {self._job(claimant)['name']} of {BLUE} runs on what is {BLUE}'s own")
        self._victim = victim
        return claimant

    def _return(self, claimant: str) -> None:
        _title("4. the borrowed slots come back")
        saved = max(checkpoint["step"] for checkpoint in self._checkpoints(self._victim))
        self._cancel(claimant)
        self._until(self._victim, "running")
        job = self._job(self._victim)
        console.print(f"   {job['name']} continues as attempt {len(job['attempts'])}, from step {saved}")

    def _stop_by_budget(self, pool: Any) -> None:
        _title("5. a budget's stop")
        node = next(node for node in self._nodes() if node["name"] == RED)
        budget = self._budget(node["id"], pool["slots"] * TIME_LIMIT_SECONDS * 10)
        self._wait(lambda: self._current(budget)["reserved"] > 0, "the budget has reserved for what runs")
        now = self._current(budget)
        console.print(f"   spent {now['spent']} slot-seconds, {now['reserved']} reserved for what runs")
        self._api("PATCH", f"budgets/{budget}", {"amount": now["spent"] + 60})
        console.print("   an administrator leaves it a minute of one slot")
        for job_id in self._of_red:
            self._until(job_id, "queued")
            job = self._job(job_id)
            if job["reason"]["code"] != "budget_exhausted":
                raise StackError(f"{job_id} waits because of {job['reason']['code']}, not of its budget")
            steps = [checkpoint["step"] for checkpoint in self._checkpoints(job_id)]
            if not steps:
                raise StackError(f"{job_id} was stopped without a checkpoint")
            console.print(
                f"   {job['name']} stopped at step {max(steps)}, at a checkpoint: {job['reason']['message']}",
                soft_wrap=True,
            )
        self._api("PATCH", f"budgets/{budget}", {"amount": pool["slots"] * TIME_LIMIT_SECONDS * 10})
        self._until(self._victim, "running")
        console.print(f"   with more in the budget {self._job(self._victim)['name']} continues")
        for line in self._api("GET", f"budgets/{budget}/statement")["lines"]:
            console.print(
                f"   statement of {line['team']['name']}, {line['job_id']}: {line['spent']} slot-seconds spent, "
                f"{line['reserved']} reserved",
                soft_wrap=True,
            )
        self._api("PATCH", f"budgets/{budget}", {"active": False})

    def _budget(self, node_id: str, amount: int) -> str:
        """Of this run; one that an earlier run left is taken again."""
        for budget in self._api("GET", "budgets?active=all")["items"]:
            if budget["name"] == BUDGET and budget["node"]["id"] == node_id:
                self._api("PATCH", f"budgets/{budget['id']}", {"amount": amount, "active": True})
                return str(budget["id"])
        facts = {"name": BUDGET, "unit": "slot_hours", "period": "month", "hard": True}
        return str(self._api("POST", "budgets", {"node_id": node_id, "amount": amount, **facts})["id"])

    def _current(self, budget: str) -> Any:
        return self._api("GET", f"budgets/{budget}")["current"]

    def _submit(self, team: str, pool: Any, processes: int, name: str) -> str:
        spec = {
            "version": 1,
            "name": f"quota-demo-{name}",
            "team": team,
            "time_limit_seconds": TIME_LIMIT_SECONDS,
            "resources": {
                "cluster": pool["cluster"], "accelerator": pool["accelerator"], "processes_per_node": processes
            },
            "checkpoint": {"every_steps": 20, "keep_last": 2},
            "training": {
                "model": {"preset": "llama-1m"},
                "data": {"source": "builtin:python-stdlib"},
                "tokenizer": {"vocab_size": 512},
                "steps": 1_000_000,
                "tokens_per_step": 512 * processes,
                "sequence_length": 64,
                "schedule": {"warmup_steps": 10},
                "evaluation": {"every_steps": 1_000_000, "sequences": 1},
            },
        }  # fmt: skip
        job = self._api("POST", "jobs", spec)
        self._jobs.append(job["id"])
        if team == RED:
            self._of_red.append(job["id"])
        console.print(f"   {team} submits {job['name']}: {processes} slots")
        return str(job["id"])

    def _cancel(self, job_id: str) -> None:
        self._api("POST", f"jobs/{job_id}:cancel")
        self._until(job_id, "cancelled")

    def _end_jobs(self) -> None:
        open_ = [job for job in self._jobs if self._job(job)["status"] not in FINAL]
        for job_id in open_:
            self._api("POST", f"jobs/{job_id}:cancel")
        for job_id in open_:
            self._until(job_id, *FINAL)

    def _until(self, job_id: str, *statuses: str) -> None:
        def there() -> bool:
            job = self._job(job_id)
            if job["status"] in FINAL and job["status"] not in statuses:
                raise StackError(f"{job_id} has ended: {job['status']} {job['reason']}")
            return job["status"] in statuses

        self._wait(there, f"{job_id} is {' or '.join(statuses)}")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        try:
            wait_until(condition, what, PATIENCE_SECONDS)
        except AssertionError as error:
            raise StackError(str(error)) from error

    def _job(self, job_id: str) -> Any:
        return self._api("GET", f"jobs/{job_id}")

    def _checkpoints(self, job_id: str) -> Any:
        return self._api("GET", f"jobs/{job_id}/checkpoints")["items"]

    def _nodes(self) -> Any:
        return self._api("GET", "quotas")["nodes"]

    def _share(self, team: str, accelerator: str) -> Any:
        node = next(node for node in self._nodes() if node["name"] == team)
        return next(share for share in node["shares"] if share["accelerator"] == accelerator)


def _title(text: str) -> None:
    console.print(f"\n[bold]{text}[/bold]")


def main() -> int:
    """Run the demo. Return the exit code."""
    credentials = read_json(DataFolder.from_environment().credentials)
    if credentials is None:
        console.print("no stack runs here: start one with `make up` or `make demo`")
        return 1
    try:
        Demo(Administrator(credentials)).play()
    except StackError as error:
        console.print(error.log)
        console.print(f"[red]failed:[/red] {error}", soft_wrap=True)
        return 1
    console.print("\nquota edit, borrow, reclaim with checkpoint and budget stop: all seen")
    return 0


if __name__ == "__main__":
    sys.exit(main())

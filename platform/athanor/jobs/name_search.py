"""Find the jobs whose name contains a text, or whose id ends with it, by an index over 3-grams.

Row-level security decides how. Below a policy an index serves only operators that PostgreSQL calls leakproof, and
containment of arrays is not one; only conditions of the policy itself are exempt. So what is searched for is in the
policy of `NameSearch`, as session settings that hold for one transaction: the policy shows rows of the session's teams
which, while a search is set, contain its keys. What is found are candidates: each is read again from `Job`, under its
policy, and compared with the text.

A submit pays nothing: a trigger writes the row of a job when its submission gets its number in the team's feed
(jobs/event_feed.py), after its commit. Until then, two seconds at most while the worker runs, the job is a candidate.
"""

from collections.abc import Collection

from django.db import connection, transaction

SEPARATOR = "\x1f"
MIN_LENGTH = 3
ID_LETTERS = 6  # of the end of an id, one key
# Scans of bitmaps alone, and no stored plan: a plan for a frequent text would read the table for a rare one.
SET = """
SELECT set_config('athanor.search', array_to_string(athanor_grams(%(text)s) || %(team)s::text, %(separator)s), true),
  set_config('athanor.search_id', CASE WHEN %(end)s THEN
    '#' || right(upper(%(text)s), %(letters)s) || %(separator)s || %(team)s ELSE '' END, true),
  set_config('plan_cache_mode', 'force_custom_plan', true), set_config('enable_seqscan', 'off', true),
  set_config('enable_indexscan', 'off', true), set_config('enable_indexonlyscan', 'off', true)
"""
RECENT = """
SELECT job_id FROM jobs_jobevent WHERE team_seq IS NULL AND type = 'job.submitted' AND team_id = ANY(%s) LIMIT %s
"""
FIND = "SELECT job_id FROM jobs_namesearch"  # of which the policy shows what the search can find
# For the rest of a transaction around it; the end of that would do the same.
RESET = """
SELECT set_config('athanor.search', '', true), set_config('athanor.search_id', '', true),
  set_config('plan_cache_mode', 'auto', true), set_config('enable_seqscan', 'on', true),
  set_config('enable_indexscan', 'on', true), set_config('enable_indexonlyscan', 'on', true)
"""


def is_searchable(text: str) -> bool:
    """Return whether `candidates` can find `text`: shorter ones have no 3-grams."""
    return len(text) >= MIN_LENGTH and SEPARATOR not in text


def candidates(team_ids: Collection[str], text: str, limit: int, *, may_end_id: bool) -> list[str] | None:
    """Return the ids of all jobs of these teams that can contain `text` in their name. None if more than `limit` do.

    `may_end_id`: those whose id can end with it too.
    """
    with transaction.atomic(), connection.cursor() as cursor:
        # First: what gets its number in between is in the index then.
        cursor.execute(RECENT, [list(team_ids), limit + 1])
        found = [row[0] for row in cursor.fetchall()]
        if len(found) > limit:
            return None
        for team_id in team_ids:
            cursor.execute(
                SET,
                {"text": text, "team": team_id, "separator": SEPARATOR, "end": may_end_id, "letters": ID_LETTERS},
            )
            # The statistics of the keys reveal a frequent text without reading what the index has of it.
            cursor.execute(f"EXPLAIN (FORMAT JSON) {FIND}")
            is_frequent = cursor.fetchone()[0][0]["Plan"]["Plan Rows"] > limit
            if not is_frequent:
                cursor.execute(f"{FIND} LIMIT %s", [limit + 1 - len(found)])
                found += [row[0] for row in cursor.fetchall()]
            if is_frequent or len(found) > limit:
                cursor.execute(RESET)
                return None
        cursor.execute(RESET)
    return found

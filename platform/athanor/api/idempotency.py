"""`Idempotency-Key`: a repeated POST creates its object once.

Views parse and authorise a request, and then pass the function that makes the change to `run_idempotently`. So a
repeated request is authorised again before it gets the stored answer. `test_conventions.py` fails for a POST that
answers 201 without it.
"""

import hashlib
import json
import re
from collections.abc import Callable

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from athanor.accounts import idempotency
from athanor.accounts.idempotency import Answer, KeyedRequest
from athanor.accounts.selectors import Principal
from athanor.api.bodies import decode_body
from athanor.api.renderers import FastJSONRenderer
from athanor.core.documents import load_json
from athanor.core.errors import FieldProblem, Invalid

HEADER = "Idempotency-Key"
MAX_KEY_LENGTH = 200
PATTERN = r"^[!-~]([ -~]*[!-~])?$"
_VISIBLE = re.compile(PATTERN)
STORED_HEADERS = ("Location", "ETag")

_KEY_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_KEY_LENGTH, "pattern": PATTERN}
REPLAYED = OpenApiParameter(
    "Idempotency-Replayed",
    {"type": "string", "enum": ["true"]},
    OpenApiParameter.HEADER,
    description="Set when nothing was made: this is the answer of the first request with the key.",
    response=[200, 201, 202],
)
# Of each POST that creates something.
IDEMPOTENT = [
    OpenApiParameter(
        HEADER,
        _KEY_SCHEMA,
        OpenApiParameter.HEADER,
        description="Makes the request safe to repeat: for 24 hours the same key with the same address and body, from "
        "the same token or signed-in user, gets the first answer again and makes nothing. With another body or "
        "address: 422 `idempotency_key_reused`. While the first is in progress: 409 `request_in_progress` with "
        "Retry-After. Errors are not stored.",
    ),
    REPLAYED,
]
# Of submissions of jobs: the key is the team's, and does not expire.
IDEMPOTENT_JOBS = [
    OpenApiParameter(
        HEADER,
        _KEY_SCHEMA,
        OpenApiParameter.HEADER,
        description="Makes the submission safe to repeat: the same key in the same team with the same spec gives the "
        "same job, from whichever member and at whatever time. With another spec: 422 `idempotency_key_reused`.",
    ),
    REPLAYED,
]


def read_key(request: Request) -> str | None:
    """Return the key of a request, None without one. Raises Invalid for one that is malformed."""
    key = request.headers.get(HEADER)
    if key is not None and not (len(key) <= MAX_KEY_LENGTH and _VISIBLE.match(key)):
        detail = f"{HEADER} {key[:60]!r} is not of 1 to {MAX_KEY_LENGTH} visible ASCII characters; it has {len(key)}"
        problem = FieldProblem(f"/{HEADER}", "invalid", detail)
        raise Invalid("invalid_parameter", detail, remedy="use a UUID", problems=(problem,))
    return key


def run_idempotently(request: Request, make: Callable[[], Response], *, credential: str = "") -> Response:
    """Return what `make` returns, or the stored answer of this request. Call it with an authorised request.

    `credential` names what authorises a request that has no principal.
    """
    key = read_key(request)
    if key is None:
        return idempotency.run_atomically(make)
    made: list[Response] = []

    def run() -> Answer:
        made.append(make())
        return build_answer(made[0])

    digest = hashlib.sha256(json.dumps(decode_body(request), sort_keys=True).encode()).hexdigest()
    answer, is_replay = idempotency.once(build_keyed_request(request, key, digest, credential), run)
    return build_replay(answer) if is_replay else made[0]


def build_keyed_request(request: Request, key: str, digest: str, credential: str = "") -> KeyedRequest:
    """Return the request as its answer is stored: by credential, key, address and digest of the body."""
    return KeyedRequest(credential or _credential(request), key, request.get_full_path(), digest)


def build_answer(response: Response) -> Answer:
    """Return what to store of a response."""
    headers = {name: response[name] for name in STORED_HEADERS if response.has_header(name)}
    return Answer(response.status_code, FastJSONRenderer().render(response.data).decode(), headers)


def build_replay(answer: Answer) -> Response:
    """Return a stored answer as a response."""
    headers = {**answer.headers, REPLAYED.name: "true"}
    return Response(load_json(answer.body.encode()), status=answer.status, headers=headers)


def _credential(request: Request) -> str:
    """Return the owner of a key: a token, which has its own scopes, or a user with all their sessions."""
    principal = request.auth
    assert isinstance(principal, Principal), "a request without a principal names its credential"
    return f"token:{principal.token_id}" if principal.token_id else f"user:{principal.user.id}"

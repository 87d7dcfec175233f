"""The object store: boto3 against any S3. The only module that uses boto3."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.conf import settings

from athanor.core.errors import Unavailable
from athanor.core.metrics import OBJECT_STORE_ERRORS

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PRESIGNED_FOR = timedelta(hours=1)
DELETED_AT_A_TIME = 8
LISTED_FROM = 8  # from so many objects in a folder on, sizes are read from a listing
NO_BUCKET = "NoSuchBucket"
MISSING = {"404", "NoSuchKey", "NotFound", NO_BUCKET}


@dataclass(frozen=True)
class Listed:
    """A listed object. `modified` is None if it was not requested."""

    key: str
    size: int
    modified: datetime | None = None


@dataclass(frozen=True)
class Page:
    """One page of a listing."""

    items: list[Listed]
    is_last: bool


@lru_cache(maxsize=1)
def client() -> "S3Client":
    """Return the client of the object store, which is safe to share between threads."""
    environment = settings.ATHANOR
    return boto3.client(
        "s3",
        endpoint_url=environment.s3_endpoint or None,
        region_name=environment.s3_region,
        aws_access_key_id=environment.s3_access_key or None,
        aws_secret_access_key=environment.s3_secret_key or None,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path" if environment.s3_endpoint else "auto"},
            connect_timeout=3,
            read_timeout=30,
            retries={"max_attempts": 3, "mode": "standard"},
            # Stores other than AWS know no trailing checksums; digests are in our manifests.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


def bucket() -> str:
    """Return the name of the platform's bucket."""
    name: str = settings.ATHANOR.s3_bucket
    return name


def ensure_bucket() -> None:
    """Create the platform's bucket if it does not exist."""
    with _translated():
        try:
            client().head_bucket(Bucket=bucket())
        except ClientError as error:
            if error.response["Error"]["Code"] not in MISSING:
                raise
            client().create_bucket(Bucket=bucket())


def presign(operation: Literal["get", "put"], key: str) -> tuple[str, datetime]:
    """Return a URL for one object, and until when it is valid.

    `key` may be `s3://bucket/key` of another bucket, for reading only.
    """
    method = {"get": "get_object", "put": "put_object"}[operation]
    where, inner = split(key)
    assert operation == "get" or where == bucket(), "nothing is written outside the platform's bucket"
    url = client().generate_presigned_url(
        method, Params={"Bucket": where, "Key": inner}, ExpiresIn=int(PRESIGNED_FOR.total_seconds())
    )
    return url, presigned_until()


def address() -> str:
    """Return the base address of the bucket's objects, as in URLs that are presigned for agents."""
    parts = urlsplit(presign("get", "a")[0])
    return f"{parts.scheme}://{parts.netloc}"


def presigned_until() -> datetime:
    """Return until when a URL that is presigned now is valid."""
    return datetime.now(UTC) + PRESIGNED_FOR


def split(key: str) -> tuple[str, str]:
    """Return (bucket, key) of a key of the platform's bucket or of `s3://bucket/key`."""
    if key.startswith("s3://"):
        where, _, inner = key.removeprefix("s3://").partition("/")
        return where, inner
    return bucket(), key


def size_of(key: str) -> int | None:
    """Return the bytes of an object; None if it does not exist."""
    with _translated():
        try:
            return client().head_object(Bucket=bucket(), Key=key)["ContentLength"]
        except ClientError as error:
            if error.response["Error"]["Code"] in MISSING:
                return None
            raise


def put(key: str, content: bytes) -> None:
    """Write an object. `key` may be `s3://bucket/key` of another bucket."""
    where, inner = split(key)
    with _translated():
        client().put_object(Bucket=where, Key=inner, Body=content)


def put_new(key: str, content: bytes) -> None:
    """Write an object unless it exists. `key` may be `s3://bucket/key` of another bucket."""
    where, inner = split(key)
    with _translated():
        try:
            client().put_object(Bucket=where, Key=inner, Body=content, IfNoneMatch="*")
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != HTTPStatus.PRECONDITION_FAILED:
                raise


def get(key: str) -> bytes | None:
    """Return the content of an object; None if it does not exist. `key` may be `s3://bucket/key` of another bucket.

    Raise Unavailable if the platform's bucket does not exist: that says nothing about an object.
    """
    where, inner = split(key)
    missing = MISSING - {NO_BUCKET} if where == bucket() else MISSING
    with _translated():
        try:
            return client().get_object(Bucket=where, Key=inner)["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in missing:
                return None
            raise


def delete(keys: list[str]) -> None:
    """Delete objects, a few at a time: a checkpoint of thousands of ranks has 100,000. Keys as in `put`."""

    def delete_one(key: str) -> None:
        where, inner = split(key)
        client().delete_object(Bucket=where, Key=inner)

    with _translated(), ThreadPoolExecutor(DELETED_AT_A_TIME) as pool:
        for _ in pool.map(delete_one, keys):  # raises the first error, and cancels what has not begun
            pass


def sizes_of(keys: list[str]) -> dict[str, int]:
    """Return the bytes of those of the platform's objects that exist.

    A folder with many of them is listed, which takes one request for 1,000.
    """
    folders: dict[str, list[str]] = {}
    for key in keys:
        folders.setdefault(key.rpartition("/")[0], []).append(key)
    found: dict[str, int] = {}
    for folder, inside in folders.items():
        if len(inside) < LISTED_FROM:
            found |= {key: size for key in inside if (size := size_of(key)) is not None}
        else:
            found |= _sizes_in(f"{folder}/", last=max(inside))
    return found


def _sizes_in(folder: str, last: str) -> dict[str, int]:
    """Return the bytes of the objects in a folder, up to the key `last`."""
    found: dict[str, int] = {}
    after = ""
    while True:
        listed = page(folder, after)
        found |= {item.key: item.size for item in listed.items}
        if listed.is_last or listed.items[-1].key >= last:
            return found
        after = listed.items[-1].key


def listing(uri: str) -> list[Listed]:
    """Return the object `uri` and every object in the folder `uri/`, in key order; keys are full URIs.

    A prefix ends at a `/`: `s3://corp/public` does not list `s3://corp/public-payroll`.
    """
    where, inner = split(uri)
    name = inner.rstrip("/")
    with _translated():
        found = []
        if name and name == inner:
            # An object of exactly this name sorts before all others that begin with it.
            first = client().list_objects_v2(Bucket=where, Prefix=name, MaxKeys=1).get("Contents", [])
            found += [item for item in first if item["Key"] == name]
        folder = f"{name}/" if name else ""
        for page in client().get_paginator("list_objects_v2").paginate(Bucket=where, Prefix=folder):
            found += page.get("Contents", [])
    return [Listed(f"s3://{where}/{item['Key']}", item["Size"]) for item in found]


def page(prefix: str, after: str = "", limit: int = 1000) -> Page:
    """Return the next objects of the platform's bucket whose keys begin with `prefix` and sort after `after`."""
    with _translated():
        found = client().list_objects_v2(Bucket=bucket(), Prefix=prefix, StartAfter=after, MaxKeys=limit)
    items = [Listed(item["Key"], item["Size"], item["LastModified"]) for item in found.get("Contents", [])]
    return Page(items, is_last=not found["IsTruncated"])


def abort_uploads(prefix: str, before: datetime) -> int:
    """Abort multipart uploads below `prefix` that were started before a time. Return how many."""
    count = 0
    with _translated():
        for found in client().get_paginator("list_multipart_uploads").paginate(Bucket=bucket(), Prefix=prefix):
            for upload in found.get("Uploads", []):
                if upload["Initiated"] < before:
                    client().abort_multipart_upload(Bucket=bucket(), Key=upload["Key"], UploadId=upload["UploadId"])
                    count += 1
    return count


@contextmanager
def _translated() -> Iterator[None]:
    """Translate boto3's errors to Unavailable."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        code = error.response["Error"]["Code"] if isinstance(error, ClientError) else type(error).__name__
        OBJECT_STORE_ERRORS.labels(code).inc()
        raise Unavailable(
            "storage_unavailable", f"the object store did not answer: {error}", remedy="try again"
        ) from error

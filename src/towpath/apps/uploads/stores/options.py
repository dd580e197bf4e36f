"""The options of object stores, a bucket of some S3 or a directory; and the store they name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar
from urllib.parse import urlsplit

from msgspec import Meta
from msgspec.structs import replace

from towpath.apps.uploads.stores.errors import StoreNotInstalled
from towpath.apps.uploads.stores.port import object_key
from towpath.clock import Duration, duration_ms, seconds
from towpath.errors import InvalidName, InvalidOption
from towpath.options import Options, Secret

if TYPE_CHECKING:
    from towpath.apps.application import BundledServices
    from towpath.apps.uploads.stores.port import ObjectStore

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
BUCKET_RULE = "3 to 63 of a-z, 0-9, '.', '-', beginning and ending with a letter or digit"


class StoreOptions(Options, frozen=True, kw_only=True):
    """Where the bytes of uploads end up."""

    bucket: str | None = None
    """The S3 bucket for files; none = the directory is used."""
    make_bucket: bool = False
    """Whether to create the bucket if it does not exist."""
    directory: Path | None = None
    """The directory for files if there is no bucket; `up` has one. None = uploads are off."""
    prefix: str = ""
    """Prefix of all object keys: `towpath/`."""
    endpoint: str | None = None
    """URL of the S3 server; none = Amazon S3."""
    region: str | None = None
    """Region of the bucket; none = the one in the environment, or us-east-1."""
    path_style: bool | None = None
    """Whether URLs have the bucket in the path instead of the host name; none = yes if an endpoint
    is set."""
    access_key: Secret | None = None
    """Access key; none = the usual AWS credentials: environment, profile or the machine's role."""
    secret_key: Secret | None = None
    """Secret of the access key."""
    session_token: Secret | None = None
    """Session token, for temporary credentials."""
    checksums: bool = True
    """Whether parts are sent with a CRC that the store checks; no = with an MD5, for servers
    without CRCs."""
    silence: Duration = seconds(30)
    """How long the store may be silent before a call fails."""
    connections: Annotated[int, Meta(ge=1, le=1000)] = 32
    """Connections to the S3 server, or threads for the directory, in each process."""

    def __post_init__(self) -> None:
        super().__post_init__()
        duration_ms("silence", self.silence, least=seconds(1))
        if self.bucket is not None and not BUCKET.fullmatch(self.bucket):
            raise InvalidOption("bucket", self.bucket, rule=BUCKET_RULE)
        if self.bucket is not None and self.directory is not None:
            raise InvalidOption(
                "directory", str(self.directory), rule="set a directory or a bucket, not both"
            )
        if (self.access_key is None) != (self.secret_key is None):
            raise InvalidOption("access_key", "…", rule="set access_key and secret_key together")
        if self.session_token is not None and self.access_key is None:
            raise InvalidOption("session_token", "…", rule="needs access_key and secret_key")
        self._check_texts()

    def _check_texts(self) -> None:
        if self.prefix:
            try:
                object_key(f"{self.prefix}x")
            except InvalidName as error:
                raise InvalidOption("prefix", self.prefix, rule=error.rule) from error
        if self.endpoint is not None:
            parts = urlsplit(self.endpoint)
            plain = not (parts.query or parts.fragment or "@" in parts.netloc)
            if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
                rule = "must be http:// or https:// and a host, without credentials"
                raise InvalidOption("endpoint", "…", rule=rule)


OWN_BUCKET = "uploads"
"""The bucket in the object store that `towpath up --objects` starts."""
_Kind = TypeVar("_Kind", bound=StoreOptions)


def with_bundled(options: _Kind, bundled: BundledServices) -> _Kind:
    """*options* for `towpath up`: if they name no store, they get its own object store or, if it
    has none, a folder of its data directory.
    """
    if options.bucket is not None or options.directory is not None:
        return options
    if bundled.objects is None:
        return replace(options, directory=bundled.data / "uploads")
    return replace(
        options,
        bucket=OWN_BUCKET,
        make_bucket=True,
        endpoint=bundled.objects.url,
        access_key=bundled.objects.access_key,
        secret_key=bundled.objects.secret_key,
    )


def new_store(options: StoreOptions) -> ObjectStore | None:
    """The store that *options* name, not entered yet; None if they name none.

    Raises StoreNotInstalled.
    """
    if options.bucket is not None:
        try:
            from towpath.apps.uploads.stores.s3.store import S3Store  # noqa: PLC0415 -- an extra
        except ModuleNotFoundError as error:
            raise StoreNotInstalled(f"{error.name} is not installed") from error
        return S3Store(options)
    if options.directory is not None:
        from towpath.apps.uploads.stores.directory import DirectoryStore  # noqa: PLC0415 -- rarely both

        return DirectoryStore(options)
    return None

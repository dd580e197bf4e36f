"""Credentials over HTTP: how one is requested, which requests it allows, and its check."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import msgspec
from pydantic import Field
from starlette.datastructures import Headers

from towpath.apps.uploads.credentials import Credential, CredentialTerms, UploadGrant
from towpath.apps.uploads.errors import UploadNotFound
from towpath.apps.uploads.model import UPLOADS
from towpath.clock import seconds
from towpath.ledger.keys.key import KeyInfo
from towpath.ledger.keys.key import Scope as KeyScope
from towpath.web.auth import note_credential
from towpath.web.fields import Answer, Body, example
from towpath.web.problems import Refused

if TYPE_CHECKING:
    from starlette.types import Scope

    from towpath.apps.uploads.service import UploadService

_MAY = re.compile(
    r"(?:GET|DELETE) /api/v1/uploads/([^/]+)"
    r"|GET /api/v1/uploads/([^/]+)/(?:missing|events)"
    r"|POST /api/v1/uploads/([^/]+)/complete"
    r"|PUT /api/v1/uploads/([^/]+)/chunks/[0-9]{1,10}"
    r"|(?:HEAD|PATCH|DELETE|POST) /files/([^/]+)"
)
"""All requests that a credential allows. At `/files`, POST with an id only stands for another of
these methods (X-HTTP-Method-Override)."""


class CredentialIn(Body):
    """What a credential is bound to, beside the upload."""

    model_config = example(origin="https://app.example.com", ttl=900)

    origin: Annotated[str, Field(max_length=300)] | None = None
    """Origin of the web page that may use it. Without an origin it is for programs: requests of web
    pages are refused."""
    ttl: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False, strict=True)] | None = None
    """Seconds for which it is valid, up to the setting `uploads.credential_ttl`."""

    def terms(self, uploads: UploadService) -> CredentialTerms:
        """Raises CredentialsOff, InvalidOption."""
        ttl = None if self.ttl is None else seconds(self.ttl)
        return uploads.credentials.terms(origin=self.origin, ttl=ttl)


class CredentialOut(Answer):
    """A credential for one upload. Nobody can show it again."""

    upload_id: str
    credential: str
    """The credential: the page sends it as `Authorization: Bearer …`."""
    expires_at: datetime
    """When it ends, unless the key that issued it ends before."""
    url: str
    """URL of the upload for tus clients, relative to the address of the server."""

    @classmethod
    def of(cls, issued: Credential) -> CredentialOut:
        id = issued.grant.upload_id
        return cls(
            upload_id=id,
            credential=issued.token,
            expires_at=issued.expires_at,
            url=f"/files/{id}",
        )


async def check_credential(uploads: UploadService, scope: Scope, token: str) -> KeyInfo | None:
    """The key that issued *token*, with the scopes that it needs for this upload and no others.

    None for a token that is not valid; 403 for a request that it does not allow.
    """
    grant = uploads.credentials.read(token)
    key = await uploads.lifecycle.ledger.keys.check_id(grant.key) if grant else None
    if grant is None or key is None or not await _fits(uploads, grant):
        return None
    _require_path(grant, scope)
    _require_origin(grant, scope)
    note_credential(scope, grant.upload_id)
    scopes = frozenset(each for each in (KeyScope.SUBMIT, KeyScope.READ) if key.may(each))
    return msgspec.structs.replace(key, scopes=scopes, queues=(UPLOADS,))


async def _fits(uploads: UploadService, grant: UploadGrant) -> bool:
    """Whether the upload is the one that the credential was issued for."""
    try:
        known = await uploads.known(grant.upload_id)
        if known.plan.size is None:  # its size may be known by now
            known = await uploads.known(grant.upload_id, again=True)
    except UploadNotFound:
        return False
    return (known.plan.size, known.mime_type) == (grant.size, grant.mime_type)


def _require_path(grant: UploadGrant, scope: Scope) -> None:
    # The path as it was sent: routes match it, and an encoded slash in it is part of a name.
    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    match = _MAY.fullmatch(f"{scope['method']} {path}")
    if match is None or match[match.lastindex or 0] != grant.upload_id:
        raise Refused(
            403,
            "credential_forbidden",
            "the credential is not for this request",
            remedy="Use it to send and follow the upload that it was issued for.",
        )


def _require_origin(grant: UploadGrant, scope: Scope) -> None:
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is None and grant.origin and headers.get("sec-fetch-site") == "same-origin":
        # Browsers send GET and HEAD to a page's own origin without `Origin`.
        same = urlsplit(grant.origin).netloc == headers.get("host")
        origin = grant.origin if same else None
    if origin != grant.origin:
        raise Refused(
            403,
            "credential_origin",
            "the credential is for another origin",
            remedy="Issue the credential with the `origin` of the page that uses it.",
        )

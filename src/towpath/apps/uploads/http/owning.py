"""Who may use an upload over HTTP: a key of its owner, an admin, or the holder of a credential."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from towpath.apps.uploads.errors import UploadNotFound
from towpath.apps.uploads.model import UPLOADS
from towpath.apps.uploads.service import UploadService
from towpath.ledger.keys.key import KeyInfo
from towpath.ledger.keys.key import Scope as KeyScope
from towpath.web.auth import credential_of, scoped
from towpath.web.dependencies import service
from towpath.web.fields import decoded

TheUploads = Annotated[UploadService, Depends(service("uploads"))]
CanSubmit = Annotated[KeyInfo, Depends(scoped(KeyScope.SUBMIT, queue=UPLOADS))]
CanRead = Annotated[KeyInfo, Depends(scoped(KeyScope.READ, queue=UPLOADS))]


async def require_own(uploads: UploadService, upload_id: str, key: KeyInfo) -> None:
    """Raises UploadNotFound for an upload of another owner, as for an unknown id."""
    known = await uploads.known(upload_id)
    if not (uploads.options.shared or key.owns(known.owner)):
        raise UploadNotFound(upload_id)


def listed_owner(uploads: UploadService, key: KeyInfo) -> str | None:
    """The owner whose uploads *key* may list; None = all uploads."""
    lists_all = uploads.options.shared or key.may(KeyScope.ADMIN)
    return None if lists_all else key.owner


async def require_own_to_send(request: Request, uploads: TheUploads, key: CanSubmit) -> KeyInfo:
    """The request's key, which may change the upload of the path. The scope is checked first."""
    return await _require_own_of_path(request, uploads, key)


async def require_own_to_read(request: Request, uploads: TheUploads, key: CanRead) -> KeyInfo:
    """The request's key, which may read the upload of the path. The scope is checked first."""
    return await _require_own_of_path(request, uploads, key)


async def _require_own_of_path(request: Request, uploads: UploadService, key: KeyInfo) -> KeyInfo:
    id = request.path_params["id"]
    try:
        id = decoded(id)
    except ValueError:
        raise UploadNotFound(id) from None
    if credential_of(request.scope) != id:  # only keys of the owner issue one
        await require_own(uploads, id, key)
    return key


MaySend = Annotated[KeyInfo, Depends(require_own_to_send)]
MayRead = Annotated[KeyInfo, Depends(require_own_to_read)]

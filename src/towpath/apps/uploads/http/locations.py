"""The absolute URLs of uploads, as not every client accepts a path."""

from __future__ import annotations

from fastapi import Request

from towpath.apps.uploads.options import AUTHORITY, UploadsOptions


def location_of(request: Request, options: UploadsOptions, path: str) -> str:
    """*path* below `public_url`, or at the scheme and Host that *request* was sent to.

    X-Forwarded-Host is never read: anybody can send it. Without a valid Host, *path* alone.
    """
    if options.public_url:
        return options.public_url.rstrip("/") + path
    host = request.headers.get("host", "")
    return f"{request.url.scheme}://{host}{path}" if AUTHORITY.fullmatch(host) else path

"""Problems (RFC 9457): the table from errors to HTTP statuses, and the body of error responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from towpath import errors
from towpath.calls.errors import SignatureRefused
from towpath.errors import LeaseLost, RetryAdvice, TowpathError
from towpath.ledger.errors import (
    LedgerError,
    RecordEnded,
    RecordError,
    RecordNotDead,
    RecordNotFound,
    RecordNotWaiting,
)

TYPES = "https://towpath.dev/problems/"
"""Prefix of the type of problems: a stable URI, and the address of a page about it."""
RETRY_AFTER_S = 1
_LEDGER_AWAY = "the database can't do this now; the server's log has the reason"
_DETAIL_MOST = 1000
"""Maximum number of characters of a detail, which may quote the request."""

STATUSES: dict[type[TowpathError], int] = {
    errors.PayloadTooLarge: 413,
    errors.InvalidInput: 422,
    errors.JobNotFound: 404,
    errors.ScheduleNotFound: 404,
    errors.NotOwned: 403,
    errors.QueueNotFound: 404,
    errors.JobError: 409,
    errors.LeaseError: 409,
    errors.QueueFull: 429,
    errors.QueueError: 409,
    errors.CallStale: 409,
    errors.CallTaken: 422,
    errors.DurabilityUnavailable: 422,
    errors.MemoryFull: 503,
    errors.ServerRefused: 503,
    errors.TlsFailed: 503,
    errors.ServerUnreachable: 503,
    errors.EngineClosed: 503,
    errors.DurabilityNotReached: 503,
    errors.ServerError: 503,
    LedgerError: 503,
    RecordNotFound: 404,
    RecordError: 409,
    SignatureRefused: 401,
}
"""The first class in an error's MRO that is listed here decides. Applications add theirs."""


class Problem(BaseModel):
    """The body of every error response (RFC 9457, `application/problem+json`)."""

    model_config = ConfigDict(
        extra="allow",
        use_attribute_docstrings=True,
        json_schema_extra={
            "examples": [
                {
                    "type": TYPES + "lease-lost",
                    "title": "Lease lost",
                    "status": 409,
                    "detail": "job mails/m-17: token 7 is no longer valid (worker w2)",
                    "remedy": "Stop this attempt and discard its result; "
                    "the job runs under a newer lease.",
                    "holder": "w2",
                    "state": "leased",
                }
            ]
        },
    )

    type: str
    """A stable URI; its last part is the error's code."""
    title: str
    status: int
    detail: str
    remedy: str | None = None
    """What to do."""


def status_of(error: TowpathError) -> int:
    return next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    title: str | None = None,
    remedy: str | None = None,
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> JSONResponse:
    """An error response."""
    body = {
        "type": TYPES + code.replace("_", "-"),
        "title": title or code.replace("_", " ").capitalize(),
        "status": status,
        "detail": detail,
        **({"remedy": remedy} if remedy else {}),
        **more,
    }
    return JSONResponse(
        body, status, headers=dict(headers or {}), media_type="application/problem+json"
    )


def of_error(error: TowpathError | Refused) -> JSONResponse:
    """The error response for *error*."""
    if isinstance(error, Refused):
        reason, ways_out = error.detail, error.headers
        return problem(error.status, error.code, reason, remedy=error.remedy, headers=ways_out)
    status = status_of(error)
    again = status in (429, 503) or error.retry is not RetryAdvice.NEVER
    headers = {"Retry-After": str(error.after_s)} if again else {}
    # A database error may name the file or the host: only the server's log shows it.
    text = _LEDGER_AWAY if isinstance(error, LedgerError) else str(error)
    detail = text if len(text) <= _DETAIL_MOST else text[: _DETAIL_MOST - 1] + "…"
    return problem(status, error.code, detail, remedy=error.remedy, headers=headers, **_more(error))


_STATED = (
    errors.JobNotDead,
    errors.JobNotWaiting,
    errors.JobOpen,
    RecordEnded,
    RecordNotDead,
    RecordNotWaiting,
)
"""Errors with a state."""


def _more(error: TowpathError) -> dict[str, Any]:
    """Fields of the problem beside the standard ones: values that a caller may act on."""
    if isinstance(error, LeaseLost):
        return {"holder": error.worker or None, "state": error.state}
    if isinstance(error, _STATED):
        return {"state": error.state}
    return dict(error.facts)


class Refused(Exception):
    """An error of the HTTP server itself: no key, no scope, too many requests."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        remedy: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.remedy, self.headers = remedy, headers


def install(app: FastAPI) -> None:
    """Make *app* answer every error with a problem."""

    async def ours(_: Request, error: Exception) -> JSONResponse:
        return of_error(cast("TowpathError | Refused", error))

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        unfit = cast("RequestValidationError", error).errors()
        detail, found = misfits(cast("list[dict[str, Any]]", unfit))
        return problem(422, "invalid_input", detail, remedy="Follow /openapi.json.", errors=found)

    async def plain(_: Request, error: Exception) -> JSONResponse:
        refusal = cast("HTTPException", error)
        status, detail = refusal.status_code, str(refusal.detail)
        code, remedy = _PLAIN.get(status, ("refused", None))
        return problem(status, code, detail, remedy=remedy, headers=refusal.headers)

    async def defect(_: Request, error: Exception) -> JSONResponse:
        """Answers 500 without the error's text, which may quote a secret."""
        text = "the server has a defect; its log has the details"
        return problem(500, "defect", text, remedy="Report it; try again later.")

    app.add_exception_handler(TowpathError, ours)
    app.add_exception_handler(Refused, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, plain)
    app.add_exception_handler(Exception, defect)


class Misfits(NamedTuple):
    """Validation errors, by place. Without the values, which may be secret or large."""

    detail: str
    found: list[dict[str, str]]


def misfits(errors: Iterable[Mapping[str, Any]]) -> Misfits:
    """The first 20 validation errors of pydantic; the detail has three of them."""
    found = [
        {"where": ".".join(str(part)[:100] for part in error["loc"][:10]), "what": _what(error)}
        for error in islice(errors, 20)
    ]
    lines = (
        f"{misfit['where']}: {misfit['what']}" if misfit["where"] else misfit["what"]
        for misfit in found[:3]
    )
    return Misfits("; ".join(lines), found)


def _what(misfit: Mapping[str, Any]) -> str:
    """The rule that a value breaks. A rule of InvalidOption is shown without pydantic's text."""
    error = misfit.get("ctx", {}).get("error")
    rule = error.rule if isinstance(error, errors.InvalidOption) else str(misfit["msg"])
    return rule.removeprefix("Value error, ")


_PLAIN = {
    404: ("not_found", "See /openapi.json for all paths."),
    405: (
        "method_not_allowed",
        "See /openapi.json for the methods of this path; the header Allow names them.",
    ),
}


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a path for OpenAPI: *statuses*, and those that every path has."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {
            "description": _MEANINGS[status],
            "content": content,
            **({"headers": _RETRY_AFTER} if status in (429, 503) else {}),
        }
        for status in sorted({400, 401, 403, 408, 413, 415, 422, 429, 503, *statuses})
    }


_RETRY_AFTER = {
    "Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}
}

_MEANINGS = {
    400: "The body is not JSON.",
    401: "No valid key.",
    403: "The key lacks the scope, or does not cover the queue.",
    404: "Not found.",
    408: "The body did not arrive in time.",
    409: "The state does not allow this: stale token, other content under the same id, not dead, …",
    410: "It existed, but is gone for good.",
    413: "Too large.",
    415: "Not JSON.",
    416: "The range is outside of the content.",
    422: "A value is not valid.",
    429: "Too many requests, or the queue is full: see Retry-After.",
    503: "Redis or the database is unreachable or full: see Retry-After.",
}

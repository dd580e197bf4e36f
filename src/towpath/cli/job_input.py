"""Reading jobs for a submit: payloads from arguments, files or standard input."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, cast

import msgspec
import typer

from towpath.cli.listing import brief, content
from towpath.clock import Duration, minutes
from towpath.console.arguments import duration, instant, pairs, priority, whole_number
from towpath.console.exits import JobFailed
from towpath.console.verb import Session, open_ledger
from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.engine import Engine
from towpath.engine.fields import JobField, Kind, Moment, Number, Pairs, Policy, Span, Text
from towpath.engine.model import (
    FIELDS,
    JobInfo,
    JobOptions,
    JobRef,
    OnConflict,
    Placed,
    Submitted,
    new_job,
    with_own_attempts,
)
from towpath.engine.spelling import POLICIES, read_retry
from towpath.engine.states import State
from towpath.errors import InvalidOption, JobDiffers, JobUnfinished, TowpathError
from towpath.telemetry.logs import Silent


class JobSubmitter:
    """Submits jobs with the same options to one queue, and prints the answers."""

    def __init__(
        self,
        session: Session,
        queue: str,
        options: JobOptions,
        *,
        id: str | None,
        raw: bool,
        on_conflict: OnConflict | Literal["replace"],
    ) -> None:
        self._session, self._queue, self._id, self._raw = session, queue, id, raw
        self._options, self._replaces = options, on_conflict == "replace"
        self._on_conflict: OnConflict = "refuse" if on_conflict == "replace" else on_conflict
        self._taken = self._existed = 0

    # ── one job ──────────────────────────────────────────────────────────────────────────

    async def one(self, source: str, wait: Duration | None) -> None:
        """Submit one job; with *wait*, wait until it has ended."""
        payload = payload_of(source, raw=self._raw)
        options = self._options
        if self._id is not None:
            options["id"] = self._id
        if wait is not None:
            # Without `keep`, an ended job could not be distinguished from one that never existed.
            options.setdefault("keep", max(wait, minutes(1)))
        async with self._session.jobs() as (engine, jobs):
            if self._replaces:
                taken = await jobs.set(self._queue, payload, **options)
            else:
                answer = await engine.submit(self._queue, payload, **options)
                taken = answer.checked(self._on_conflict)
            if wait is not None:
                self._session.out.note(f"{taken.job}  {taken.state}")
                self._show_end(await engine.events.ended(taken.job, within=wait))
            elif isinstance(taken, Placed):
                fields = {"queue": taken.job.queue, "id": taken.id, "state": taken.state}
                text = f"{taken.job}  {taken.state}{'  replaced' if taken.replaced else ''}"
                self._session.out.answer(fields | {"replaced": taken.replaced}, text)
            else:
                self._show_submitted(taken)

    async def one_record(self, source: str, wait: Duration | None) -> None:
        """Submit one job with a record; with *wait*, wait until the record has ended."""
        from towpath.app.backend import Backend  # noqa: PLC0415 -- only for records
        from towpath.app.job import RecordJob  # noqa: PLC0415 -- the same
        from towpath.app.jobs import state_of  # noqa: PLC0415 -- the same
        from towpath.worker.payload import Raw  # noqa: PLC0415 -- the same

        payload, options, session = payload_of(source, raw=self._raw), self._options, self._session
        if self._id is not None:
            options["id"] = self._id
        ledger = open_ledger(session, None)
        settings = session.settings

        def connect() -> Engine:
            return Engine(
                settings.server, limits=settings.limits, declared=settings.declared, log=Silent()
            )

        async with Backend(connect, ledger=ledger, log=Silent()) as backend:
            if self._replaces:
                record = (await ledger.jobs.set(self._queue, payload, **options)).record
                existed = False
            else:
                made = await ledger.jobs.submit(self._queue, payload, **options)
                record, existed = made.record, made.existed
            ref, same = JobRef(record.queue, record.id), record.payload == payload
            taken = Submitted(ref, state_of(record, None), existed, same if existed else None)
            taken.checked(self._on_conflict)
            if wait is None:
                self._show_submitted(taken)
                return
            session.out.note(f"{ref}  {taken.state}")
            job = RecordJob[Any](ref, backend, Raw(), existed)
            with suppress(JobUnfinished):
                await job.result(within=wait)
            self._show_end(await job.info())

    def _show_submitted(self, submitted: Submitted) -> None:
        out, ref = self._session.out, submitted.job
        if out.as_json:
            fields: dict[str, Any] = {"queue": ref.queue, "id": ref.id, "state": submitted.state}
            out.object(
                fields | {"existed": submitted.existed, "same_payload": submitted.same_payload}
            )
            return
        out.line(f"{ref}  {submitted.state}{'  existed' if submitted.existed else ''}")
        if submitted.same_payload is False:
            out.note("the existing job has another payload; it was left unchanged")

    def _show_end(self, job: JobInfo) -> None:
        if self._session.out.as_json:
            keep = ("queue", "id", "state", "attempts", "reason", "ended_at")
            fields = {name: value for name, value in brief(job).items() if name in keep}
            self._session.out.object(fields | content("result", job.result))
        elif job.state is State.DONE:
            text = (job.result or b"").decode(errors="backslashreplace")
            self._session.out.line(text or "done")
        if job.state is not State.DONE:
            raise JobFailed(job.ref, f"{job.state}: {job.reason or 'no reason'}")

    # ── many ─────────────────────────────────────────────────────────────────────────────

    async def every_line(self, source: str) -> None:
        """Submit one job per line, in batches; skips empty lines.

        Stops at the first line that is refused, and prints its number and the jobs submitted
        before.
        """
        out = self._session.out
        with _open_source(source) as stream:
            size = _size(stream)
            async with self._session.engine() as engine:
                with out.progress(f"submitting to {self._queue}", size) as advance:
                    try:
                        for batch in _batches(stream):
                            await self._submit_batch(engine, batch)
                            advance(sum(len(line) for _, line in batch) if size else len(batch))
                    except TowpathError:
                        out.note(self._so_far())
                        raise
        if not out.as_json:
            out.line(self._so_far())

    def _so_far(self) -> str:
        return f"{self._taken} submitted to {self._queue}, {self._existed} of them existed"

    async def _submit_batch(self, engine: Engine, batch: list[tuple[int, bytes]]) -> None:
        """Submit a batch. If a line is invalid, no job of the batch is submitted."""
        jobs = [
            new_job(self._line(number, line), **self._for_line(number)) for number, line in batch
        ]
        answers = [
            self._check_answer(answer) for answer in await engine.submit_many(self._queue, jobs)
        ]
        for answer in answers:
            if isinstance(answer, TowpathError):
                continue
            self._taken += 1
            self._existed += answer.existed
            if self._session.out.as_json:
                self._show_submitted(answer)
        for (number, _), answer in zip(batch, answers, strict=True):
            if isinstance(answer, TowpathError):
                self._session.out.note(f"line {number} was not submitted")
                raise answer

    def _check_answer(self, answer: Submitted | TowpathError) -> Submitted | TowpathError:
        try:
            return answer if isinstance(answer, TowpathError) else answer.checked(self._on_conflict)
        except JobDiffers as error:
            return error

    def _line(self, number: int, line: bytes) -> bytes:
        return _require_json(line.strip(), f"line {number}", raw=self._raw)

    def _for_line(self, number: int) -> JobOptions:
        if self._id is None:
            return self._options
        return {**self._options, "id": f"{self._id}.{number}"}


# ── options of jobs ──────────────────────────────────────────────────────────────────────

_METAVARS: dict[type, str] = {
    Span: "TIME", Moment: "INSTANT", Policy: "POLICY", Pairs: "NAME=VALUE", Text: "TEXT"
}  # fmt: skip


def field_parameters() -> list[inspect.Parameter]:
    """Parameters for typer: an option for each field of a job."""
    return [_option(name, field) for name, field in FIELDS.items()]


def _option(name: str, field: JobField) -> inspect.Parameter:
    kind: Kind = field.kind
    is_plural, flag = isinstance(kind, Pairs), f"--{name.replace('_', '-')}"
    about = field.about + (f" {POLICIES}." if isinstance(kind, Policy) else "")
    option = typer.Option(
        flag.removesuffix("s") if is_plural else flag,
        metavar="HIGH|0-100" if name == "priority" else _METAVARS.get(type(kind), "N"),
        help=f"{about} Can be repeated." if is_plural else about,
    )
    form = list[str] if is_plural else str
    annotation = Annotated[form | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def options_in(said: Mapping[str, Any]) -> JobOptions:
    """The job options in the options of the command. Raises InvalidOption."""
    given = {name: text for name, text in said.items() if text not in (None, [], ())}
    read = {name: _read(name, text) for name, text in given.items()}
    return with_own_attempts(cast("JobOptions", read))


def _read(name: str, text: Any) -> Any:
    kind: Kind = FIELDS[name].kind
    match kind:
        case Number():
            return priority(text) if name == "priority" else whole_number(name, text)
        case Span():
            return duration(name, text)
        case Moment():
            return instant(name, text)
        case Policy():
            return read_retry(text)
        case Pairs():
            return pairs("header", list(text))
        case Text():
            return text


# ── payloads ─────────────────────────────────────────────────────────────────────────────


def payload_of(source: str, *, raw: bool) -> bytes:
    """The payload that *source* names, JSON unless it is *raw*. Raises InvalidOption."""
    return _require_json(_read_source(source), "payload", raw=raw)


def _require_json(payload: bytes, what: str, *, raw: bool) -> bytes:
    """Returns *payload*. Raises InvalidOption unless it is JSON, which handlers read, or *raw*."""
    if not raw:
        try:
            msgspec.json.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            rule = f"is not valid JSON ({error}); quote text, or pass --raw to send any bytes"
            raise InvalidOption(what, "…", rule=rule) from error
    return payload


def _read_source(source: str) -> bytes:
    if source != "-" and not source.startswith("@"):
        return source.encode(errors="surrogateescape")
    with _open_source(source) as stream:
        return stream.read().strip()


@contextmanager
def _open_source(source: str) -> Generator[BinaryIO]:
    """Standard input for `-`, a file for `@name`. Raises InvalidOption."""
    if source == "-":
        yield sys.stdin.buffer
        return
    path = Path(source.removeprefix("@"))
    try:
        stream = path.open("rb")
    except OSError as error:
        rule = f"can't be read: {error.strerror}"
        raise InvalidOption("payload", source, rule=rule) from error
    with stream:
        yield stream


def _size(stream: BinaryIO) -> int | None:
    """The number of remaining bytes; None for a stream that can't seek."""
    if not stream.seekable():
        return None
    here = stream.tell()
    end = stream.seek(0, 2)
    stream.seek(here)
    return end - here


def _batches(stream: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """Yields batches of non-empty lines, each with its number."""
    lines = ((number, line) for number, line in enumerate(stream, 1) if line.strip())
    while batch := list(islice(lines, LARGEST_BATCH)):
        yield batch

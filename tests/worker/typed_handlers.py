"""Code of a user, with the types that an editor must know; `test_types.py` checks it."""

from collections.abc import Coroutine
from typing import Any, assert_type

import msgspec
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from towpath import Context, Job, Towpath, seconds
from towpath.app.job import BlockingJob
from towpath.app.submission import NotGiven
from towpath.app.submitting import AppHandler

app = Towpath("redis://nowhere", ledger="sqlite:///nowhere.db")


class Mail(msgspec.Struct):
    to: str


@app.handler("mails", name="plain")
async def plain(mail: Mail) -> int:
    return len(mail.to)


@app.handler("mails", name="with-context")
async def with_context(mail: Mail, ctx: Context) -> int:
    return ctx.attempt


@app.handler("mails", name="by-name")
async def by_name(mail: Mail, *, ctx: Context) -> int:
    return ctx.attempt


@app.handler("mails", name="context-first")
async def context_first(ctx: Context, mail: Mail) -> int:
    return ctx.attempt


@app.handler("mails", name="optional")
async def optional(mail: Mail, ctx: Context | None = None) -> int:
    return ctx.attempt if ctx else 0


@app.handler("mails", name="nothing")
async def nothing() -> int:
    return 1


@app.handler("mails", name="only-context")
async def only_context(ctx: Context) -> int:
    return ctx.attempt


@app.handler("mails", name="only-by-name")
async def only_by_name(*, ctx: Context) -> int:
    return ctx.attempt


@app.handler("mails", name="anything")
async def anything(payload: object) -> int:
    return 1


@app.handler("mails", name="default")
async def default(count: int = 3) -> int:
    return count


@app.handler("threads", name="plain")
def thread(mail: Mail) -> str:
    return mail.to


@app.handler("threads", name="context-first")
def thread_context_first(ctx: Context, mail: Mail) -> str:
    return mail.to


@app.handler("threads", name="by-name")
def thread_by_name(mail: Mail, *, ctx: Context) -> str:
    return mail.to


@app.handler("threads", name="only-context")
def thread_only_context(ctx: Context) -> str:
    return ctx.queue


@app.recurring("0 3 * * *")
async def nightly(ctx: Context) -> None: ...


@app.handler("invoices", name="send", record=True)
async def send(mail: Mail) -> int:
    return len(mail.to)


Loop = Coroutine[Any, Any, int]


async def use() -> None:
    for handler in (plain, with_context, by_name, context_first, optional):
        assert_type(handler, AppHandler[Mail, int, Loop])
    for handler in (nothing, only_context, only_by_name):
        assert_type(handler, AppHandler[None, int, Loop])
        await handler.submit()
    for handler in (thread, thread_context_first, thread_by_name):
        assert_type(handler, AppHandler[Mail, str, str])
    assert_type(thread_only_context, AppHandler[None, str, str])
    assert_type(anything, AppHandler[object, int, Loop])
    assert_type(default, AppHandler[int | NotGiven, int, Loop])
    await default.submit()
    assert_type(nightly, AppHandler[None, None, Coroutine[Any, Any, None]])
    ticket = await plain.submit(Mail("anna"), delay=seconds(1))
    assert_type(ticket, Job[int])
    assert_type(await ticket.result(within=seconds(1)), int)
    assert_type(thread.blocking.submit(Mail("anna")).result(within=seconds(1)), str)
    assert_type(await plain(Mail("anna")), int)
    assert_type(thread(Mail("anna")), str)
    await default.submit()


async def use_transactions(session: AsyncSession, connection: AsyncConnection) -> None:
    ticket = await send.submit(Mail("anna"), in_transaction=session, subject="anna", version=1)
    assert_type(ticket, Job[int])
    await send.submit(Mail("anna"), in_transaction=connection, lane="anna")
    await send.submit_many([Mail("anna")], in_transaction=session)


def use_plain_transactions(session: Session, connection: Connection) -> None:
    assert_type(
        send.blocking.submit(Mail("anna"), in_transaction=session, id="a"), BlockingJob[int]
    )
    send.blocking.submit_many([Mail("anna")], in_transaction=connection)

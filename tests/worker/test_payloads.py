"""Payloads and results: their types, and what happens to values that do not fit."""

import asyncio
import math
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, computed_field

from tests.worker import process_handlers
from tests.worker.in_process_worker import SOON, LogLines, ended, working
from towpath.app.app import Towpath
from towpath.embedded import EmbeddedServer
from towpath.engine.model import new_job
from towpath.engine.states import State
from towpath.errors import HandlerInvalid, PayloadInvalid
from towpath.worker.context import Context
from towpath.worker.handler import HandlerOptions
from towpath.worker.payload import form


class Order(BaseModel):
    item: str
    count: int = 1


@dataclass
class Point:
    x: int
    y: int = 0


class Note(msgspec.Struct):
    text: str
    at: datetime


class Mail(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sender: str = Field(alias="from")
    weight: float = math.nan
    _drafts: list[object] = PrivateAttr(default_factory=lambda: [object()])

    @computed_field
    @property
    def greeting(self) -> str:
        return f"Dear {self.sender}"


class Written(BaseModel):
    count: int = Field(serialization_alias="n")


class Login(BaseModel):
    password: SecretStr


class Hidden(BaseModel):
    shown: int = 1
    hidden: int = Field(default=0, exclude=True)


class Excluded(BaseModel):
    hidden: int = Field(exclude=True)


class Account(BaseModel):
    logins: list[Login | Hidden]


@dataclass
class Basket:
    orders: list[Order]
    parent: "Basket | None" = None


class Parcel(NamedTuple):
    order: Order


class Unreadable(msgspec.Struct):
    order: Order


class TestAPayload:
    async def test_may_be_a_pydantic_model(self, app: Towpath) -> None:
        @app.handler("orders")
        async def sell(order: Order) -> Order:
            return Order(item=order.item, count=order.count + 1)

        async with working(app):
            sold = await (await sell.submit(Order(item="tea"))).result(within=SOON)
        assert sold == Order(item="tea", count=2)

    async def test_may_be_a_model_with_aliases_and_private_attributes(self, app: Towpath) -> None:
        @app.handler("mails")
        async def forward(mail: Mail) -> Mail:
            return Mail.model_validate({"from": mail.sender.upper(), "weight": 1})

        @app.handler("written")
        async def same(written: Written) -> Written:
            return written

        async with working(app):
            job = await forward.submit(Mail.model_validate({"from": "anna", "weight": 2}))
            assert (await job.result(within=SOON)).sender == "ANNA"
            assert await (await same.submit(Written(count=3))).result(within=SOON) == Written(
                count=3
            )
        assert (await app.engine.inspect.job(job.ref)).payload == b'{"from":"anna","weight":2.0}'

    async def test_may_be_a_list_of_dataclasses(self, app: Towpath) -> None:
        @app.handler("points")
        async def mirror(points: list[Point]) -> list[Point]:
            return [Point(point.y, point.x) for point in points]

        async with working(app):
            mirrored = await (await mirror.submit([Point(1, 2), Point(3)])).result(within=SOON)
        assert mirrored == [Point(2, 1), Point(0, 3)]

    async def test_may_have_models_in_its_fields(self, app: Towpath) -> None:
        @app.handler("baskets")
        async def sell(basket: Basket) -> Parcel:
            assert basket.parent is not None
            return Parcel(basket.parent.orders[0])

        basket = Basket([], Basket([Order(item="tea")]))
        async with working(app):
            parcel = await (await sell.submit(basket)).result(within=SOON)
        assert parcel == Parcel(Order(item="tea"))

    async def test_may_be_a_msgspec_struct(self, app: Towpath) -> None:
        @app.handler("notes")
        def shout(note: Note) -> Note:
            return Note(note.text.upper(), note.at)

        at = datetime(2026, 11, 1, tzinfo=UTC)
        async with working(app):
            assert await (await shout.submit(Note("hey", at))).result(within=SOON) == Note(
                "HEY", at
            )

    async def test_may_be_plain_json(self, app: Towpath) -> None:
        handler: Any = app.handler("things")

        @handler
        async def same(thing):  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]
            return thing  # pyright: ignore[reportUnknownVariableType]

        value: Any = {"a": [1, 2.5, None, True, "ü"], "b": {}}
        async with working(app):
            assert await (await same.submit(value)).result(within=SOON) == value

    async def test_that_is_bytes_is_passed_unchanged(self, app: Towpath) -> None:
        @app.handler("blobs")
        async def reverse(blob: bytes) -> bytes:
            return blob[::-1]

        async with working(app):
            job = await reverse.submit(b"\x00\xff{")
            assert await job.result(within=SOON) == b"{\xff\x00"
            assert await (await reverse.submit(b"")).result(within=SOON) == b""
        assert (await app.engine.inspect.job(job.ref)).payload == b"\x00\xff{"

    async def test_may_be_absent(self, app: Towpath) -> None:
        @app.handler("ticks")
        async def tick() -> str:
            return "tock"

        async with working(app):
            assert await (await tick.submit()).result(within=SOON) == "tock"

    async def test_may_be_absent_if_the_parameter_has_a_default(self, app: Towpath) -> None:
        """The handler's default at the time it runs counts; given payloads are passed unchanged."""

        @app.handler("counts", name="counts")
        async def count(n: int | None = 3) -> int | None:
            return n

        @app.handler("counts", name="orders")
        def order(wanted: Order = Order(item="tea"), *, ctx: Context) -> str:  # noqa: B008 -- the default is the point
            return f"{wanted.item} {ctx.attempt}"

        @app.handler("counts", name="blobs")
        async def blob(data: bytes = b"abc") -> bytes:
            return data

        async with working(app):
            bare = await count.submit()
            assert await bare.result(within=SOON) == 3
            assert await (await count.submit(None)).result(within=SOON) is None
            assert await (await order.submit()).result(within=SOON) == "tea 1"
            assert await (await blob.submit()).result(within=SOON) == b"abc"
            assert await (await blob.submit(b"")).result(within=SOON) == b""
            blocking = await asyncio.to_thread(count.blocking.submit)
            assert await asyncio.to_thread(lambda: blocking.result(within=SOON)) == 3
        assert (await app.engine.inspect.job(bare.ref)).payload == b""

    async def test_may_be_passed_to_a_process(self, app: Towpath) -> None:
        sell = app.add("orders", process_handlers.sell.function, HandlerOptions(processes=1))
        async with working(app):
            receipt = await (await sell.submit(process_handlers.Order(item="tea"))).result(
                within=SOON
            )
        assert receipt.text == "1 tea 1 sell"
        assert receipt.pid != os.getpid()


class TestPayloadsThatDoNotFit:
    def test_of_types_that_cannot_be_decoded_are_refused_at_declaration(self) -> None:
        async def take(payload: Unreadable) -> None: ...

        with pytest.raises(HandlerInvalid) as refusal:
            Towpath("redis://nowhere").add("shop", take, HandlerOptions())
        assert refusal.value.handler == "take"
        assert isinstance(refusal.value.__cause__, TypeError)

    async def test_are_refused_before_anything_is_sent(
        self, app: Towpath, server: EmbeddedServer
    ) -> None:
        @app.handler("orders")
        async def sell(order: Order) -> None: ...

        @app.handler("points")
        async def draw(point: Point) -> None: ...

        @app.handler("blobs")
        async def store(blob: bytes) -> None: ...

        @app.handler("things")
        async def take(thing: object) -> None: ...

        keys = server.ask("DBSIZE")
        for handler, wrong in (
            (sell, {"count": 3}),
            (sell, "tea"),
            (draw, Point("one")),  # pyright: ignore[reportArgumentType]
            (draw, None),
            (store, "text"),
            (take, object()),
            (take, {1, object()}),
            (take, "\udcff"),
        ):
            with pytest.raises(PayloadInvalid):
                await handler.submit(wrong)  # pyright: ignore[reportArgumentType]
        with pytest.raises(PayloadInvalid):
            await draw.submit_many([Point(1), None])  # pyright: ignore[reportArgumentType]
        assert server.ask("DBSIZE") == keys

    @pytest.mark.parametrize(
        ("model", "where"),
        [
            (Login(password=SecretStr("opensesame")), "password"),
            (Hidden(hidden=2), "hidden"),
            (Excluded(hidden=2), "hidden"),
            (
                Account(logins=[Hidden(), Login(password=SecretStr("opensesame"))]),
                r"logins\.1\.password",
            ),
        ],
    )
    async def test_that_would_lose_data_are_refused(
        self, app: Towpath, server: EmbeddedServer, model: BaseModel, where: str
    ) -> None:
        """A masked or excluded field would give the handler another value, or none."""

        async def take(payload: BaseModel) -> None: ...

        take.__annotations__["payload"] = type(model)
        handler, keys = app.add("models", take, HandlerOptions()), server.ask("DBSIZE")
        with pytest.raises(PayloadInvalid, match=where) as refused:
            await handler.submit(model)
        assert "opensesame" not in str(refused.value)
        assert server.ask("DBSIZE") == keys

    async def test_include_results_that_would_lose_data(
        self, app: Towpath, lines: LogLines
    ) -> None:
        @app.handler("logins")
        async def login() -> Login:
            return Login(password=SecretStr("opensesame"))

        async with working(app):
            dead = await ended(await login.submit())
        assert dead.state is State.DEAD
        assert "password" in (dead.reason or "")
        assert lines.of("result.invalid")

    async def test_end_their_jobs_dead_with_a_reason_and_the_worker_goes_on(
        self, app: Towpath, lines: LogLines
    ) -> None:
        """They may come from another language, or from an older release."""

        @app.handler("orders")
        async def sell(order: Order) -> int:
            return order.count

        wrong = [b"", b"{", b'{"item": 1}', b"\xff", b"null", b"[" * 5000]
        async with working(app):
            jobs = await app.engine.submit_many("orders", [new_job(payload) for payload in wrong])
            fine = await sell.submit(Order(item="tea"))
            assert await fine.result(within=SOON) == 1
            dead = [await app.engine.events.ended(job.job, within=SOON) for job in jobs]  # pyright: ignore
        assert {job.state for job in dead} == {State.DEAD}
        assert {job.attempts for job in dead} == {1}
        assert all("sell" in (job.reason or "") for job in dead)
        assert len(lines.of("payload.invalid")) == len(wrong)

    async def test_end_jobs_of_processes_dead_too(self, app: Towpath, lines: LogLines) -> None:
        sell = app.add("orders", process_handlers.sell.function, HandlerOptions(processes=1))
        async with working(app):
            wrong = await app.engine.submit("orders", b"{}")
            dead = await app.engine.events.ended(wrong.job, within=SOON)
            await (await sell.submit(process_handlers.Order(item="tea"))).result(within=SOON)
        assert dead.state is State.DEAD
        assert {"sell", "item"} <= set(re.findall(r"\w+", dead.reason or ""))
        assert lines.of("payload.invalid")


class TestNumbersThatJsonCannotEncode:
    @pytest.mark.parametrize(
        "value", [math.nan, [math.inf], {"a": [1, -math.inf]}, (math.nan, None)]
    )
    def test_are_refused_instead_of_sent_as_null(self, value: Any) -> None:
        with pytest.raises(PayloadInvalid) as refusal:
            form(Any, "result of sell").encode(value)
        assert refusal.value.what == "result of sell"
        assert form(Any, "result of sell").encode([None, 1.5]) == b"[null,1.5]"


async def test_a_job_without_the_required_payload_is_dead_and_names_the_likely_cause(
    app: Towpath,
) -> None:
    """A job with a record looks like this to a handler that was declared without one."""

    @app.handler("numbers")
    async def number(n: int) -> None: ...

    @app.handler("orders")
    async def order(order: Order) -> None: ...

    async with app, working(app):
        for handler in (number, order):
            submitted = await app.engine.submit(handler.queue, b"")
            dead = await ended(handler.job(submitted.id))
            assert dead.state is State.DEAD
            assert "`record=True`" in str(dead.reason)

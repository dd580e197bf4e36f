"""The shop's HTTP endpoints, in FastAPI. Start them with `uvicorn shop.web:web`."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, HTTPException

from shop.jobs import Order, Step, app, book, thumbnail
from towpath.errors import JobError, JobNotFound


@asynccontextmanager
async def connected(_: FastAPI) -> AsyncGenerator[None]:
    async with app:
        yield


web = FastAPI(lifespan=connected)


@web.post("/orders", status_code=202)
async def order(order: Order) -> dict[str, str]:
    # One at a time per customer, in order. The id makes a repeated request harmless.
    job = await book.submit(order, id=f"order-{order.number}", lane=order.customer)
    return {"job": job.id}


@web.post("/thumbnails", status_code=202)
async def make_thumbnail(path: str) -> dict[str, str]:
    job = await thumbnail.submit(path)
    return {"job": job.id}


@web.get("/thumbnails/{id}")
async def progress(id: str) -> dict[str, Any]:
    job = thumbnail.job(id)
    try:
        step = await job.progress(Step)
    except JobNotFound as error:
        raise HTTPException(404, str(error)) from error
    return {"state": await job.state(), "progress": asdict(step) if step else None}


@web.delete("/thumbnails/{id}")
async def cancel(id: str) -> dict[str, str]:
    try:
        return {"state": await thumbnail.job(id).cancel()}
    except JobError as error:
        raise HTTPException(404 if isinstance(error, JobNotFound) else 409, str(error)) from error

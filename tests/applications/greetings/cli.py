"""`towpath greetings`."""

from typing import Annotated

import typer

from tests.applications.greetings.service import QUEUE, NobodyThere
from towpath.console.verb import Session, verb

app = typer.Typer(no_args_is_help=True, help="Greetings: greet.")


@verb(app, "greet", examples="towpath greetings greet ann")
async def greet(session: Session, *, name: Annotated[str, typer.Argument()]) -> None:
    """Greet somebody."""
    if name == "nobody":
        raise NobodyThere("nobody is there")
    async with session.engine() as engine:
        session.out.line((await engine.submit(QUEUE, name.encode(), id=name)).id)

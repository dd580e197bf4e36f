"""`towpath serve` and `towpath up`: the HTTP server, on your Redis and database or on its own."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Any

import typer

from towpath.console.arguments import LogFormat
from towpath.console.verb import DatabaseOption, Session, verb

HostOption = Annotated[str | None, typer.Option(help="Address to listen on.  [setting]")]
PortOption = Annotated[
    int | None, typer.Option(help="Port to listen on; 0 = any free one.  [setting]")
]
DataOption = Annotated[
    str | None, typer.Option(metavar="DIR", help="Directory for all data.  [setting]")
]

ObjectsOption = Annotated[
    bool | None, typer.Option("--objects", help="Also start a local S3 object store.  [setting]")
]


def serve(
    session: Session,
    *,
    host: HostOption = None,
    port: PortOption = None,
    database: DatabaseOption = None,
    log_format: LogFormat = None,
) -> None:
    """Run the HTTP server on your own Redis or Valkey and database.

    Name them with REDIS_URL and DATABASE_URL, or with flags. Several servers can run side by side.
    TOWPATH_API_KEY sets the first admin key; `towpath keys create` makes others. While Redis or
    the database is unreachable, requests are answered with 503.
    """
    require_server()
    from towpath.cli.serving import serve_beside  # noqa: PLC0415 -- slow to import

    serve_beside(
        session, _without_unset(host=host, port=port, database=database), _log(session, log_format)
    )


def up(
    session: Session,
    *,
    data: DataOption = None,
    host: HostOption = None,
    port: PortOption = None,
    database: DatabaseOption = None,
    objects: ObjectsOption = None,
    log_format: LogFormat = None,
) -> None:
    """Start everything: its own Valkey and database, and the HTTP server.

    Needs no other set-up. All data is in one directory; the next start continues with it, also
    after a crash. With --database or DATABASE_URL it uses that database instead of its own, as
    apps and commands in the same shell do. The first start creates an API key.
    A terminal shows the key and a link that logs in to the dashboard. Otherwise they are in the
    files api.key and login.link of the data directory, which only you can read.
    """
    require_server()
    from towpath.cli.serving import serve_alone  # noqa: PLC0415 -- slow to import

    flags = _without_unset(data=data, host=host, port=port, database=database, objects=objects)
    serve_alone(session, flags, _log(session, log_format))


def require_server() -> None:
    """Raises NotInstalled without the libraries of the server."""
    from towpath.console.exits import NotInstalled  # noqa: PLC0415 -- rarely needed

    for library in ("fastapi", "uvicorn", "httptools", "sse_starlette", "sqlalchemy", "httpcore"):
        if find_spec(library) is None:
            raise NotInstalled(library, extra="server")


def _without_unset(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _log(session: Session, log_format: str | None) -> dict[str, Any]:
    return _without_unset(format=log_format or ("json" if session.out.as_json else None))


def register(towpath: typer.Typer) -> None:
    verb(towpath, "up", examples="towpath up\ntowpath up --data /srv/towpath --port 9000")(up)
    examples = "towpath serve\ntowpath serve --database postgresql://towpath@db/towpath"
    verb(towpath, "serve", examples=examples)(serve)

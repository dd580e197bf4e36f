"""The types of handlers and jobs for a type checker: what users get, and what is refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
GOOD = Path(__file__).with_name("typed_handlers.py")

WRONG = """
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from tests.worker.typed_handlers import (
    Mail, app, by_name, context_first, nightly, only_context, plain, send,
)
from towpath import Context, Every, seconds

async def use() -> None:
    await plain.submit("anna")  # refused
    await by_name.submit("anna")  # refused
    await context_first.submit("anna")  # refused
    await only_context.submit(Mail("anna"))  # refused
    await nightly.submit(3)  # refused
    await plain.submit()  # refused
    plain.blocking.submit()  # refused
    plain.new()  # refused
    await plain.submit_many([Mail("anna"), 3])  # refused
    await plain.submit(Mail("anna"), dealy=seconds(1))  # refused
    plain.blocking.submit(3)  # refused
    text: str = await (await plain.submit(Mail("anna"))).result(within=seconds(1))  # refused
    app.recur(plain, Every(seconds(5)), "anna")  # refused
    app.recur(plain, Every(seconds(5)))  # refused
    app.recur(plain, Every(seconds(5)), Mail("anna"))
    app.recur(nightly, Every(seconds(5)))
    await plain.schedule("often", Every(seconds(5)))  # refused
    await plain.schedule("often", Every(seconds(5)), Mail("anna"))
    await nightly.schedule("often", Every(seconds(5)))
    app.handler("mails", max_attempts="many")  # refused
    print(text)

async def use_transactions(session: Session, aio: AsyncSession) -> None:
    await send.submit("anna", in_transaction=aio)  # refused
    await send.submit(Mail("anna"), in_transaction=session)  # refused
    send.blocking.submit(Mail("anna"), in_transaction=aio)  # refused
    await send.submit(Mail("anna"), in_transaction=aio, subjekt="anna")  # refused

async def two(a: int, b: int) -> None: ...
async def two_contexts(a: Context, b: Context, c: int) -> None: ...

app.handler("mails")(two)  # refused
app.handler("mails")(two_contexts)  # refused
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, int]]:
    """Where the checker finds errors: in which file, in which line. It runs once, because it takes
    seconds.
    """
    wrong = tmp_path_factory.mktemp("types") / "wrong.py"
    wrong.write_text(WRONG)
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--level", "error"]
    paths = [f"--pythonpath={sys.executable}", str(GOOD), str(wrong)]
    done = subprocess.run([*command, *paths], cwd=ROOT, capture_output=True, check=False)
    found: list[dict[str, Any]] = msgspec.json.decode(done.stdout)["generalDiagnostics"]
    return [(Path(error["file"]).name, error["range"]["start"]["line"]) for error in found]


def test_correct_code_of_a_user_passes_the_type_checker(errors: list[tuple[str, int]]) -> None:
    assert [line + 1 for file, line in errors if file == GOOD.name] == []


def test_code_with_wrong_payloads_fails_the_type_checker(errors: list[tuple[str, int]]) -> None:
    refused = {n for n, line in enumerate(WRONG.splitlines()) if line.endswith("# refused")}
    assert {line for file, line in errors if file == "wrong.py"} == refused

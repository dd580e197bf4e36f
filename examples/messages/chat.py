"""Sends a message and waits for its answer, using only the standard library.

    ADDRESS=http://127.0.0.1:8080 TOWPATH_API_KEY=… python chat.py ann hello

The client chooses the id of the message. If it sends the message again, it is the same message.
"""

import json
import os
import sys
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

API = os.environ.get("ADDRESS", "http://127.0.0.1:8080") + "/api/v1"
HEADERS = {"X-API-Key": os.environ["TOWPATH_API_KEY"], "Content-Type": "application/json"}


def send(user: str, text: str) -> str:
    """Send a message; returns its id when the message is queued."""
    message = {
        "user_id": user, "org_id": "acme", "client_id": "chat.py", "message": text,
        "client_message_id": str(uuid4()),
    }  # fmt: skip
    request = Request(f"{API}/message", json.dumps(message).encode(), HEADERS)
    with urlopen(request) as answer:
        return json.load(answer)["message_id"]


def events(message: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a message, as they happen. The stream ends with its answer."""
    name = ""
    with urlopen(Request(f"{API}/message/{message}/events", headers=HEADERS)) as stream:
        for line in stream:
            field, _, value = line.decode().rstrip("\r\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                yield name, json.loads(value)


if __name__ == "__main__":
    user, *words = sys.argv[1:]
    for name, data in events(send(user, " ".join(words))):
        if name == "answer":
            print(data["answer"]["text"])
        elif name in ("failed", "cancelled"):
            sys.exit(f"{name}: {data.get('reason')}")

"""Answers the messages of a chat: one at a time per user, different users in parallel.

    towpath worker consumer:app --url unix:///…/towpath-data/valkey/server.sock

`towpath up` prints the path of its store. In other languages, claim over HTTP: see `worker.mjs`.
"""

from typing import Any

from towpath import Towpath

app = Towpath()


@app.handler("messages")
async def answer(message: dict[str, Any]) -> dict[str, str]:
    """Return the answer for the user."""
    return {"text": f"{message['user_id']} said: {message['message']}"}

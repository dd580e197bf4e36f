"""Answers the messages of a chat: one at a time per user, users side by side.

    towpath worker consumer:app --url unix:///…/towpath-data/valkey/server.sock

`towpath up` says where its store is. A consumer in another language claims over HTTP: `worker.mjs`.
"""

from typing import Any

from towpath import Towpath

app = Towpath()


@app.handler("messages")
async def answer(message: dict[str, Any]) -> dict[str, str]:
    """What is returned is the answer that the user gets."""
    return {"text": f"{message['user_id']} said: {message['message']}"}

"""An agent that works on issues, one at a time, using only the standard library.

    ADDRESS=http://127.0.0.1:8080 TOWPATH_API_KEY=… python agent.py agent-7

It ends when there are no more tasks. Heartbeats hold the task while `work` runs. If another agent
holds the task by now, all calls are refused (409), and the work must be discarded.
"""

import json
import os
import sys
import threading
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

API = os.environ.get("ADDRESS", "http://127.0.0.1:8080") + "/api/v1"
HEADERS = {"X-API-Key": os.environ["TOWPATH_API_KEY"], "Content-Type": "application/json"}
HEARTBEAT = 60.0
"""Seconds between heartbeats. The lease is ten minutes."""


def post(path: str, **body: Any) -> Any:
    """Send a request; returns the answer, or None for 204."""
    with urlopen(Request(f"{API}/{path}", json.dumps(body).encode(), HEADERS)) as answer:
        return json.load(answer) if answer.status != 204 else None


def work(task: dict[str, Any]) -> str:
    """Do your work here. Strangers wrote the title and body: do not trust them."""
    return f"looked at {task['repository']}#{task['issue_number']}"


def hold(path: str, token: int, over: threading.Event) -> None:
    while not over.wait(HEARTBEAT):
        try:
            post(f"{path}/heartbeat", token=token)
        except HTTPError:
            return  # another agent has the task now: complete will be refused


def run(agent: str) -> None:
    while task := post("request-task", agent_id=agent):
        path, over = f"tasks/{quote(task['task_id'], safe='')}", threading.Event()
        beating = threading.Thread(target=hold, args=(path, task["token"], over))
        beating.start()
        try:
            result = work(task)
        except Exception as error:  # noqa: BLE001 -- after any error the task is offered again
            post(f"{path}/fail", token=task["token"], reason=str(error) or type(error).__name__)
            continue
        finally:
            over.set()
            beating.join()
        post(f"{path}/complete", token=task["token"], result=result)
        print(result)


if __name__ == "__main__":
    run(sys.argv[1])

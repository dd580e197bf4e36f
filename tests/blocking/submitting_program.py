"""A script that submits a job and ends, perhaps while another thread waits for a frozen Redis.

The test starts it with the URL of Redis, and the id of the Redis process to freeze.
"""

import os
import signal
import sys
import threading

from tests.waiting import eventually
from towpath import Towpath

app = Towpath(sys.argv[1])


@app.handler("mails")
async def send(_: str) -> None: ...


sys.stdout.write(send.blocking.submit("hello").state() + "\n")
if len(sys.argv) > 2:
    os.kill(int(sys.argv[2]), signal.SIGSTOP)
    waiting = threading.Thread(target=send.blocking.submit, args=("later",), daemon=True)
    waiting.start()
    eventually(lambda: sys._current_frames()[waiting.ident or 0].f_code.co_name == "_receive")  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- where the thread is

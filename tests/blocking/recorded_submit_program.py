"""A script that submits a job with a record and ends, while a slow exit handler runs.

The test starts it with the URLs of Redis and of the database.
"""

import atexit
import sys
import threading

from towpath import Towpath

app = Towpath(sys.argv[1], ledger=sys.argv[2])


@app.handler("mails", record=True)
async def send(_: str) -> None: ...


send.blocking.submit("hello")
# Registered later, so it is called earlier: by then the interpreter has ended the threads of all
# pools.
atexit.register(threading.Event().wait, 3)

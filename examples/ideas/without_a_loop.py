"""Without an event loop: use `.blocking` in scripts, Django views and notebooks.

Prints:

    42
"""

from towpath import Towpath, Worker
from towpath.embedded import EmbeddedServer

with EmbeddedServer() as server:
    app = Towpath(server.url)

    @app.handler("sums")
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    job = add.blocking.submit([20, 22])
    Worker(app).run_until_drained()
    print(job.result(within=5))

"""An instance of an application, as a process: python instance_program.py ADDRESS SERVER FILE

Writes a line for each timer that it was called for: its id, its token, due time and now in ms.
"""

import os
import sys
from pathlib import Path
from typing import Any

from towpath.apps.timers.client import TimerCall, TimerClient
from towpath.clock import wall_ms


def main(address: str, server: str, file: str) -> None:
    timers = TimerClient("shop", address, server=server, key=os.environ["TOWPATH_API_KEY"])

    @timers.on("t")
    def _(_: Any, call: TimerCall) -> None:
        with Path(file).open("a") as lines:
            lines.write(f"{call.task_id} {call.token} {call.delay_time} {wall_ms()}\n")

    timers.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

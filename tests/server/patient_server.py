"""The `towpath` command with a server that waits longer for Redis.

A server answers 503 if Redis is silent for 1.5 s, which happens on a busy machine. Tests that are
not about an absent Redis must not see that.
"""

from towpath.cli.main import main
from towpath.clock import minutes, seconds
from towpath.engine.channel import Limits
from towpath.server import build

build.LIMITS = Limits(answer=seconds(30), give_up=minutes(10), channels=build.LIMITS.channels)

if __name__ == "__main__":
    main()

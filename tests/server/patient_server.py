"""The `towpath` command with a server that is patient with Redis.

A server answers 503 if Redis is silent for 1.5 s, and on a busy machine Redis sometimes is. A test
that is not about Redis being away must not see that.
"""

from towpath.cli.main import main
from towpath.clock import minutes, seconds
from towpath.engine.channel import Limits
from towpath.server import build

build.LIMITS = Limits(answer=seconds(30), give_up=minutes(10), channels=build.LIMITS.channels)

if __name__ == "__main__":
    main()

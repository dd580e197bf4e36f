"""The GitHub double as a program: python -m towpath.testing.github --fill octo/repo=100

Says on one line of JSON where it is and with which token, and serves until it is ended.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys

from towpath.testing.github.double import TOKEN, GitHubDouble
from towpath.testing.github.trouble import LIMIT


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m towpath.testing.github", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 = any free one")
    parser.add_argument("--limit", type=int, default=LIMIT, help="requests before it answers 403")
    parser.add_argument("--fill", action="append", default=[], metavar="OWNER/NAME=N")
    parser.add_argument("--roles", type=int, default=1, help="how many roles the issues are for")
    parser.add_argument("--hook", default="", help="where webhooks are sent to")
    parser.add_argument("--secret", default="", help="secret that signs the webhooks")
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    github = GitHubDouble(port=options.port, limit=options.limit)
    for place, _, number in (filling.partition("=") for filling in options.fill):
        people = github.at(place)
        for at in range(int(number)):
            labels = [f"P{at % 5}", f"role:r{at % options.roles}"]
            people.open(f"Issue {at + 1}", body="Something is to be done.\n" * 8, labels=labels)
    if options.hook:
        github.listen(options.hook, secret=options.secret)
    with github:
        sys.stdout.write(json.dumps({"address": github.url, "token": TOKEN}) + "\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()

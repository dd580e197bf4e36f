"""Scripts without an event loop end quietly."""

import subprocess
import sys

from tests.blocking.test_forks import ROOT
from tests.waiting import HANGS
from towpath.embedded import EmbeddedServer


def test_a_script_that_submitted_a_recorded_job_ends_without_a_word(
    server: EmbeddedServer, prepared_file_url: str
) -> None:
    """Its relay looks at the database each second, also while the interpreter ends."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.blocking.recorded_script", server.url, prepared_file_url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

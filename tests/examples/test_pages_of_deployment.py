"""The pages about systemd and Kubernetes can be followed as written, on a machine with only the
tools that they ask for: each step uses only what an earlier step made.
"""

import os
import re
import subprocess
from pathlib import Path

from tests.architecture.sources import ROOT
from tests.examples.test_deploy import DEPLOY, containers
from tests.programs import COMMAND
from tests.waiting import HANGS
from towpath.embedded import EmbeddedServer

PAGES = ROOT / "docs" / "how-to"
NOT_HERE = ("useradd", "python3 -m venv", "pip install", "systemctl", "journalctl")
"""Steps that need systemd, a network or another user."""
SUDO = """#!/bin/sh
[ "$1" = -u ] && shift 2
exec "$@"
"""


def steps(page: str) -> list[str]:
    """The lines of the indented blocks of a page, each command whole."""
    text = (PAGES / page).read_text().replace("\\\n        ", "")
    return re.findall(r"^    (\S.*)$", text, re.MULTILINE)


def test_a_server_and_a_worker_are_set_up_with_systemd(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """All files are made in a folder, as the user who runs the tests."""
    etc, units, shop = tmp_path / "etc/towpath", tmp_path / "etc/systemd/system", tmp_path / "shop"
    bin = shop / ".venv" / "bin"
    for folder in (bin, units, tmp_path / "bin"):
        folder.mkdir(parents=True)
    (bin / "towpath").symlink_to(COMMAND)
    (shop / "shop").symlink_to(ROOT / "examples" / "shop")
    sudo = tmp_path / "bin" / "sudo"
    sudo.write_text(SUDO)
    sudo.chmod(0o755)
    lines = [line for line in steps("deploy-with-systemd.md") if not any(
        word in line for word in NOT_HERE)]  # fmt: skip
    assert len(lines) >= 5
    script = "\n".join(lines).replace("-g towpath ", "")
    for place, here in (("/etc/towpath", etc), ("/etc/systemd/system", units), ("/srv/shop", shop)):
        script = script.replace(place, str(here))
    script = script.replace("towpath.env ", f"{tmp_path}/towpath.env ", 1)
    told = (DEPLOY / "towpath.env").read_text().replace("/etc/towpath", str(etc))
    told = re.sub(r"(?m)^REDIS_URL=.*$", f"REDIS_URL={server.url}", told)
    told = re.sub(r"(?m)^DATABASE_URL=.*$", f"DATABASE_URL=sqlite:///{tmp_path}/towpath.db", told)
    (tmp_path / "towpath.env").write_text(told)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
    ran = subprocess.run(
        ["bash", "-euxo", "pipefail"], input=script, env=env, cwd=DEPLOY,
        capture_output=True, text=True, check=False, timeout=HANGS,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("tp_")


def test_every_image_of_the_manifests_is_built_and_pushed() -> None:
    lines = steps("deploy-on-kubernetes.md")
    for _, container in containers():
        image = container["image"]
        built = [line for line in lines if "docker build" in line and f"-t {image} " in line]
        assert built, image
        assert f"docker push {image}" in lines

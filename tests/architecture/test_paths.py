"""No file of the project names a path of one machine, or the host of a package registry."""

import re

import pytest

from tests.architecture.sources import ROOT, project_files, shown

# Written in pieces, so that this file does not name them itself.
MACHINE_PATH = re.compile(
    r"(?<![\w.~/-])/(?:" + "|".join(["work", "home", "root", "Users"]) + r")/\w"
)
REGISTRY_HOST = re.compile(
    r"\b(?:" + "|".join(["pypi", "pythonhosted", "npmjs", "deb[.]debian"]) + r")[.](?:org|com)\b"
)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an unpacked archive is no repository")
def test_no_file_names_a_machine_or_a_registry() -> None:
    texts = {shown(path): path.read_text(errors="replace") for path in project_files()}
    named = {name: found for name, text in texts.items() if (found := places(text))}
    assert named == {}


@pytest.mark.parametrize("text", ["cd /" + "home/ann", "https://" + "pypi" + ".org/simple"])
def test_a_machine_and_a_registry_are_found(text: str) -> None:
    assert places(text)


def places(text: str) -> list[str]:
    return MACHINE_PATH.findall(text) + REGISTRY_HOST.findall(text)

"""All forges. A new one is a module beside this one, and a line here."""

from towpath.forges import github, gitlab
from towpath.forges.spec import ForgeSpec

FORGES: tuple[ForgeSpec, ...] = (
    github.FORGE,
    gitlab.FORGE,
)

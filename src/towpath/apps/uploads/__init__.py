"""Uploads: large files in chunks, through Redis into object storage, whole or not at all."""

from towpath.apps.application import Application
from towpath.apps.uploads.measures import ALL
from towpath.apps.uploads.options import UploadsOptions

APPLICATION = Application(
    name="uploads",
    options=UploadsOptions,
    queues="towpath.apps.uploads.model:QUEUES",
    tables="towpath.apps.uploads.tables:TABLES",
    errors="towpath.apps.uploads.errors:ANSWERS",
    bundled="towpath.apps.uploads.stores.options:with_bundled",
    service="towpath.apps.uploads.serving:serving",
    tasks="towpath.apps.uploads.serving:tasks",
    handlers="towpath.apps.uploads.serving:UploadsConsumers",
    http="towpath.apps.uploads.http:ROUTES",
    pages="towpath.apps.uploads.pages:PAGES",
    cli="towpath.apps.uploads.cli:app",
    noun="Uploads: list, show, abort, resume, sweep.",
    metrics=ALL,
    published=("repository_",),
    probe="towpath.apps.uploads.service:UploadService.probe",
)

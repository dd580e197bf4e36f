"""Uploads: large files in chunks, through Redis into object storage, whole or not at all."""

from towpath.apps.application import Application
from towpath.apps.uploads.options import UploadsOptions

APPLICATION = Application(
    name="uploads",
    options=UploadsOptions,
    queues="towpath.apps.uploads.model:QUEUES",
    tables="towpath.apps.uploads.tables:TABLES",
    errors="towpath.apps.uploads.errors:ANSWERS",
    own="towpath.apps.uploads.stores.options:with_own",
    service="towpath.apps.uploads.service:serving",
    tasks="towpath.apps.uploads.service:tasks",
    handlers="towpath.apps.uploads.parts:Consumers",
    http="towpath.apps.uploads.http:MOUNT",
    probe="towpath.apps.uploads.service:UploadService.probe",
)

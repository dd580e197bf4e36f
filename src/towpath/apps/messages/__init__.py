"""Messages: one at a time per user."""

from towpath.apps.application import Application
from towpath.apps.messages.options import CALLBACK, PUSH, MessagesOptions

APPLICATION = Application(
    name="messages",
    options=MessagesOptions,
    queues="towpath.apps.messages.model:QUEUES",
    service="towpath.apps.messages.service:serving",
    handlers="towpath.apps.messages.adapters:MessagesConsumers",
    purposes=(PUSH, CALLBACK),
    http="towpath.apps.messages.http:MOUNT",
    pages="towpath.apps.messages.pages:PAGES",
)

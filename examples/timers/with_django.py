"""An application that gets a call when a timer is due, with Django, in one file.

PORT=8000 SERVER=http://127.0.0.1:8080 TOWPATH_API_KEY=tp_… python with_django.py
"""

# Django has no types:
# pyright: basic, reportMissingTypeStubs=false

import os
import secrets
import signal
import sys
from typing import Any
from wsgiref.simple_server import make_server

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from towpath.apps.timers.client import TimerClient

port = int(os.environ.get("PORT", "8000"))
timers = TimerClient(
    "shop",
    f"http://127.0.0.1:{port}/timers",
    server=os.environ.get("SERVER", "http://127.0.0.1:8080"),
    key=os.environ["TOWPATH_API_KEY"],
)
settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"], ROOT_URLCONF=__name__, SECRET_KEY=secrets.token_hex()
)


@csrf_exempt  # calls are signed and use no cookie
def called(request: Any) -> HttpResponse:
    body, status = timers.answer(request.headers, request.body)
    return HttpResponse(body, status=status)


urlpatterns = [path("timers", called)]


@timers.on("order.timeout")
def cancel(order: Any) -> None:
    print(f"cancelled {order['order']}", flush=True)


def end(_signal: int, _frame: object) -> None:
    sys.exit()


if __name__ == "__main__":
    # Else this small server would not remove the instance at its end. Gunicorn does it itself.
    signal.signal(signal.SIGTERM, end)
    application: Any = get_wsgi_application()
    with timers, make_server("127.0.0.1", port, application) as server:
        server.serve_forever()

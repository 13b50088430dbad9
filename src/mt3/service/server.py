"""`mt3 serve`: one process that serves a model until it is asked to end."""

import contextlib
import os
import socket
import sys
import warnings

import python_multipart  # noqa: F401  the forms' reader, whose lack is said before anybody sends one
import uvicorn

from mt3.models.classifier import MT3Model
from mt3.service.app import create_app
from mt3.service.limits import Limits
from mt3.support.errors import InputError, shown

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SPARE = 5  # seconds more than the longest request may take, to end


def serve(model: MT3Model, name: str, host: str, port: int, limits: Limits) -> None:
    """Serve until a signal; then take nothing new, and finish what was begun."""
    warnings.filterwarnings("ignore", module="PIL")  # of damaged images; whoever sends one is told
    with listen(host, port) as door:
        app = create_app(model, name, limits)
        longest = int(limits.body_seconds + limits.seconds + SPARE)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=longest
        )
        shown_host = f"[{host}]" if ":" in host else host
        print(f"{name} is served at http://{shown_host}:{door.getsockname()[1]}/ until Ctrl-C", flush=True)
        if host not in LOOPBACK:
            print("Whoever reaches this machine can use it: there is no password.", file=sys.stderr, flush=True)
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn ends in peace, and then raises the signal again
            uvicorn.Server(config).run(sockets=[door])
    print("stopped", flush=True)


def listen(host: str, port: int) -> socket.socket:
    """Take the port; 0 is any that is free."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
        raise InputError(f"Cannot listen at {shown(host)}:{port} ({reason}); give another --host or --port.") from None

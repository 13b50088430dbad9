"""What stands before the application: it reads bodies within their limits, counts, and hides no failure."""

import asyncio
import json
import sys
import time
import traceback
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mt3.service.limits import Limits, Refused
from mt3.service.metrics import Metrics

DRAIN = 4  # bodies' sizes that are read and dropped before a refusal, which some clients otherwise do not see
SAFE = (  # headers of every answer; the page needs nothing from elsewhere
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


def refusal(error: Refused) -> tuple[dict[str, str], dict[str, str]]:
    """The headers and the body of a refusal."""
    return {} if error.again is None else {"retry-after": str(error.again)}, {"error": str(error)}


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics
        self.running = self.held = 0  # requests, and bytes of their bodies
        metrics.gauges["mt3_requests_running"] = ("Requests that are being answered.", lambda: self.running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, answer = time.perf_counter(), _Answer(send)
        self.running += 1
        body = _Body(self, receive)
        try:
            if scope["method"] in ("POST", "PUT", "PATCH"):
                await body.read(dict(scope["headers"]))
            await self.app(scope, body.replay, answer)
        except _Gone:
            answer.status = 499  # as nginx counts clients that went away
        except Refused as error:
            await answer.give(error)
        except Exception:
            traceback.print_exc(file=sys.stderr)
            await answer.give(Refused(500, "The server failed at this; its log says how."))
        finally:
            self.running -= 1
            self.held -= body.size
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.request(path, answer.status, time.perf_counter() - began)


class _Gone(Exception):  # noqa: N818
    """The client went away before its body was whole."""


class _Body:
    """A request's body: read whole, within the limits, before the application sees anything of it."""

    def __init__(self, guard: Guard, receive: Receive) -> None:
        self.guard, self.receive = guard, receive
        self.parts: list[bytes] = []
        self.size = 0
        self.told = False

    async def read(self, headers: dict[bytes, bytes]) -> None:
        limits = self.guard.limits
        if self.guard.running > limits.requests:
            raise Refused(429, f"{limits.requests} requests are being answered already; try again later.", 2)
        try:
            async with asyncio.timeout(limits.body_seconds):
                await self._read(headers)
        except TimeoutError:
            raise Refused(
                503, f"The body did not come within {limits.body_seconds:g} seconds; send it faster."
            ) from None

    async def _read(self, headers: dict[bytes, bytes]) -> None:
        limit, told = self.guard.limits.body_mb * 10**6, headers.get(b"content-length", b"0")
        total, more = 0, True
        if b"expect" in headers and told.isdigit() and int(told) > limit:
            raise self._too_long()  # the client waits for a word before it sends
        while more and total <= DRAIN * limit:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part = message.get("body", b"")
            total, more = total + len(part), message.get("more_body", False)
            if total <= limit:
                self.parts.append(part)
                self.size += len(part)
                self.guard.held += len(part)
                if self.guard.held > self.guard.limits.held_mb * 10**6:
                    raise Refused(429, "The server holds too many uploads at the moment; try again later.", 2)
        if total > limit:
            raise self._too_long()

    def _too_long(self) -> Refused:
        megabytes = self.guard.limits.body_mb
        return Refused(413, f"The body is longer than the {megabytes} MB that are taken; send fewer or smaller images.")

    async def replay(self) -> Message:
        """What the application receives."""
        if self.told:
            return await self.receive()
        self.told = True
        body, self.parts = b"".join(self.parts), []
        return {"type": "http.request", "body": body, "more_body": False}


class _Answer:
    """Passes an answer on, with the headers that all have, and notes its status."""

    def __init__(self, send: Send) -> None:
        self.send, self.status, self.begun = send, 500, False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.begun = message["status"], True
            message = dict(message) | {"headers": [*message.get("headers", ()), *SAFE]}
        await self.send(message)

    async def give(self, error: Refused) -> None:
        if self.begun:  # nothing can be said any more
            return
        more, told = refusal(error)
        body = json.dumps(told).encode()
        headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.encode(), value.encode()) for name, value in more.items()]
        await self({"type": "http.response.start", "status": error.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})

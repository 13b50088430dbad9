"""A server in this process, and requests to it."""

import base64
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import mt3
from mt3.service.limits import Limits

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def served_model() -> mt3.MT3Model:
    """Small, with the classes of the example photos, and weights under which a step changes answers."""
    torch.manual_seed(0)
    adaptation = mt3.Adaptation(lr=0.5, views=2)
    return mt3.MT3Model(
        "resnet8x4", 10, hidden=16, projection=8, size=32, classes=CLASSES, adaptation=adaptation
    ).eval()


@contextmanager
def served(model: mt3.MT3Model | None = None, name: str = "small", **limits: Any) -> Iterator[str]:
    """The address of a server on a free port, whose limits are these."""
    import uvicorn

    from mt3.service.app import create_app
    from mt3.service.server import listen

    app = create_app(model or served_model(), name, Limits(**limits))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    with listen("127.0.0.1", 0) as door:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def ask(url: str, body: bytes | dict[str, Any] | None = None, **headers: str) -> tuple[int, Any]:
    """Status and answer, which is read if it is JSON; a body makes it a POST."""
    if isinstance(body, dict):
        body, headers = json.dumps(body).encode(), {"content-type": "application/json"} | headers
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, content, kind = answer.status, answer.read(), answer.headers.get_content_type()
    except urllib.error.HTTPError as error:
        status, content, kind = error.code, error.read(), error.headers.get_content_type()
    return status, json.loads(content) if kind == "application/json" else content


def form(*parts: tuple[str, str | None, bytes]) -> tuple[bytes, str]:
    """A multipart body of (field, file name or none, content), and its content type."""
    body = b""
    for field, file, content in parts:
        named = "" if file is None else f'; filename="{file}"'
        body += f'--cut\r\ncontent-disposition: form-data; name="{field}"{named}\r\n\r\n'.encode() + content + b"\r\n"
    return body + b"--cut--\r\n", "multipart/form-data; boundary=cut"


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()

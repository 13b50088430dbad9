"""The application: its paths, and what each answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from mt3 import corruptions
from mt3.data.image_files import TooLargeError
from mt3.models.classifier import MT3Model
from mt3.service.describe import EXAMPLES, PAGE, describe
from mt3.service.engine import EXPLAINED_STEPS, NO_CORRUPTION, Engine, stream_methods
from mt3.service.guard import Guard, refusal
from mt3.service.limits import Limits, Refused
from mt3.service.uploads import Upload, read_upload, read_words
from mt3.support.errors import InputError, shown
from mt3.support.version import __version__


def create_app(model: MT3Model, name: str = "a model", limits: Limits | None = None) -> FastAPI:
    """The service of a model; it begins to compute when it is started."""
    limits = limits or Limits()
    engine = Engine(model, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        engine.close()

    # no pages of FastAPI's own: they load from elsewhere
    app = FastAPI(title="mt3", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.engine, app.state.name = engine, name
    for path, (method, function) in PATHS.items():
        app.add_api_route(path, function, methods=[method], response_model=None)
    app.mount("/page", StaticFiles(directory=PAGE))
    app.add_middleware(Guard, limits=limits, metrics=engine.metrics)
    for kind in (InputError, Refused, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _refuse)
    app.openapi = lambda: describe(app, limits)  # type: ignore[method-assign]
    return app


async def _refuse(_: Request, error: Exception) -> Response:
    """One sentence, whatever is wrong."""
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        headers |= error.headers or {}
        error = Refused(error.status_code, f"{shown(error.detail)}.")
    elif isinstance(error, InputError):
        error = Refused(413 if isinstance(error, TooLargeError) else 422, str(error))
    elif not isinstance(error, Refused):
        error = Refused(422, "Expected other parameters; see /openapi.json.")
    more, told = refusal(error)
    return JSONResponse(told, error.status, headers | more)


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


async def _one_image(request: Request, *words: str) -> tuple[Upload, dict[str, Any]]:
    asked = await read_upload(request, _engine(request).limits, words)
    if len(asked.images) > 1:
        raise Refused(413, f"Expected one image, got {len(asked.images)}; send them apart.")
    return asked.images[0], asked.words


async def show_page() -> Response:
    return FileResponse(PAGE / "index.html")


async def predict(request: Request) -> Response:
    asked = await read_upload(request, _engine(request).limits, ("options",))
    answers = await _engine(request).predict(asked.images, asked.words.get("options", {}))
    return JSONResponse({"answers": answers})


async def explain(request: Request) -> Response:
    image, words = await _one_image(request, "options")
    return JSONResponse(await _engine(request).explain(image, words.get("options", {})))


async def corrupt(request: Request) -> Response:
    image, words = await _one_image(request, "corruption", "severity", "seed")
    name, severity = words.get("corruption", NO_CORRUPTION), words.get("severity", 5)
    content = await _engine(request).corrupt(image, name, severity, words.get("seed", 0))
    return Response(content, media_type="image/png")


async def begin_stream(request: Request) -> Response:
    words = await read_words(request, ("options",))
    name, adaptation = _engine(request).begin_stream(words.get("options", {}))
    seconds = _engine(request).limits.stream_seconds
    return JSONResponse({"id": name, "seconds": seconds, "adaptation": adaptation.to_dict()}, 201)


async def predict_next(request: Request, stream: str) -> Response:
    engine = _engine(request)
    engine.sessions.find(stream)  # before anything else is wrong
    asked = await read_upload(request, engine.limits)
    return JSONResponse({"answers": await engine.predict_next(stream, asked.images)})


async def end_stream(request: Request, stream: str) -> Response:
    _engine(request).sessions.end(stream)
    return Response(status_code=204)


async def about(request: Request) -> Response:
    engine = _engine(request)
    model = engine.model
    adapts = model.objective is not None
    return JSONResponse(
        {
            "version": __version__,
            "model": request.app.state.name,
            "size": engine.size,
            "classes": list(model.classes or map(str, range(model.num_classes))),
            "adaptation": model.adaptation.to_dict() if adapts else None,
            "limits": asdict(engine.limits) | {"explained_steps": min(EXPLAINED_STEPS, engine.limits.max_steps)},
            "corruptions": list(corruptions.available()),
            "streams": [{"name": name, "title": title} for name, title in stream_methods(model).items()],
            "examples": [{"file": f"page/examples/{file.name}", "class": kind} for kind, file in EXAMPLES],
        }
    )


async def health(request: Request) -> Response:
    return JSONResponse({"status": "ok", "model": request.app.state.name, "waiting": len(_engine(request).batcher)})


async def metrics(request: Request) -> Response:
    return PlainTextResponse(_engine(request).metrics.text(), media_type="text/plain; version=0.0.4")


PATHS: dict[str, tuple[str, Any]] = {
    "/": ("GET", show_page),
    "/predict": ("POST", predict),
    "/explain": ("POST", explain),
    "/corrupt": ("POST", corrupt),
    "/streams": ("POST", begin_stream),
    "/streams/{stream}/predict": ("POST", predict_next),
    "/streams/{stream}": ("DELETE", end_stream),
    "/about": ("GET", about),
    "/health": ("GET", health),
    "/metrics": ("GET", metrics),
}

"""The description of the service in OpenAPI, with examples that work; and where the page's files are."""

import base64
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from mt3.config.adaptation import ANSWERS, BOUNDS, LAYERS, RESETS
from mt3.config.rivals import RIVALS
from mt3.corruptions import CORRUPTIONS
from mt3.service.limits import OPTIONS, STREAM_OPTIONS, Limits
from mt3.support.errors import name_list
from mt3.support.version import __version__

PAGE = Path(str(resources.files("mt3"))) / "service" / "page"
# real images, with the classes that their labels say; README.md beside them has their origin
EXAMPLES = [(file.stem.rpartition("-")[0], file) for file in sorted((PAGE / "examples").glob("*-*.png"))]

Schema = dict[str, Any]

WORDS = {
    "/": "The page to try it on.",
    "/predict": "Adapt to each image by itself, answer, and discard the step.",
    "/explain": "The answer for one image with all probabilities, the loss after every step, and the views.",
    "/corrupt": "One image as the model gets it, under a corruption of the benchmarks.",
    "/streams": "Begin a stream, which keeps what it learns from image to image; steps have a guard.",
    "/streams/{stream}/predict": "Answer the next images of a stream.",
    "/streams/{stream}": "End a stream.",
    "/about": "The model, its classes, how it adapts, and the limits of this server.",
    "/health": "Whether the server answers.",
    "/metrics": "Counts for Prometheus.",
}
REFUSALS = {
    404: "No such stream: it ended, or another server process has it",
    413: "Too large: the body, an image, or their number",
    422: "Not what was expected",
    429: "Too much at the moment; try again after the seconds in Retry-After",
    503: "Shutting down, or out of time",
}


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required}


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
MAYBE: Schema = {"type": ["number", "null"], "description": "None where it is not finite."}
PROBLEM = _object(["error"], error=TEXT | {"description": "One sentence: what was expected, what came, what to do."})
KIND = _object(
    ["class", "index", "probability"],
    **{"class": TEXT, "index": {"type": "integer"}, "probability": NUMBER, "probabilities": _list(NUMBER)},
)
ANSWER = _object(
    ["image", "converted", "before", "after", "adapted"],
    image=TEXT,
    converted=_list(TEXT, description="What was done to the image to make it one of the model's size."),
    before=_ref("Kind"),
    after={"anyOf": [_ref("Kind"), {"type": "null"}], "description": "None where the model cannot adapt."},
    adapted={
        "type": "boolean",
        "description": "Not where the model was sure enough, or a stream begins.",
    },
    loss_before=MAYBE,
    loss_after=MAYBE,
    gradient_norm=MAYBE,
)
STREAM = _object(
    ["id", "seconds", "adaptation"],
    id=TEXT,
    seconds=NUMBER | {"description": "Without a request after which the stream is forgotten."},
    adaptation={"type": "object", "description": "How the stream adapts, as mt3.Adaptation."},
)
EXPLANATION = {
    "allOf": [
        _ref("Answer"),
        _object(
            ["seconds", "losses", "views"],
            seconds=NUMBER,
            losses=_list(MAYBE, description="Before the first step, and after each; of the first step's views."),
            views=_list(_list(TEXT), description="PNG files in base64; those compared with each other are together."),
        ),
    ]
}


def options_schema(limits: Limits, names: tuple[str, ...]) -> Schema:
    """What a request may say about its adaptation."""
    known: dict[str, Schema] = {
        "method": {"type": "string", "enum": list(RIVALS)},
        "steps": {"type": "integer", "minimum": 0, "maximum": limits.max_steps},
        "lr": {"type": "number", "minimum": BOUNDS["lr"][0], "maximum": BOUNDS["lr"][1]},
        "views": {"type": "integer", "minimum": 1, "maximum": limits.max_views},
        "layers": {"type": "string", "enum": list(LAYERS)},
        "gate": {"type": "number", "minimum": 0, "maximum": 1},
        "momentum": {"type": "number", "minimum": 0, "maximum": 1},
        "batch": {"type": "integer", "minimum": 1, "maximum": limits.images},
        "answer": {"type": "string", "enum": list(ANSWERS)},
        "reset": {"type": "string", "description": f"One of {name_list(RESETS)}."},
    }
    about = "Fields of mt3.Adaptation, and a method's name; what is left out is as the model was trained for."
    properties = {name: known[name] for name in names}
    return {"type": "object", "description": about, "properties": properties, "additionalProperties": False}


def _body(most: int, more: dict[str, Schema], example: dict[str, Any]) -> Schema:
    """A body with images, as a form or as JSON; the example is of JSON."""
    encoded = {"type": "string", "format": "byte", "contentEncoding": "base64"}
    file = {"type": "string", "format": "binary"}
    bodies = {}
    for kind, image in (("application/json", encoded), ("multipart/form-data", file)):
        properties = {"images": _list(image, minItems=1, maxItems=most)} | more
        bodies[kind] = {"schema": _object(["images"], **properties) | {"additionalProperties": False}}
    bodies["application/json"]["example"] = example
    return {"required": True, "content": bodies}


def _bodies(limits: Limits) -> dict[str, Schema]:
    """What is sent to each path; the examples are posted by a test."""
    image = base64.b64encode(EXAMPLES[0][1].read_bytes()).decode()
    asked = {"images": [image], "options": {"steps": 1, "views": 8}}
    options = {"options": _ref("Options")}
    corruption: dict[str, Schema] = {
        "corruption": {"type": "string", "enum": ["none", *CORRUPTIONS]},
        "severity": {"type": "integer", "minimum": 1, "maximum": 5},
        "seed": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    }
    begin = _object([], options=_ref("StreamOptions")) | {"additionalProperties": False}
    example = {"options": {"method": "tent", "lr": 0.05}}
    return {
        "/predict": _body(limits.images, options, asked),
        "/explain": _body(1, options, asked),
        "/corrupt": _body(1, corruption, {"images": [image], "corruption": "fog", "severity": 3}),
        "/streams": {"required": False, "content": {"application/json": {"schema": begin, "example": example}}},
        "/streams/{stream}/predict": _body(limits.images, {}, {"images": [image]}),
    }


def _answers() -> dict[str, Schema]:
    """What each path gives where nothing is wrong."""
    answers = {"application/json": {"schema": _ref("Answers")}}
    return {
        "/": {"text/html": {"schema": TEXT}},
        "/predict": answers,
        "/explain": {"application/json": {"schema": _ref("Explanation")}},
        "/corrupt": {"image/png": {"schema": TEXT | {"format": "binary"}}},
        "/streams": {"application/json": {"schema": _ref("Stream")}},
        "/streams/{stream}/predict": answers,
        "/metrics": {"text/plain": {"schema": TEXT}},
    }


def describe(app: FastAPI, limits: Limits) -> Schema:
    """OpenAPI's description of an application with these limits."""
    if app.openapi_schema:
        return app.openapi_schema
    about = "Image classifiers that adapt to each single image before they answer."
    found = get_openapi(title="mt3", version=__version__, description=about, routes=app.routes)
    schemas = {"Problem": PROBLEM, "Kind": KIND, "Answer": ANSWER, "Explanation": EXPLANATION, "Stream": STREAM}
    schemas["Answers"] = _object(["answers"], answers=_list(_ref("Answer")))
    schemas["Options"] = options_schema(limits, OPTIONS)
    schemas["StreamOptions"] = options_schema(limits, STREAM_OPTIONS)
    found["components"] = {"schemas": schemas}
    bodies, answers, plain = _bodies(limits), _answers(), {"application/json": {"schema": {"type": "object"}}}
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            operation["summary"] = WORDS[path]
            status = "204" if method == "delete" else "201" if path == "/streams" else "200"
            done: Schema = {"description": "Done"} | ({} if status == "204" else {"content": answers.get(path, plain)})
            operation["responses"] = {status: done}
            if path in bodies:
                operation["requestBody"] = bodies[path]
            if path in bodies or method == "delete":
                operation["responses"] |= _refusals("{stream}" in path)
    app.openapi_schema = found
    return found


def _refusals(of_stream: bool) -> Schema:
    problem = {"application/json": {"schema": _ref("Problem")}}
    return {
        str(status): {"description": words, "content": problem}
        for status, words in REFUSALS.items()
        if status != 404 or of_stream
    }

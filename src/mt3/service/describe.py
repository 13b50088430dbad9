"""The description of the service in OpenAPI, with examples that work; and where the page's files are."""

import base64
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from mt3.config.adaptation import BOUNDS, LAYERS
from mt3.corruptions import CORRUPTIONS
from mt3.service.limits import Limits
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
    "/about": "The model, its classes, how it adapts, and the limits of this server.",
    "/health": "Whether the server answers.",
    "/metrics": "Counts for Prometheus.",
}
REFUSALS = {
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
    adapted={"type": "boolean", "description": "Not where the model was sure enough already."},
    loss_before=NUMBER,
    loss_after=NUMBER,
    gradient_norm=NUMBER,
)
EXPLANATION = {
    "allOf": [
        _ref("Answer"),
        _object(
            ["seconds", "losses", "views"],
            seconds=NUMBER,
            losses=_list(NUMBER, description="Before the first step, and after each; of the first step's views."),
            views=_list(_list(TEXT), description="PNG files in base64; those compared with each other are together."),
        ),
    ]
}


def options_schema(limits: Limits) -> Schema:
    """What a request may say about its adaptation."""
    properties: dict[str, Schema] = {
        "steps": {"type": "integer", "minimum": 0, "maximum": limits.max_steps},
        "lr": {"type": "number", "minimum": BOUNDS["lr"][0], "maximum": BOUNDS["lr"][1]},
        "views": {"type": "integer", "minimum": 1, "maximum": limits.max_views},
        "layers": {"type": "string", "enum": list(LAYERS)},
        "gate": {"type": "number", "minimum": 0, "maximum": 1},
    }
    about = "Fields of mt3.Adaptation; what is left out is as the model was trained for."
    return {"type": "object", "description": about, "properties": properties, "additionalProperties": False}


def _body(limits: Limits, most: int, more: dict[str, Schema], example: dict[str, Any]) -> Schema:
    """A body with images, as a form or as JSON; the example is of JSON."""
    encoded = {"type": "string", "format": "byte", "contentEncoding": "base64"}
    file = {"type": "string", "format": "binary"}
    bodies = {}
    for kind, image in (("application/json", encoded), ("multipart/form-data", file)):
        properties = {"images": _list(image, minItems=1, maxItems=most)} | more
        bodies[kind] = {"schema": _object(["images"], **properties) | {"additionalProperties": False}}
    bodies["application/json"]["example"] = example
    return {"required": True, "content": bodies}


def describe(app: FastAPI, limits: Limits) -> Schema:
    """OpenAPI's description of an application with these limits."""
    if app.openapi_schema:
        return app.openapi_schema
    about = "Image classifiers that adapt to each single image before they answer."
    found = get_openapi(title="mt3", version=__version__, description=about, routes=app.routes)
    found["components"] = {
        "schemas": {"Problem": PROBLEM, "Kind": KIND, "Answer": ANSWER, "Explanation": EXPLANATION}
        | {"Answers": _object(["answers"], answers=_list(_ref("Answer"))), "Options": options_schema(limits)}
    }
    image = base64.b64encode(EXAMPLES[0][1].read_bytes()).decode()
    asked = {"images": [image], "options": {"steps": 1, "views": 8}}
    options = {"options": _ref("Options")}
    corruption: dict[str, Schema] = {
        "corruption": {"type": "string", "enum": ["none", *CORRUPTIONS]},
        "severity": {"type": "integer", "minimum": 1, "maximum": 5},
        "seed": {"type": "integer", "minimum": 0, "maximum": 2**32 - 1},
    }
    bodies = {
        "/predict": _body(limits, limits.images, options, asked),
        "/explain": _body(limits, 1, options, asked),
        "/corrupt": _body(limits, 1, corruption, {"images": [image], "corruption": "fog", "severity": 3}),
    }
    answers = {
        "/": {"text/html": {"schema": TEXT}},
        "/predict": {"application/json": {"schema": _ref("Answers")}},
        "/explain": {"application/json": {"schema": _ref("Explanation")}},
        "/corrupt": {"image/png": {"schema": TEXT | {"format": "binary"}}},
        "/metrics": {"text/plain": {"schema": TEXT}},
    }
    plain = {"application/json": {"schema": {"type": "object"}}}
    for path, methods in found["paths"].items():
        for operation in methods.values():
            operation["summary"] = WORDS[path]
            operation["responses"] = {"200": {"description": "Done", "content": answers.get(path, plain)}}
            if path in bodies:
                operation["requestBody"] = bodies[path]
                operation["responses"] |= {
                    str(status): {"description": words, "content": {"application/json": {"schema": _ref("Problem")}}}
                    for status, words in REFUSALS.items()
                }
    app.openapi_schema = found
    return found

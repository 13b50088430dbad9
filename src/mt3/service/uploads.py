"""Images and words of a request, from multipart forms or JSON."""

import base64
import binascii
import json
from typing import Any, NamedTuple

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from mt3.service.limits import Limits, Refused
from mt3.support.errors import InputError, one_of, shown

MAX_PARTS = 1000  # of a form; the body's length bounds their memory
PLAIN = ("corruption",)  # fields of a form that are text and not JSON
TYPES = "multipart/form-data with the field images, or application/json"


class Upload(NamedTuple):
    """A file as it came."""

    name: str
    content: bytes


class Asked(NamedTuple):
    """What a request holds."""

    images: list[Upload]
    words: dict[str, Any]  # the other fields


async def read_upload(request: Request, limits: Limits, words: tuple[str, ...] = ()) -> Asked:
    """The images of a request and, of its other fields, those in `words`."""
    asked = await _read(request, ("images", *words))
    if not asked.images:
        raise InputError("Expected at least one image in the field images, got none.")
    if len(asked.images) > limits.images:
        sentence = f"Expected at most {limits.images} images in a request, got {len(asked.images)}; send them apart."
        raise Refused(413, sentence)
    return asked


async def read_words(request: Request, words: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a request without images; an empty body has none."""
    if not await request.body():
        return {}
    asked = await _read(request, words)
    if asked.images:
        raise InputError("Expected no images here, got some; leave them out.")
    return asked.words


async def _read(request: Request, fields: tuple[str, ...]) -> Asked:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        images, found = await _read_form(request)
    elif kind == "application/json":
        images, found = _read_json(await request.body())
    else:
        raise InputError(f"Expected a body of {TYPES}, got '{shown(kind)}'.")
    unknown = [name for name in found if name not in fields]
    if unknown:
        raise InputError(one_of("field", unknown[0], fields))
    return Asked(images, found)


def parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text, parse_float=_number)
    except (ValueError, RecursionError):  # the first for bytes that are no text, too
        raise InputError(f"Expected JSON, got '{shown(repr(text[:40]))}'.") from None


def _number(text: str) -> float:
    """JSON knows one kind of number, so that 2.0 is a whole one."""
    value = float(text)
    return int(value) if value.is_integer() else value


async def _read_form(request: Request) -> tuple[list[Upload], dict[str, Any]]:
    try:
        async with request.form(max_files=MAX_PARTS, max_fields=MAX_PARTS, max_part_size=2**31) as form:
            return await _form_parts(form)
    except InputError:
        raise
    except Exception:  # damaged bytes can raise anything in the parser
        raise InputError("Expected a whole multipart form, got a damaged one.") from None


async def _form_parts(form: FormData) -> tuple[list[Upload], dict[str, Any]]:
    images: list[Upload] = []
    words: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name == "images":
            if not isinstance(value, UploadFile):
                raise InputError("Expected files in the field images, got text; with curl, -F images=@photo.png.")
            called = shown(value.filename or f"image {len(images) + 1}")
            images.append(Upload(called, await value.read()))
        elif isinstance(value, str):
            words[name] = value if name in PLAIN else parse_json(value)
        else:
            raise InputError(f"Expected text in the field {shown(name)}, got a file.")
    return images, words


def _read_json(body: bytes) -> tuple[list[Upload], dict[str, Any]]:
    found = parse_json(body)
    given = found.pop("images", []) if isinstance(found, dict) else None
    if not isinstance(given, list):
        raise InputError('Expected an object with a list of images, as {"images": ["iVBORw0..."]}.')
    images = []
    for number, text in enumerate(given, 1):
        try:
            images.append(Upload(f"image {number}", base64.b64decode(text, validate=True)))
        except (binascii.Error, ValueError, TypeError):
            raise InputError(f"Expected image {number} as text in base64, got {_kind(text)}.") from None
    return images, found


def _kind(value: Any) -> str:
    return f"'{shown(value)}'" if isinstance(value, str) else f"a value of JSON's other kinds ({type(value).__name__})"

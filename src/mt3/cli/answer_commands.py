"""How the command line answers for images: of files, or of requests to a service. Torch is imported where needed."""

import argparse
import json
import sys
from dataclasses import fields

from mt3.cli.arguments import set_up
from mt3.cli.method_commands import next_adaptation
from mt3.service.limits import Limits
from mt3.support.errors import InputError, shown


def predict_command(args: argparse.Namespace) -> None:
    from mt3.data.image_files import read_image, silent_readers
    from mt3.evaluation.predict import predict
    from mt3.models.store import load

    model = load(args.model)
    if model.size is None:
        raise InputError(f"{args.model} takes images of any size, and does not say to which to scale them.")
    with silent_readers():
        read = [read_image(path, model.size) for path in args.images]
    model = model.to(set_up(args))
    adaptation = next_adaptation(args, model)
    answers = predict(model, [image for image, _ in read], adaptation, args.seed)
    plain = sum(not answer["adapted"] for answer in answers)
    if plain and adaptation is not None and adaptation.carry == "stream":
        rest = f", the other {len(answers) - plain} by what it has become" if plain < len(answers) else ""
        print(f"a stream: {plain} of {len(answers)} images are answered by the model as it is{rest}", file=sys.stderr)
    for answer, file, (_, notes) in zip(answers, args.images, read, strict=True):
        answer |= {"image": str(file), "converted": notes}
    if args.json:
        print(json.dumps(answers, indent=2))
        return
    for answer in answers:
        if answer["converted"]:
            print(f"{shown(answer['image'], 4096)}: {', '.join(answer['converted'])}", file=sys.stderr)
        before, after = answer["before"], answer["after"]
        line = f"{shown(answer['image'], 4096)}: {shown(before['class'])} {100 * before['probability']:.1f} % before"
        if after is None:
            line += " (does not adapt)"
        elif not answer["adapted"]:
            line += " (not adapted)"
        else:
            line += f", {shown(after['class'])} {100 * after['probability']:.1f} % after adapting"
        print(line)


def serve_command(args: argparse.Namespace) -> None:
    limits = Limits(**{field.name: getattr(args, field.name) for field in fields(Limits)})
    from mt3.models.store import load

    try:
        from mt3.service.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "uvicorn", "multipart", "python_multipart", "starlette"):
            raise
        raise InputError(f"Serving needs {error.name}; install the extra, `pip install 'mt3[serve]'`.") from None
    model = load(args.model).to(set_up(args))
    serve(model, args.model.name, args.host, args.port, limits)

"""The service asked for all that its description allows, and for what it does not: it never fails."""

from collections.abc import Iterator

import pytest

from mt3.service.app import PATHS
from serving import ask, served

schemathesis = pytest.importorskip("schemathesis", reason="asking by the description needs schemathesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import CHECKS, load_all_checks  # noqa: E402

load_all_checks()
# a description cannot say which bytes are an image, nor which methods go with a model
NOT_DESCRIBED = [CHECKS.get_one(name) for name in ("positive_data_acceptance", "negative_data_rejection")]
WRONG = [path for path, (method, _) in PATHS.items() if method == "POST"]  # what can be asked in a wrong way
KINDS = [(path, GenerationMode.POSITIVE) for path in PATHS] + [(path, GenerationMode.NEGATIVE) for path in WRONG]
FEW, MANY = 8, 100  # requests of each kind


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of its own, since streams that are opened here stay open."""
    with served(seconds=600.0) as address:
        yield address


def ask_for_anything(url: str, path: str, mode: GenerationMode, count: int) -> None:
    """Ask a path for so many things, and compare each answer with the description."""
    operation = schemathesis.openapi.from_url(f"{url}/openapi.json")[path][PATHS[path][0]]
    stream = ask(f"{url}/streams", {})[1].get("id", "none") if "{stream}" in path else ""
    seen: list[int] = []

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    def check(case: schemathesis.Case) -> None:
        if stream and len(seen) % 2:
            case.path_parameters = {"stream": stream}
        answer = case.call(base_url=url, timeout=120)
        seen.append(answer.status_code)
        case.validate_response(answer, excluded_checks=NOT_DESCRIBED)

    check()
    assert seen
    assert max(seen) < 500


@pytest.mark.parametrize(("path", "mode"), KINDS)
def test_a_few_requests_of_every_kind(url, path, mode):
    ask_for_anything(url, path, mode, FEW)


@pytest.mark.slow
@pytest.mark.parametrize(("path", "mode"), KINDS)
def test_many_requests_of_every_kind(url, path, mode):
    ask_for_anything(url, path, mode, MANY)

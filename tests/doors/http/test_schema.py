"""`/openapi.json` tells the truth: whatever is sent by it, and against it, gets an answer that it documents."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.doors.http.serving import Served, make_desk, serving
from vivavoce.doors.http.app import build_app, build_legacy_app
from vivavoce.doors.http.desk import Desk

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]


def described(build: Callable[[Desk], FastAPI]) -> schemathesis.BaseSchema:
    async def description() -> dict[str, Any]:
        return build(make_desk()).openapi()

    return schemathesis.openapi.from_dict(asyncio.run(description()))


def bounded(examples: int) -> settings:
    """So many for each route, the same ones each time."""
    everything = list(HealthCheck)
    return settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=everything)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serving(build_app) as served:
        yield served


@pytest.fixture(scope="module")
def legacy() -> Iterator[Served]:
    with serving(build_legacy_app) as served:
        yield served


@described(build_app).parametrize()
@bounded(15)
def test_answers_are_as_documented(case: schemathesis.Case[Any], server: Served) -> None:
    case.call_and_validate(base_url=server.url, checks=CHECKS)


@described(build_legacy_app).parametrize()
@bounded(4)
def test_answers_of_cosyvoices_routes_are_as_documented(case: schemathesis.Case[Any], legacy: Served) -> None:
    also_get = [check for check in CHECKS if check is not unsupported_method]  # its own client sends forms with GET
    case.call_and_validate(base_url=legacy.url, checks=also_get)


def test_no_answer_is_documented_that_never_comes(server: Served) -> None:
    description = httpx.get(f"{server.url}/openapi.json").json()
    assert "HTTPValidationError" not in description["components"]["schemas"]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            statuses = set(operation["responses"])
            assert "422" not in statuses, path
            if method != "post":
                assert not statuses & {"408", "413", "429"}, path

"""The OpenAPI description of the HTTP port, written from the table of routes."""

import re
from typing import Any

from serving.rest.openapi_schemas import SCHEMAS
from serving.rest.routes import ROUTES, Route

_WORDS = {
    400: "The request is malformed, or not what the model expects.",
    404: "There is no such model, version or region.",
    408: "The body came too slowly.",
    409: "The region is registered already.",
    429: "More than the server takes: too many requests, or a request that is too large.",
    500: "A bug of ours; the server's log has the id.",
    501: "The protocol has this; this server does not.",
    503: "Loading or draining, or the version is not ready.",
    504: "The deadline passed, or cannot be met.",
}
# Any path of the protocol's.
_ALWAYS = (400, 408, 429, 500, 503)
_NAME = re.compile(r"\{(\w+)\}")
_BINARY = "application/octet-stream"
_INFER_HEADERS = (
    ("Inference-Header-Content-Length", "Bytes of the body's JSON; tensors in binary follow."),
)
_PAGES = (
    ("/live", "Whether the process answers.", "text/plain", ()),
    ("/ready", "Whether the server wants requests.", "text/plain", (503,)),
    ("/metrics", "Prometheus metrics.", "text/plain", ()),
)


def openapi_document() -> dict[str, Any]:
    """The description, as OpenAPI 3.1 has it."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    for path, summary, kind, refusals in _PAGES:
        answers: dict[str, Any] = {"200": _text("As it says.", kind)}
        for status in refusals:
            answers[str(status)] = _text("Loading or draining.", kind)
        paths[path] = {"get": {"operationId": path[1:], "summary": summary, "responses": answers}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sharded-infer",
            "version": "2",
            "description": "The Open Inference Protocol over HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {"operationId": route.operation, "summary": route.summary}
    names = _NAME.findall(route.path)
    infers = route.body == "InferRequest"
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]
    if infers:
        parameters += [
            {
                "name": name,
                "in": "header",
                "required": False,
                "description": words,
                "schema": {"type": "integer", "minimum": 0},
            }
            for name, words in _INFER_HEADERS
        ]
    if parameters:
        operation["parameters"] = parameters
    if route.body:
        content: dict[str, Any] = {"application/json": {"schema": _reference(route.body)}}
        if infers:
            content[_BINARY] = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": infers, "content": content}
    operation["responses"] = _responses(route)
    return operation


def _responses(route: Route) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": "It is done."}
    if route.answer:
        answer["description"] = "What was asked for."
        answer["content"] = {"application/json": {"schema": _reference(route.answer)}}
    if route.body == "InferRequest":
        answer["content"][_BINARY] = {"schema": {"type": "string", "format": "binary"}}
    responses = {"200": answer}
    for status in sorted({*_ALWAYS, *route.refusals}):
        responses[str(status)] = {
            "description": _WORDS[status],
            "content": {"application/json": {"schema": _reference("Error")}},
        }
    if "429" in responses:
        responses["429"]["headers"] = {
            "Retry-After": {
                "description": "Seconds until there is probably room.",
                "required": False,
                "schema": {"type": "integer", "minimum": 1},
            }
        }
    return responses


def _text(words: str, kind: str) -> dict[str, Any]:
    return {"description": words, "content": {kind: {"schema": {"type": "string"}}}}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}

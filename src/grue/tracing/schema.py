"""Generate the trace's JSON Schema from the message classes, for `grue trace schema`."""

import inspect
from typing import Any

import msgspec

from grue.runtime.trace.format import FORMAT, PayloadReference, TraceHeader, TraceLine
from grue.tracing.reading import known_kinds, union_of


def trace_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a line of a trace file, with the loaded hosts' facts."""
    # Later versions may add fields to a message, so readers must ignore unknown fields.
    types = (TraceHeader, TraceLine, PayloadReference, union_of(known_kinds().values()))
    (header, line, reference, body), definitions = msgspec.json.schema_components(
        types, schema_hook=_any_json, ref_template="#/$defs/{name}"
    )
    for definition in definitions.values():
        definition["description"] = inspect.cleandoc(definition.get("description", ""))
    definitions["TraceLine"]["properties"]["body"] = {"anyOf": [body, _FACT, reference]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a grue trace, format {FORMAT}",
        "description": "The first line is a TraceHeader, every further one a TraceLine.",
        "anyOf": [header, line],
        "$defs": definitions,
    }


_FACT: dict[str, Any] = {
    "description": "A fact of a host: its tag is the host's name, a dot and the kind.",
    "type": "object",
    "properties": {"type": {"type": "string", "pattern": r"^[A-Za-z_]\w*\.\w[\w.]*$"}},
    "required": ["type"],
}


def _any_json(kind: type) -> dict[str, Any]:
    # Of the types without a schema, messages use only `object`: a JSON value of a server, model or host.
    if kind is not object:
        raise NotImplementedError
    return {"description": "Any JSON value."}

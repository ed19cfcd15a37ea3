"""`grue trace schema`: the JSON Schema of a trace file."""

import json

import typer

from grue.tracing.schema import trace_schema


def schema() -> None:
    """Print the JSON Schema of the format that this version writes."""
    typer.echo(json.dumps(trace_schema(), indent=2))

"""`grue trace`: what people want to see of a trace file."""

import os
import shutil
import sys
from pathlib import Path

import typer

from grue.tracing.reading import read_episode
from grue.tracing.show import render, summary

_UNKNOWN_WIDTH = 100


def show(file: Path, width: int | None) -> None:
    """Print a trace as a table; cut to the terminal's width, whole in a pipe unless a width is given."""
    trace = read_episode(file / "trace.jsonl" if file.is_dir() else file)
    at_terminal = sys.stdout.isatty()
    if width is None and at_terminal:
        width = shutil.get_terminal_size((_UNKNOWN_WIDTH, 24)).columns
    colour = at_terminal and not os.environ.get("NO_COLOR")
    for line in render(trace, width=width, colour=colour):
        typer.echo(line, color=colour)
    for line in ("", *summary(trace)):
        typer.echo(line)

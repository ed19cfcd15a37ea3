"""The guide's example runs, prints what the guide says, and needs nothing but the runtime."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import Struct

from grue.runtime.trace.reader import read_trace

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "two_actors.py"
GUIDE = DOCS / "guides" / "runtime.md"


class Measure(Struct, frozen=True, tag=True):
    times: int


class Measured(Struct, frozen=True, tag=True):
    celsius: float


class Heat(Struct, frozen=True, tag=True):
    degrees: float


def run(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, timeout=30
    ).stdout


@pytest.mark.slow
def test_the_guide_quotes_what_the_example_prints() -> None:
    quoted = GUIDE.read_text().split("$ .venv/bin/python docs/examples/two_actors.py\n")[1].split("```")[0]
    assert run(str(EXAMPLE)) == quoted


def test_the_code_in_the_guide_is_the_examples() -> None:
    code = EXAMPLE.read_text()
    blocks = [part.split("```")[0] for part in GUIDE.read_text().split("```python\n")[1:]]
    lines = [line for block in blocks[:2] for line in block.splitlines() if line.strip()]
    assert len(lines) > 5
    assert [line for line in lines if line not in code.splitlines()] == []


@pytest.mark.slow
def test_its_trace_can_be_read_as_the_guide_says(tmp_path: Path) -> None:
    path = tmp_path / "morning.jsonl"
    run(str(EXAMPLE), str(path))
    trace = read_trace(path, Measure | Measured | Heat | float)
    assert trace.header.episode == "a cold morning"
    assert trace.envelopes[0].body == Measure(times=4)
    assert trace.envelopes[2].body == Heat(degrees=2.0)
    assert trace.envelopes[-1].body == 19.5
    assert [envelope.seq for envelope in trace.envelopes] == list(range(1, 11))


@pytest.mark.slow
def test_the_runtime_loads_nothing_of_models_or_tools() -> None:
    look = (
        "import sys, runpy; runpy.run_path(sys.argv[1]); "
        "print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'httpx', 'pydantic') "
        "or name in ('grue.messages', 'grue.protocol', 'grue.actors')])"
    )
    assert run("-c", look, str(EXAMPLE)) == "[]\n"

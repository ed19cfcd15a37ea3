"""A trace that cannot be written any more, at whatever message: the host gets `TraceError`."""

import subprocess
import sys
from pathlib import Path

import pytest

from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

PROGRAM = """
import collections, resource, signal, sys
from pathlib import Path
from grue import FunctionTools, LlmSettings, Runner, TraceWriter, Recorder, TurnRequest
from grue.errors import TraceError

url, folder, lifetime = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
found = collections.Counter()

def echo(text: str) -> str:
    "Return the text."
    return text * 100

whole = 0
for room in range(0, 20_000, 500):
    path = Path(folder) / f"{room}.jsonl"
    if room:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        llm = LlmSettings(base_url=url, model="m")
        with Runner(llm=llm, servers={"f": FunctionTools([echo])}, trace=path, keep=lifetime) as runner:
            outcome = runner.run_turn(TurnRequest(user="u", on_delta=lambda delta: None))
        found["answered"] += 1
    except Exception as error:
        found[type(error).__name__] += 1
        assert isinstance(error, TraceError) and "large" in str(error), repr(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert found["TraceError"] > 10 and found["answered"] >= 1, found
print("always told")
"""


@pytest.mark.parametrize("lifetime", ["nothing", "loop"])
@pytest.mark.slow
def test_a_disk_that_is_full_at_whatever_message_is_a_trace_error(lifetime: str, tmp_path: Path) -> None:
    def answer(request: LlmRequest) -> LlmReply:
        if any(message["role"] == "tool" for message in request.messages):
            return text_reply("done")
        return tool_calls_reply(("f.echo", {"text": "hello"}))

    with ScriptedLlmServer(answer) as llm:
        command = [sys.executable, "-c", PROGRAM, llm.base_url, str(tmp_path), lifetime]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "always told\n", done.stderr[-3000:]


OUTSIDE = """
import resource, signal, sys
from pathlib import Path
from grue import FunctionTools, LlmSettings, Runner
from grue.errors import TraceError

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
told = whole = 0

def echo(text: str) -> str:
    "Return the text."
    return text * 10

for room in range(0, 4_000, 100):
    path = Path(sys.argv[1]) / f"{room}.jsonl"
    if room:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    llm = LlmSettings(base_url="http://127.0.0.1:9/v1", model="m")
    try:
        with Runner(llm=llm, servers={"f": FunctionTools([echo])}, trace=path) as runner:
            runner.call("f.echo", {"text": "hello"})
    except TraceError as error:
        assert "large" in str(error), repr(error)
        told += 1
    else:
        assert path.read_text().endswith("}\\n") and '"SessionClosed"' in path.read_text(), room
        whole += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert told > 10 and whole > 1, (told, whole)
print("always told")
"""


@pytest.mark.slow
def test_a_disk_that_is_full_at_whatever_message_of_a_call_outside_turns_is_a_trace_error(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", OUTSIDE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "always told\n", done.stderr[-3000:]

"""`Runner.warm_up`: what a turn would import is imported, and nothing else is done."""

import json
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from commands import environment
from faulty_http_server import faulty_http_server
from patient_turns import patient_model
from rows import first_of

from grue.testing import faulty_server

pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")

HEAVY = ("grue", "mcp", "mcp_types", "httpx", "httpcore", "h11", "httpx2", "httpcore2", "pydantic")
RARE = {
    "jsonschema_rs",
    "grue.engine.conversations.recorded_conversation",
    "grue.engine.conversations.resume",
    "grue.engine.fork",
    "grue.engine.waiting_turns",
}
"""What plain turns do without: 6 MB and 15 ms of a process."""
NOBODY = "http://localhost:9/mcp"

PROGRAM = """
    import json
    import sys

    acts = []

    def watch(event, args):
        if event in ("subprocess.Popen", "os.posix_spawn", "os.fork", "socket.connect"):
            acts.append([event, str(args[1:2])])

    sys.addaudithook(watch)
    from grue import FunctionTools, HttpServer, LlmSettings, Runner, StdioServer, TurnRequest

    kind, keep, base_url, url, command, *args = sys.argv[1:]
    server = {
        "stdio": lambda: StdioServer(name="faulty", command=command, args=tuple(args)),
        "url": lambda: HttpServer(name="faulty", url=url),
        "functions": lambda: FunctionTools({"echo": lambda text: text}),
    }[kind]()
    llm = LlmSettings(base_url=base_url, model="m")
    runner = Runner(llm=llm, servers={"faulty": server}, keep=keep)

    seen = set()

    def step(function):
        acts.clear()
        function()
        print(json.dumps({"loaded": sorted({*sys.modules} - seen), "acts": acts}), flush=True)
        seen.update(sys.modules)

    step(lambda: None)
    step(runner.warm_up)
    if kind != "url" or not url.endswith(":9/mcp"):
        ask = TurnRequest(system="s", user="u")
        step(lambda: runner.run_turn(ask))
    runner.close()
"""


def steps(kind: str, keep: str = "nothing", url: str = NOBODY) -> tuple[list[dict[str, Any]], list[int]]:
    """Return what each step of the program loaded and did, and the endpoint's requests and connections.

    The first step is the making of the runner.
    """
    code = textwrap.dedent(PROGRAM)
    with patient_model() as model:
        done = subprocess.run(
            [sys.executable, "-c", code, kind, keep, model.server.base_url, url, *faulty_server.argv()],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        counts = [len(model.server.requests), model.server.accepted, len(model.server.listings)]
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], counts


@pytest.mark.parametrize("keep", first_of(["nothing", "loop"]))
@pytest.mark.slow
def test_after_it_a_turn_has_nothing_left_to_import(keep: str) -> None:
    (made, warming, turn), _ = steps("stdio", keep)
    assert {"mcp", "grue.transports.mcp.sdk"} <= {*warming["loaded"]}
    assert RARE & {*made["loaded"], *warming["loaded"], *turn["loaded"]} == set()
    assert [name for name in turn["loaded"] if name.partition(".")[0] in HEAVY] == []
    # The process that kills servers when the host dies is started, and no server.
    ((event, guard),) = warming["acts"]
    assert event == "subprocess.Popen"
    assert "grue-guard" in guard
    assert [event for event, _ in turn["acts"]] == ["subprocess.Popen", "socket.connect"]
    assert "faulty_server" in turn["acts"][0][1]


@pytest.mark.slow
def test_without_servers_it_imports_what_talks_to_the_model_alone() -> None:
    (_, warming, turn), _ = steps("functions")
    assert "mcp" not in warming["loaded"]
    assert [name for name in turn["loaded"] if name.partition(".")[0] in HEAVY] == []
    assert warming["acts"] == []


@pytest.mark.slow
def test_a_server_that_is_reached_by_url_is_not_asked() -> None:
    (_, warming), asked = steps("url")
    assert {"mcp", "grue.transports.mcp.sdk_http"} <= {*warming["loaded"]}
    assert warming["acts"] == []
    assert asked == [0, 0, 0]


@pytest.mark.slow
def test_after_it_a_turn_with_a_server_by_url_has_nothing_left_to_import_either() -> None:
    with faulty_http_server() as url:
        (_, _, turn), _ = steps("url", url=url)
    assert [name for name in turn["loaded"] if name.partition(".")[0] in HEAVY] == []

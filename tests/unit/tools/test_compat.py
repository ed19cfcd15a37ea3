"""`make compat`: what its page says of rows, and that its list is whole."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

COMPAT = Path(__file__).resolve().parents[3] / "tools" / "compat"


def load(name: str) -> ModuleType:
    """Load a module of the tool, which is a program and not a package."""
    spec = importlib.util.spec_from_file_location(f"compat_{name}", COMPAT / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page() -> Iterator[ModuleType]:
    yield load("page")
    del sys.modules["compat_page"]


def server(**more: Any) -> dict[str, Any]:
    steps = {"listed": "ok", "call": "echo: 0.01 s", "turn": "0.50 s", "episode": "0.10 s", "ahead": "0.20 s"}
    known = {"kind": "Server", "name": "echo", "registry": "npm", "package": "echo", "version": "1.0"}
    return {
        **known,
        "tried": "2026-11-22",
        "load": 1.5,
        "cores": 2,
        "boot_s": 0.4,
        "tools": 3,
        **steps,
        **more,
    }


def endpoint(**more: Any) -> dict[str, Any]:
    steps = {"reply": "ok", "stream": "ok", "schema": "kept", "tool": "called"}
    known = {"kind": "Endpoint", "name": "mock", "registry": "PyPI", "package": "mock", "version": "2.0"}
    lifetimes = {"turn": "ok", "episode": "ok", "ahead": "ok"}
    dated = {"tried": "2026-11-22", "load": 4.0, "cores": 2}
    return {**known, **dated, **lifetimes, "wires": {"chat_completions": steps}, **more}


def test_a_row_has_what_was_measured(page: ModuleType) -> None:
    told = page.page([server(), endpoint()])
    assert (
        "| echo | npm `echo` | 1.0 | 0.40 s | 3 | echo: 0.01 s | 0.50 s | 0.10 s | 0.20 s | nothing |" in told
    )
    assert "1 servers, of which 1 worked in every step; 1 endpoints, of which 1 answered" in told
    assert "| chat completions | ok | ok | kept | called | ok, ok, ok | nothing |" in told
    assert "on 2 cores: " in told
    assert "(with a load of 1.5 to 4)" in told


def test_a_failure_is_a_row_with_its_reason_and_is_not_counted_as_working(page: ModuleType) -> None:
    rows = [
        server(turn="failed: no answer"),
        server(name="gone", failed="a|b"),
        endpoint(failed="it does not listen"),
    ]
    told = page.page(rows)
    assert "2 servers, of which 0 worked in every step; 1 endpoints, of which 0 answered" in told
    assert "failed: no answer" in told
    assert "failed: a\\|b" in told
    assert "failed: it does not listen" in told


def test_a_wire_format_that_is_not_there_is_not_offered(page: ModuleType) -> None:
    refused = (
        "failed: The model 'm' at http://127.0.0.1:1/v1 failed with status 404: Not Found Check the name."
    )
    broken = "failed: The model 'm' at http://127.0.0.1:1/v1 failed with status 500: Oh no Try again later."
    steps = dict.fromkeys(("reply", "stream", "schema", "tool"), refused)
    told = page.page([endpoint(wires={"responses": steps, "messages": {**steps, "reply": broken}})])
    assert "| responses | not offered |  |  |  |" in told
    assert "| messages | failed: status 500: Oh no | not offered |" in told


def test_no_path_of_the_machine_is_on_the_page(page: ModuleType) -> None:
    told = page.page([server(call="lint: 0.10 s, an error: nothing at '/tmp/grue-compat-1/work/a.js'")])
    assert "an error: nothing at '…' |" in told
    assert "npm `echo`" in told


def test_what_is_left_behind_is_named(page: ModuleType) -> None:
    told = page.page([server(left=["process 7"], down="killed", files={"home": 2})])
    assert "process 7; nothing, but it had to be killed; files: 2 in home" in told


def test_the_list_is_long_enough_and_every_name_is_there_once() -> None:
    parts = load("parts")
    names = [part.name for part in (*parts.SERVERS, *parts.ENDPOINTS)]
    assert len(names) == len(set(names))
    assert len(parts.SERVERS) >= 20
    assert len([part for part in parts.ENDPOINTS if part.registry != "grue"]) >= 8
    assert all(part.tool or part.no_call for part in parts.SERVERS)


_LISTENS = """
import http.server, subprocess, sys
away = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open("child", "w").write(str(away.pid))
handler = http.server.SimpleHTTPRequestHandler
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
"""


@pytest.mark.skipif(
    sys.platform != "linux", reason="processes that leave their group are found on Linux only"
)
@pytest.mark.slow
def test_a_program_is_killed_with_what_has_left_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mcp", reason="MCP servers need the extra: pip install 'grue[mcp]'")
    monkeypatch.syspath_prepend(str(COMPAT))
    trial = load("try_server")
    port = trial.free_port()
    with trial.started([sys.executable, "-c", _LISTENS, str(port)], {}, tmp_path, port):
        child = psutil.Process(int((tmp_path / "child").read_text()))
        assert child.is_running()
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE

"""The examples of docs/examples/deploying and beside: each does its work against an endpoint on loopback."""

import asyncio
import csv
import importlib.util
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from commands import environment
from obliging_llm import oblige
from patient_turns import patient_model, wait_until

from grue import LlmSettings
from grue.hosting import read_episode
from grue.hosts.servers import think
from grue.messages import Interrupted, TurnFailed
from grue.testing.llm_server import LlmReply, LlmRequest, ScriptedLlmServer, error_reply

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
ANSWERED = {"text": "scripted", "sure": False}


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(name).stem, EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def obliging_but_for_the_angry(request: LlmRequest) -> LlmReply:
    if "angry" in str(request.messages[-1]["content"]):
        return error_reply(400, "this model does not talk to angry people")
    return oblige(request)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedLlmServer]:
    with ScriptedLlmServer(obliging_but_for_the_angry) as server:
        monkeypatch.setenv("LLM_URL", server.base_url)
        monkeypatch.setenv("LLM_MODEL", "scripted")
        yield server


def settings(llm: ScriptedLlmServer) -> LlmSettings:
    return LlmSettings(base_url=llm.base_url, model="scripted")


@pytest.mark.slow
def test_thirty_rows_are_labelled_and_a_failed_one_is_named(
    llm: ScriptedLlmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [f"message {n}" for n in range(29)] + ["I am angry"]
    Path("messages.csv").write_text(
        "id,text\n" + "".join(f"{n},{text}\n" for n, text in enumerate(texts)), encoding="utf-8"
    )
    assert load("deploying/etl.py").classify(settings(llm), "messages.csv", "labels.csv") == 1
    head, *labels = csv.reader(Path("labels.csv").read_text(encoding="utf-8").splitlines())
    assert head == ["id", "topic", "urgent", "error"]
    assert labels[:29] == [[str(n), "bug", "False", ""] for n in range(29)]
    assert "angry people" in labels[29][3]
    (run,) = Path("runs").iterdir()
    assert len({envelope.turn for envelope in read_episode(run).envelopes if envelope.turn}) == 30


@pytest.mark.slow
def test_a_fastapi_service_answers_and_says_what_failed(llm: ScriptedLlmServer) -> None:
    pytest.importorskip("fastapi", reason="the example needs FastAPI: pip install fastapi")
    service = load("deploying/fastapi_app.py")

    async def ask(*questions: str) -> list[httpx.Response]:
        transport = httpx.ASGITransport(service.app)
        client = httpx.AsyncClient(transport=transport, base_url="http://service")
        async with service.lifespan(service.app), client:
            return await asyncio.gather(*(client.post("/answer", json={"text": each}) for each in questions))

    good, other, failed = asyncio.run(ask("one", "two", "I am angry"))
    assert (good.status_code, good.json()) == (other.status_code, other.json()) == (200, ANSWERED)
    assert failed.status_code == 502
    assert "angry people" in failed.json()["detail"]


@contextmanager
def served(app: Any) -> Iterator[tuple[str, int]]:
    """Serve an app on loopback, as users do."""
    uvicorn = pytest.importorskip("uvicorn", reason="it serves the example: pip install uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        thread.join(60)


@pytest.mark.slow
def test_a_client_of_the_fastapi_service_that_goes_away_cancels_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("fastapi", reason="the example needs FastAPI: pip install fastapi")
    service = load("deploying/fastapi_app.py")
    ends: list[TurnFailed] = []
    with patient_model() as model:
        monkeypatch.setenv("LLM_URL", model.server.base_url)
        monkeypatch.setenv("LLM_MODEL", "scripted")
        model.gate.clear()
        with served(service.app) as address:
            service.app.state.runner.recorder.add(
                lambda envelope, _: (
                    ends.append(envelope.body) if isinstance(envelope.body, TurnFailed) else None
                )
            )
            body = json.dumps({"text": "hello"})
            head = "POST /answer HTTP/1.1\r\nHost: s\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}"
            with socket.create_connection(address) as client:
                client.sendall(f"{head}\r\n\r\n{body}".encode())
                wait_until(lambda: model.server.requests)
                assert not ends
            wait_until(lambda: ends)
    assert isinstance(ends[0].failure, Interrupted)


@pytest.mark.slow
def test_a_django_view_answers_and_says_what_failed(llm: ScriptedLlmServer) -> None:
    django = pytest.importorskip("django", reason="the example needs Django: pip install django")
    from django.conf import settings as django_settings

    if not django_settings.configured:
        django_settings.configure(ROOT_URLCONF=load("deploying/django_view.py"), ALLOWED_HOSTS=["*"])
        django.setup()
    from django.test import Client

    def ask(question: str) -> Any:
        return Client().post("/answer", json.dumps({"text": question}), content_type="application/json")

    good, failed = ask("one"), ask("I am angry")
    assert (good.status_code, good.json()) == (200, ANSWERED)
    assert failed.status_code == 502
    assert "angry people" in failed.json()["error"]


@pytest.mark.slow
def test_a_celery_task_answers(llm: ScriptedLlmServer) -> None:
    pytest.importorskip("celery", reason="the example needs Celery: pip install celery")
    assert load("deploying/celery_task.py").answer.apply(args=("one",)).get() == "Noted."


def cells() -> list[str]:
    notebook = json.loads((EXAMPLES / "deploying" / "notebook.ipynb").read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.filterwarnings("ignore:An event loop is already running")
def test_the_notebooks_cells_run_inside_a_running_event_loop(
    llm: ScriptedLlmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Jupyter, whose kernel runs each cell in its loop."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    async def run() -> None:
        for cell in cells():
            exec(cell, names)

    asyncio.run(run())
    assert names["outcome"].response == "Noted."
    assert names["answers"] == [False, False]


def test_the_notebook_runs_in_a_real_kernel(
    llm: ScriptedLlmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient", reason="it needs Jupyter: pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="it needs Jupyter: pip install nbclient ipykernel")
    import nbformat

    monkeypatch.chdir(tmp_path)
    notebook = nbformat.read(EXAMPLES / "deploying" / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=150).execute()
    assert "Noted." in str(notebook.cells[2]["outputs"])
    assert "srcdoc" in str(notebook.cells[-1]["outputs"])
    assert "already running" not in str(notebook.cells)


@pytest.mark.slow
def test_the_bot_with_two_servers_talks_and_leaves_a_trace(llm: ScriptedLlmServer, tmp_path: Path) -> None:
    servers = {"NOTES_SERVER": str(think.__file__), "CLOCK_SERVER": str(think.__file__)}
    talked = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "beside" / "bot_grue.py")],
        cwd=tmp_path,
        env=environment(LLM_URL=llm.base_url, LLM_MODEL="scripted", **servers),
        input="Note this.\nAnd that.\n",
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert (talked.returncode, talked.stdout) == (0, "Noted.\nNoted.\n"), talked.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(read_episode(folder).envelopes) > 20
    assert llm.requests[-1].messages[-1]["role"] == "tool"

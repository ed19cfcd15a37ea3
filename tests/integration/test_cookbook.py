"""The cookbook: each recipe is short, and runs against a scripted model and a small real one."""

import ast
import json
import runpy
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import environment, forked
from obliging_llm import oblige
from recipes import COOKBOOK, RECIPES, RUN
from small_model import MODEL, served

from grue.testing.llm_server import ContextWindow, ScriptedLlmServer, text_reply, tool_calls_reply

MOST_LINES = 40
LIMIT_S = 280.0
"""Catches a hang only: a small model on a busy machine is slow."""

MAILS = "id,text\n1,It came broken.\n2,Thank you!\n"
DRIVERS = {
    "etl.py": """
import pathlib
pathlib.Path("mails.csv").write_text(MAILS)
failed = recipe.classify(llm, "mails.csv", "labels.csv")
assert len(pathlib.Path("labels.csv").read_text().splitlines()) == 3, "a header and two labels"
print("failed:", failed)
""",
    "fastapi_app.py": """
import asyncio, httpx
async def ask():
    transport = httpx.ASGITransport(recipe.app)
    client = httpx.AsyncClient(transport=transport, base_url="http://service", timeout=None)
    async with recipe.lifespan(recipe.app), client:
        return await client.post("/answer", json={"text": "What is rain?"})
answer = asyncio.run(ask())
assert answer.status_code in (200, 502), answer
print("status:", answer.status_code)
""",
    "django_view.py": """
import django, json
from django.conf import settings
settings.configure(ROOT_URLCONF=recipe, ALLOWED_HOSTS=["*"])
django.setup()
from django.test import Client
answer = Client().post("/answer", json.dumps({"text": "What is rain?"}), content_type="application/json")
assert answer.status_code in (200, 502), answer
print("status:", answer.status_code)
""",
    "celery_task.py": "print(recipe.answer.apply(args=('What is rain?',)).get())",
    "approvals_web.py": """
import json, subprocess, sys
recipe.app.testing = True
answer = recipe.app.test_client().post("/mails/Order 17 came broken.")
print("status:", answer.status_code, answer.get_json())
if answer.status_code == 202:
    # The person answers another process.
    other = (
        "import runpy, sys; app = runpy.run_path(sys.argv[1])['app'];"
        "print(app.test_client().post('/approvals/' + sys.argv[2]).get_json())"
    )
    subprocess.run([sys.executable, "-c", other, recipe.__file__, answer.get_json()["case"]], check=True)
""",
}
"""What uses a recipe that only defines something; `recipe` is its module, `llm` its settings."""

FIRST = """
import importlib.util, os, sys
from grue import LlmSettings
MAILS = {mails!r}
llm = LlmSettings(base_url=os.environ["LLM_URL"], model=os.environ["LLM_MODEL"])
spec = importlib.util.spec_from_file_location("recipe", sys.argv[1])
recipe = importlib.util.module_from_spec(spec)
sys.modules["recipe"] = recipe
spec.loader.exec_module(recipe)
"""

SCRIPTED: dict[str, Callable[[str], bool]] = {
    "game_loop.py": lambda said: said == "turn 1: north\nturn 2: north\nturn 3: north\n",
    "flask_app.py": lambda said: said == "200 {'urgent': False}\n",
    "approvals_web.py": lambda said: "status: 202" in said and "'answer': 'Noted.'" in said,
    "switching_providers.py": lambda said: "turn 1: large could not be asked" in said,
    "two_prompts.py": lambda said: "plain    0.333  1 of 3" in said and "better: plain" in said,
    "flaky_server.py": lambda said: said == "Noted.\nclock.echo: timed_out\nleft out: gone\n",
    "fleet_on_two_machines.py": lambda said: said == "{'score': (2, 1.0)}\n",
    "porting.py": lambda said: said == "Verdict(urgent=False) ['crm.customer_level']\n",
    "small_window.py": lambda said: int(said.split("made room ")[1].split()[0]) > 0,
    "budget.py": lambda said: said.count("Noted.") == 3 and "stopped before turn 4" in said,
    "debugging.py": lambda said: "and called ['pantry.stock']" in said and said.endswith("1 became 1\n"),
    "own_host.py": lambda said: said == "12 °C: off\n24 °C: off\n",
    "etl.py": lambda said: said == "failed: 0\n",
    "fastapi_app.py": lambda said: said == "status: 200\n",
    "django_view.py": lambda said: said == "status: 200\n",
}
"""What a recipe prints with a model that calls the first tool once and answers with the least."""

EXTRAS = {"fastapi_app.py": "fastapi", "django_view.py": "django", "celery_task.py": "celery"}
EXTRAS |= {"flask_app.py": "flask", "approvals_web.py": "flask"}


def run(recipe: str, folder: Path, url: str, model: str) -> str:
    """Run a recipe as a program in a folder; return what it prints. grue is imported before it begins."""
    path = (COOKBOOK / recipe).resolve()
    if path.name in EXTRAS:
        pytest.importorskip(EXTRAS[path.name], reason=f"the recipe needs it: pip install {EXTRAS[path.name]}")
    program, warned, code = folder.with_suffix(".py"), "", ""
    if path.name in DRIVERS:
        code = FIRST.format(mails=MAILS) + DRIVERS[path.name]
    elif path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        code = f"{code}\nprint(answers)"
    else:
        program, warned = path, "import warnings; warnings.simplefilter('error')"
    if code:
        program.write_text(code, encoding="utf-8")
    ran = subprocess.run(
        forked(str(program), str(path), before=warned),
        cwd=folder,
        env=environment(LLM_URL=url, LLM_MODEL=model, GRUE_API_KEY="none"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout
    return ran.stdout


def test_there_are_twenty_and_every_file_is_one_of_them() -> None:
    assert len(RECIPES) == len(set(RECIPES)) == 20
    files = {path.name for path in COOKBOOK.iterdir() if path.suffix in (".py", ".ipynb")}
    assert files <= set(RECIPES)
    assert all((COOKBOOK / recipe).is_file() for recipe in RECIPES)


@pytest.mark.parametrize("recipe", [each for each in RECIPES if each.endswith(".py")])
def test_a_recipe_is_short_and_says_what_it_shows(recipe: str) -> None:
    text = (COOKBOOK / recipe).read_text(encoding="utf-8")
    tree = ast.parse(text)
    shown = ast.get_docstring(tree)
    assert shown
    blank = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                blank |= {*range(first.lineno, (first.end_lineno or 0) + 1)}
    lines = [
        line
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#") and number not in blank
    ]
    assert len(lines) <= MOST_LINES


@pytest.mark.parametrize("recipe", RUN)
@pytest.mark.slow
def test_a_recipe_runs_against_the_scripted_model(recipe: str, tmp_path: Path) -> None:
    window = ContextWindow(8_000) if recipe == "small_window.py" else None
    with ScriptedLlmServer(oblige, window=window) as server:
        said = run(recipe, tmp_path, server.base_url, "scripted")
    assert SCRIPTED.get(Path(recipe).name, "Noted.".__ne__)(said), said


@pytest.mark.slow
def test_an_approval_may_be_clicked_twice_and_lead_to_a_further_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flask", reason="the recipe needs it: pip install flask")
    asks = [tool_calls_reply(("shop.refund", {"order": order})) for order in (1, 2)]
    with ScriptedLlmServer([*asks, text_reply("Paid.")]) as server:
        for name, value in {"URL": server.base_url, "MODEL": "m"}.items():
            monkeypatch.setenv(f"LLM_{name}", value)
        monkeypatch.setenv("GRUE_API_KEY", "none")
        monkeypatch.setenv("RUNS", str(tmp_path))
        client = runpy.run_path(str(COOKBOOK / "approvals_web.py"))["app"].test_client()
        first = client.post("/mails/Two orders came broken.")
        case = first.get_json()["case"]
        then = [client.post(f"/approvals/{case}") for _ in range(3)]
    said = [(each.status_code, each.get_json()["case"], each.get_json()) for each in (first, *then)]
    assert [(status, name) for status, name, _ in said] == [(status, case) for status in (202, 202, 200, 409)]
    assert said[1][2]["asks"] == ["shop.refund {'order': 2}"]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a model that says the likeliest words and few of them, which are mostly nonsense."""
    with served(tmp_path_factory.mktemp("llama"), "-n", "32", "--temp", "0") as url:
        yield url


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RUN)
def test_a_recipe_runs_against_a_small_model(recipe: str, small_model: str, tmp_path: Path) -> None:
    run(recipe, tmp_path, small_model, MODEL)

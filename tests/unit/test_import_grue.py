"""`import grue`: next to nothing is loaded, and every public name has a home."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from case_tables import each_case

import grue
import grue.hosting
import grue.hosts.skill_agent
import grue.testing

HEAVY = ("mcp", "mcp_types", "langfuse", "httpx", "pydantic", "typer", "rich", "anyio", "msgspec")


def loaded_after(code: str) -> set[str]:
    """Which of the heavy packages a fresh interpreter has loaded after `code`."""
    report = f"import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, timeout=150, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_grue_loads_nothing_heavy() -> None:
    assert loaded_after("import grue; grue.__version__; dir(grue)") == set()


def test_the_version_is_told_without_what_a_game_needs() -> None:
    told = "import sys; sys.argv = ['grue', '--version']; from grue.cli.main import main; main()"
    assert loaded_after(told) == set()


@pytest.mark.slow
def test_a_turn_without_mcp_never_loads_it() -> None:
    unneeded = {"mcp", "mcp_types", "langfuse", "pydantic"}
    assert loaded_after("from grue import Runner, TurnRequest").isdisjoint(unneeded)


@pytest.mark.slow
def test_what_msgspec_needs_of_a_class_is_built_by_the_import() -> None:
    """If two threads built it at the same time, at their first read of a class, the process would crash."""
    code = (
        "import sys\n"
        "import msgspec\n"
        "from grue import LlmSettings, policies\n"
        "from grue.tracing.reading import known_kinds\n"
        "built = []\n"
        "def see(frame, event, _):\n"
        "    if event == 'call' and frame.f_code.co_name == 'get_class_annotations':\n"
        "        built.append(frame.f_locals['obj'].__name__)\n"
        "names = ('TurnLimits', 'FailurePolicy', 'ToolPolicy', 'ContextPolicy', 'ToolSearch', 'Budget')\n"
        "kinds = [*known_kinds().values(), LlmSettings, *(getattr(policies, name) for name in names)]\n"
        "sys.setprofile(see)\n"
        "for kind in kinds:\n"
        "    msgspec.json.Decoder(kind)\n"
        "sys.setprofile(None)\n"
        "print(len(kinds) > 50, built)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True []\n"


@each_case("module", [grue, grue.hosting, grue.hosts.skill_agent, grue.testing])
def test_every_name_of_a_stub_can_be_imported(module: ModuleType) -> None:
    for name in module.__all__:
        assert getattr(module, name) is not None
        assert name in dir(module)


def test_a_name_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'grue' has no attribute 'Grue'"):
        _ = grue.Grue


@pytest.mark.slow
def test_a_runner_with_function_tools_loads_no_mcp_client() -> None:
    code = (
        "from grue import FunctionTools, LlmSettings, Runner\n"
        "functions = FunctionTools({'echo': lambda text: text})\n"
        "runner = Runner(llm=LlmSettings(model='m'), servers={'tools': functions})\n"
        "runner.warm_up()\n"
        "import sys\n"
        "names = ('mcp', 'pydantic', 'grue.transports.mcp.client')\n"
        "print([name for name in names if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True
    )
    assert done.stdout.splitlines() == ["[]"]


@pytest.mark.slow
def test_a_runner_loads_neither_batches_nor_lasting_sessions_nor_calls_outside_turns() -> None:
    code = (
        "from grue import FunctionTools, LlmSettings, Runner\n"
        "Runner(llm=LlmSettings(model='m'), servers={'tools': FunctionTools({'echo': lambda text: text})})\n"
        "import sys\n"
        "names = ('engine.batch', 'engine.outside_turns.server_sessions', 'tool_sessions.result_reading',"
        " 'tool_sessions.session_pool', 'tracing.reading')\n"
        "print([name for name in names if f'grue.{name}' in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True
    )
    assert done.stdout.splitlines() == ["[]"]


@pytest.mark.slow
def test_the_patterns_of_refusals_and_marks_are_compiled_when_they_are_needed() -> None:
    code = (
        "import re, re._compiler\n"
        "compiled, real = [], re._compiler.compile\n"
        "re._compiler.compile = lambda pattern, flags=0: compiled.append(pattern) or real(pattern, flags)\n"
        "from grue import Runner\n"
        "from grue.protocol import retry\n"
        "from grue.protocol.chat_wire import failures, profiles, written_calls\n"
        "modules = failures, profiles, retry, written_calls\n"
        "patterns = {text for module in modules for text in vars(module).values() if isinstance(text, str)}\n"
        "before = patterns.intersection(compiled) | {each.pattern for each in vars(retry).values()"
        " if isinstance(each, re.Pattern)}\n"
        "failures.fault_of_status(429, b'no credit')\n"
        "print(len(before), bool(patterns.intersection(compiled)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True
    )
    assert done.stdout.split() == ["0", "True"]


def test_a_name_whose_module_cannot_be_imported_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a file of the name `httpx` beside a program: it lacks what grue takes from the package."""
    (tmp_path / "front.py").write_text(
        "from grue.runtime.lazy_names import lazy_names\n"
        "__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)\n"
    )
    (tmp_path / "front.pyi").write_text("from no_home import Name as Name\n")
    (tmp_path / "no_home.py").write_text("import sys\nsys.no_such_thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="cannot import no_home: module 'sys' has no attribute"):
        exec("from front import Name", {})

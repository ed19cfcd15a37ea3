"""httpx is imported without its command line, which stays usable."""

import subprocess
import sys


def run(code: str) -> list[str]:
    """Run code in a fresh interpreter, and return the lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=True
    )
    return done.stdout.splitlines()


def test_the_command_line_is_imported_when_somebody_uses_it() -> None:
    lines = run(
        "import sys\n"
        "from grue.lean_httpx import httpx\n"
        "print([name for name in ('httpx._main', 'rich', 'click') if name in sys.modules])\n"
        "from httpx import main\n"
        "print(main is sys.modules['httpx._main'].main, main.name, httpx.main is main)\n"
        "print(hasattr(httpx, 'nothing'))\n"
    )
    assert lines == ["[]", "True main True", "False"]


def test_an_httpx_that_is_imported_already_is_left_as_it_is() -> None:
    lines = run(
        "import httpx\n"
        "before = dict(vars(httpx))\n"
        "from grue import lean_httpx\n"
        "print(lean_httpx.httpx is httpx, dict(vars(httpx)) == before)\n"
    )
    assert lines == ["True True"]


def test_without_its_dependencies_the_command_line_says_what_to_install() -> None:
    lines = run(
        "import sys\n"
        "sys.modules['rich'] = None\n"
        "from grue.lean_httpx import httpx\n"
        "try:\n"
        "    httpx.main()\n"
        "except SystemExit as ended:\n"
        "    print(ended.code)\n"
    )
    assert "pip install 'httpx[cli]'" in " ".join(lines)
    assert lines[-1] == "1"

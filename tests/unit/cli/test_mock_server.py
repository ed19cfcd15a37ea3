"""`grue mock-server` with a user's server that cannot be imported: an error that says why, no traceback."""

import importlib
import re
import sys
from pathlib import Path

import anyio
import pytest

pytest.importorskip("mcp", reason="the mock server needs the extra: pip install 'grue[mcp]'")

from grue.cli.mock_server import _server, importing_from_here, serve
from grue.errors import MCPConfigError

WRONG = {
    "shop = MockServer('shop')": "'{file}' cannot be imported: NameError: name 'MockServer' is not defined.",
    "def shop(:": "'{file}' cannot be imported: SyntaxError: invalid syntax",
    "import no_such": "'{file}' cannot be imported: ModuleNotFoundError: No module named 'no_such'.",
    "raise SystemExit('not today')": "'{file}' cannot be imported: SystemExit: not today.",
    "shop = 5": "'shop' in '{file}' is not a MockServer. MockServers there: none.",
    "from grue.testing.mock_server import MockServer\nstore = MockServer('s')": (
        "'{file}' has no 'shop'. MockServers there: store."
    ),
}


@pytest.mark.parametrize("code", WRONG)
def test_a_file_that_cannot_be_used_is_told_with_its_reason(code: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(code)
    with pytest.raises(MCPConfigError, match=re.escape(WRONG[code].format(file=file))):
        serve(f"{file}:shop", {"without": (), "page_size": None, "era": "both"}, port=None)


def test_a_module_that_does_not_exist_is_told_by_its_name() -> None:
    with pytest.raises(MCPConfigError, match=re.escape("there is no module 'no.such.module'")):
        serve("no.such.module:shop", {"without": (), "page_size": None, "era": "both"}, port=None)


def test_the_working_directory_leaves_the_path_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "servers_of_mine.py").write_text("import sys\nassert '' in sys.path\nshop = 5")
    before = list(sys.path)
    with pytest.raises(MCPConfigError, match="is not a MockServer"):
        serve("servers_of_mine:shop", {"without": (), "page_size": None, "era": "both"}, port=None)
    assert sys.path == before


def test_a_folder_that_an_imported_module_has_added_stays_in_the_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", before := list(sys.path))
    with importing_from_here():
        sys.path.append("src")
    assert sys.path[-1] == "src"
    assert "" not in before


@pytest.mark.parametrize("target", [None, "mine.py:shop"])
def test_modules_in_the_working_directory_replace_none_of_those_that_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "uvicorn", raising=False)
    (tmp_path / "mine.py").write_text(
        "from grue.testing.mock_server import MockServer\nshop = MockServer('s')"
    )
    (tmp_path / "uvicorn.py").write_text("raise SystemExit('this is not the server')")
    monkeypatch.setattr("grue.testing.mock_server.MockServer.serve_stdio", imports_uvicorn)
    monkeypatch.setattr("grue.cli.mock_server.quit_at_once", lambda: None)
    serve(target, {"without": (), "page_size": None, "era": "both"}, port=None)


async def imports_uvicorn(_server: object) -> None:
    importlib.import_module("uvicorn")


MODELS = """
from __future__ import annotations
from pydantic import BaseModel
from grue.testing.mock_server import MockServer

shop = MockServer("shop")

class Part(BaseModel):
    price: int

class Article(BaseModel):
    parts: list[Part]

@shop.tool()
def same(article: Article) -> Article:
    return article
"""


def test_the_models_of_a_file_are_found_by_their_names(tmp_path: Path) -> None:
    """With `from __future__ import annotations`, pydantic looks the names up in the module of the file."""
    file = tmp_path / "mine.py"
    file.write_text(MODELS)
    server = _server(f"{file}:shop", {"without": (), "page_size": None, "era": "both"})
    article = {"parts": [{"price": 12}]}
    result = anyio.run(server.call_tool, "same", {"article": article})
    assert result.structured_content == article

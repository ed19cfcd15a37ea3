"""The reference of the site: each public name is on one page, and a reader meets `Runner` first."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def test_the_list_for_agents_has_a_plain_sentence_for_each_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "mkdocs", reason="the documentation needs mkdocs: make docs, or pip install mkdocs-material"
    )
    monkeypatch.syspath_prepend(ROOT / "tools")
    sys.modules.pop("docs_site", None)
    import docs_site

    nav = [{"Look up": [{"Errors": "errors.md"}, {"Made": "made.md"}]}]
    made = {"made.md": "# Made\n\nIts rows; [errors](../errors.md) says more. And so on.\n"}
    listed = docs_site.for_agents(nav, made)["llms.txt"].splitlines()
    assert "- [Made](made.html): Its rows; errors says more." in listed
    assert any(line.startswith("- [Errors](errors.html): Every error that grue raises") for line in listed)


def test_each_public_name_is_on_one_page_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(
        "mkdocs", reason="the documentation needs mkdocs: make docs, or pip install mkdocs-material"
    )
    monkeypatch.syspath_prepend(ROOT / "tools")
    sys.modules.pop("docs_site", None)
    import docs_site
    import public_api

    pages = docs_site.reference_names()
    shown = [name.rpartition(".")[2] for names in pages.values() for name in names]
    assert len(shown) == len({*shown})
    assert {line.split()[1] for line in public_api.public_api()} <= {*shown}
    assert pages["turns"][0] == "grue.Runner"
    for name in ("grue.testing.llm_server", "grue.fleet.Fleet", "grue.hosting.LlmEndpoint"):
        assert any(name in names for names in pages.values()), name

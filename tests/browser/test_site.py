"""The documentation in a real Chromium, wide and narrow, light and dark: axe finds nothing serious."""

import os
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
AXE = Path(os.environ.get("GRUE_AXE", "")) / "node_modules" / "axe-core" / "axe.min.js"
PAGES = (
    "index.html",
    "concepts.html",
    "start.html",
    "errors.html",
    "guides/answers.html",
    "reference/turns.html",
)

pytestmark = [
    pytest.mark.skipif(not AXE.is_file(), reason="npm install --prefix FOLDER axe-core, and GRUE_AXE=FOLDER"),
    pytest.mark.skipif(not SITE.is_dir(), reason="the site is not built: make docs"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_serious(chromium: Any, width: int, scheme: str) -> None:
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    found: dict[str, list[str]] = {}
    for name in PAGES:
        page = context.new_page()
        page.goto((SITE / name).as_uri())
        page.add_script_tag(path=str(AXE))
        result = page.evaluate("() => axe.run()")
        serious = [each for each in result["violations"] if each["impact"] in ("serious", "critical")]
        for each in serious:
            found[f"{name}: {each['id']}"] = [node["html"][:120] for node in each["nodes"][:3]]
        page.close()
    context.close()
    assert found == {}

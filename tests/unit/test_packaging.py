"""What the package asks for, before anything of it runs (R14)."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_r14_3_python_3_11_is_asked_for_by_the_package_and_by_make() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    assert "grue needs Python 3.11 or later" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_r14_2_the_mcp_extra_asks_for_a_version_that_is_known_to_work() -> None:
    extras = PROJECT["optional-dependencies"]
    assert extras["mcp"] == ["mcp>=2.3,<3"]
    assert not [needed for needed in PROJECT["dependencies"] if needed.startswith(("mcp", "langfuse"))]
    assert extras["all"] == ["grue[mcp,langfuse,otel,yaml,fernz,chat]"]


def test_nothing_depends_on_mcptools() -> None:
    extras = PROJECT["optional-dependencies"].values()
    needed = [*PROJECT["dependencies"], *(name for extra in extras for name in extra)]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [name for name in (*needed, *pinned) if "mcptools" in name.replace("-", "").lower()] == []

"""What the package asks for, before anything of it runs (R14)."""

import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from grue import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_r14_3_python_3_11_is_asked_for_by_the_package_and_by_make() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    assert "grue needs Python 3.11 or later" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_r14_2_the_mcp_extra_asks_for_a_version_that_is_known_to_work() -> None:
    extras = PROJECT["optional-dependencies"]
    assert extras["mcp"] == ["mcp>=2.3,<3"]
    assert not [needed for needed in PROJECT["dependencies"] if needed.startswith(("mcp", "langfuse"))]
    assert extras["all"] == ["grue[mcp,langfuse,otel,yaml,fernz,chat,fleet,keyring]"]


def test_an_install_command_in_an_error_works_wherever_grue_came_from() -> None:
    """A checkout, a wheel, an index: so it names the packages, in the versions that the extras ask for."""
    extras = {need for needs in PROJECT["optional-dependencies"].values() for need in needs}
    named = [
        (path.name, command)
        for path in (ROOT / "src").rglob("*.py")
        for command in re.findall(r"pip install ((?:'[^']+'[ \"\n]*)+)", path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 10
    wrong = [
        (file, need)
        for file, command in named
        for need in re.findall("'([^']+)'", command)
        if need not in extras
    ]
    assert wrong == []


def test_the_docs_install_grue_from_a_checkout_while_no_index_has_it() -> None:
    """On an index, somebody else may take the name."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs/guides").glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    named = re.findall(r"(?:pip install|--from|--spec) '?([^' ]*grue\[)", text)
    assert len(named) > 10
    assert {*named} == {"./grue["}


def test_the_publishing_workflow_lacks_a_persons_credentials_only() -> None:
    path = ROOT / ".github/workflows/publish.yml"
    text = path.read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    used = {step["uses"].partition("@")[0] for step in jobs["publish"]["steps"] if "uses" in step}
    assert {"pypa/gh-action-pypi-publish", "actions/attest-build-provenance", "actions/attest-sbom"} <= used
    assert "secrets." not in text
    assert not re.search(r"https?://|repository-url|index-url", text)
    commands = "\n".join(step.get("run", "") for job in jobs.values() for step in job["steps"])
    for name in re.findall(r"(?:tools|\.ci)/[\w.]+", commands):
        assert (ROOT / name).exists(), name
    assert "python -m build\npython -m twine check --strict dist/*\n" in commands
    kept = [each["with"] for each in jobs["build"]["steps"] if "upload-artifact" in each.get("uses", "")]
    taken = [each["with"] for each in jobs["publish"]["steps"] if "download-artifact" in each.get("uses", "")]
    assert {each["name"] for each in kept} == {each["name"] for each in taken}
    files = " ".join(each["path"] for each in kept).split()
    made = {*re.findall(r"(?:> |--output-file )(\S+)", commands), "dist/"}
    assert {*files} == made, "what a step makes is what the next job gets"
    for job in jobs.values():
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step), step
            if "run" in step:
                subprocess.run(["sh", "-n", "-c", step["run"]], check=True)
            else:
                assert re.fullmatch(r"[\w-]+/[\w-]+@(?:v\d+|release/v\d+)", step["uses"]), step


@pytest.fixture
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "tools" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_release_has_one_page_in_the_changelog(release: ModuleType) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    without = re.sub(r"^## Unreleased\n.*?(?=^## )", "", changelog, flags=re.MULTILINE | re.DOTALL)
    page = release.notes_for(f"v{__version__}", version=__version__, changelog=without)
    assert len(page.splitlines()) <= 70


def test_no_line_of_the_changelog_stands_twice_though_wrapped_elsewhere() -> None:
    """As after a conflict that was resolved by taking both sides."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    begun = Counter(re.findall(r"^[- ] (.{60})", changelog, re.MULTILINE))
    assert [beginning for beginning, count in begun.items() if count > 1] == []


@pytest.mark.parametrize(
    ("tag", "changelog", "why"),
    [
        ("v1.0", "## 0.2.0\nNew.\n", "should be v0.2.0"),
        ("v0.2.0", "## Unreleased\n- More.\n\n## 0.2.0\nNew.\n", "Unreleased"),
        ("v0.2.0", "## 0.1.0\nOld.\n", r"nothing of 0\.2\.0"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused(release: ModuleType, tag: str, changelog: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        release.notes_for(tag, version="0.2.0", changelog=changelog)


def test_nothing_depends_on_mcptools() -> None:
    extras = PROJECT["optional-dependencies"].values()
    needed = [*PROJECT["dependencies"], *(name for extra in extras for name in extra)]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert [name for name in (*needed, *pinned) if "mcptools" in name.replace("-", "").lower()] == []


def test_what_an_index_shows_refers_to_no_file_of_the_repository() -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = module.for_an_index((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "make play" in shown
    assert re.findall(r"\]\((?!https?:)[^)]*\)", shown) == []
    assert "pip install 'grue[mcp]'" in shown
    assert not re.search(r"index\s+yet|\./grue", shown)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a wheel and a source distribution, built without a network."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install hatchling")
    folder = tmp_path_factory.mktemp("built")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=120,
    )
    return folder


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (
            archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")
        )
    source = ROOT / "src"
    kept = {
        str(path.relative_to(source))
        for path in source.glob("grue/**/*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "report.md"
    }
    assert inside == kept
    assert {"grue/py.typed", "grue/tracing/viewer_page/page.html", "grue/hosts/servers/think.py"} <= inside
    assert "Description-Content-Type: text/markdown" in metadata
    assert {f"Provides-Extra: {extra}" for extra in ("mcp", "fernz", "otel", "langfuse", "yaml")} <= {
        *metadata.splitlines()
    }


@pytest.mark.slow
def test_the_source_distribution_holds_what_builds_tests_and_documents(built: Path) -> None:
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    needed = ("hatch_build.py", "pyproject.toml", "Makefile", "mkdocs.yml", "LICENSE", "tools/docs_site.py")
    assert {*needed, "tests/unit/test_packaging.py", "docs/start.md", "docs/pictures/play-live.svg"} <= inside
    assert not [name for name in inside if "__pycache__" in name or name.startswith(("build/", ".venv"))]


@pytest.mark.slow
def test_the_wheel_plays(built: Path, tmp_path: Path) -> None:
    """Unpacked elsewhere, with nothing of the checkout within reach."""
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'installed')!r})\n"
        "import grue; from pathlib import Path\n"
        f"assert Path(grue.__file__).is_relative_to({str(tmp_path)!r}), grue.__file__\n"
        "sys.argv = ['grue', 'play', '--offline', '--no-mcp', '--turns', '2', '--quiet']\n"
        "from grue.cli.main import main; main()"
    )
    played = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert "2 turns" in played.stdout, played.stderr


def test_the_container_file_copies_what_is_there_and_installs_what_is_declared() -> None:
    """As far as that can be seen without a container runtime."""
    text = (ROOT / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    copied = [words for words in lines if words[0] == "COPY" and not words[1].startswith("--from")]
    sources = [source for words in copied for source in words[1:-1]]
    assert {"pyproject.toml", "src", "README.md", "LICENSE", "hatch_build.py"} <= set(sources)
    assert [source for source in sources if not (ROOT / source).exists()] == []
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", text)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    assert ["ENTRYPOINT", '["grue"]'] in lines
    assert "grue" in PROJECT["scripts"]
    stages = [words[1] for words in lines if words[0] == "FROM"]
    (version,) = {re.sub(r".*python:(\d+\.\d+)-slim", r"\1", image) for image in stages}
    assert f"Programming Language :: Python :: {version}" in PROJECT["classifiers"]
    assert [words[0] for words in lines].index("USER") < [words[0] for words in lines].index("ENTRYPOINT")

"""The documents: code blocks that Python can read, headings that are headings; what they name exists."""

import ast
import importlib.util
import pkgutil
import re
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
from case_tables import each_case

from grue import ServerOptions, TurnOutcome
from grue.messages import OutcomeKind, ToolCallRecord, ToolCallResult
from grue.policies import FailureKind, FailurePolicy, FailureReason, ForceReason, SettlementKind, TurnLimits

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md")])
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_LONGEST_HEADING = 80


def _blocks(page: Path, language: str) -> list[str]:
    found = []
    for indent, name, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if name == language:
            found.append("".join(line.removeprefix(indent) for line in text.splitlines(keepends=True)))
    return found


@each_case("page", PAGES)
def test_every_python_block_can_be_read(page: Path) -> None:
    for block in _blocks(page, "python"):
        tree = ast.parse(block)
        assert tree.body, f"a block without code in {page.name}:\n{block}"


@each_case("page", PAGES)
def test_each_line_of_a_block_holds_one_command(page: Path) -> None:
    blocks = _blocks(page, "") + _blocks(page, "console") + _blocks(page, "sh")
    for line in "\n".join(blocks).splitlines():
        comment = line.partition(" # ")[2]
        assert " grue " not in comment, f"two commands on one line of {page.name}: {line}"


@each_case("page", PAGES)
def test_headings_stand_on_lines_of_their_own(page: Path) -> None:
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    for line in prose.splitlines():
        if line.startswith("#"):
            assert len(line) <= _LONGEST_HEADING, (
                f"{page.name}: a paragraph follows on a heading's line: {line}"
            )
        assert " ## " not in line, f"{page.name}: a heading inside a line: {line}"


@each_case("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    """`make docs` checks the same in the built site."""
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", prose):
        path, _, place = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target.name == "example.html":
            continue  # a page that is made when the site is built
        assert target.exists(), f"{page.name} refers to {link}"
        if place and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert place in {_anchor(heading) for heading in headings}, f"{page.name} refers to {link}"


def _anchor(heading: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


_TABLES = ("README", "performance", "requirements", "mended", "provider-errors", "compatibility", "CHANGELOG")
"""Pages of rows, and two that sum up what others say."""
_LONGEST_COMMON = 12


@pytest.mark.slow
def test_no_page_says_what_another_says() -> None:
    """No dozen of words stands on two pages: one of them should say it, and the other link there."""
    first: dict[tuple[str, ...], Path] = {}
    twice: dict[str, str] = {}
    for page in PAGES:
        if page.stem in _TABLES:
            continue
        prose = re.sub(r"\]\([^)]*\)", "]", _BLOCK.sub("", page.read_text(encoding="utf-8")))
        words = re.findall(r"[\w']+", prose.lower())
        for at in range(len(words) - _LONGEST_COMMON + 1):
            run = tuple(words[at : at + _LONGEST_COMMON])
            if first.setdefault(run, page) != page:
                twice.setdefault(f"{first[run].name}, {page.name}", " ".join(run))
    assert twice == {}


_FILE = re.compile(r"`((?:[\w.*-]+/)*[\w*-]+\.(?:py|pyi|js|toml|md))(?:::\w+)?`")
_MODULE = re.compile(r"`(grue(?:\.\w+)+)`")
_OF_USERS = {
    "sums.py",
    "mcp.py",
    "httpx.py",
    "prompts.toml",
    "scorers.toml",
    "server.py",
    "report.md",
    "test_x.py",
}
"""Files that a reader of a page makes, and one that stands for any."""


def _files(folders: Iterable[str], pattern: str) -> list[Path]:
    """Return the project's files, without the environments that benchmarks have installed there."""
    found = (path for folder in folders for path in (ROOT / folder).rglob(pattern))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]


_CODE = _files(("src", "tests", "tools", "benchmarks"), "*.py")


@cache
def _tree() -> tuple[str, ...]:
    files = [*ROOT.glob("*"), *_files(("src", "tests", "tools", "benchmarks", "docs"), "*.*")]
    return tuple(f"/{path.relative_to(ROOT)}" for path in files)


@cache
def _is_in_tree(end: str) -> bool:
    return any(fnmatch(path, f"*/{end}") for path in _tree())


def _absent_files(text: str) -> list[str]:
    """Return the files named in a text that are not in the tree, by whatever end of their path."""
    named = {name for name in _FILE.findall(text) if name.rpartition("/")[2] not in _OF_USERS}
    return [name for name in named if not _is_in_tree(name)]


def _absent_modules(text: str) -> list[str]:
    return [name for name in set(_MODULE.findall(text)) if not _exists(name)]


@cache
def _exists(name: str) -> bool:
    with suppress(ImportError):
        if importlib.util.find_spec(name):
            return True
    try:
        pkgutil.resolve_name(name)
    except (AttributeError, ImportError):
        return False
    return True


def _words_in(module: Path) -> Iterator[str]:
    """Yield a module's docstrings and comments."""
    source = module.read_bytes()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)
    with module.open("rb") as file:
        yield from (each.string for each in tokenize.tokenize(file.readline) if each.type == tokenize.COMMENT)


@each_case("page", [page for page in PAGES if page.name != "CHANGELOG.md"])
@pytest.mark.slow
def test_files_and_modules_that_a_page_names_exist(page: Path) -> None:
    prose = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    assert _absent_files(prose) == []
    if page.name != "spans.md":  # which names attributes of spans, such as `grue.warning`
        assert _absent_modules(prose) == []


@pytest.mark.slow
def test_files_that_docstrings_and_comments_name_exist() -> None:
    suspect = [module for module in _CODE if _absent_files(module.read_text(encoding="utf-8"))]
    absent = {
        str(module.relative_to(ROOT)): _absent_files("\n".join(_words_in(module))) for module in suspect
    }
    assert {module: names for module, names in absent.items() if names} == {}


def test_what_the_docstring_of_a_package_names_is_in_the_package() -> None:
    absent = {}
    for init in (ROOT / "src").rglob("__init__.py"):
        package = ".".join(init.parent.relative_to(ROOT / "src").parts)
        named = re.findall(r"`([a-z]+_\w+)`", ast.get_docstring(ast.parse(init.read_bytes())) or "")
        absent[package] = [name for name in named if not _exists(f"{package}.{name}")]
    assert {package: names for package, names in absent.items() if names} == {}


def test_the_adapters_are_as_short_as_the_page_of_agent_benchmarks_says() -> None:
    assert "an adapter for each benchmark, of under 200 lines" in (ROOT / "docs/agents.md").read_text()
    adapters = {each.name: len(each.read_text().splitlines()) for each in ROOT.glob("benchmarks/agents/*.py")}
    assert {name: lines for name, lines in adapters.items() if lines >= 200} == {}
    assert adapters


def test_every_page_that_explains_something_is_behind_one_of_the_doors() -> None:
    doors = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    pages = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/guides/*.md"), *ROOT.glob("docs/*/README.md")]
    assert [each.name for each in pages if f": {each.relative_to(ROOT / 'docs')}\n" not in doors] == []


def test_what_programs_of_the_documents_import_exists() -> None:
    """Blocks that are not run, too, and what `llms-full.txt` is made of: names move from module to module."""
    imported = {
        f"{node.module}.{name.name}": page.name
        for page, code in _programs()
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "grue"
        for name in node.names
    }
    assert len(imported) > 50
    assert {name: page for name, page in imported.items() if not _exists(name)} == {}


def test_what_the_guide_to_hosts_lists_can_be_imported() -> None:
    guide = (ROOT / "docs" / "guides" / "hosts.md").read_text(encoding="utf-8")
    table = guide.partition("| of `grue.hosting` |")[2].partition("\n\n")[0]
    names = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert len(names) > 20
    assert [name for name in names if not _exists(f"grue.hosting.{name}")] == []


def test_every_reason_has_a_row_in_the_page_of_errors() -> None:
    """`test_first_errors.py` checks the classes, and what is printed."""
    page = ROOT / "docs/errors.md"
    assert _rows(page, "`reason`") == sorted(get_args(FailureReason))
    assert _rows(page, "`kind`") == sorted(get_args(FailureKind))


def test_every_field_and_word_of_an_outcome_has_a_row() -> None:
    page = ROOT / "docs/outcome.md"
    assert _rows(page, "`kind` | the answer") == sorted(get_args(OutcomeKind))
    assert _rows(page, "`settlement` | what became of the call") == sorted(get_args(SettlementKind))
    for kind in (TurnOutcome, ToolCallRecord, ToolCallResult):
        section = (
            page.read_text(encoding="utf-8").partition(f"## `{kind.__name__}`\n")[2].partition("\n\n")[0]
        )
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(kind.__struct_fields__)


def test_the_words_why_an_answer_was_forced_are_in_the_row_of_the_reason() -> None:
    page = (ROOT / "docs/outcome.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| `reason` |"))
    assert {*get_args(ForceReason)} <= {*re.findall(r"`(\w+)`", row)}


def test_every_limit_of_a_turn_has_a_row() -> None:
    rows = _rows(ROOT / "docs/guides/configuration.md", "`TurnLimits` | default")
    assert rows == sorted(TurnLimits.__struct_fields__)
    rows = _rows(ROOT / "docs/guides/configuration.md", "`FailurePolicy` | default")
    assert rows == sorted(FailurePolicy.__struct_fields__)


def test_every_option_of_a_server_is_in_the_guide_to_servers() -> None:
    guide = (ROOT / "docs/guides/servers.md").read_text(encoding="utf-8")
    table = guide.partition("\n| `ServerOptions` |")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(ServerOptions.__struct_fields__)


def test_no_example_gives_a_server_a_second_name() -> None:
    """The key of the dictionary is its name: a program that writes both has to keep them equal."""
    given = {
        f"{page.name}: {ast.unparse(node)}"
        for page, code in _programs()
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("StdioServer", "HttpServer")
        if any(each.arg == "name" for each in node.keywords)
    }
    assert given == set()


def _programs() -> list[tuple[Path, str]]:
    """Return the blocks of the documents and the programs beside them."""
    codes = [(page, block) for page in PAGES for block in _blocks(page, "python")]
    return codes + [(path, path.read_text(encoding="utf-8")) for path in _files(("docs",), "*.py")]


def _rows(page: Path, head: str) -> list[str]:
    """Return the first column of the table with this head, sorted."""
    table = page.read_text(encoding="utf-8").partition(f"\n| {head} ")[2].partition("\n\n")[0]
    return sorted(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))


def test_a_program_of_the_docs_can_be_run_twice() -> None:
    """A trace file of a fixed name is refused the second time. These pages name it for a later process."""
    named = {"docs/guides/tool-policy.md", "docs/guides/conversations.md"}
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.py"), ROOT / "README.md"]
    fixed = re.compile(r"^with Runner.*trace=\"[^\"]+\.jsonl\"[,)]", re.MULTILINE)
    found = {str(page.relative_to(ROOT)) for page in pages if fixed.search(page.read_text(encoding="utf-8"))}
    assert found == named


_FRAMEWORKS = {"grue", "pydantic_ai", "fastmcp", "opentelemetry"}


def _size(program: Path) -> tuple[int, int, int]:
    """Return the lines of code, the names imported from a framework, and the async keywords of a program."""
    tree = ast.parse(program.read_bytes())
    nodes = list(ast.walk(tree))
    with tokenize.open(program) as file:
        tokens = [each for each in tokenize.generate_tokens(file.readline) if each.string.strip()]
    code = {
        line
        for each in tokens
        if each.type != tokenize.COMMENT
        for line in range(each.start[0], each.end[0] + 1)
    }
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [node.body[0] for node in nodes if isinstance(node, described) and ast.get_docstring(node)]
    code -= {line for text in texts for line in range(text.lineno, (text.end_lineno or 0) + 1)}
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = sum(len(node.names) for node in imports if (node.module or "").split(".")[0] in _FRAMEWORKS)
    keywords = sum(isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncWith) for node in nodes)
    return len(code), names, keywords


def test_the_table_of_programs_beside_another_framework_counts_them() -> None:
    page = ROOT / "docs" / "guides" / "coming-from.md"
    rows = re.findall(
        r"\]\((\.\./examples/\S+\.py)\) \| (\d+) \| (\d+) \| (\d+) \|", page.read_text(encoding="utf-8")
    )
    assert len(rows) == 6
    assert {each[0]: tuple(map(int, each[1:])) for each in rows} == {
        each[0]: _size(page.parent / each[0]) for each in rows
    }

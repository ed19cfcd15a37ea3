"""Hooks of mkdocs: they generate those pages of the site that are not in docs/. `make docs` builds the site.

- Copies of README.md, CHANGELOG.md, CONTRIBUTING.md and the benchmarks' pages.
- The reference of the API, from the list of public names, and that of the command line, from its `--help`.
- The page of a real trace: an episode is played offline while the site is built.
- `llms.txt` and `llms-full.txt`: the list of pages, and their text in one file, for coding agents.
"""

import posixpath
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mkdocs.plugins
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.main import get_command

sys.path.insert(0, str(Path(__file__).resolve().parent))
import public_api

from grue import fleet

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/peers/README.md": "benchmarks-peers.md",
}
_LINK = re.compile(r"(?<=\]\()(?!https?:|#|mailto:)([^)#\s]+)")
_LINKED = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_TRACE_TURNS = 16


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {made: (ROOT / source).read_text(encoding="utf-8") for source, made in OUTSIDE.items()}
    pages |= {
        **reference_pages(),
        "reference/cli.md": cli_page(),
        "decisions.md": decisions_page(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for path, text in for_agents(config.nav or [], pages).items():
        files.append(File.generated(config, path, content=text))
    files.append(File.generated(config, "traces/example.html", content=example_trace()))
    files.append(
        File.generated(config, "license.txt", content=(ROOT / "LICENSE").read_text(encoding="utf-8"))
    )
    return files


@mkdocs.plugins.event_priority(50)
def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change links between the repository's folders into links between pages of the site."""
    made = page.file.src_uri
    source = next((outside for outside, site in OUTSIDE.items() if site == made), f"docs/{made}")

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        on_site = OUTSIDE.get(target, "license.txt" if target == "LICENSE" else target.removeprefix("docs/"))
        return posixpath.relpath(on_site, posixpath.dirname(made) or ".")

    if made == "errors.md":
        page.meta["search"] = {"boost": 3}  # who searches for an error should find first what to do
        markdown = _ERROR.sub(
            r"### `\1` { #\1 }\n\nIts [attributes](reference/errors.md#grue.errors.\1).\n", markdown
        )
        markdown = _REASON_ROW.sub(r'| <a id="\1"></a>`\1` |', markdown)
    return _LINK.sub(moved, markdown)


_ERROR = re.compile(r"^### `(\w+)`$", re.MULTILINE)
_REASON_ROW = re.compile(r"^\| `([a-z_]+)` \|", re.MULTILINE)


_NOT_FOR_AGENTS = (
    "performance.md",
    "requirements.md",
    "mended.md",
    "provider-errors.md",
    "compatibility.md",
    "changelog.md",
)


def for_agents(nav: list[Any], made: dict[str, str]) -> dict[str, str]:
    """Return `llms.txt`, which lists the pages, and `llms-full.txt`, the text of those that agents need.

    Args:
        nav: The site's navigation, as mkdocs.yml has it.
        made: The text of the generated pages, by path.
    """
    listed = ["# grue\n", "> Drive an LLM agent that uses MCP tools from ordinary, synchronous Python.\n"]
    whole: list[str] = []
    for title, path in _pages(nav):
        # A heading of the navigation has no page.
        if not path:
            listed.append(f"\n## {title}\n")
            continue
        text = made[path] if path in made else (ROOT / "docs" / path).read_text(encoding="utf-8")
        listed.append(f"- [{title}]({_on_site(path)}): {_first_sentence(text)}")
        if path not in _NOT_FOR_AGENTS and not path.startswith(("reference/", "benchmarks")):
            whole.append(text)
    skill = (ROOT / "docs" / "skills" / "grue" / "SKILL.md").read_text(encoding="utf-8")
    return {"llms.txt": "\n".join(listed) + "\n", "llms-full.txt": "\n\n".join([skill, *whole])}


def _on_site(path: str) -> str:
    return f"{path.removesuffix('.md')}.html".replace("README.html", "index.html")


def _pages(nav: list[Any]) -> Iterator[tuple[str, str]]:
    for entry in nav:
        for title, value in entry.items():
            if isinstance(value, str):
                yield title, value
            else:
                yield title, ""
                yield from _pages(value)


def _first_sentence(text: str) -> str:
    """Return the first sentence of a page's prose: headings, tables, lists and code blocks are skipped."""
    if text.startswith("---"):
        return re.search(r"^description: (.*)$", text, re.MULTILINE)[1]  # type: ignore[index]  # a skill has one
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in prose.split("\n\n"):
        lines = [
            line for line in paragraph.splitlines() if not line.startswith(("#", "|", "-", "!", "<", ">"))
        ]
        if lines:
            lines = [_LINKED.sub(r"\1", line) for line in lines]
            return " ".join(lines).partition(". ")[0].rstrip(".:") + "."
    return ""


REFERENCE = {
    "turns": (
        "Turns and conversations",
        "Ask a model for a decision, and what comes back.",
        "Runner TurnRequest TurnOutcome AnswerSpec LlmSettings TurnHandle TurnProgress BatchItem Conversation"
        " parked_turns Batching TurnLimits Budget Price RetryPolicy FailurePolicy ContextPolicy Recorder"
        " TraceWriter",
    ),
    "tools": (
        "Tools and servers",
        "What the model may call, and who decides about it.",
        "StdioServer HttpServer OAuth FunctionTools tool ToolContext ShellTool ServerOptions Sandbox"
        " ProcessLimits ToolPolicy ToolRule ToolAnnotations ToolSearch ApprovalQuestion ApprovalDecision"
        " ask_at_terminal ToolClient",
    ),
}
"""The pages of the reference for `grue`: the title, a sentence, and the names, in the order of need."""
_WHOLE = {
    "errors": (
        "Error classes",
        "The attributes of each error; [errors](../errors.md) says what to do.",
        "grue.errors",
    ),
    "messages": (
        "Messages",
        "The messages of a turn that programs meet; `grue trace schema` prints all that traces have.",
        "grue.messages",
    ),
    "hosting": ("For hosts", "What writers of hosts import besides `grue`.", "grue.hosting"),
}
_MODULES = {
    "testing": (
        "Testing",
        "Models that follow a script, servers that fail on purpose, and checks.",
        "llm_server llm_replies fake_tools mock_server faulty_server leftovers decisions traces doubles"
        " actor_harness",
    ),
}


def reference_names() -> dict[str, list[str]]:
    """Return the names that each page of the reference documents. Each public name is on one page only."""
    public = [line.split() for line in public_api.public_api()]
    pages = {page: [f"grue.{name}" for name in names.split()] for page, (_, _, names) in REFERENCE.items()}
    placed = {name.rpartition(".")[2] for names in pages.values() for name in names}
    for page, (_, _, module) in _WHOLE.items():
        names = [name for owner, name in public if owner == module and name not in placed]
        pages[page] = [f"{module}.{name}" for name in names]
        placed |= {*names}
    pages["errors"].insert(0, "grue.errors.MCPError")  # `public_api` lists it under `grue`
    pages["fleet"] = [f"grue.fleet.{name}" for name in fleet.__all__ if name not in placed]
    pages["testing"] = [f"grue.testing.{name}" for name in _MODULES["testing"][2].split()]
    return pages


def reference_pages() -> dict[str, str]:
    """Return the pages of the reference, by path, and a page that lists them."""
    titles = {**REFERENCE, **_WHOLE, **_MODULES, "fleet": ("Fleets", "Thousands of episodes.", "")}
    pages: dict[str, str] = {}
    listed = [
        "# API\n\nThe public names, with their signatures and the errors that each call raises."
        " Everything else may change in any version ([decision 024](../decisions/024-public-modules.md)).\n"
    ]
    for page, names in reference_names().items():
        title, sentence, _ = titles[page]
        listed.append(f"- [{title}]({page}.md): {sentence}")
        blocks = "\n\n".join(f"::: {name}" for name in names)
        pages[f"reference/{page}.md"] = f"# {title}\n\n{sentence}\n\n{blocks}\n"
    return {"reference/api.md": "\n".join(listed) + "\n", **pages}


def cli_page() -> str:
    """Return the reference of the command line."""
    from grue.cli.app import app

    return "\n".join(["# Command line\n", *_command("grue", get_command(app), 2)])


def _command(name: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    yield f"{command.help or ''}\n"
    if isinstance(command, TyperGroup):
        for child, each in command.commands.items():
            yield from _command(f"{name} {child}", each, min(level + 1, 3))
    elif isinstance(command, TyperCommand):
        rows = [_row(parameter) for parameter in command.params]
        yield "\n".join(["| | | default |", "|---|---|---|", *rows]) + "\n" if rows else ""


def _row(parameter: Any) -> str:
    is_option = isinstance(parameter, TyperOption)
    names = ", ".join(f"`{each}`" for each in parameter.opts) if is_option else f"`{parameter.name.upper()}`"
    shown = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    default = "" if shown in (None, False, True) or callable(shown) else f"`{shown}`"
    return f"| {names} | {(parameter.help or '').replace('|', '/')} | {default} |"


def decisions_page() -> str:
    """Return the list of decision records."""
    lines = ["# Decisions\n", "Why something is as it is, half a page each.\n"]
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}](decisions/{path.name})")
    return "\n".join(lines) + "\n"


def example_trace() -> str:
    """Play an episode offline, and return its trace as a page."""
    with tempfile.TemporaryDirectory() as folder:
        run = str(Path(folder) / "run")
        play = ("play", "--offline", "--seed", "7", "--turns", str(_TRACE_TURNS), "--run-dir", run, "--quiet")
        for command in (play, ("trace", "html", run, "--out", f"{run}.html")):
            subprocess.run(
                [sys.executable, "-m", "grue", *command], check=True, stdout=subprocess.DEVNULL, cwd=folder
            )
        return Path(f"{run}.html").read_text(encoding="utf-8")

"""Print numbers about the source tree: folders, imports, sizes, and which modules name a message.

    python tools/figures.py                      all figures
    python tools/figures.py ReplyCut TextDelta   the same, with the modules that name these messages

Imports for type checkers only are not counted. The numbers about a turn come from one turn with one function
tool and a scripted endpoint. A module is entered if one of its functions runs, and loaded if it is imported.
"""

import collections
import re
import signal
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import grimp
from check_sizes import MODULE, measure

SOURCE = Path("src/grue")
MESSAGES = ("ReplyCut", "ToolDrifted", "McpDisabled")
LONG = 40
PAIRS = 10

Imports = Mapping[str, set[str]]


def module_imports(*, type_checking: bool = False) -> Imports:
    """Return the modules of grue that each module imports; `type_checking`: also for type checkers only."""
    # Use no cache: grimp's cache has returned an import for type checkers that had been removed.
    graph = grimp.build_graph("grue", exclude_type_checking_imports=not type_checking, cache_dir=None)
    return {name: set(graph.find_modules_directly_imported_by(name)) for name in graph.modules}


def folder_imports(imports: Imports) -> Imports:
    """Return which other folders (or modules directly in grue) each folder or such module imports."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for name, imported in imports.items():
        found[_folder(name)] |= {_folder(each) for each in imported} - {_folder(name)}
    del found["grue"]
    return found


def circles(imports: Imports) -> list[set[str]]:
    """Return the groups of modules, or folders, that import each other."""
    reached = {name: _reached(name, imports) for name in imports}
    groups = (frozenset(n for n in reached[name] if name in reached.get(n, ())) for name in imports)
    return [set(group) for group in {*groups} if len(group) > 1]


def longest_chain(imports: Imports) -> list[str]:
    """Return the longest chain of modules in which each imports the next. The imports must have no cycle."""
    chains: dict[str, list[str]] = {}

    def chain_from(name: str) -> list[str]:
        if name not in chains:
            chains[name] = [name, *max(map(chain_from, sorted(imports[name])), key=len, default=[])]
        return chains[name]

    return max(map(chain_from, sorted(imports)), key=len)


class TurnModules:
    """The modules of grue that one turn with one function tool needs.

    Attributes:
        entered: The modules in which a function runs.
        before_request: The modules that are entered before the first request reaches the model.
        loaded: The modules that are imported when the turn has ended, without those of `grue.testing`.
        changes: Number of calls from one module to another, by (caller, callee). When a coroutine resumes
            after a wait, that counts as a call.
        going_on: How many of these calls are resumed coroutines.
    """

    def __init__(self) -> None:
        self.entered: set[str] = set()
        self.before_request: set[str] = set()
        self.changes = collections.Counter[tuple[str, str]]()
        self.going_on = 0
        from grue import FunctionTools, LlmSettings, Runner, TurnRequest
        from grue.testing.llm_server import LlmRequest, ScriptedLlmServer, text_reply, tool_calls_reply

        replies = iter((tool_calls_reply(("tools.echo", {"text": "lamp"})), text_reply("take lamp")))

        def script(_: LlmRequest) -> Any:
            self.before_request = self.before_request or {*self.entered}
            return next(replies)

        tools = FunctionTools({"echo": lambda text: text})
        with ScriptedLlmServer(script) as llm:
            settings = LlmSettings(base_url=llm.base_url, model="scripted", api_key="none")
            with Runner(llm=settings, servers={"tools": tools}) as runner:
                threading.setprofile(self._call)
                sys.setprofile(self._call)
                runner.run_turn(TurnRequest(user="Go on."))
                sys.setprofile(None)
                threading.setprofile(None)
        self.loaded = {name for name in sys.modules if _of_a_turn(name)}

    def _call(self, frame: FrameType, event: str, _: object) -> None:
        module, caller = frame.f_globals.get("__name__", ""), frame.f_back
        if event == "call" and _of_a_turn(module) and frame.f_code.co_name != "<module>":
            self.entered.add(module)
            came_from = module if caller is None else caller.f_globals.get("__name__", "")
            if came_from != module:
                self.changes[came_from, module] += 1
                # The argument of the instruction RESUME is 0 at the beginning of a function.
                self.going_on += frame.f_code.co_code[frame.f_lasti + 1] & 3 != 0


def outside_contracts() -> list[str]:
    """Return the folders and modules directly in grue that no contract of import-linter names."""
    named = set(re.findall(r"grue\.(\w+)", str(_contracts())))
    there = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in _folders()}
    return sorted(name for name in there - named if not name.startswith("__"))


def long_functions() -> Iterator[str]:
    """Yield the functions of more than `LONG` lines, without their docstrings."""
    for path in _modules():
        for size in measure(str(path), path.read_text()):
            if size.name != MODULE and size.rule == "lines" and size.amount > LONG:
                yield f"{path}:{size.line} {size.name}: {size.amount}"


def main() -> None:
    """Print the figures."""
    imports = module_imports()
    folders = folder_imports(imports)
    layers = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0][
        "layers"
    ]
    print(f"folders: {sum(1 for _ in _folders())}; layers: {len(layers)}; modules: {len(imports)}")
    print(f"folders and root modules in no contract: {', '.join(outside_contracts()) or 'none'}")
    arrows = sum(map(len, imports.values()))
    print(f"imports between modules: {arrows}; between folders: {sum(map(len, folders.values()))}")
    print(f"circles of modules: {circles(imports)}; of folders: {circles(folders)}")
    chain = longest_chain(imports)
    print(f"longest chain of imports: {len(chain)} modules ({' > '.join(chain)})")
    turn = TurnModules()
    print(
        f"a turn with one function tool: {len(turn.entered)} modules entered,"
        f" {len(turn.before_request)} before the first request, {turn.changes.total()} changes of module"
        f" ({turn.going_on} of them coroutines that go on), {len(turn.loaded)} modules loaded"
    )
    for (came_from, module), count in turn.changes.most_common(PAIRS):
        print(f"  {count} times from {came_from} to {module}")
    lines = collections.Counter[str]()
    for path in _modules():
        inside = path.relative_to(SOURCE).parts
        lines[inside[0] if len(inside) > 1 else "(root)"] += len(path.read_text().splitlines())
    print(f"lines: {lines.total()} ({', '.join(f'{name} {count}' for name, count in lines.most_common())})")
    found = sorted(long_functions())
    print(f"functions of more than {LONG} lines: {len(found)}", *found, sep="\n  ")
    for message in sys.argv[1:] or MESSAGES:
        texts = ((path, path.read_text()) for path in _modules())
        naming = [str(p.relative_to(SOURCE)) for p, text in texts if re.search(rf"\b{message}\b", text)]
        print(f"modules that name {message}: {len(naming)} ({', '.join(naming)})")


def _contracts() -> list[dict[str, Any]]:
    pyproject = tomllib.loads(Path("pyproject.toml").read_text())
    contracts: list[dict[str, Any]] = pyproject["tool"]["importlinter"]["contracts"]
    return contracts


def _folder(module: str) -> str:
    return module.split(".")[1] if "." in module else module


def _folders() -> Iterator[Path]:
    return SOURCE.glob("*/__init__.py")


def _of_a_turn(module: str) -> bool:
    return module.startswith("grue.") and not module.startswith("grue.testing")


def _modules() -> Iterator[Path]:
    return iter(sorted(SOURCE.rglob("*.py")))


def _reached(name: str, imports: Imports) -> set[str]:
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = imports.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` closes the pipe early
    main()

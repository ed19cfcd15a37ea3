"""The rules that say which files a box opens: the system's, the program's, and those in the box's settings.

Each start makes all rules but the system's anew, since links and folders change. If a path leads through
a folder that the program may write, it must also end in that folder, or (unless it is in `Sandbox.write`) at
an interpreter. Otherwise the program could make a link there, and its next box would open the target. Of such
an interpreter, a box opens the file, and the libraries beside it, but no folder above.
"""

import contextlib
import functools
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from grue.errors import SandboxError
from grue.sandbox.box import Sandbox
from grue.sandbox.kernel import EXECUTE, READ, READ_FILE, WRITE, WRITE_FILE, Rule

_PROGRAMS = """
/usr /bin /sbin /lib /lib32 /lib64 /libx32 /nix/store /snap /opt/homebrew /home/linuxbrew/.linuxbrew /opt/node
/opt/nodejs /opt/python /opt/hostedtoolcache
"""
_SETTINGS = """
alternatives ca-certificates ca-certificates.conf crypto-policies debian_version fonts gai.conf group
host.conf hosts java-17-openjdk java-21-openjdk ld.so.cache ld.so.conf ld.so.conf.d locale.alias locale.conf
localtime login.defs lsb-release magic mime.types nodejs nsswitch.conf os-release passwd pki/ca-trust
pki/tls/cert.pem pki/tls/certs pki/tls/openssl.cnf profile protocols python3 resolv.conf rpc services shells
ssl/cert.pem ssl/certs ssl/openssl.cnf terminfo timezone zoneinfo
"""
_KERNEL = """
/proc/cpuinfo /proc/filesystems /proc/loadavg /proc/meminfo /proc/stat /proc/sys /proc/uptime /proc/version
/sys/devices/system/cpu /sys/fs/cgroup /sys/kernel/mm/transparent_hugepage
"""
_DEVICES_READ = ("/dev/random", "/dev/urandom")
_DEVICES_WRITE = ("/dev/full", "/dev/null", "/dev/zero")
_CODE = (".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".jar", ".rb", ".sh", ".php", ".dll", ".wasm")
_WIDE = ("node_modules", "site-packages", "dist-packages")
_ROOTS = ("package.json", "pyproject.toml", "go.mod", "Cargo.toml")
_MOST_TEXT_BYTES = 1 << 16
_MOST_SIBLINGS = 20_000
_MOST_LINKS = 40
_INTERPRETERS = re.compile(r"(python|pypy|node|bun|deno|ruby|perl|php|java|env|sh|bash|dash|busybox)[0-9.]*")
# One of these is beside the `bin` of an interpreter's installation.
_LIBRARIES = ("include/node", *(f"lib/{name}" for name in ("py*/os.py", "ruby", "perl5", "php", "modules")))
_INTERPRETER = re.compile(rb"#! *([^\s]+)(?:[ \t]+([^\n]*))?")


class Places(Struct, frozen=True):
    """What a box opens, for one program on this machine."""

    # Rules for the system's files; empty if something is hidden, since `own` has these rules then. Boxes that
    # need the same rules get the same tuple until `_state_of_system` changes.
    system: tuple[Rule, ...]
    own: tuple[Rule, ...]  # the other rules
    opened: tuple[str, ...]  # folders and files of the program itself, and those in `Sandbox.read`
    written: tuple[str, ...]  # the workspace, if the box opens it, and the paths in `Sandbox.write`
    broken: tuple[str, ...] = ()  # opened folders with something hidden: only their other entries have rules

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules of the box: `system` and `own`."""
        return (*self.system, *self.own)


def places_of(
    box: Sandbox, *, program: str, args: Sequence[str], cwd: str, env: Mapping[str, str], scratch: str
) -> Places:
    """Return the files and folders that a box opens for a program. `program` and `cwd` are absolute.

    If one of the first 8 arguments is a file with code, the box opens the file too, and usually its folder or
    package. Raises `SandboxError`, for example if a path in `write` or `execute` does not exist.
    """
    written = [_absolute(path, cwd) for path in box.write]
    if box.preset == "files":
        written.insert(0, _workspace(cwd))
    for path in written:
        if not os.path.exists(path):  # noqa: PTH110 - `Path` is slower, and this runs before each start
            why = f"The sandbox lets the program write {path}, which does not exist."
            raise SandboxError(why, remedy="Create it, or leave it out.")
    # Call `_chain` only once, so that the check and the rules are about the same files.
    chain = tuple(_chain(program))
    changeable = [real_path(path) for path in written]
    _refuse_planted(chain, changeable)
    own = [*own_folders(chain, args, cwd, changeable), *_module_folders(env, cwd)]
    read = [_absolute(path, cwd) for path in box.read]
    real = _without_links(written, changeable, but_interpreters=False)
    real += _without_links((*read, *own), changeable)
    started = None if box.execute is None else _programs(box.execute, chain, cwd, env, changeable)
    hidden = [real_path(_absolute(path, cwd)) for path in box.hide]
    system = _system_rules(_state_of_system(), executable=started is None)
    run = EXECUTE if started is None else 0
    trees = _opened_trees()
    others = dict.fromkeys(real[len(written) :])
    rules = [Rule(path, READ | run) for path in others if not path.startswith(trees)]
    rules += [Rule(path, READ | WRITE | run) for path in (*real[: len(written)], scratch)]
    rules += [Rule(path, READ_FILE | EXECUTE) for path in started or ()]
    broken: dict[str, None] = {}
    if hidden:
        system, rules = (), [part for rule in (*system, *rules) for part in _around(rule, hidden, broken)]
    return Places(system, tuple(rules), tuple(dict.fromkeys((*own, *read))), tuple(written), tuple(broken))


def own_folders(
    chain: Sequence[str], args: Sequence[str], cwd: str, changeable: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the paths of a program (`chain`) and its script (in `args`), and folders that belong to them.

    `changeable` are the folders that the program may write, with links resolved.
    """
    found = _belonging(chain, changeable)
    for argument in args[:8]:
        word = argument.partition("=")[2] if argument.startswith("-") else argument
        path = os.path.join(cwd, word)  # noqa: PTH118
        if word and os.path.isfile(path) and not _is_data(path):  # noqa: PTH113
            found += _belonging((path, real_path(path)), changeable)
    return tuple(dict.fromkeys(found))


def _belonging(chain: Iterable[str], changeable: Sequence[str]) -> list[str]:
    found: list[str] = []
    planted = False  # whether the boxed program may have chosen the rest of the chain
    for path in chain:
        found += [path, *_libraries(path)] if planted else _installation(path, changeable)
        planted = planted or _leads_through(path, changeable)
    return found


def home() -> str:
    """Return the user's home folder, with links resolved; `/nonexistent` if the user has none."""
    mine = os.path.expanduser("~")  # noqa: PTH111
    return "/nonexistent" if mine == "~" else real_once(mine)


@functools.cache
def real_once(path: str) -> str:
    """Return `real_path` of a folder, cached. Use it for folders that do not move while grue runs."""
    return real_path(path)


def real_path(path: str) -> str:
    """Return a path with links resolved. On Linux the kernel resolves them, four times as fast as Python."""
    with contextlib.suppress(OSError, AttributeError):  # there is no such file, no `O_PATH`, or no /proc
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            found = os.readlink(f"/proc/self/fd/{place}")  # noqa: PTH115
        finally:
            os.close(place)
        if found[0] == "/" and not found.endswith(" (deleted)"):
            return found
    try:
        return os.path.realpath(path)
    except RecursionError:  # a boxed program may have made a thousand links, each to the next
        return os.path.abspath(path)  # noqa: PTH100


def packages_of(folder: str) -> str | None:
    """Return the `node_modules`, `site-packages` or `dist-packages` that a folder is or is in, or `None`."""
    parts = folder.split("/")
    return next(("/".join(parts[: parts.index(wide) + 1]) for wide in _WIDE if wide in parts), None)


def is_too_wide(folder: str) -> bool:
    """Return whether a folder is the user's home or above it, `/tmp`, `/home`, or the temporary folder."""
    return _is_wide_workspace(folder) or real_path(folder) == real_once(tempfile.gettempdir())


def _is_wide_workspace(folder: str) -> bool:
    mine = home()
    shared = folder in ("/", "/tmp", "/home")  # noqa: S108 - nothing is written there
    return shared or within(mine, folder) or within(mine, real_path(folder))


def _chain(program: str) -> Iterator[str]:
    for _ in range(4):
        real = real_path(program)
        yield program
        if real != program:
            yield real
        found = _INTERPRETER.match(_head(real))
        if found is None:
            return
        program = os.fsdecode(found[1])


def _installation(path: str, changeable: Sequence[str]) -> list[str]:
    """Return the path of a program or script, and the folders of its installation, such as its package's."""
    if path.startswith(_opened_trees()):
        return [path]
    folder = os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120
    parent = os.path.dirname(folder)  # noqa: PTH120
    packages = packages_of(folder)
    if packages is not None:
        return [each for each in (path, packages) if not is_too_wide(each)]
    if os.path.isfile(f"{parent}/pyvenv.cfg"):  # noqa: PTH113
        return [path, *_environment(parent, changeable)]
    if os.path.basename(folder) in ("bin", "sbin", "Scripts"):  # noqa: PTH119
        return [path, *_beside_bin(parent)]
    # The program could remove one of `_ROOTS` from a folder that it may write, to have a folder above opened.
    root = "/" if _leads_through(folder, changeable) else folder
    while not is_too_wide(root):
        if any(os.path.isfile(f"{root}/{name}") for name in _ROOTS):  # noqa: PTH113
            return [path, root]
        root = os.path.dirname(root)  # noqa: PTH120
    return [path] if is_too_wide(folder) else [path, folder]


def _libraries(path: str) -> list[str]:
    """Return an interpreter's installation folders; `[]` if every box opens them, or for other programs."""
    prefix, name = os.path.split(os.path.dirname(path))  # noqa: PTH120
    if path.startswith(_opened_trees()) or name != "bin" or not _is_interpreter(path):
        return []
    return _beside_bin(prefix) if any(any(Path(prefix).glob(each)) for each in _LIBRARIES) else []


def _beside_bin(prefix: str) -> list[str]:
    if prefix in ("/", "/usr", "/usr/local") or is_too_wide(prefix):
        return []
    shared = () if prefix == f"{home()}/.local" else ("share",)  # `~/.local/share` has all programs' data
    return _existing(f"{prefix}/{each}" for each in ("bin", "lib", "lib64", "libexec", "include", *shared))


def _environment(root: str, changeable: Sequence[str]) -> list[str]:
    """Return the virtual environment `root`, folders of its base Python, and those that `.pth` files list."""
    found = [root]
    for line in _text(f"{root}/pyvenv.cfg"):
        key, _, value = line.partition("=")
        if key.strip() == "home" and value.strip().startswith("/"):
            # The program may have written this line, so open only the libraries of an interpreter.
            found += _libraries(f"{real_path(value.strip())}/python3")
    for version in _listed(f"{root}/lib"):
        folder = f"{root}/lib/{version}/site-packages"
        for path in (f"{folder}/{name}" for name in _pth_files(folder)):
            # The program could have added any folder to a `.pth` file that it may write or replace.
            if not _leads_through(path, changeable):
                added = [line.strip() for line in _text(path) if line[:1] == "/"]
                found += [each for each in added if not is_too_wide(each)]
    return found


def _pth_files(folder: str) -> tuple[str, ...]:
    """Return the names of a folder's `.pth` files, cached until the folder changes."""
    try:
        now = os.stat(folder)  # noqa: PTH116
    except OSError:
        return ()
    return _listed_pth(folder, now.st_dev, now.st_ino, now.st_mtime_ns, now.st_ctime_ns)


@functools.lru_cache(maxsize=64)
def _listed_pth(folder: str, *_state: int) -> tuple[str, ...]:
    return tuple(name for name in _listed(folder) if name.endswith(".pth"))


def _text(path: str) -> list[str]:
    return _head(path, _MOST_TEXT_BYTES).decode("utf-8", "replace").splitlines()


def _module_folders(env: Mapping[str, str], cwd: str) -> list[str]:
    named = f"{env.get('PYTHONPATH', '')}:{env.get('NODE_PATH', '')}".split(":")
    paths = [os.path.join(cwd, each) for each in named if each]  # noqa: PTH118
    return [path for path in paths if not is_too_wide(path)]


@functools.cache
def _opened_trees() -> tuple[str, ...]:
    """Return the folders with programs that every box opens, each with a slash at its end."""
    return tuple(f"{path}/" for path in (*_existing(_PROGRAMS.split()), *_base_python()))


def _state_of_system() -> tuple[tuple[int, int], ...]:
    """Return a value that changes when a settings file that every box opens is made, replaced or removed."""
    found = []
    for folder in _system_folders():
        with contextlib.suppress(OSError):
            now = os.stat(folder)  # noqa: PTH116
            found.append((now.st_ino, now.st_ctime_ns))
    return tuple(found)


@functools.cache
def _system_folders() -> tuple[str, ...]:
    """Return the folders of the settings files that every box opens, and of the files to which they link.

    Files in `_opened_trees` are left out.
    """
    named = [f"/etc/{name}" for name in _SETTINGS.split()]
    paths = [*named, *(path for path in map(real_path, named) if not path.startswith(_opened_trees()))]
    return tuple(dict.fromkeys(map(os.path.dirname, paths)))


@functools.lru_cache(maxsize=4)
def _system_rules(_state: object, *, executable: bool) -> tuple[Rule, ...]:
    run = READ | (EXECUTE if executable else 0)
    rules = [Rule(path, run) for path in _existing((*_PROGRAMS.split(), *_base_python()))]
    others = _existing((*(f"/etc/{name}" for name in _SETTINGS.split()), *_KERNEL.split()))
    rules += [Rule(path, READ if os.path.isdir(path) else READ_FILE) for path in others]  # noqa: PTH112
    rules += [Rule(path, READ_FILE) for path in _existing(_DEVICES_READ)]
    rules += [Rule(path, READ_FILE | WRITE_FILE) for path in _existing(_DEVICES_WRITE)]
    if not executable:
        # Open `/bin/sh` too, because grue starts the program through a shell.
        loaders = [f"/lib64/{name}" for name in _listed("/lib64") if name.startswith("ld-")]
        loaders += [f"/lib/{name}" for name in _listed("/lib") if name.startswith("ld-")]
        rules += [Rule(real_path(path), READ_FILE | EXECUTE) for path in ("/bin/sh", *loaders)]
    return _distinct(rules)


def _distinct(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    # Each rule costs time at each start, so leave out those that others cover (`/lib` may link into `/usr`).
    found: dict[str, int] = {}
    for rule in rules:
        real = real_path(rule.path)
        found[real] = found.get(real, 0) | rule.access

    def is_covered(path: str, access: int) -> bool:
        others = (more for other, more in found.items() if path != other and within(path, other))
        return any(access & more == access for more in others)

    return tuple(Rule(path, access) for path, access in found.items() if not is_covered(path, access))


def _base_python() -> tuple[str, ...]:
    # Every box opens grue's own Python, on which many servers run, unless its folder is too wide.
    base = real_path(sys.base_prefix)
    return () if is_too_wide(base) or base.startswith("/usr") else (base,)


def _programs(
    names: Iterable[str], chain: Sequence[str], cwd: str, env: Mapping[str, str], changeable: Sequence[str]
) -> list[str]:
    import shutil

    found = [*chain]
    for name in names:
        path = _absolute(name, cwd) if "/" in name else shutil.which(name, path=env.get("PATH", os.defpath))
        if path is None or not os.path.exists(path):  # noqa: PTH110
            raise SandboxError(f"The sandbox lets the program start {name}, which does not exist.")
        listed = tuple(_chain(path))
        _refuse_planted(listed, changeable)
        found += listed
    return _without_links(found, changeable)


def _workspace(cwd: str) -> str:
    # Do not use `is_too_wide`: a workspace may be the temporary folder, if that is not `/tmp` itself.
    if _is_wide_workspace(cwd):
        raise SandboxError(
            f"The preset 'files' would open {cwd}, with everything that is in it.",
            remedy="Set the server's cwd to the folder of the project, or list folders under 'write'.",
        )
    return cwd


def _refuse_planted(chain: Sequence[str], changeable: Sequence[str]) -> None:
    """Refuse a link or script that leads out of the `changeable` folders, except to an interpreter."""
    for path, then in itertools.pairwise(chain):
        allowed = _is_interpreter(then) or _leads_through(then, changeable)
        if not allowed and _leads_through(path, changeable):
            why = f"{path} leads to {then}, and the program may write the folder that it is in."
            raise SandboxError(why, remedy="The program may have made it so. Name the program where it is.")


def _without_links(
    paths: Iterable[str], changeable: Sequence[str], *, but_interpreters: bool = True
) -> list[str]:
    """Return `paths` with links resolved. Refuse a link in a `changeable` folder that leads out of it.

    With `but_interpreters`, do not refuse a link to an interpreter: virtual environments have one.
    """
    found = []
    for path in paths:
        real = real_path(path)
        found.append(real)
        left = [each for each in changeable if not within(real, each)]
        if left and path != real and not (but_interpreters and _is_interpreter(real)):
            places = tuple(_places_on(path))
            if any(place != each and within(place, each) for place in places for each in left):
                why = f"The sandbox opens {path}, which is a link to {real}, and the program may write there."
                remedy = "The program may have made it. Remove the link, or name where it leads."
                raise SandboxError(why, remedy=remedy)
    return found


def _leads_through(path: str, folders: Sequence[str]) -> bool:
    """Return whether a path leads through one of the folders, also if links lead there and away again."""
    return bool(folders) and any(within(place, each) for place in _places_on(path) for each in folders)


def _places_on(path: str) -> Iterator[str]:
    """Yield the files and folders that the kernel passes when it opens a path, those of links included."""
    place, rest, links = "", path.split("/"), 0
    while rest:
        name = rest.pop(0)
        if name == "..":
            place = os.path.dirname(place).rstrip("/")  # noqa: PTH120
        elif name not in ("", "."):
            place = f"{place}/{name}"
            yield place
            with contextlib.suppress(OSError):
                target = os.readlink(place)  # noqa: PTH115
                links += 1
                rest = [*target.split("/"), *rest] if links <= _MOST_LINKS else []
                place = "" if target.startswith("/") else os.path.dirname(place).rstrip("/")  # noqa: PTH120


def _around(rule: Rule, hidden: list[str], broken: dict[str, None]) -> Iterator[Rule]:
    """Yield rules for everything that a rule opens, except the hidden paths.

    A Landlock rule can only allow. So a folder with a hidden path in it gets one rule for each of its other
    entries. Files that are made in it later have no rule and stay closed.
    """
    real = real_path(rule.path)
    if any(within(real, each) for each in hidden):
        return
    inside = [each for each in hidden if within(each, real)]
    if not inside:
        yield rule
        return
    broken[real] = None
    names = _listed(real)
    if len(names) > _MOST_SIBLINGS:
        raise SandboxError(f"{real} has more than {_MOST_SIBLINGS} entries, too many to hide one of them.")
    for name in names:
        path = f"{real.rstrip('/')}/{name}"
        if not os.path.islink(path):  # noqa: PTH114 - a link needs no rule, only the place that it leads to
            yield from _around(Rule(path, rule.access), inside, broken)


def _is_interpreter(path: str) -> bool:
    """Return whether a path is a well-known interpreter, but not one in a virtual environment.

    For an interpreter in an environment, a box would also open that environment, and what its `.pth` files
    list. So a program must not be able to plant one.
    """
    folder, name = os.path.split(path)
    environment = f"{os.path.dirname(folder)}/pyvenv.cfg"  # noqa: PTH120
    if not (_INTERPRETERS.fullmatch(name) and os.path.isfile(path)) or os.path.isfile(environment):  # noqa: PTH113
        return False
    # Outside of the system's folders, a name is not enough: any project may have a file named `env`.
    return path.startswith(_opened_trees()) or (os.access(path, os.X_OK) and b"\0" in _head(path))


def within(path: str, folder: str) -> bool:
    """Return whether a path is equal to a folder's path, or inside the folder."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _absolute(path: str, cwd: str) -> str:
    return os.path.normpath(os.path.join(cwd, os.path.expanduser(path)))  # noqa: PTH111, PTH118


def _is_data(path: str) -> bool:
    # Of the arguments, a box opens files of code and their installations, but no files of data.
    name = os.path.basename(path)  # noqa: PTH119
    return not name.endswith(_CODE) and _head(path)[:2] != b"#!"


def _head(path: str, most: int = 256) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, most)
    except OSError:  # `path` is a folder, for example
        return b""
    finally:
        os.close(descriptor)


def _existing(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]  # noqa: PTH110


def _listed(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208 - `Path` takes ten times as long
    return []

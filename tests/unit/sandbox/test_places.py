import os
import sys
import tempfile
from pathlib import Path

import pytest

from grue.errors import SandboxError
from grue.sandbox.box import Sandbox
from grue.sandbox.kernel import EXECUTE, READ_FILE, WRITE_FILE
from grue.sandbox.places import Places, _chain, _system_rules, is_too_wide, own_folders, places_of

COMPILED = "\x7fELF\0"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    return home


def program(path: Path, text: str = "#!/bin/sh\n") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def places(
    box: Sandbox, cwd: Path, command: str = "/bin/sh", *args: str, scratch: Path | None = None
) -> Places:
    return places_of(box, program=command, args=args, cwd=str(cwd), env={}, scratch=str(scratch or cwd))


def may(found: Places, path: Path | str, access: int) -> bool:
    """Return whether a rule allows an access, as the kernel would decide about the path."""
    real = os.path.realpath(path)
    return any(
        rule.access & access == access
        and (real == (base := os.path.realpath(rule.path)) or real.startswith(base.rstrip("/") + "/"))
        for rule in found.rules
    )


def test_the_home_folder_is_never_a_programs_own(home: Path) -> None:
    script = program(home / "server.py", "print(1)\n")
    assert own_folders(("/bin/sh",), (script,), str(home))[-1] == script
    assert is_too_wide(str(home))
    assert is_too_wide(str(home.parent))
    assert is_too_wide("/")
    assert not is_too_wide(str(home / "work"))


def test_a_user_without_a_home_folder_has_workspaces(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 9)
    monkeypatch.chdir(home)
    assert os.path.expanduser("~") == "~"  # noqa: PTH111
    assert not is_too_wide(str(home))
    assert is_too_wide("/home")


def test_the_temporary_folder_is_never_a_programs_own(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    script = program(folder / "server.py", "print(1)\n")
    (folder / "package.json").touch()
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
    linked = str(tmp_path / "link" / "server.py")
    assert own_folders(("/bin/sh",), (script, linked), str(home))[1:] == (script, linked)


def test_a_script_has_its_package_and_an_argument_that_is_data_does_not(home: Path) -> None:
    script = program(home / "work" / "src" / "server.py", "print(1)\n")
    (home / "work" / "pyproject.toml").touch()
    data = home / "papers" / "notes.txt"
    data.parent.mkdir()
    data.write_text("private")
    found = own_folders(("/bin/sh",), (script, str(data)), str(home))
    assert str(home / "work") in found
    assert not any("papers" in path for path in found)


def test_a_package_of_npm_has_all_node_modules(home: Path) -> None:
    script = program(home / "work" / "node_modules" / "pkg" / "dist" / "index.js", "#!/usr/bin/env node\n")
    assert str(home / "work" / "node_modules") in own_folders((script,), (), str(home))


def test_a_virtual_environment_has_its_python_and_what_its_pth_files_add(home: Path) -> None:
    venv, base, source = home / "v", home / ".pyenv" / "3", home / "elsewhere" / "src"
    python = program(base / "bin" / "python3", COMPILED)
    program(base / "lib" / "python3.11" / "os.py")
    source.mkdir(parents=True)
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").symlink_to(python)
    (venv / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\n")
    site = venv / "lib" / "python3" / "site-packages"
    site.mkdir(parents=True)
    (site / "editable.pth").write_text(f"import os\n{source}\n{home}\n")
    found = own_folders(tuple(_chain(str(venv / "bin" / "python"))), (), str(home))
    assert {str(venv), str(base / "lib"), str(source)} <= set(found)
    assert str(home) not in found
    # The program can write or replace the file, so a line in it opens nothing elsewhere.
    (linked := home / "linked").symlink_to(site)
    for written in (venv, venv / "lib", site.parent, site, site / "editable.pth", linked):
        changeable = own_folders(
            tuple(_chain(str(venv / "bin" / "python"))), (), str(home), [os.path.realpath(written)]
        )
        assert str(source) not in changeable, written
        assert str(base / "lib") in changeable
    other = own_folders(tuple(_chain(str(venv / "bin" / "python"))), (), str(home), [str(site / "pkg")])
    assert str(source) in other


@pytest.mark.parametrize("planted", ["link", "interpreter", "pyvenv"])
def test_what_the_program_may_have_planted_opens_nothing(home: Path, planted: str) -> None:
    workspace, secrets = home / "work", home / "secrets"
    program(secrets / "run")
    match planted:
        case "link":
            (workspace / "server").symlink_to(secrets / "run")
        case "interpreter":
            program(workspace / "server", f"#!{secrets}/run\n")
        case "pyvenv":
            (workspace / "pyvenv.cfg").write_text(f"home = {secrets}\n")
            program(workspace / "bin" / "server")
    command = str(workspace / ("bin/server" if planted == "pyvenv" else "server"))
    box = Sandbox(preset="files")
    if planted == "pyvenv":
        assert not may(places(box, workspace, command), secrets / "run", READ_FILE)
    else:
        with pytest.raises(SandboxError, match="may have made it"):
            places(box, workspace, command)
    # Out of its reach, the same is the user's own arrangement.
    if planted != "pyvenv":
        assert may(places(Sandbox(), home, command), secrets / "run", READ_FILE)


@pytest.mark.parametrize("planted", ["link", "#!", "pyvenv", "script"])
def test_an_interpreters_name_opens_no_project(home: Path, planted: str) -> None:
    workspace, other = home / "work", home / "other"
    node = program(other / "tools" / "node", COMPILED)
    program(other / "tools" / "python3", COMPILED)
    (other / "package.json").write_text("{}")
    command, args = str(workspace / "server"), [str(workspace / "server.py")]
    match planted:
        case "link":
            (workspace / "server").symlink_to(node)
        case "#!":
            program(workspace / "server", f"#!{node}\n")
        case "pyvenv":
            (workspace / "pyvenv.cfg").write_text(f"home = {other / 'tools'}\n")
            command = program(workspace / "bin" / "server")
        case _:
            command = "/bin/sh"
            (workspace / "server.py").symlink_to(node)
    found = places(Sandbox(preset="files"), workspace, command, *args)
    assert not may(found, other / "package.json", READ_FILE)
    assert not may(found, other / "tools" / "secret", READ_FILE)
    assert may(found, node, READ_FILE | EXECUTE) is (planted != "pyvenv")


@pytest.mark.parametrize("text", ["#!/bin/sh\n", "KEY=1\n"])
def test_a_script_or_a_text_with_an_interpreters_name_is_none(home: Path, text: str) -> None:
    (home / "work" / "server").symlink_to(program(home / "other" / "env", text))
    with pytest.raises(SandboxError, match="may have made it"):
        places(Sandbox(preset="files"), home / "work", str(home / "work" / "server"))


def test_an_interpreter_outside_of_the_system_opens_its_libraries(home: Path) -> None:
    workspace, prefix = home / "work", home / ".nvm" / "versions" / "node" / "v22"
    (home / ".nvm" / "package.json").parent.mkdir()
    (home / ".nvm" / "package.json").write_text("{}")
    (workspace / "node").symlink_to(program(prefix / "bin" / "node", COMPILED))
    program(prefix / "include" / "node" / "node.h")
    program(prefix / "lib" / "node_modules" / "npm" / "cli.js")
    found = places(Sandbox(preset="files"), workspace, str(workspace / "node"))
    assert may(found, prefix / "lib" / "node_modules" / "npm" / "cli.js", READ_FILE)
    assert not may(found, prefix / "README.md", READ_FILE)
    assert not may(found, home / ".nvm" / "package.json", READ_FILE)


def test_a_program_of_the_user_does_not_open_the_data_of_others(home: Path) -> None:
    command = program(home / ".local" / "bin" / "server")
    program(home / ".local" / "share" / "keyrings" / "login")
    program(home / ".local" / "lib" / "module.py")
    found = places(Sandbox(), home / "work", command)
    assert may(found, home / ".local" / "lib" / "module.py", READ_FILE)
    assert not may(found, home / ".local" / "share" / "keyrings" / "login", READ_FILE)


@pytest.mark.parametrize("way", ["a link to the workspace", "a link to a link", "a folder"])
def test_a_planted_link_is_found_behind_other_links(home: Path, way: str) -> None:
    workspace, mine = home / "work", home / "mine"
    run = program(home / "secrets" / "run")
    match way:
        case "a link to the workspace":
            (workspace / "server").symlink_to(run)
            mine.symlink_to(workspace)
            command, cwd = workspace / "server", mine
        case "a link to a link":
            (workspace / "server").symlink_to(run)
            mine.symlink_to("work/../work/server")
            command, cwd = mine, workspace
        case _:
            (workspace / "bin").symlink_to(home / "secrets")
            command, cwd = workspace / "bin" / "run", workspace
    with pytest.raises(SandboxError, match="may have made it"):
        places(Sandbox(preset="files"), cwd, str(command))


def test_a_way_through_the_root_folder_is_found(home: Path) -> None:
    workspace, other = home / "work", home / "other"
    program(other / "app.py")
    (other / "pyproject.toml").write_text("")
    (workspace / "app.py").symlink_to(other / "app.py")
    climbs = "../" * len(workspace.parts) + str(workspace / "app.py").removeprefix("/")
    for argument in ("app.py", climbs):
        with pytest.raises(SandboxError, match="may have made it"):
            places(Sandbox(preset="files"), workspace, "/bin/sh", argument)


@pytest.mark.parametrize("planted", ["node", "python3.12"])
def test_a_planted_link_never_lets_an_interpreter_be_written(home: Path, planted: str) -> None:
    prefix = home / ".nvm" / "v22"
    program(prefix / "bin" / "node", COMPILED)
    program(prefix / "lib" / "python3.12" / "os.py")
    (home / "work" / "data").symlink_to(prefix / ("bin" if planted == "node" else "lib") / planted)
    with pytest.raises(SandboxError, match="may have made it"):
        places(Sandbox(preset="files", write=("data",)), home / "work")


def test_a_circle_of_links_ends(home: Path) -> None:
    (home / "work" / "a").symlink_to("b")
    (home / "work" / "b").symlink_to("a")
    found = places(Sandbox(preset="files", read=("a",)), home / "work")
    assert str(home / "work" / "a") in found.opened


def test_a_removed_project_file_does_not_open_the_project_above(home: Path) -> None:
    above, workspace = home / "mono", home / "mono" / "packages" / "a"
    workspace.mkdir(parents=True)
    (above / "package.json").write_text("{}")
    (above / ".env").write_text("KEY=1")
    command = str(program(workspace / "src" / "server.js", "#!/usr/bin/env node\n"))
    # There is no package.json in the workspace: the program may have removed it.
    assert not may(places(Sandbox(preset="files"), workspace, command), above / ".env", READ_FILE)
    assert may(places(Sandbox(), workspace, command), above / ".env", READ_FILE)


def test_a_writable_file_cannot_open_another_virtual_environment(home: Path) -> None:
    workspace, theirs, source = home / "work", home / "theirs", home / "theirs-source"
    source.mkdir()
    other_python = program(theirs / "bin" / "python3")
    (theirs / "pyvenv.cfg").write_text("home = /usr/bin\n")
    site = theirs / "lib" / "python3" / "site-packages"
    site.mkdir(parents=True)
    (site / "editable.pth").write_text(f"{source}\n")
    box = Sandbox(preset="files")
    (workspace / "pyvenv.cfg").write_text(f"home = {theirs / 'bin'}\n")
    opened = places(box, workspace, str(program(workspace / "bin" / "server")))
    assert not may(opened, source / "x", READ_FILE)
    assert not may(opened, site / "editable.pth", READ_FILE)
    script = str(program(workspace / "script", f"#!{other_python}\n"))
    with pytest.raises(SandboxError, match="may have made it"):
        places(box, workspace, script)
    assert may(places(Sandbox(), workspace, script), source / "x", READ_FILE)  # the program cannot write it


def test_a_listed_path_that_is_a_link_out_of_a_writable_folder_is_refused(home: Path) -> None:
    workspace = home / "work"
    (home / "secrets").mkdir()
    (workspace / "data").symlink_to(home / "secrets")
    for box in (Sandbox(preset="files", read=("data",)), Sandbox(preset="files", write=("data",))):
        with pytest.raises(SandboxError, match="is a link to"):
            places(box, workspace)
    assert may(places(Sandbox(read=("data",)), workspace), home / "secrets" / "x", READ_FILE)


def test_the_workspace_is_written_unless_it_is_the_home_folder(home: Path) -> None:
    found = places(Sandbox(preset="files"), home / "work", scratch=home)
    assert may(found, home / "work" / "new", WRITE_FILE)
    with pytest.raises(SandboxError, match=f"would open {home}"):
        places(Sandbox(preset="files"), home)


def test_a_path_to_write_has_to_exist_and_one_to_read_may_be_absent(home: Path) -> None:
    with pytest.raises(SandboxError, match=r"write .*/work/out, which does not exist. Create it"):
        places(Sandbox(write=("out",)), home / "work")
    places(Sandbox(read=("in",)), home / "work")


@pytest.mark.slow
def test_hidden_paths_are_left_out_of_an_open_folder(home: Path) -> None:
    for name in (".ssh", "docs/open", "docs/closed"):
        (home / name).mkdir(parents=True)
        (home / name / "file").touch()
    (home / "link").symlink_to(home / ".ssh")
    box = Sandbox(read=("/",), hide=("~/.ssh", "~/docs/closed"))
    found = places(box, home / "work")
    assert {str(home), str(home / "docs"), "/"} <= {*found.broken}
    assert may(found, home / "docs" / "open" / "file", READ_FILE)
    assert may(found, "/etc/hostname", READ_FILE)
    for hidden in (".ssh/file", "docs/closed/file", "link/file"):
        assert not may(found, home / hidden, READ_FILE), hidden


def test_a_file_of_the_system_can_be_hidden(home: Path) -> None:
    found = places(Sandbox(hide=("/etc/passwd",)), home / "work")
    assert not may(found, "/etc/passwd", READ_FILE)
    assert may(places(Sandbox(), home / "work"), "/etc/passwd", READ_FILE)


def test_the_systems_rules_name_each_folder_once() -> None:
    rules = _system_rules((), executable=True)
    paths = [rule.path for rule in rules]
    assert len({*paths}) == len(paths)
    assert all(os.path.realpath(path) == path for path in paths)
    assert not any(path.startswith("/usr/") for path in paths)
    loaders = _system_rules((), executable=False)
    assert any(rule.access & EXECUTE for rule in loaders), "the shell that waits has to be started"
    assert not any(rule.path == "/usr" and rule.access & EXECUTE for rule in loaders)


def test_only_listed_programs_are_started(home: Path) -> None:
    box = Sandbox(execute=("cat", "./tool"))
    with pytest.raises(SandboxError, match=r"start ./tool, which does not exist"):
        places(box, home / "work")
    tool = program(home / "work" / "tool")
    found = places_of(
        box, program="/bin/sh", args=(), cwd=str(home / "work"), env={}, scratch=str(home / "s")
    )
    assert may(found, tool, EXECUTE)
    assert may(found, "/bin/cat", EXECUTE)
    assert not may(found, "/bin/ls", EXECUTE)
    assert may(found, "/bin/ls", READ_FILE)
    assert not may(found, home / "s" / "made", EXECUTE)


@pytest.mark.parametrize("planted", ["link", "interpreter"])
def test_a_listed_program_that_leads_out_of_a_writable_folder_is_refused(home: Path, planted: str) -> None:
    secret = home / "secret"
    secret.write_text("private")
    tool = home / "work" / "tool"
    if planted == "link":
        tool.symlink_to(secret)
    else:
        program(tool, f"#!{secret}\n")
    with pytest.raises(SandboxError, match="may have made it"):
        places(Sandbox(preset="files", execute=("./tool",)), home / "work")


def test_private_keys_of_the_machine_are_not_among_the_systems_files(home: Path) -> None:
    found = places(Sandbox(), home / "work")
    for folder in ("/etc/ssl/private", "/etc/pki/tls/private"):
        assert not may(found, f"{folder}/key.pem", READ_FILE)
    assert all(Path(rule.path).name not in ("ssl", "pki") for rule in found.rules)


def test_module_folders_of_the_environment_are_opened(home: Path) -> None:
    env = {"PYTHONPATH": f"{home}/work/lib:{home}", "NODE_PATH": "modules"}
    found = places_of(
        Sandbox(), program=sys.executable, args=(), cwd=str(home / "work"), env=env, scratch=str(home / "s")
    )
    assert {str(home / "work" / "lib"), str(home / "work" / "modules")} <= set(found.opened)
    assert str(home) not in found.opened


def test_what_a_pth_file_adds_is_seen_at_the_next_start(home: Path) -> None:
    environment = home / "venv"
    site = environment / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    python = program(environment / "bin" / "python3")
    for name in ("one", "two", "three"):
        (home / name).mkdir()

    def opened() -> set[str]:
        return {"one", "two", "three"} & {Path(path).name for path in own_folders((python,), (), "/")}

    assert opened() == set()
    os.utime(site, (1, 1))  # the clock of a file system may stand still between two changes
    (site / "a.pth").write_text(f"{home}/one\n")
    assert opened() == {"one"}
    (site / "a.pth").write_text(f"{home}/two\n")
    assert opened() == {"two"}, "its text is read at each start"
    os.utime(site, (2, 2))
    (site / "b.pth").write_text(f"{home}/three\n")
    assert opened() == {"two", "three"}
    (site / "a.pth").unlink()
    os.utime(site, (3, 3))
    assert opened() == {"three"}


def test_a_path_through_thousands_of_links_is_opened_as_it_is(home: Path) -> None:
    for number in range(3000):
        (home / "work" / f"l{number + 1}").symlink_to(f"l{number}")
    last = str(home / "work" / "l3000")
    places = places_of(
        Sandbox(read=(last,)), program="/bin/cat", args=(), cwd=str(home), env={}, scratch="/nonexistent"
    )
    assert last in places.opened

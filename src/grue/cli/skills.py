"""`grue skills`: list the skills that MCP servers of an `agent.yaml` offer, and approve them."""

from pathlib import Path

from grue.cli.saying import say, shown_path
from grue.engine.outside_turns.tool_client import ToolClient
from grue.errors import MCPConfigError
from grue.hosts.skill_agent.configuration import load_config
from grue.hosts.skill_agent.served_skills import ServedSkill, ServedSkills
from grue.hosts.skill_agent.skills import LOCK_FILE
from grue.runtime.safe_text import printable


def list_served_skills(agent: Path, *, approve: bool) -> bool:
    """Print each skill, its files and whether it is approved; return whether an agent can use all skills."""
    config = load_config(agent)
    if not config.skill_servers:
        raise MCPConfigError(f"{agent} names no server under skills.servers, so none is asked for skills.")
    servers = {name: config.servers[name] for name in config.skill_servers}
    with ToolClient(servers) as client:
        found = ServedSkills(client, config.skill_servers, agent.parent)
    if approve and found.waiting:
        found.approve()  # raises if the lock cannot be written, before anything is printed as approved
    for skill in found.by_name.values():
        _print(skill, "approved")
    for skill in found.waiting:
        _print(skill, "approved now" if approve else "not approved")
    waiting = {skill.name for skill in found.waiting}
    others = [each for each in found.problems if not any(f"The skill {name} " in each for name in waiting)]
    for problem in others:
        say(f"grue: {printable(problem)}", err=True)
    if approve and found.waiting:
        say(f"written  {shown_path(agent.parent / LOCK_FILE)}")
    return not others and (approve or not found.waiting)


def _print(skill: ServedSkill, state: str) -> None:
    say(f"{skill.name} · {state} · {skill.digest[:19]}")
    say(f"    {printable(str(skill.front['description']), 300)}")
    for path, file in skill.files.items():
        say(f"    {printable(path, 200)}, {file.size:,} bytes")

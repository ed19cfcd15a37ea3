"""A turn with a server that serves tools which it does not list."""

from msgspec.structs import replace
from turns import Walk, calls, closed, died, names, opened, run

from grue.messages import CloseSession, ToolRejected


def test_a_server_that_serves_unlisted_tools_dies_and_comes_back_without_them() -> None:
    any_tool = replace(opened("a"), serves_unlisted=True)
    walk = Walk(run("a", after_death="reconnect"), any_tool, calls("a.dance"))
    assert names(walk.last) == ("CallTools",)
    walk.send(died(1))
    assert walk.last == (CloseSession(server="a"),)
    walk.send(closed("a"), opened("a"), calls("a.dance", first=2))
    (rejected,) = walk.of(ToolRejected)
    assert rejected.name == "a.dance"

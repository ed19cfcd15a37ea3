"""A turn with a server that serves tools which it does not list."""

from msgspec.structs import replace
from turns import Walk, calls, closed, died, names, opened, returned, run

from grue.messages import (
    CloseSession,
    IterationStarted,
    OfferTools,
    RequestCompletion,
    RequireAnswer,
    ToolRejected,
)


def test_a_server_that_serves_unlisted_tools_dies_and_comes_back_without_them() -> None:
    any_tool = replace(opened("a"), serves_unlisted=True)
    walk = Walk(run("a", after_death="reconnect"), any_tool, calls("a.dance"))
    assert names(walk.last) == ("CallTools",)
    walk.send(died(1))
    assert walk.last == (CloseSession(server="a"),)
    walk.send(closed("a"), opened("a"), calls("a.dance", first=2))
    (rejected,) = walk.of(ToolRejected)
    assert rejected.name == "a.dance"


def test_p1_p35_a_server_that_lists_nothing_and_serves_all_keeps_the_loop_going() -> None:
    any_tool = replace(opened("a"), serves_unlisted=True, tools=())
    walk = Walk(run("a"), any_tool)
    (request,) = walk.of(RequestCompletion)
    assert request.mode == OfferTools(())
    walk.send(calls("a.dance"))
    assert names(walk.last) == ("CallTools",)
    walk.send(returned(1))
    assert isinstance(walk.of(RequestCompletion)[-1].mode, OfferTools)
    assert [each.iteration for each in walk.of(IterationStarted)] == [1, 2]


def test_it_serves_nothing_in_a_turn_whose_host_names_the_tools() -> None:
    any_tool = replace(opened("a"), serves_unlisted=True, tools=())
    walk = Walk(replace(run("a"), tools=("b.*",)), any_tool)
    (request,) = walk.of(RequestCompletion)
    assert isinstance(request.mode, RequireAnswer)

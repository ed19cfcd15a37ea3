"""Who may start a server process: never more than the cap, and never all waiting for each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grue.errors import FleetError
from grue.fleet.broker import ServerCap, ServerPlaces


def test_a_worker_takes_the_places_of_a_whole_episode() -> None:
    places = ServerPlaces(ServerCap(at_once=3, an_episode=2))
    assert places.take("a")
    assert not places.take("b")
    assert places.take("a")
    assert places.wants_too_many("a")
    assert places.take("a"), "a third one, since nobody else needs the place"
    assert not places.take("a")
    for _ in range(3):
        places.leave("a")
    assert places.take("b")
    assert places._held.total() == 1


def test_without_a_cap_each_server_starts() -> None:
    places = ServerPlaces(ServerCap())
    assert all(places.take("a") for _ in range(100))


@pytest.mark.parametrize("cap", [(0, 1), (1, 2), (2, 0)])
def test_a_cap_that_holds_no_episode_is_refused(cap: tuple[int, int]) -> None:
    with pytest.raises(FleetError, match=rf"servers = {cap[0]} and servers_an_episode = {cap[1]}"):
        ServerCap(at_once=cap[0], an_episode=cap[1])


@given(
    st.integers(1, 3).flatmap(lambda each: st.tuples(st.integers(each, 6), st.just(each))),
    st.lists(st.integers(0, 4), max_size=200),
)
def test_workers_that_need_no_more_than_they_say_never_wait_for_each_other(
    cap: tuple[int, int], order: list[int]
) -> None:
    """Workers take places one at a time, in any order, up to what an episode needs; then they leave all."""
    most, each = cap
    places, held = ServerPlaces(ServerCap(at_once=most, an_episode=each)), [0] * 5
    for worker in order:
        if held[worker] == each:
            for _ in range(each):
                places.leave(str(worker))
            held[worker] = 0
        taken = places.take(str(worker))
        assert taken or not held[worker], "a worker that holds a place gets the next one at once"
        held[worker] += taken
        assert sum(held) == places._held.total() <= most
    if not any(held):
        assert places.take("another")

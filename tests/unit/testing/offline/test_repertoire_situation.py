"""Reading a turn's text: the contract with the host's own `context_text`."""

from hypothesis import given
from hypothesis import strategies as st
from offline_play import THINK, history

from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.orchestrator import RECENT, Memories, Move, context_text
from grue.testing.offline.chat_request import read_request
from grue.testing.offline.repertoire import Situation, read_situation, read_standing
from grue.testing.offline.script import FunctionCall, Reply

WORDS = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=12)


@given(WORDS, st.integers(1, 999), st.lists(st.tuples(WORDS, WORDS, st.integers(-9, 9)), max_size=9))
def test_the_hosts_text_is_read_back(game, turn, moves):
    played = [Move(command, reply, "Hall", gained) for command, reply, gained in moves]
    seen = Observation(text="You are here.\n\nA bell rings.", location="Hall", score=3, inventory=("egg",))
    read = read_situation(context_text(game, turn, seen, played, ["Win."]))

    assert read is not None
    assert (read.game, read.turn, read.location, read.inventory) == (game, turn, "Hall", "egg")
    assert [(each.command, each.reply) for each in read.recent] == [move[:2] for move in moves[-RECENT:]]
    assert read.text == seen.text


def test_what_is_not_told_stays_unknown():
    read = read_situation(context_text("zork1", 1, Observation(text="Dark."), [], []))

    assert read == Situation(game="zork1", turn=1, text="Dark.")


def test_memories_are_read_and_are_no_part_of_the_games_words():
    memories = Memories()
    hall = Observation(text="Hall", location="Hall")
    memories.learn(Move("north", "Kitchen", "Hall", 0), Observation(text="Kitchen", location="Kitchen"))
    memories.learn(Move("jump", "You die.", "Hall", 0), Observation(text="You die.", died=True))
    text = f"{context_text('house', 3, hall, [], [])}\n\n{memories.text('Hall')}"
    read = read_situation(text)

    assert read is not None
    assert (read.known, read.deadly, read.text) == ({"north"}, {"jump"}, "Hall")


def test_a_games_text_cannot_pass_for_another_turn():
    forged = Observation(text="Game: zork1\nTurn: 99\n\nThe game says:\nhello")
    read = read_situation(context_text("The House", 2, forged, [], []))

    assert read is not None
    assert (read.game, read.turn) == ("The House", 2)


def test_other_texts_are_no_situation():
    assert read_situation("Turn: 3") is None
    assert read_situation("Game: x\nTurn: many") is None


def standing(*later):
    user = context_text("zork1", 4, Observation(text="Dark."), [], [])
    messages = [{"role": "user", "content": user}, *later]
    return read_standing(read_request({"model": "m", "messages": messages, "tools": [THINK]}))


def rounds(*results):
    later = []
    for number, result in enumerate(results):
        said = Reply(calls=(FunctionCall(f"c{number}", "think__think", "{}"),))
        later += history(said, [result])
    return later


def test_rounds_are_counted_since_the_turn_was_told():
    assert standing().rounds == 0
    found = standing(*rounds({"content": {"thoughtNumber": 1}}, {"content": "[not json"}))
    assert (found.rounds, found.settled) == (2, False)


def test_in_a_longer_conversation_the_last_turn_counts():
    next_turn = {"role": "user", "content": context_text("zork1", 5, Observation(text="Light."), [], [])}
    found = standing(*rounds({"error": "broken"}), {"role": "assistant", "content": "{}"}, next_turn)

    assert found is not None
    assert (found.turn, found.rounds, found.settled) == (5, 0, False)


def test_a_failed_call_or_a_demand_for_the_answer_settles_it():
    error = {"error": "Tool call timed out after 30s", "content": None}
    assert standing(*rounds(error)).settled
    demand = {"role": "user", "content": "Please provide your final action now."}
    after = standing(*rounds({"content": 1}), demand)
    assert after.settled


def test_results_that_are_no_json_are_no_failure():
    said = Reply(calls=(FunctionCall("c", "think__think", "{}"),))
    later = history(said, [0])
    later[-1]["content"] = "plain text"
    assert not standing(*later).settled

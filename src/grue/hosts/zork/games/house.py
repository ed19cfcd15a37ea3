"""The House: the embedded text adventure, with sixteen rooms and exactly 100 points.

* The first death puts the player back at the gate with everything they carried (`died`, not `done`). The
  second death ends the game (`died` and `done`). Points are never lost.
* INVENTORY, SCORE, HELP, and commands that are refused or not understood take no turn. Every other command
  takes a turn, even an attempt without success, such as going through a shut door, or dropping two things
  that the player does not have.
"""

from typing import Final

from grue.hosts.zork.games import house_rules as rules
from grue.hosts.zork.games.game import Observation
from grue.hosts.zork.games.house_parser import Phrase, parse
from grue.hosts.zork.games.house_world import HOUSE, MAX_SCORE, case_for

_OVER: Final = "The story is over. It was a good one."


class HouseGame:
    """The House as a `Game`. It sets every field of its observations."""

    name: Final = "The House"
    fingerprint: Final = "house 1"

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, seed: int) -> None:
        self._state = rules.State(seed=seed)
        self._case = case_for(seed)

    def reset(self, seed: int = 0) -> Observation:
        """Start a new game in the seed's variation of the house."""
        self._begin(seed)
        return self._observe(f"{HOUSE.opening}\n\n{rules.describe(self._state, self._case)}")

    def step(self, command: str) -> Observation:
        """Play one command. After the end of the game, commands have no effect."""
        if self._state.ending:
            return self._observe(_OVER)
        turn = rules.Turn(self._state, self._case, self._understand(command))
        try:
            said = [rules.play_verb(turn)]
        except rules.RefusalError as refusal:
            self._state.asked = refusal.asks
            return self._observe(str(refusal))
        if turn.takes_time:
            self._state.moves += 1
            said += _dark_falls(turn)
        if turn.gains:
            said.append(f"(Your score has gone up by {turn.gains} points.)")
        if turn.killed_by:
            said += self._die()
        if turn.state.ending == "won":
            points = f"{rules.score(turn.state)} out of {MAX_SCORE} points"
            said.append(f"*** You have won ***\nYou have {points}.")
        return self._observe("\n\n".join(said), died=bool(turn.killed_by))

    def _understand(self, command: str) -> Phrase:
        state, asked = self._state, self._state.asked
        state.asked = ""
        phrase = parse(command)
        if phrase.verb == "again":
            return parse(state.last)
        if asked and not phrase.verb:
            # The command answers the game's last question: "Take what?", "The key."
            command = f"{asked} {command}"
            phrase = parse(command)
        state.last = command
        return phrase

    def _die(self) -> list[str]:
        state = self._state
        state.deaths += 1
        state.dark_turns = 0
        if state.deaths > 1:
            state.ending = "died"
            return ["*** You have died ***", HOUSE.no_life_left]
        state.room = "gate"
        return ["*** You have died ***", HOUSE.spare_life, rules.describe(state, self._case)]

    def _observe(self, text: str, *, died: bool = False) -> Observation:
        state = self._state
        return Observation(
            text=text,
            location=HOUSE.rooms[state.room].name,
            score=rules.score(state),
            max_score=MAX_SCORE,
            moves=state.moves,
            inventory=rules.inventory(state),
            died=died,
            won=state.ending == "won",
            done=bool(state.ending),
        )

    def close(self) -> None:
        """Do nothing."""


def _dark_falls(turn: rules.Turn) -> list[str]:
    """Count turns in the dark; return the warning. The fourth in a row kills, unless the grue is content."""
    state = turn.state
    if turn.killed_by or not rules.is_dark(state) or turn.happened("grue_content"):
        state.dark_turns = 0
        return []
    state.dark_turns += 1
    if state.dark_turns > len(HOUSE.steps_in_the_dark):
        return [turn.kill("lingering")]
    step = HOUSE.steps_in_the_dark[state.dark_turns - 1]
    return [step] if step else []


def walkthrough(seed: int) -> tuple[str, ...]:
    """Return the commands that win the game with this seed, with all 100 points."""
    route = (
        "north. north. open door. north. north. examine sampler. east. take lantern. take sardines. open "
        "teapot. take key. west. give sardines to cat. south. west. examine painting. east. up. west. read "
        "bible. east. east. read postcard. unlock desk with key. read letter. west. up. look through "
        "telescope. down. down. north. "
        f"light lantern. down. east. dial {case_for(seed).answer}. north. take deed. take music box. south. "
        "wind music box. west. up. south. give deed to pym"
    )
    return tuple(route.split(". "))

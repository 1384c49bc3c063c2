"""A right answer for each entry: the stored one, or one made from what the entry knows.

The package stores none for tasks with many right answers. Without one a verifier cannot be checked before a run, nor
its rows tried in preflight. rush_hour alone stays without: it takes a search through thousands of positions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

WITHOUT_ANSWER = frozenset({"rush_hour"})


def find_right_answer(name: str, entry: Mapping[str, Any]) -> str | None:
    """Raises KeyError or TypeError for an entry that is not the task's."""
    if name == "boxnet":
        return json.dumps(plan_boxes(entry["metadata"]["initial_state"]))
    if name == "graph_color":
        return json.dumps(entry["metadata"]["possible_answer"])
    if name == "rubiks_cube":
        return entry["metadata"]["example_correct_answer"] or reverse_moves(entry["metadata"]["scramble_moves"])
    answer = entry["answer"]
    return None if answer is None else str(answer)


def plan_boxes(state: Mapping[str, list[str]]) -> list[dict[str, str]]:
    """One action at a time: each box walks to a target of its colour, first along the rows, then along the columns."""
    targets = [(place, item) for place, items in state.items() for item in items if item.startswith("target_")]
    plans: list[dict[str, str]] = []
    for place, items in state.items():
        for box in (item for item in items if item.startswith("box_")):
            wanted = "target_" + box.removeprefix("box_")
            goal = next(target for target in targets if target[1] == wanted)
            targets.remove(goal)
            here, there = ([float(part) for part in square.split("_")] for square in (place, goal[0]))
            for axis in (0, 1):
                while here[axis] != there[axis]:
                    agent = f"Agent[{here[0]}, {here[1]}]"
                    here[axis] += 1 if there[axis] > here[axis] else -1
                    plans.append({agent: f"move({box}, square[{here[0]}, {here[1]}])"})
            plans.append({f"Agent[{here[0]}, {here[1]}]": f"move({box}, {wanted})"})
    return plans


def reverse_moves(moves: str) -> str:
    """The turns of a cube backwards, each the other way."""
    return " ".join(move.removesuffix("'") if move.endswith("'") else f"{move}'" for move in reversed(moves.split()))


from __future__ import annotations
import dataclasses, enum, typing
class Colour(enum.IntEnum):
    RED = 1
    BLUE = 2
@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Point:
    x: int
    y: int = 0
    colour: Colour = Colour.BLUE
    names: list[str] = dataclasses.field(default_factory=list, compare=False)
class Pair(typing.NamedTuple):
    left: int
    right: int
def solve(n):
    points = sorted([Point(n, 2), Point(1), Point(1, -1)])
    return [dataclasses.asdict(points[0]), Colour.RED, Pair(1, 2), hash(Point(1)) == hash(Point(1))]

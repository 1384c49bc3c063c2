"""Built-in tasks: functions that return rows with a `prompt`, an `answer` and, if possible, a `demonstration`. No torch.

    prompts.source = "task:column_addition"

A task takes `split`, `seed` and its own arguments. A row belongs to "train" or "held_out" by a hash of its content, so neither the seed
nor the number of rows moves it to the other split. json_records and word_problems make chat messages: the model's chat template is
applied.
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from cohort.base.keyed import keyed_hash, keyed_share
from cohort.data.column_addition import check_split, column_addition
from cohort.errors import PromptError
from cohort.recipe.sections import suggest_nearest

HELD_OUT_SHARE = 0.2

# -- sentences to write as JSON records --------------------------------------------------------------------------------

TESTS = ("new_rows", "new_wording", "new_kind")

WORDS = {
    "first": "Amir Bella Carlos Diana Emil Farah Greta Hassan Irene Jonas Keiko Lucia Mara Nadia Omar Petra Rita Stefan Tara Uma",
    "last": "Adler Berg Costa Duval Evans Ferrari Gomez Haas Ivanov Jensen Kovacs Lopez Moreau Novak Okafor Petrov Rossi Sato Tran",
    "city": "Athens Bergen Cairo Dublin Essen Florence Geneva Hanoi Istanbul Jakarta Kyoto Lisbon Madrid Nairobi Oslo Porto Quito",
    "country": "Brazil Canada Chile Egypt France Greece India Japan Kenya Mexico Norway Peru Poland Spain Turkey",
    "day": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "role": "baker chemist cook dentist designer driver gardener lawyer nurse painter pilot teacher",
    "adjective": "Broken Distant Empty Golden Hidden Last Quiet Second",
    "noun": "Bridge Garden House Island Letter River Season Tower",
}
COMPOSED = {"name": "{first} {last}", "artist": "{first} {last}", "author": "{first} {last}", "title": "The {adjective} {noun}"}
NUMBERS = {"score": (1, 90), "year": (1920, 100)}
"""Key -> (smallest value, number of values)."""

KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "job": (
        ("name", "role", "city"),
        ("{name} works as a {role} in {city}.", "{name} is a {role} from {city}.", "In {city}, {name} found work as a {role}."),
    ),
    "song": (
        ("title", "artist", "year"),
        (
            "{artist} recorded the song {title} in {year}.",
            "The song {title} by {artist} came out in {year}.",
            "In {year} the radio played {title}, a song by {artist}.",
        ),
    ),
    "trip": (
        ("from", "to", "day"),
        (
            "The train from {from} to {to} leaves on {day}.",
            "On {day} we fly from {from} to {to}.",
            "There is a bus to {to} on {day}, and it starts from {from}.",
        ),
    ),
    "book": (
        ("title", "author", "year"),
        (
            "{author} wrote the novel {title} in {year}.",
            "{title} is a book by {author}, first printed in {year}.",
            "In {year} a publisher accepted {title}, the first work of {author}.",
        ),
    ),
    "winner": (
        ("name", "country", "score"),
        (
            "{name} from {country} won with a score of {score}.",
            "With a score of {score}, {name} of {country} took the prize.",
            "The judges gave {name} from {country} a score of {score}.",
        ),
    ),
}
"""Kind -> its keys, and sentences with their values."""
NEW_KINDS = ["book", "winner"]
WORDINGS = (
    "Write a JSON object with the keys {keys} from this text. Write only the JSON.\n\n{text}",
    "{text}\n\nReturn a JSON object with the keys {keys} of this sentence, without any other words.",
    "Turn this sentence into JSON with the keys {keys}. No explanation, no code fence: {text}",
    "Read the sentence, and answer with a JSON object that has the keys {keys}. Nothing else.\n\nSentence: {text}",
)
NEW_WORDING = "Here is a note: {text}\nReply in JSON only. The keys are {keys}."


def json_records(split: str = "train", seed: int = 0, test: str = "new_rows", count: int = 400) -> list[dict[str, Any]]:
    """Rows that ask for a sentence as a JSON record: `count` different records, drawn by the seed.

        prompt   Write a JSON object with the keys "name", "role" and "city" from this text. Write only the JSON.

                 Mara Okafor works as a nurse in Lisbon.
        answer   {"name": "Mara Okafor", "role": "nurse", "city": "Lisbon"}

    The column `instructions` is the check for the reward of that name. Training rows have three kinds of record in four wordings.
    `test` chooses how held-out rows differ: new records ("new_rows"), a wording that is not in the training rows ("new_wording"), or
    two other kinds of record ("new_kind").
    """
    check_split("json_records", split)
    if test not in TESTS:
        raise PromptError(f"prompts.args.test: {test!r} is not one of {', '.join(TESTS)}{suggest_nearest(test, TESTS)}")
    if split == "train" and test != "new_rows":
        raise PromptError(
            f'prompts.args.test: {test!r} is only for held-out rows; set prompts.split to "held_out", or leave it out'
        )
    if not isinstance(count, int) or not 1 <= count <= 600:
        raise PromptError(f"prompts.args.count: give the number of rows, from 1 to 600 (got {count!r})")
    kinds = NEW_KINDS if test == "new_kind" else [kind for kind in KINDS if kind not in NEW_KINDS]
    wordings = [NEW_WORDING] if test == "new_wording" else list(WORDINGS)
    rows: dict[str, dict[str, Any]] = {}
    for number in itertools.count():
        if len(rows) == count:
            break
        kind = kinds[len(rows) % len(kinds)]
        record = draw_record(seed, number, kind)
        written = json.dumps(record)
        if (keyed_share("json_records", written) < HELD_OUT_SHARE) != (split == "held_out") or written in rows:
            continue
        if record.get("from", "") == record.get("to"):  # not a trip
            continue
        keys, sentences = KINDS[kind]
        named = ", ".join(f'"{key}"' for key in keys[:-1]) + f' and "{keys[-1]}"'
        sentence = sentences[keyed_hash("json_records", seed, number, "sentence") % len(sentences)].format(**record)
        wording = wordings[keyed_hash("json_records", seed, number, "wording") % len(wordings)]
        content = wording.format(keys=named, text=sentence[0].upper() + sentence[1:])
        check = {"id": "json_record", "record": record}
        rows[written] = {"prompt": [{"role": "user", "content": content}], "answer": written, "instructions": [check]}
    return list(rows.values())


def draw_record(seed: int, number: int, kind: str) -> dict[str, Any]:
    def draw(key: str) -> str | int:
        drawn = keyed_hash("json_records", seed, number, key)
        if key in NUMBERS:
            least, size = NUMBERS[key]
            return least + drawn % size
        words = WORDS["city" if key in ("from", "to") else key].split()
        return words[drawn % len(words)]

    words = {key: draw(key) for key in WORDS}
    return {key: COMPOSED[key].format(**words) if key in COMPOSED else draw(key) for key in KINDS[kind][0]}


# -- word problems -----------------------------------------------------------------------------------------------------

QUESTION = "Give the answer as a number."
NAMES = "Ada Ben Cleo Dan Eva Finn Grace Hugo Ines Jack Kira Leo Mona Nils Olga Paul Rosa Sam Tess Will"
THINGS = "apples books cards coins cups eggs flowers marbles pencils photos shells stamps stickers tickets"

Problem = tuple[str, Callable[..., int]]
"""Text, and the answer computed from its numbers, with n < 10 < p / n, d < m * n and a < c."""

ONE: tuple[Problem, ...] = (
    ("{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?", lambda a, b, **_: a + b),
    ("There are {a} {thing} on one table and {b} on another. How many {thing} are there in total?", lambda a, b, **_: a + b),
    ("{name} found {a} {thing} on Monday and {b} on Tuesday. How many {thing} is that altogether?", lambda a, b, **_: a + b),
    ("{name} had {c} {thing} and gave {a} away. How many {thing} are left?", lambda a, c, **_: c - a),
    ("A shop had {c} {thing} and sold {a} of them. How many {thing} remain?", lambda a, c, **_: c - a),
    ("{name} has {c} {thing}. {other} has {a} fewer. How many {thing} does {other} have?", lambda a, c, **_: c - a),
    ("A box holds {m} {thing}. How many {thing} are in {n} boxes?", lambda m, n, **_: m * n),
    ("{name} buys {m} {thing} every day. How many {thing} does {name} buy in {n} days?", lambda m, n, **_: m * n),
    ("Each of {n} children brings {m} {thing}. How many {thing} do they bring together?", lambda m, n, **_: m * n),
    ("{name} shares {p} {thing} equally among {n} friends. How many {thing} does each get?", lambda p, n, **_: p // n),
    ("{p} {thing} are packed into bags of {n}. How many bags are filled?", lambda p, n, **_: p // n),
    ("{n} children pick {p} {thing} in total, each the same number. How many is that for each?", lambda p, n, **_: p // n),
)
TWO: tuple[Problem, ...] = (
    ("{name} has {a} {thing}, gets {b} more and gives {d} away. How many {thing} are left?", lambda a, b, d, **_: a + b - d),
    ("{name} had {c} {thing}, lost {a} and then found {b}. How many {thing} is that now?", lambda a, b, c, **_: c - a + b),
    ("{name} has {a} {thing}. {other} has {b} more than {name}. How many do both have together?", lambda a, b, **_: a + a + b),
    ("A box holds {m} {thing}. {name} has {n} boxes and {a} single {thing}. How many in all?", lambda a, m, n, **_: m * n + a),
    ("{name} buys {n} bags of {m} {thing} and uses {d}. How many {thing} are left?", lambda d, m, n, **_: m * n - d),
    ("{name} has {a} {thing}, {other} has {b}, and a friend has {d}. How many in total?", lambda a, b, d, **_: a + b + d),
    (
        "{p} {thing} are shared equally by {n} friends. {name}, one of them, had {a}. How many has {name} now?",
        lambda a, n, p, **_: a + p // n,
    ),
    ("A shop sells {n} {thing} every morning and {m} every afternoon. How many in {d} days?", lambda d, m, n, **_: (m + n) * d),
    (
        "{name} earns {m} coins an hour, works {n} hours and spends {d} coins. How many are left?",
        lambda d, m, n, **_: m * n - d,
    ),
    (
        "{p} {thing} are packed into bags of {n}, and {d} bags are sold. How many bags are left?",
        lambda d, n, p, **_: p // n - d,
    ),
)
PROBLEMS = {1: ONE, 2: TWO}


def word_problems(split: str = "train", seed: int = 0, operations: int = 0, count: int = 1000) -> list[dict[str, Any]]:
    """Word problems on small whole numbers: `count` different problems, drawn by the seed, with 1 or 2 `operations` (0: both, alternating).

    prompt   A box holds 8 apples. How many apples are in 7 boxes? Give the answer as a number.
    answer   56
    """
    check_split("word_problems", split)
    if operations not in (0, 1, 2):
        raise PromptError(f"prompts.args.operations: give 1, 2, or 0 for both (got {operations!r})")
    if not isinstance(count, int) or not 1 <= count <= 50_000:
        raise PromptError(f"prompts.args.count: give the number of rows, from 1 to 50000 (got {count!r})")
    rows: dict[str, dict[str, Any]] = {}
    for number in itertools.count():
        if len(rows) == count:
            break
        text, answer = draw_problem(seed, number, operations or 1 + len(rows) % 2)
        if (keyed_share("word_problems", text) < HELD_OUT_SHARE) == (split == "held_out"):
            rows[text] = {"prompt": [{"role": "user", "content": f"{text} {QUESTION}"}], "answer": str(answer)}
    return list(rows.values())


def draw_problem(seed: int, number: int, operations: int) -> tuple[str, int]:
    def draw(what: str, least: int, size: int) -> int:
        return least + keyed_hash("word_problems", seed, number, what) % size

    a, n = draw("a", 3, 47), draw("n", 2, 8)
    numbers = {"a": a, "b": draw("b", 3, 47), "c": a + draw("c", 3, 47), "d": draw("d", 2, 4)}
    numbers |= {"m": draw("m", 3, 10), "n": n, "p": n * draw("p", 10, 10)}
    names, things, problems = NAMES.split(), THINGS.split(), PROBLEMS[operations]
    first = draw("name", 0, len(names))
    other = names[(first + draw("other", 1, len(names) - 1)) % len(names)]
    text, solve = problems[draw("problem", 0, len(problems))]
    thing = things[draw("thing", 0, len(things))]
    return text.format(name=names[first], other=other, thing=thing, **numbers), solve(**numbers)


# -- loading -----------------------------------------------------------------------------------------------------------

TASKS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "column_addition": column_addition,
    "json_records": json_records,
    "word_problems": word_problems,
}


def load_task(name: str, split: str, seed: int, args: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a built-in task."""
    if name not in TASKS:
        raise PromptError(
            f"prompts.source: no built-in task {name!r}{suggest_nearest(name, TASKS)}; known: {', '.join(sorted(TASKS))}"
        )
    known = [parameter for parameter in inspect.signature(TASKS[name]).parameters if parameter not in ("split", "seed")]
    for given in args:
        if given not in known:
            raise PromptError(
                f"prompts.args: task {name} takes no {given!r}{suggest_nearest(given, known)}; it takes {', '.join(known)}"
            )
    return TASKS[name](split=split, seed=seed, **args)

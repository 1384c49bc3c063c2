"""Sentences to be written as JSON records.

    prompt   Write a JSON object with the keys "name", "role" and "city" from this text. Write only the JSON.

             Mara Okafor works as a nurse in Lisbon.
    answer   {"name": "Mara Okafor", "role": "nurse", "city": "Lisbon"}

The column `instructions` has the check of it for the reward of that name.

Training has three kinds of record in four wordings. Held out are new records in the same wordings (`test = "new_rows"`), in a
wording that is never trained ("new_wording"), and of two kinds that are never trained ("new_kind"). A record belongs to "train" or
"held_out" by a hash of its content, so that neither the seed nor the number of rows can move it. Prompts are chat messages: the
model's chat template is applied.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from cohort.base.keyed import keyed_hash, keyed_share
from cohort.errors import PromptError
from cohort.recipe.sections import suggest_nearest

HELD_OUT_SHARE = 0.2
SPLITS = ("train", "held_out")
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
"""Key -> the smallest value, and how many there are."""

KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "job": (
        ("name", "role", "city"),
        (
            "{name} works as a {role} in {city}.",
            "{name} is a {role} from {city}.",
            "In {city}, {name} found work as a {role}.",
        ),
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
"""Kind -> its keys, and sentences that hold their values."""
NEW_KINDS = ["book", "winner"]
WORDINGS = (
    "Write a JSON object with the keys {keys} from this text. Write only the JSON.\n\n{text}",
    "{text}\n\nReturn a JSON object with the keys {keys} of this sentence, without any other words.",
    "Turn this sentence into JSON with the keys {keys}. No explanation, no code fence: {text}",
    "Read the sentence, and answer with a JSON object that has the keys {keys}. Nothing else.\n\nSentence: {text}",
)
NEW_WORDING = "Here is a note: {text}\nReply in JSON only. The keys are {keys}."


def json_records(split: str = "train", seed: int = 0, test: str = "new_rows", count: int = 400) -> list[dict[str, Any]]:
    """`count` different records of a split, each in one wording, drawn by the seed; `test` says how held-out rows differ."""
    if split not in SPLITS:
        raise PromptError(
            f"prompts.split: json_records has no split {split!r}{suggest_nearest(split, SPLITS)}; it has train and held_out"
        )
    if test not in TESTS:
        raise PromptError(f"prompts.args.test: {test!r} is not one of {', '.join(TESTS)}{suggest_nearest(test, TESTS)}")
    if split == "train" and test != "new_rows":
        raise PromptError(f'prompts.args.test: {test!r} is never trained; set prompts.split to "held_out", or leave it out')
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
        if record.get("from", "") == record.get("to"):  # no trip
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

"""Every route of the dashboard, read from its tables, and one example of each page."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cohort.tools.dashboard.app import DATA, PAGES
from cohort.tools.dashboard.lab.stations import load_stations

PREFIXES = ("", "/live", "/csv", "/svg")
"""The ways in which a page is served."""


def list_routes() -> list[str]:
    """Every route that takes an address, with its parameters in braces."""
    pages = [f"{prefix}{path}" for path in PAGES for prefix in PREFIXES]
    return [*pages, *(f"/data{path}" for path in DATA), "/static/{name}"]


def fill_route(route: str, **words: str) -> str:
    """The route with its parameters filled in; those without a word are 1."""
    return re.sub(r"\{(\w+)(?::\w+)?\}", lambda found: words.get(found[1], "1"), route)


def fill_each_parameter(route: str, text: str, **words: str) -> Iterator[str]:
    """The route once for every parameter, with the text in its place and the others as they should be."""
    for name in re.findall(r"\{(\w+)(?::\w+)?\}", route):
        yield fill_route(route, **(words | {name: text}))


WORDS = {"name": "first", "other": "second", "step": "40", "group": "0", "sample": "1", "index": "2", "station": "group"}
QUERIES = {"/compare": "run={name}&run={other}"}


def list_examples(**words: str) -> list[str]:
    """One address of every page and station: for the runs `first` and `second` of 40 steps, unless other words are given."""
    words = WORDS | words
    stations = load_stations()
    found = [fill_route(f"{path}?{QUERIES[path]}" if path in QUERIES else path, **words) for path in PAGES]
    return [*found, *(f"/lab/{station}" for station in stations if station != words["station"])]


def list_answers(**words: str) -> list[str]:
    """One address of everything that scripts ask for, about a run."""
    words = WORDS | words
    stations = ["/data" + path for path in DATA if "{station}" in path]
    others = ["/data" + path for path in DATA if "{station}" not in path]
    filled = [fill_route(path, **(words | {"station": station})) for path in stations for station in load_stations()]
    return [f"{address}?run={words['name']}" for address in (*filled, *(fill_route(path, **words) for path in others))]

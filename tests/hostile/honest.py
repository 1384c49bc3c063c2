"""Programs that do nothing wrong and must all pass: what ordinary solutions use, and the jail must not refuse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hostile.programs import Ask, HostileProgram, read_source


@dataclass(frozen=True)
class HonestProgram:
    """A program with the values, or the output, that it must give."""

    name: str
    source: str
    calls: tuple[Ask, ...] = ()
    stdin: str = ""
    wanted_stdout: str = ""

    @property
    def way(self) -> str:
        return "calls" if self.calls else "script"

    def as_hostile(self) -> HostileProgram:
        """In the shape that the harness runs: an honest program is held to the same bounds."""
        return HostileProgram(self.name, "forgery", self.source, self.calls, self.stdin, self.wanted_stdout)


def _call(name: str, *args: Any, wanted: Any) -> HonestProgram:
    return HonestProgram(name, read_source("honest", name), (Ask("solve", args, wanted),))


def _script(name: str, stdin: str, wanted: str) -> HonestProgram:
    return HonestProgram(name, read_source("honest", name), stdin=stdin, wanted_stdout=wanted)


HONEST = [
    _call("threads", 40, wanted=780),
    _call("thread_pool", 100, wanted=328_350),
    _call("asyncio", 5, wanted=[0, 1, 2, 3, 4, 10]),
    _call("coroutine_function", 4, wanted=5),
    _call("deep_recursion", 20_000, wanted=20_000),
    _call("deep_recursion_in_a_thread", 20_000, wanted=20_000),
    _call("recursion_through_c", 5_000, wanted=5_000),
    _call("two_hundred_megabytes", 200 * 2**20, wanted=(200 * 2**20, 51_200)),
    _call("memory_error_handled", 4 * 2**30, wanted="too much"),
    _call("temporary_files", "ab", wanted=["ab", "abab", False]),
    _call("paths_and_copies", "q", wanted=[["one", "three", "two"], False]),
    _call("ten_megabytes_in_a_file", 10 * 2**20, wanted=[10 * 2**20, True]),
    _call(
        "plain_values_of_every_type",
        None,
        True,
        -(2**70),
        1.5,
        float("-inf"),
        complex(1, -2),
        "aé漢\U0001f600\ud800\x00",
        b"\x00\xff",
        [1, [2]],
        (1, (2,)),
        {1, 2},
        frozenset({"a"}),
        {"a": {1: (None,)}, (1, 2): b"", 2.5: -0.0},
        "",
        [],
        (),
        {},
        wanted=[
            None,
            True,
            -(2**70),
            1.5,
            float("-inf"),
            complex(1, -2),
            "aé漢\U0001f600\ud800\x00",
            b"\x00\xff",
            [1, [2]],
            (1, (2,)),
            {1, 2},
            frozenset({"a"}),
            {"a": {1: (None,)}, (1, 2): b"", 2.5: -0.0},
            "",
            [],
            (),
            {},
        ],
    ),
    _call("generators", 10, wanted=[2, 3, 5, 7, 11, 13, 17, 19, 23, 29]),
    _call("dataclasses_and_enums", 5, wanted=[{"x": 1, "y": -1, "colour": 2, "names": []}, 1, (1, 2), True]),
    _call(
        "decimals_and_fractions",
        wanted=["1.41421356237309504880168872421", "7381/2520", 126_410_606_437_752, 2, 1.0, 0.30000000000000004],
    ),
    _call("large_integers", 1000, wanted=[641_419_708, 2568, pow(3, 10**18, 10**9 + 7), 2**4000]),
    _call("text_and_patterns", "one two", wanted=[["one", "two"], "neo wot", "é", "1", "a b\nc", "      3.14|0xff"]),
    _call(
        "collections_and_algorithms",
        6,
        wanted=[[1, 2, 3], [("i", 4), ("s", 4)], 2_880_067_194_370_816_120, 2, [1, 3, 6, 10, 15], 120, [2, 1, 3], {"a": 1}, 2],
    ),
    _call("random_with_a_seed", 7, wanted=[42, 20, 51, 0, 1, 8]),
    _call("dates_and_zones", wanted=["2024-07-01T10:00:00+00:00", 29, 29, "1970", "Saturday"]),
    _call("hashes_and_compression", "hello", wanted=["2cf24dba5fb0a30e", "0b7938d1", b"aGVsbG8=", 907_060_870, 513, True]),
    _call("database_in_memory", 11, wanted=[(30, "8"), (5,)]),
    _call(
        "tables_and_streams",
        "x,y\n1,2\n",
        wanted=[[{"x": "1", "y": "2"}], 'a,"b,c"\r\n1,\r\n', "v", "&lt;&amp;&gt;", "q=1", "1", b"ab"],
    ),
    _call("alarm_with_a_handler", 0.1, wanted="late"),
    _call("signals_to_itself", wanted=True),
    _call("sleep_and_clocks", 0.2, wanted=[True, True, True]),
    _call("warnings_and_logging", wanted=["old", 2, 1, True]),
    _call("weak_references_and_collection", wanted=[[1], {"a": [1, {2}]}, 3, True]),
    _call("pairs_of_sockets_and_pipes", "abc", wanted=[b"ABC", 1, b"piped", 1]),
    _call("queues_and_conditions", 8, wanted=[7, 6, 5, 4, 3, 2, 1, 0]),
    _call("classes_and_descriptors", 3, wanted=[9, "inside", "TypeError", ["Square"], ["n"]]),
    HonestProgram(
        "methods_of_a_class",
        "class Solution:\n    def twoSum(self, nums, target):\n        seen = {}\n        for place, value in enumerate(nums):\n"
        "            if target - value in seen:\n                return [seen[target - value], place]\n            seen[value] = place\n",
        (
            Ask("Solution.twoSum", ([2, 7, 11, 15], 9), [0, 1]),
            Ask("Solution.twoSum", (), [1, 2], {"nums": [3, 2, 4], "target": 6}),
        ),
    ),
    HonestProgram(
        "state_between_calls",
        "count = 0\ndef solve():\n    global count\n    count += 1\n    print('call', count)\n    return count\n",
        (Ask("solve", (), 1), Ask("solve", (), 2), Ask("solve", (), 3)),
    ),
    _script("input_line_by_line", "2\n1 2 3\n4 5\n", "15\nend\n"),
    _script("input_as_bytes", "b a c\n", "a b c\n"),
    _script("input_by_descriptor", "0123456789" * 20, "9876543210" * 20),
    _script("large_input", "".join(f"{number}\n" for number in range(200_000)), "19999900000\n"),
    _script("unicode_output", "naïve 漢字\n", "字漢 evïan|é漢\U0001f600\n"),
    _script("sixty_kilobytes_of_output", "", "".join(f"{line:063d}\n" for line in range(960))),
    _script("guarded_main", "", "main ran []\n"),
    _script("output_at_exit", "", "first\nfrom a thread\nlast\n"),
    _script("pickle_and_main", "", "4 __main__ __main__\n"),
]
"""Exceptions as part of an answer are tested apart (sandbox/test_jail_honest.py): what counts there is the name, not a value."""

"""What one process must give: all of the work, its own numbers, and its own decision."""

import subprocess
import sys

from cohort.base.world import ALONE


def test_one_process_has_all_of_the_work_and_joins_nothing_to_it():
    draws = list(range(7))
    assert (ALONE.rank, ALONE.size) == (0, 1)
    assert draws[ALONE.block(7)] == draws
    assert (ALONE.block(7).start, ALONE.block(0)) == (0, slice(0, 0))
    assert ALONE.gather(draws[ALONE.block(7)]) == draws
    assert (ALONE.sum(2.5), ALONE.max(-3)) == (2.5, -3)
    assert ALONE.agree(True)
    assert not ALONE.agree(False)


def test_what_is_gathered_is_a_list_of_its_own():
    mine = [1, 2]
    gathered = ALONE.gather(mine)
    gathered.append(3)
    assert mine == [1, 2]


def test_it_is_of_the_standard_library():
    code = "import sys, cohort.base.world; print([name for name in ('torch', 'numpy') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"

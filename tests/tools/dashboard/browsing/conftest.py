"""One browser and one dashboard for all tests of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from browsing.made_run import make_run
from browsing.stage import CHROMIUM, Dashboard, Stage, Visit, start_dashboard


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that opens pages runs in the thread of the browser."""
    if "visit" not in pyfuncitem.fixturenames:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    pyfuncitem.funcargs["stage"].call(lambda: pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    if CHROMIUM is None:
        pytest.skip("no chromium here: `apt-get install chromium` installs it")
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed: `make setup` installs it")
    made = Stage()
    yield made
    made.close()


@pytest.fixture
def visit(stage: Stage) -> Iterator[Callable[..., Visit]]:
    """Opens pages, each in its own browser context; at the end of the test none may have had an error."""
    opened: list[Visit] = []

    def open_visit(dashboard: Dashboard, address: str = "", **options: Any) -> Visit:
        opened.append(stage.open(dashboard.url, **options))
        if address:
            opened[-1].go(address)
        return opened[-1]

    yield open_visit
    try:
        for one in opened:
            stage.call(one.check)
    finally:
        for one in opened:
            stage.call(one.close)


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Two finished runs, one that failed, and one that still trains."""
    folder = tmp_path_factory.mktemp("shown")
    make_run(folder / "runs" / "first", kept_every=8)
    make_run(folder / "runs" / "second", kept_every=8, seed=1)
    make_run(folder / "runs" / "broken", 8, status="failed", summary={"error": "the verifier lost its dictionary"})
    make_run(folder / "runs" / "young", 8, status="running")
    made = start_dashboard(folder / "runs", folder / "log")
    yield made
    made.stop()

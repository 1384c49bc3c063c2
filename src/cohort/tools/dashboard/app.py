"""The routes. A page is a function `(run_index, view) -> Page` listed in PAGES; numbers for scripts come from a function listed in DATA.

Each page function is served in three ways: as a whole page, as its sections under /live (open pages poll this), and as files under /svg
and /csv, one for each drawing or table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from cohort.errors import NotFound
from cohort.observe.report.frame import HERE as REPORT
from cohort.observe.report.frame import read_styles
from cohort.tools.dashboard.guard import Guard
from cohort.tools.dashboard.pace import Pace
from cohort.tools.dashboard.rendering import (
    HERE,
    Item,
    find_item,
    list_parts,
    list_templates,
    render_frame,
    render_sections,
    write_csv,
    write_svg,
)
from cohort.tools.dashboard.run_index import RunIndex
from cohort.tools.dashboard.view import Page, View

PAGES = {
    "/": "run_list:show_runs",
    "/compare": "run_pages:show_comparison",
    "/run/{name}": "run_pages:show_run",
    "/run/{name}/groups": "groups_page:show_groups",
    "/run/{name}/group/{step}/{group}": "group_page:show_group",
    "/run/{name}/tokens/{step}/{group}/{sample}": "tokens_page:show_tokens",
    "/lab": "lab.stations:show_lab",
    "/lab/{station}": "lab.stations:show_station",
}
"""Route -> page function, by its module in this package."""
DATA = {
    "/lab/run": "lab.run_station:answer_run",
    "/lab/{station}": "lab.stations:answer_station",
    "/lab/{station}/run": "lab.run_examples:find_example",
    "/run/{name}/tokens/{step}/{group}/{sample}": "tokens_page:list_token_values",
}
"""Route below /data -> function with the same arguments whose result is sent as JSON."""
FILES = {"svg": (write_svg, "image/svg+xml"), "csv": (write_csv, "text/csv")}
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(run_index: RunIndex, token: str = "", names: Collection[str] = ()) -> Guard:
    """The application. token: required from other machines; names: host names of this machine."""
    pace = Pace()
    list_templates()  # compile them before the first request
    routes = [Route("/static/{name}", serve_static, methods=["GET"])]
    for path, place in DATA.items():
        routes.append(Route(f"/data{path}", serve_data(run_index, place), methods=["GET"]))
    for path, place in PAGES.items():
        routes.append(Route(f"/live{path}", serve_page(run_index, pace, place, live=True), methods=["GET"]))
        routes.append(Route(path, serve_page(run_index, pace, place), methods=["GET"]))
        for kind, (write, media) in FILES.items():
            routes.append(Route(f"/{kind}{path}", serve_file(run_index, place, kind, write, media), methods=["GET"]))
    handlers: dict[Any, Any] = {HTTPException: show_error, NotFound: show_error, Exception: show_error}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, names)


def load_function(place: str) -> Callable[[RunIndex, View], Any]:
    """The function of PAGES or DATA, imported at its first use."""
    module, _, name = place.partition(":")
    function: Callable[[RunIndex, View], Any] = getattr(import_module(f"cohort.tools.dashboard.{module}"), name)
    return function


def read_view(request: Request, prefix: str = "") -> View:
    return View(request.url.path.removeprefix(prefix) or "/", request.path_params, request.query_params.multi_items())


def serve_page(run_index: RunIndex, pace: Pace, place: str, live: bool = False) -> Any:
    """An endpoint for a whole page, or (live) for its sections, with headers that say when to poll again."""

    async def endpoint(request: Request) -> Response:
        view = read_view(request, "/live" if live else "")
        made = await run_in_threadpool(
            pace.make, run_index, view, lambda: load_function(place)(run_index, view), render_sections
        )
        if not live:
            return HTMLResponse(render_frame(made.page, view, made.sections, made.etag), made.page.status)
        headers = {"ETag": made.etag, "X-Age": f"{pace.find_age(made):.1f}", "X-Wait": f"{pace.find_wait(made):.1f}"}
        if request.headers.get("if-none-match") == made.etag:
            return Response(status_code=304, headers=headers)
        return HTMLResponse(made.sections, made.page.status, headers)

    return endpoint


def serve_file(run_index: RunIndex, place: str, kind: str, write: Callable[[Item], str], media: str) -> Any:
    async def endpoint(request: Request) -> Response:
        view = read_view(request, f"/{kind}")

        def make_file() -> tuple[str, str]:
            parts = [part for _, part in list_parts(load_function(place)(run_index, view))]
            item = find_item(parts, view.read("item"))
            return item.name, write(item)

        name, text = await run_in_threadpool(make_file)
        # As an attachment, so that browsers save the file and do not open it.
        return Response(text, media_type=media, headers={"Content-Disposition": f'attachment; filename="{name}.{kind}"'})

    return endpoint


def serve_data(run_index: RunIndex, place: str) -> Any:
    async def endpoint(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(load_function(place), run_index, read_view(request)))

    return endpoint


def load_static() -> dict[str, tuple[bytes, str, str]]:
    """Name -> (content, media type, ETag) of every static file."""
    files = [REPORT / "hover.js", *(HERE / "static").iterdir()]
    found = {file.name: (file.read_bytes(), KINDS[file.suffix]) for file in files if file.suffix in KINDS}
    found["page.css"] = read_styles().encode(), KINDS[".css"]
    return {name: (body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"') for name, (body, kind) in found.items()}


STATIC = load_static()


async def serve_static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise NotFound("No such file.")
    body, kind, tag = STATIC[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


async def show_error(request: Request, problem: Exception) -> Response:
    """The error page. It contains no path of this machine and no traceback; the server's terminal shows both."""
    if isinstance(problem, NotFound | HTTPException):
        status = 404 if isinstance(problem, NotFound) else problem.status_code
        details = [str(problem)] if isinstance(problem, NotFound) else []
        sentence = "Page not found" if status == 404 else f"The request failed ({status})"
    else:
        status, sentence = 500, "The page could not be created"
        details = ["See the error in the terminal running cohort dashboard."]
    page, view = Page(sentence, [("message", sentence, details)], status=status), View(request.url.path)
    return HTMLResponse(render_frame(page, view, render_sections(page, view)), status)

"""The routes. A page is a function `(shelf, view) -> Page` in a file of its own, and a line in PAGES; numbers for scripts are a line in DATA.

Every page is served three ways from one function: whole, as its sections alone under /live (a page that is looked at asks for these),
and as files, drawing by drawing and table by table, under /svg and /csv.
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
from cohort.tools.dashboard.downloads import Item, find_item, write_csv, write_svg
from cohort.tools.dashboard.guard import Guard
from cohort.tools.dashboard.pace import Pace
from cohort.tools.dashboard.rendering import HERE, list_parts, list_templates, render_frame, render_sections
from cohort.tools.dashboard.shelf import Shelf
from cohort.tools.dashboard.view import Page, View

PAGES = {
    "/": "cohort.tools.dashboard.runs:show_runs",
    "/compare": "cohort.tools.dashboard.compare:show_comparison",
    "/run/{name}": "cohort.tools.dashboard.run:show_run",
    "/run/{name}/groups": "cohort.tools.dashboard.groups_page:show_groups",
    "/run/{name}/group/{step}/{group}": "cohort.tools.dashboard.group_page:show_group",
    "/run/{name}/tokens/{step}/{group}/{sample}": "cohort.tools.dashboard.tokens_page:show_tokens",
    "/lab": "cohort.tools.dashboard.lab.pages:show_lab",
    "/lab/{station}": "cohort.tools.dashboard.lab.pages:show_station",
}
"""Route -> the function that makes its page."""
DATA = {
    "/lab/run": "cohort.tools.dashboard.lab.own_group:answer_run",
    "/lab/{station}": "cohort.tools.dashboard.lab.answers:answer_station",
    "/lab/{station}/run": "cohort.tools.dashboard.lab.same:find_same",
    "/run/{name}/tokens/{step}/{group}/{sample}": "cohort.tools.dashboard.tokens_page:give_tokens",
}
"""Route below /data -> a function of the same arguments that gives plain values, sent as JSON."""
FILES = {"svg": (write_svg, "image/svg+xml"), "csv": (write_csv, "text/csv")}
"""What a drawing or a table can be had as."""
KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def make_app(shelf: Shelf, token: str = "", names: Collection[str] = ()) -> Guard:
    """The application. token: what other machines must bring; names: what this machine is called."""
    pace = Pace()
    list_templates()  # compiled now, and not while somebody waits for the first page
    routes = [Route("/static/{name}", serve_static, methods=["GET"])]
    for path, place in DATA.items():
        routes.append(Route(f"/data{path}", serve_data(shelf, place), methods=["GET"]))
    for path, place in PAGES.items():
        routes.append(Route(f"/live{path}", serve_sections(shelf, pace, place), methods=["GET"]))
        routes.append(Route(path, serve_page(shelf, pace, place), methods=["GET"]))
        for kind, (write, media) in FILES.items():
            routes.append(Route(f"/{kind}{path}", serve_file(shelf, place, kind, write, media), methods=["GET"]))
    handlers: dict[Any, Any] = {HTTPException: tell_problem, NotFound: tell_problem, Exception: tell_problem}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, names)


def load_function(place: str) -> Callable[[Shelf, View], Any]:
    """The function that a line of a table names, imported when it is first asked for."""
    module, _, name = place.partition(":")
    function: Callable[[Shelf, View], Any] = getattr(import_module(module), name)
    return function


def read_view(request: Request, prefix: str = "") -> View:
    return View(request.url.path.removeprefix(prefix) or "/", request.path_params, request.query_params.multi_items())


def make_page(shelf: Shelf, place: str, view: View) -> Page:
    page = load_function(place)(shelf, view)
    assert isinstance(page, Page), place
    return page


def serve_page(shelf: Shelf, pace: Pace, place: str) -> Any:
    async def endpoint(request: Request) -> Response:
        view = read_view(request)
        written = await run_in_threadpool(pace.write, shelf, view, lambda: make_page(shelf, place, view), render_sections)
        text = render_frame(written.page, view, written.sections, written.etag)
        return HTMLResponse(text, written.page.status)

    return endpoint


def serve_sections(shelf: Shelf, pace: Pace, place: str) -> Any:
    async def endpoint(request: Request) -> Response:
        view = read_view(request, "/live")
        written = await run_in_threadpool(pace.write, shelf, view, lambda: make_page(shelf, place, view), render_sections)
        headers = {"ETag": written.etag, "X-Age": f"{pace.find_age(written):.1f}", "X-Wait": f"{pace.find_wait(written):.1f}"}
        if request.headers.get("if-none-match") == written.etag:
            return Response(status_code=304, headers=headers)
        return HTMLResponse(written.sections, written.page.status, headers)

    return endpoint


def serve_file(shelf: Shelf, place: str, kind: str, write: Callable[[Item], str], media: str) -> Any:
    async def endpoint(request: Request) -> Response:
        view = read_view(request, f"/{kind}")

        def make_file() -> tuple[str, str]:
            parts = [part for _, part in list_parts(make_page(shelf, place, view))]
            item = find_item(parts, view.read("item"))
            return item.name, write(item)

        name, text = await run_in_threadpool(make_file)
        # To be kept and not to be looked at here: what a stranger's file name says stays outside of the pages.
        return Response(text, media_type=media, headers={"Content-Disposition": f'attachment; filename="{name}.{kind}"'})

    return endpoint


def serve_data(shelf: Shelf, place: str) -> Any:
    async def endpoint(request: Request) -> Response:
        view = read_view(request)
        return JSONResponse(await run_in_threadpool(load_function(place), shelf, view))

    return endpoint


def find_static() -> dict[str, tuple[bytes, str, str]]:
    """Name -> (content, kind, tag) of every file that is served as it is."""
    files = [REPORT / "hover.js", *(REPORT / "lab").iterdir(), *(HERE / "static").iterdir()]
    found = {file.name: (file.read_bytes(), KINDS[file.suffix]) for file in files if file.suffix in KINDS}
    found["page.css"] = read_styles().encode(), KINDS[".css"]
    return {name: (body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"') for name, (body, kind) in found.items()}


STATIC = find_static()


async def serve_static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in STATIC:
        raise NotFound("There is no such file.")
    body, kind, tag = STATIC[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


async def tell_problem(request: Request, problem: Exception) -> Response:
    """A page for what went wrong. It never holds a path of this machine or a trace; the terminal of the server has both."""
    if isinstance(problem, NotFound | HTTPException):
        status = 404 if isinstance(problem, NotFound) else problem.status_code
        details = [str(problem)] if isinstance(problem, NotFound) else []
        sentence = "There is nothing at this address." if status == 404 else f"This cannot be answered ({status})."
    else:
        status, sentence = 500, "The page could not be made."
        details = ["What went wrong stands in the terminal of the server."]
    page = Page(sentence, [("told", sentence, details)], status=status)
    view = View(request.url.path)
    return HTMLResponse(render_frame(page, view, render_sections(page, view)), status)

"""Render runs as one self-contained HTML page, for a file or for a local web server."""

from __future__ import annotations

import base64
import errno
import hashlib
import socketserver
import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from protofed.analysis.comparison_table import (
    ComparisonTable,
    compare_records,
    table_footnotes,
)
from protofed.analysis.finished_runs import check_comparable
from protofed.errors import ProtofedError
from protofed.experiment.result import ScoreRule
from protofed.federation.evaluation import scores_by_round
from protofed.federation.score_metrics import METRIC_LABELS
from protofed.report import page_sections
from protofed.report.charts import (
    COLOURS,
    ChartLine,
    CurvePoint,
    chart_frame,
    curve_chart,
    legend_swatch,
)
from protofed.report.confusion import (
    RunConfusion,
    draw_confusion,
    frequent_mistakes,
    matrix_accuracy,
)
from protofed.report.load_runs import ReportRun

FOLDER = resources.files("protofed.report")
Groups = dict[str, list[ReportRun]]  # the seeds of each method, by label


def render_report(
    runs: Sequence[ReportRun],
    confusions: Mapping[Path, RunConfusion] | None = None,
    baseline: str | None = None,
    rule: ScoreRule | None = None,
    watched: bool = False,
    left_out: Sequence[str] = (),
) -> str:
    """The HTML page about some runs.

    `confusions` are the matrices by run folder; None leaves the section out. `baseline` is the
    label of the row that others are compared with, the first by default. `rule` is chosen by
    `choose_rule` if None. A `watched` page reloads itself when the server has a new version.
    `left_out` has a line on each folder that is not shown. Equal runs give equal bytes.
    """
    page = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(_file("template.html.j2"))
    script = _file("page.js")
    content = _content(runs, confusions, _comparison(runs, baseline, rule))
    content["notices"] += [(f"left out: {line}", "") for line in left_out]
    return page.render(
        **content,
        style=Markup(_file("style.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        watched=watched,
    )


def _file(name: str) -> str:
    return FOLDER.joinpath(name).read_text(encoding="utf-8")


def _comparison(
    runs: Sequence[ReportRun], baseline: str | None, rule: ScoreRule | None
) -> ComparisonTable | None:
    """The table of the finished runs, if there are any."""
    records = [run.record for run in runs if run.record]
    if not records:
        return None
    return compare_records(records, baseline, rule, check_comparable(records))


def _content(
    runs: Sequence[ReportRun],
    confusions: Mapping[Path, RunConfusion] | None,
    table: ComparisonTable | None,
) -> dict[str, Any]:
    """All that the template names."""
    groups: Groups = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    slots = {label: place for place, label in enumerate(groups)}
    finished = {label: done for label, own in groups.items() if (done := _finished(own))}
    return {
        "title": page_sections.report_title(list(groups), runs[0].experiment.data.label),
        "progress": page_sections.progress_rows(runs),
        "count": len(runs),
        "score": METRIC_LABELS[runs[0].metric],
        "details": page_sections.score_tables(_finished(runs)),
        "headline": page_sections.report_headline(table) if table else "",
        "tiles": page_sections.headline_tiles(table) if table else [],
        "results": page_sections.results_table(table) if table else None,
        "footnotes": table_footnotes(table) if table else [],
        "legend": [(legend_swatch(slot), label) for label, slot in slots.items()],
        "charts": _charts(groups, slots),
        "bars": page_sections.domain_bars(table, slots) if table else [],
        "personal": _personal(finished),
        "opinions": page_sections.auxiliary_table(_finished(runs)) if table else None,
        "confusions": None if confusions is None else _confusions(finished, confusions),
        "notices": page_sections.report_notices(runs),
        "holdings": page_sections.holdings_table(runs[0]),
        **_cost(groups, slots),
        "changed": page_sections.changed_settings(groups),
        "specs": page_sections.full_specs(groups),
        "world": page_sections.environment_table(runs),
        "provenance": page_sections.provenance_table(runs),
        "commands": page_sections.repeat_commands(runs),
    }


def _finished(runs: Sequence[ReportRun]) -> list[ReportRun]:
    return [run for run in runs if run.record]


def _personal(groups: Mapping[str, Sequence[ReportRun]]) -> list[page_sections.HtmlTable]:
    made = [
        page_sections.client_table(label, own, n) for n, (label, own) in enumerate(groups.items())
    ]
    return [table for table in made if table]


def _cost(groups: Mapping[str, Sequence[ReportRun]], slots: Mapping[str, int]) -> dict[str, Any]:
    """Bytes and seconds, of runs that have at least one round."""
    begun = {label: own for label, runs in groups.items() if (own := [r for r in runs if r.rounds])}
    found = [
        page_sections.traffic_parts(own, way)
        for own in begun.values()
        for way in page_sections.UP_AND_DOWN
    ]
    names = dict.fromkeys(name for parts in found for name in parts)
    parts = {name: place % COLOURS for place, name in enumerate(names)}
    return {
        "traffic": page_sections.traffic_table(begun, parts) if begun else None,
        "parts": [(legend_swatch(slot, line=False), name) for name, slot in parts.items()],
        "seconds": page_sections.seconds_table(begun, slots) if begun else None,
    }


def _charts(groups: Groups, slots: Mapping[str, int]) -> list[tuple[str, Markup]]:
    """The mean over domains, then each domain, over rounds."""
    scored = [run for own in groups.values() for run in own if run.evaluations]
    if not scored:
        return []
    domains = list(scored[0].evaluations[0].scores.domains)
    made = [("mean over domains", _chart("the mean over domains", groups, slots, None))]
    if len(domains) > 1:
        made += [(name, _chart(name, groups, slots, name)) for name in domains]
    return made


def _chart(name: str, groups: Groups, slots: Mapping[str, int], domain: str | None) -> Markup:
    lines: list[ChartLine] = []
    for label, runs in groups.items():
        done = _finished(runs)
        if done:
            lines.append(_line(label, slots[label], done, domain))
        for run in runs:
            if not run.record:
                lines.append(_line(run.name, slots[label], [run], domain)._replace(thin=True))
    lines = [line for line in lines if line.points]
    last = max(run.experiment.rounds for runs in groups.values() for run in runs)
    ends = "; ".join(
        f"{one.label} {one.points[-1].mean:.2f} % after round {one.points[-1].round}"
        for one in lines
    )
    score = next(METRIC_LABELS[run.metric] for runs in groups.values() for run in runs)
    return curve_chart(
        lines, chart_frame(lines, last), f"{score} on {name} over rounds: {ends or 'none'}"
    )


def _line(label: str, slot: int, runs: Sequence[ReportRun], domain: str | None) -> ChartLine:
    """The rounds that all these seeds were scored in; a gap where a site was away."""
    by_round: dict[int, list[float | None]] = {}
    for run in runs:
        for number, score in scores_by_round(run.evaluations, domain).items():
            by_round.setdefault(number, []).append(score)
    known = {
        number: [score for score in scores if score is not None]
        for number, scores in sorted(by_round.items())
    }
    points = [
        CurvePoint(number, statistics.fmean(values), min(values), max(values))
        for number, values in known.items()
        if len(values) == len(runs)
    ]
    gaps = tuple(n for n, values in known.items() if len(values) < len(by_round[n]))
    return ChartLine(label, slot, points, gaps=gaps)


def _confusions(
    groups: Mapping[str, Sequence[ReportRun]], found: Mapping[Path, RunConfusion]
) -> list[Any]:
    """For each method its runs: seed, confusion, drawings."""
    return [
        (
            label,
            [(run.seed, found[run.folder], _drawings(found[run.folder])) for run in runs],
        )
        for label, runs in groups.items()
    ]


def _drawings(confusion: RunConfusion) -> list[tuple[str, str, Markup, list[str]]]:
    """Of each domain: its name, the accuracy, the matrix, and the worst mistakes in words."""
    return [
        (
            matrix.domain,
            f"{matrix_accuracy(matrix.counts):.2f} %",
            draw_confusion(matrix, confusion.classes),
            frequent_mistakes(matrix.counts, confusion.classes),
        )
        for matrix in confusion.matrices
    ]


HOST = "127.0.0.1"  # never reachable from the network
LOOK = 1.0  # seconds between checks of the run folders
TRIES = 50  # ports


class ReportServer(ThreadingHTTPServer):
    """A web server on 127.0.0.1 that serves one page from memory.

    Requests never touch the disk; `show` replaces the page.
    """

    daemon_threads = True

    def __init__(self, port: int, page: str):
        super().__init__((HOST, port), ReportHandler)
        self.page = page.encode()

    def server_bind(self) -> None:
        """Bind without asking the network for this machine's name, as the parent would."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def show(self, page: str) -> None:
        """Serve another version of the page from now on."""
        self.page = page.encode()

    @property
    def address(self) -> str:
        """The URL of the page."""
        return f"http://{HOST}:{self.server_port}/"


class ReportHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD requests for ``/``; everything else is refused.

    Requests with a foreign Host header are refused too, so no other web site can read the page.
    """

    server: ReportServer
    server_version, sys_version = "protofed", ""
    timeout = 10

    def do_GET(self) -> None:
        """The page."""
        self._answer(body=True)

    def do_HEAD(self) -> None:
        """The page's headers."""
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        port = self.server.server_port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            # another web site could reach us under its own host name
            return self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
        if self.path.partition("?")[0] != "/":
            return self.send_error(HTTPStatus.NOT_FOUND)
        page = self.server.page
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("ETag", f'"{hashlib.sha256(page).hexdigest()[:16]}"')
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.end_headers()
        if body:
            self.wfile.write(page)
        return None

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: a page that asks every other second would fill the terminal."""


def open_server(port: int, page: str) -> ReportServer:
    """Start a server on this port, or on the next free one; port 0 takes any.

    Raises if the port cannot be used or 50 ports in a row are taken.
    """
    for tried in range(port, min(port + TRIES, 65536)):
        try:
            return ReportServer(tried, page)
        except OSError as fault:
            if fault.errno != errno.EADDRINUSE:
                raise ProtofedError(
                    f"cannot listen on port {tried}: {fault.strerror}", hint="choose another <port>"
                ) from fault
    raise ProtofedError(
        f"port {port} and the next ones are taken by other programs", hint="choose another <port>"
    )


def watch_report(
    make: Callable[[], str],
    stamp: Callable[[], object],
    port: int,
    say: Callable[[str], None],
) -> None:
    """Serve the page that `make` returns until Ctrl-C, and make it again whenever `stamp` changes.

    `stamp` is called once per second. If making a new page fails, the old one stays and `say` gets
    the reason.
    """
    seen = stamp()
    server, pause = open_server(port, make()), threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        say(f"report on {server.address} (Ctrl-C stops it)")
        while True:
            pause.wait(LOOK)
            now = stamp()
            if now != seen:
                seen = now
                _renew(server, make, say)
    except KeyboardInterrupt:
        say("stopped")
    finally:
        server.shutdown()
        server.server_close()


def _renew(server: ReportServer, make: Callable[[], str], say: Callable[[str], None]) -> None:
    """Show a new version; while a run folder is unreadable, the one before stays."""
    try:
        server.show(make())
    except (ProtofedError, OSError) as fault:
        say(f"the page was not updated: {fault}")

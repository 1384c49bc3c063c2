"""The stylesheet and the one script of the report. Kept apart from the page so that both read as what they are."""

from __future__ import annotations

import base64
import hashlib

CSS = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#16191d;--soft:#5b6470;--line:#e3e6ea;--tint:#f0f2f5;
--good:#0b7a4b;--warn:#a45b00;--bad:#b42318;--c0:#2b63d9;--c1:#d9622b;--c2:#12876f;--c3:#8b45c9;--c4:#b08900;--c5:#c2317c;
--c6:#4b8f1d;--c7:#6b7785}
@media(prefers-color-scheme:dark){:root{--bg:#101317;--card:#181c22;--ink:#e9ecf0;--soft:#98a2b0;--line:#2a3038;--tint:#20252d;
--good:#4cc38a;--warn:#e0a458;--bad:#ff8a7a;--c0:#7aa7ff;--c1:#ff9d6b;--c2:#4fd0b3;--c3:#c49bff;--c4:#e3c04f;--c5:#ff8cc0;
--c6:#9bd46a;--c7:#a4afbd}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1120px;margin:0 auto;padding:40px 24px 72px}
h1{font-size:17px;font-weight:600;margin:0;overflow-wrap:anywhere}
h2{font-size:20px;margin:48px 0 14px;letter-spacing:-.01em}
h3{font-size:15px;margin:0;font-weight:600;overflow-wrap:anywhere}
p{margin:0;overflow-wrap:anywhere}
.top{display:flex;flex-wrap:wrap;gap:6px 12px;align-items:center;color:var(--soft);font-size:14px}
.top h1{color:var(--ink)}
.verdict{font-size:clamp(22px,3.4vw,32px);line-height:1.25;font-weight:650;letter-spacing:-.02em;margin:18px 0 6px;max-width:30em;text-wrap:balance}
.sub{color:var(--soft);max-width:46em}
.badge{font-size:12px;font-weight:600;padding:2px 10px;border-radius:99px;background:var(--tint);color:var(--soft)}
.badge.finished{color:var(--good)}.badge.failed{color:var(--bad)}.badge.interrupted,.badge.unfinished{color:var(--warn)}.badge.running{color:var(--c0)}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:16px 18px;margin:0;min-width:0}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin-top:26px}
.facts .card{padding:13px 16px}
.facts b{display:block;font-size:22px;font-weight:650;letter-spacing:-.02em;font-variant-numeric:tabular-nums}
.facts span{color:var(--soft);font-size:13px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:9px 12px;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-size:13px;color:var(--soft);font-weight:500}
th:first-child,td:first-child{text-align:left;padding-left:0}
th:last-child,td:last-child{padding-right:0}
tr:last-child td{border-bottom:0}
td small{color:var(--soft);font-size:13px;margin-left:6px}
td.up{color:var(--good);font-weight:600}td.down{color:var(--bad);font-weight:600}
tr.set td{padding-top:16px;font-weight:600;white-space:normal;overflow-wrap:anywhere}
td small.note{display:block;margin:0;white-space:normal}
.findings{display:grid;gap:10px}
.failed{margin-top:26px}.finding pre{margin-top:6px}
.finding{border-left:4px solid var(--c0);padding:12px 16px}
.finding.warning{border-left-color:var(--warn)}.finding.alarm{border-left-color:var(--bad)}
.finding .level{font-size:12px;font-weight:600;color:var(--c0);margin-right:8px}
.finding.warning .level{color:var(--warn)}.finding.alarm .level{color:var(--bad)}
.finding p+p{margin-top:4px;color:var(--soft);font-size:15px}
.finding p.fix{color:var(--ink)}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(440px,100%),1fr));gap:14px}
.chart{position:relative}
.chart figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:2px 16px;align-items:baseline;margin-bottom:6px}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:13px;color:var(--soft)}
.legend span{overflow-wrap:anywhere}
.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;margin-right:6px;background:currentColor}
.chart svg{display:block;width:100%;height:auto;overflow:visible;touch-action:pan-y}
.caption{font-size:13px;color:var(--soft);margin-top:6px}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}.c6{color:var(--c6)}.c7{color:var(--c7)}
.grid{stroke:var(--line)}
.tick{fill:var(--soft);font-size:12px}
.line{fill:none;stroke:currentColor;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.raw{stroke-width:1;opacity:.32}
.band{fill:currentColor;opacity:.13}
.whisker{stroke:currentColor;stroke-width:1.5;opacity:.55}
.dot{fill:var(--card);stroke:currentColor;stroke-width:2}
.share{display:inline-block;height:9px;border-radius:3px;background:currentColor;vertical-align:middle;min-width:1px}
td.bar{width:34%;text-align:left}td.does{text-align:left;white-space:normal;color:var(--soft);font-size:14px}
.area{fill:currentColor;opacity:.82;stroke:var(--card);stroke-width:.6}
.cursor{stroke:var(--soft);stroke-dasharray:3 3;visibility:hidden}
.tip{position:absolute;z-index:2;pointer-events:none;background:var(--ink);color:var(--bg);font-size:12px;line-height:1.5;padding:6px 10px;
border-radius:8px;white-space:nowrap;font-variant-numeric:tabular-nums}
.problem+.problem{margin-top:14px}
.problem .meta{font-size:13px;color:var(--soft);margin-bottom:6px}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre.prompt{font-size:14px}
.sides{display:grid;grid-template-columns:1fr 1fr;gap:16px;margin-top:14px}
.sides h4{margin:0 0 6px;font-size:13px;font-weight:600;color:var(--soft)}
.said{background:var(--tint);border-radius:8px;padding:9px 12px;margin-bottom:8px}
.said pre{max-height:220px;overflow:auto}
.said .mark{font-size:12px;font-weight:600;color:var(--soft);margin-bottom:3px}
.said .mark.right{color:var(--good)}.said .mark.wrong{color:var(--bad)}
details summary{cursor:pointer;font-weight:600}
details pre{margin-top:12px}
dl{display:grid;grid-template-columns:auto 1fr;gap:8px 20px;margin:0}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
code{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.none{color:var(--soft)}
@media(max-width:640px){main{padding:24px 14px 48px}.sides{grid-template-columns:1fr}h2{margin-top:36px}.card{padding:14px}
.tick{font-size:15px}td small{display:block;margin:0;white-space:normal}th,td{padding:8px 5px;font-size:14px}th{white-space:normal}.bar{display:none}td.does{overflow-wrap:anywhere}dl{grid-template-columns:1fr;gap:2px}dd{margin-bottom:10px}}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""

SCRIPT = """
for (const chart of document.querySelectorAll('[data-chart]')) {
  const data = JSON.parse(chart.dataset.chart), svg = chart.querySelector('svg'), cursor = chart.querySelector('.cursor');
  const tip = document.createElement('div');
  tip.className = 'tip'; tip.hidden = true; chart.append(tip);
  const [left, right, width] = data.plot, [x0, x1] = data.x;
  const hide = () => { tip.hidden = true; cursor.style.visibility = 'hidden'; };
  const nearest = (points, x) => points.reduce((a, b) => Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a);
  const write = v => (data.share ? (100 * v).toFixed(1) + ' %' : String(+v.toPrecision(4)) + (data.unit ? ' ' + data.unit : ''));
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), at = (event.clientX - box.left) / box.width * width;
    if (at < left - 6 || at > right + 6) return hide();
    const wanted = x0 + (at - left) / (right - left) * (x1 - x0);
    const step = nearest(data.series.flatMap(s => s.points), wanted)[0];
    const x = left + (step - x0) / (x1 - x0) * (right - left);
    cursor.setAttribute('x1', x); cursor.setAttribute('x2', x); cursor.style.visibility = 'visible';
    tip.textContent = '';
    const lines = ['step ' + Math.round(step)];
    for (const s of data.series) { const p = nearest(s.points, step); if (p[0] === step) lines.push(s.label + '  ' + write(p[1])); }
    for (const text of lines) { const row = document.createElement('div'); row.textContent = text; tip.append(row); }
    tip.hidden = false;
    const px = box.left - chart.getBoundingClientRect().left + x / width * box.width;
    tip.style.left = Math.max(4, px + 12 + tip.offsetWidth > chart.clientWidth ? px - 12 - tip.offsetWidth : px + 12) + 'px';
    tip.style.top = (box.top - chart.getBoundingClientRect().top + 8) + 'px';
  });
  svg.addEventListener('pointerleave', hide);
}
"""


def content_security_policy() -> str:
    """Nothing may be loaded, and only the script above may run: the second wall behind escaping."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode("utf-8")).digest()).decode("ascii")
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"

// Shows values under the pointer, or with the arrow keys on a focused chart. Listens on the document, because charts may come and go.
const shown = new WeakMap();

function prepare(chart) {
  if (shown.has(chart)) return shown.get(chart);
  const data = JSON.parse(chart.dataset.chart), tip = document.createElement('div');
  tip.className = 'tip'; tip.hidden = true; tip.setAttribute('role', 'status'); chart.append(tip);
  data.steps = [...new Set([...data.series.flatMap(s => s.points.map(p => p[0])), ...data.events.map(e => e[0])])].sort((a, b) => a - b);
  const one = {chart, data, tip, svg: chart.querySelector('svg[role=img]'), cursor: chart.querySelector('.cursor'), place: null};
  shown.set(chart, one);
  return one;
}

function hide(one) { one.tip.hidden = true; one.cursor.style.visibility = 'hidden'; one.place = null; }

function show(one, place) {
  const {chart, data, tip, svg, cursor} = one, [left, right, width] = data.plot, [x0, x1] = data.x, step = data.steps[place];
  const write = v => (data.share ? (100 * v).toFixed(1) + ' %' : String(+v.toPrecision(4)) + (data.unit ? ' ' + data.unit : ''));
  const box = svg.getBoundingClientRect(), frame = chart.getBoundingClientRect(), x = left + (step - x0) / (x1 - x0) * (right - left);
  one.place = place;
  cursor.setAttribute('x1', x); cursor.setAttribute('x2', x); cursor.style.visibility = 'visible';
  const lines = ['step ' + Math.round(step)];
  for (const s of data.series) { const p = s.points.find(p => p[0] === step); if (p) lines.push(s.label + '  ' + write(p[1])); }
  for (const [at, text] of data.events) if (at === step) lines.push(text);
  tip.replaceChildren(...lines.map(text => { const row = document.createElement('div'); row.textContent = text; return row; }));
  tip.hidden = false;
  const px = box.left - frame.left + x / width * box.width;
  tip.style.left = Math.max(4, px + 12 + tip.offsetWidth > chart.clientWidth ? px - 12 - tip.offsetWidth : px + 12) + 'px';
  tip.style.top = (box.top - frame.top + 8) + 'px';
}

function find(event) {
  const chart = event.target instanceof Element ? event.target.closest('svg[role=img]')?.closest('[data-chart]') : null;
  return chart ? prepare(chart) : null;
}

let last = null;
document.addEventListener('pointermove', event => {
  const one = find(event);
  if (last && last !== one) hide(last);
  last = one;
  if (!one) return;
  const [left, right, width] = one.data.plot, [x0, x1] = one.data.x, box = one.svg.getBoundingClientRect();
  const at = (event.clientX - box.left) / box.width * width;
  if (at < left - 6 || at > right + 6) return hide(one);
  const wanted = x0 + (at - left) / (right - left) * (x1 - x0), away = step => Math.abs(step - wanted);
  show(one, one.data.steps.reduce((best, step, i, all) => away(step) < away(all[best]) ? i : best, 0));
});
document.addEventListener('keydown', event => {
  const one = find(event), end = one ? one.data.steps.length - 1 : 0;
  if (!one) return;
  const here = one.place ?? (event.key === 'ArrowRight' ? -1 : end + 1);
  const there = {ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: end}[event.key];
  if (event.key === 'Escape') hide(one);
  if (there === undefined) return;
  event.preventDefault();
  show(one, Math.min(end, Math.max(0, there)));
});
document.addEventListener('focusout', event => { const one = find(event); if (one) hide(one); });

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

// Elements, formatted numbers and small charts. Text is set as text, never as markup.
const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, inner) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !name.startsWith('aria-'))) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true && !name.startsWith('aria-') ? '' : value);
  }
  node.append(...inner.flat().filter(one => one !== null && one !== undefined && one !== false));
  return node;
}

export const make = (tag, attributes = {}, ...inner) => fill(document.createElement(tag), attributes, inner);
export const mark = (tag, attributes = {}, ...inner) => fill(document.createElementNS(SVG, tag), attributes, inner);

// 0.667, −1.41, 2.2e−7: three significant digits, with a minus sign.
export function write(value, digits = 3) {
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  if (size < 1e-12) return '0';
  const text = size < 1e-3 || size >= 1e5 ? value.toExponential(1) : String(Number(value.toPrecision(digits)));
  return text.replaceAll('-', '−');
}
export const signed = (value, digits) => (value > 1e-12 ? '+' : '') + write(value, digits);
export const percent = value => value > 1e-9 && value < 1e-4 ? '< 0.01 %' : value < 1 - 1e-9 && value > 1 - 1e-4 ? '> 99.99 %' : `${Math.abs(value) < 1e-9 ? 0 : write(100 * value)} %`;
// A table cell with an arrow and the class of its direction.
export const pushCell = value => [`${arrow(value)} ${signed(value)}`, value > 1e-12 ? 'raised' : value < -1e-12 ? 'lowered' : 'none'];
export const arrow = value => value > 1e-12 ? '▲' : value < -1e-12 ? '▼' : '·';

export function findTicks(low, high, count = 4) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(one => one >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i <= Math.floor(high / step + 1e-9); i += 1) ticks.push(Number((i * step).toPrecision(9)));
  return ticks;
}

// The pieces of a line between two heights. A line that leaves the picture ends at its edge.
function cutLine(points, low, high) {
  const pieces = [[]], inside = value => value >= low && value <= high;
  points.forEach(([a, b], place) => {
    const [c, d] = points[place - 1] ?? [a, b];
    if (inside(b) !== inside(d)) {
      const edge = (inside(b) ? d : b) > high ? high : low;
      pieces.at(-1).push([c + (a - c) * (edge - d) / (b - d), edge]);
      if (!inside(b)) pieces.push([]);
    }
    if (inside(b)) pieces.at(-1).push([a, b]);
  });
  return pieces.filter(piece => piece.length > 1);
}

// lines: {points: [[x, y]], colour, style, label, band: [[x, low, high]]}; shades: {from, to}; cursor: x; dots: {x, y, colour, r, label}
export function plot({title, x, y, lines = [], shades = [], dots = [], cursor = null, width = 420, height = 220, axis = '', plain = false}) {
  const left = plain ? 30 : 44, right = 10, top = 10, bottom = plain ? 20 : 34;
  const px = value => left + (value - x[0]) / (x[1] - x[0]) * (width - left - right);
  const py = value => height - bottom - (Math.min(Math.max(value, y[0]), y[1]) - y[0]) / (y[1] - y[0]) * (height - top - bottom);
  const place = points => points.map(([a, b]) => `${px(a).toFixed(1)},${py(b).toFixed(1)}`).join(' ');
  const svg = mark('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title});
  for (const {from, to} of shades) svg.append(mark('rect', {class: 'silent', x: px(from), width: Math.max(0, px(to) - px(from)), y: top, height: height - top - bottom}));
  for (const tick of findTicks(...y, plain ? 3 : 5)) {
    svg.append(mark('line', {class: tick === 0 ? 'zero' : 'grid', x1: left, x2: width - right, y1: py(tick), y2: py(tick)}));
    svg.append(mark('text', {class: 'tick', x: left - 6, y: py(tick) + 4, 'text-anchor': 'end'}, write(tick)));
  }
  for (const tick of findTicks(...x, plain ? 4 : 6)) svg.append(mark('text', {class: 'tick', x: px(tick), y: height - bottom + 15, 'text-anchor': 'middle'}, write(tick)));
  if (axis) svg.append(mark('text', {class: 'tick', x: (left + width - right) / 2, y: height - 3, 'text-anchor': 'middle'}, axis));
  for (const {band, colour} of lines) if (band) svg.append(mark('polygon', {class: `band c${colour}`, points: place([...band.map(([a, low]) => [a, low]), ...band.map(([a, , high]) => [a, high]).reverse()])}));
  for (const {points, colour, style = ''} of lines) for (const piece of cutLine(points, ...y)) svg.append(mark('polyline', {class: `line c${colour} ${style}`, points: place(piece)}));
  if (cursor !== null) svg.append(mark('line', {class: 'here', x1: px(cursor), x2: px(cursor), y1: top, y2: height - bottom}));
  for (const {x: a, y: b, colour, r = 4, label} of dots) if (b >= y[0] && b <= y[1]) svg.append(mark('circle', {class: `dot c${colour}`, cx: px(a), cy: py(b), r}, label ? mark('title', {}, label) : null));
  return svg;
}

export const legend = entries => make('div', {class: 'legend'}, entries.map(([colour, label, style = '']) => make('span', {}, make('i', {class: `c${colour} ${style}`}), label)));

export function figure(title, drawing, entries = [], caption = '') {
  return make('figure', {class: 'drawn'}, make('figcaption', {}, make('h3', {}, title), entries.length ? legend(entries) : null), drawing, caption ? make('p', {class: 'caption'}, caption) : null);
}

export const facts = boxes => make('div', {class: 'facts'}, boxes.map(([value, label, share]) => make('div', {class: 'card'}, make('b', {}, value), make('span', {}, label), share === undefined ? null : meter(share))));

export function meter(share, colour = 0) {
  return mark('svg', {class: `meter c${colour}`, viewBox: '0 0 100 5', preserveAspectRatio: 'none', 'aria-hidden': 'true'}, mark('rect', {class: 'rest', width: 100, height: 5}), mark('rect', {width: 100 * Math.min(1, Math.max(0, share)), height: 5}));
}

// A table. A cell is a text, a node, or [text or node, class].
export function table(heads, rows, caption = '') {
  const cell = (tag, value) => Array.isArray(value) ? make(tag, {class: value[1]}, value[0]) : make(tag, {}, value);
  return make('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption || heads.filter(head => typeof head === 'string').join(', ')}, make('table', {}, make('thead', {}, make('tr', {}, heads.map(head => cell('th', head)))), make('tbody', {}, rows.map(row => make('tr', {}, row.map((value, place) => place ? cell('td', value) : make('th', {scope: 'row'}, value)))))));
}

// Downloads of a station: its drawings as SVG with the computed colours, and its numbers as CSV.
const STYLED = ['fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'font-family', 'font-size', 'text-anchor'];

export const listDrawings = picture => [...picture.querySelectorAll('svg[role=img]')];

function copyDrawing(svg) {
  const copy = svg.cloneNode(true), copies = [copy, ...copy.querySelectorAll('*')];
  [svg, ...svg.querySelectorAll('*')].forEach((node, place) => {
    const style = getComputedStyle(node);
    for (const name of STYLED) copies[place].setAttribute(name, style.getPropertyValue(name));
  });
  return new XMLSerializer().serializeToString(copy);
}

// [path, value, value, ...] for each number or list of numbers of an answer.
function listNumbers(value, path = '') {
  const inner = typeof value === 'object' && value !== null;
  if (!inner || (Array.isArray(value) && !value.some(one => typeof one === 'object' && one !== null))) return [[path, ...[value].flat()]];
  return Object.entries(value).flatMap(([name, one]) => listNumbers(one, path ? `${path}.${name}` : name));
}

// An apostrophe goes before a text that a spreadsheet would take for a formula.
function writeCell(value) {
  const text = typeof value === 'string' && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? '');
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const writeCsv = answer => listNumbers(answer).map(row => row.map(writeCell).join(',')).join('\n') + '\n';

function save(name, type, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function saveFiles(kind, name, picture, answer) {
  if (kind === 'csv') save(`lab-${name}.csv`, 'text/csv', writeCsv(answer));
  else listDrawings(picture).forEach((svg, place, all) => save(`lab-${name}${all.length > 1 ? `-${place + 1}` : ''}.svg`, 'image/svg+xml', copyDrawing(svg)));
}

// Your run: a table with a column for each token of a completion and a row for each algorithm; a cell shows how the algorithm pushes the token.
import {arrow, make, percent, pushCell, signed, table, write} from './lab_drawing.js';

const WINDOW = 64;

// A cell shows direction and strength; its number appears below the table on hover or focus.
function makeCell(one, piece, place, value, scale) {
  const kind = value === null ? 'untrained' : value > 1e-12 ? 'rises' : value < -1e-12 ? 'falls' : 'none';
  const silenced = kind === 'none' && one.cut.includes(place), words = value === null ? 'masked out of training' : silenced ? '0, silenced by the region' : signed(value, 4);
  const cell = make('td', {class: `heat ${kind}`, tabindex: -1, 'data-text': `${one.name}, token ${place + 1} “${piece}”: ${words}`}, value === null ? '' : silenced ? '×' : arrow(value));
  if (value) cell.style.setProperty('--heat', Math.min(1, Math.abs(value) / (scale || 1)).toFixed(3));
  return cell;
}

function drawMap(answer, weighed, from) {
  const shown = answer.pieces.slice(from, from + WINDOW), usable = answer.algorithms.filter(one => !one.missing);
  const heads = make('tr', {}, make('th', {scope: 'col'}, 'token'), shown.map((piece, place) => make('th', {scope: 'col', class: 'piece', title: `token ${from + place + 1}`}, piece)));
  const rows = usable.map(one => make('tr', {}, make('th', {scope: 'row', title: one.describes}, one.name), shown.map((piece, place) => {
    const value = one.coefficients[from + place] ?? null;
    return makeCell(one, piece, from + place, value === null || !weighed ? value : value * one.weight, weighed ? one.scale * one.weight : one.scale);
  })));
  const grid = make('table', {class: 'map', role: 'grid', 'aria-label': 'Gradient coefficient of every token under every algorithm. Use the arrow keys.'}, make('thead', {}, heads), make('tbody', {}, rows));
  const text = make('p', {class: 'cell-text', role: 'status'}, 'Point at a cell or use the arrow keys to see its number.');
  const cells = rows.map(row => [...row.querySelectorAll('td')]);
  if (cells[0]?.[0]) cells[0][0].tabIndex = 0;
  const reach = cell => { if (cell?.dataset.text) text.textContent = cell.dataset.text; };
  grid.addEventListener('pointerover', event => reach(event.target.closest('td')));
  grid.addEventListener('focusin', event => reach(event.target.closest('td')));
  grid.addEventListener('keydown', event => {
    const y = cells.findIndex(row => row.includes(event.target)), x = y < 0 ? -1 : cells[y].indexOf(event.target);
    const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Home: [0, -x], End: [0, cells[0].length - 1 - x]}[event.key];
    const next = move && cells[y + move[0]]?.[x + move[1]];
    if (!next) return;
    event.preventDefault();
    event.target.tabIndex = -1; next.tabIndex = 0; next.focus();
  });
  return [make('div', {class: 'scroll mapped'}, grid), text];
}

function makeChoice(label, options, chosen, choose) {
  const select = make('select', {onchange: event => choose(event.target.value)}, options.map(([value, words]) => make('option', {value, selected: String(value) === String(chosen)}, words)));
  return make('label', {class: 'control'}, make('span', {}, label), select);
}

export function showRun(box, answer, state, change) {
  const held = document.activeElement?.closest?.('.picture') === box ? [...box.querySelectorAll('select,button')].indexOf(document.activeElement) : -1;
  const chooseRun = makeChoice('Run', answer.runs, answer.run, run => change({run, step: '', group: '', sample: '', from: 0}));
  if (answer.problem) {
    box.replaceChildren(make('div', {class: 'controls'}, chooseRun), make('p', {}, answer.problem));
    return {sentence: answer.problem};
  }
  const from = Math.min(Number(state.from) || 0, Math.max(0, answer.pieces.length - 1)), weighed = state.weighed === 'push';
  const choices = make('div', {class: 'controls'},
    chooseRun,
    makeChoice('Step', answer.steps.map(step => [step, step]), answer.step, step => change({run: answer.run, step, group: '', sample: '', from: 0})),
    makeChoice('Group', answer.groups, answer.group, group => change({run: answer.run, step: answer.step, group, sample: '', from: 0})));
  const cards = make('div', {class: 'chips', role: 'group', 'aria-label': 'Completions of the group'}, answer.samples.map((one, place) => make('button', {
    type: 'button', 'aria-pressed': place === answer.sample, onclick: () => change({run: answer.run, step: answer.step, group: answer.group, sample: place, from: 0}),
  }, `${one.success === null ? '' : one.success ? '✓ ' : '✗ '}${one.reward === null ? 'no score' : `reward ${write(one.reward)}`}, ${one.length} tokens${one.end === 'length' ? ', cut' : ''}`)));
  const turn = (label, to) => make('button', {type: 'button', disabled: to < 0 || to >= answer.pieces.length, onclick: () => change({from: to})}, label);
  const pages = answer.pieces.length > WINDOW ? make('div', {class: 'presets'}, turn('← earlier tokens', from - WINDOW), make('span', {}, `${from + 1} to ${Math.min(from + WINDOW, answer.pieces.length)} of ${answer.pieces.length}${answer.left_out ? ` (${answer.left_out} more not shown)` : ''}`), turn('later tokens →', from + WINDOW)) : null;
  const usable = answer.algorithms.filter(one => !one.missing);
  const means = usable.map(one => [make('span', {title: one.describes}, one.name), ...one.means.map(pushCell)]);
  const notes = answer.algorithms.filter(one => one.missing || one.notes.length).map(one => make('li', {}, make('b', {}, `${one.name}: `), [one.missing, ...one.notes].filter(Boolean).join(' ')));
  box.replaceChildren(...[
    choices, answer.note ? make('p', {class: 'caption'}, answer.note) : null, make('h3', {}, 'One completion, token by token'), cards, pages, ...drawMap(answer, weighed, from),
    make('p', {class: 'caption'}, '▲ pushed up, ▼ pushed down (hatched), × silenced by the region, · not pushed. Colours are scaled for each row.'),
    make('h3', {class: 'apart'}, 'All completions: mean over their tokens'), table(['algorithm', ...answer.samples.map((one, place) => `${place + 1}`)], means, 'Mean gradient coefficient of every completion under every algorithm'),
    notes.length ? make('details', {}, make('summary', {}, 'Missing values and notes'), make('ul', {class: 'notes'}, notes)) : null,
    make('p', {class: 'caption'}, make('a', {href: answer.address}, 'show the completions of this group')),
  ].filter(Boolean));
  if (held >= 0) [...box.querySelectorAll('select,button')][held]?.focus();
  const cut = usable.filter(one => one.cut.length).map(one => `${one.name} ${one.cut.length}`);
  return {
    right: answer.right,
    sentence: `Step ${answer.step}, group ${answer.group}, completion ${answer.sample + 1}. ${answer.agree} of ${answer.others} algorithms push every token of the group in GRPO’s direction (${percent(answer.others ? answer.agree / answer.others : 0)}). ${cut.length ? `Clipped tokens in this completion: ${cut.join(', ')}.` : 'No region clips a token of this completion.'}`,
  };
}

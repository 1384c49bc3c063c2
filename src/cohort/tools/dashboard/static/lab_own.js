// The same in your run: a box that finds what the station is about in a run on the shelf.
import {make, table} from './lab_drawing.js';

export function openOwn(article, state, change) {
  const station = article.dataset.station, box = article.querySelector('.own');
  if (station === 'run') return;
  async function look(run) {
    const answer = await fetch(`/data/lab/${station}/run?${new URLSearchParams(run ? {run} : {})}`);
    if (!answer.ok) { box.replaceChildren(); return; }
    const found = await answer.json();
    const select = found.runs.length > 1 ? make('select', {'aria-label': 'Run', onchange: event => look(event.target.value)}, found.runs.map(([value, title]) => make('option', {value, selected: value === found.run}, title))) : null;
    const name = found.runs.length === 1 ? `: ${found.runs[0][1]}` : '';
    const put = found.set ? make('button', {type: 'button', onclick: () => { change(found.set); article.querySelector('.picture').scrollIntoView({block: 'center'}); }}, 'put it into the picture') : null;
    const links = (found.links ?? []).map(([words, address]) => make('a', {href: address}, words));
    box.replaceChildren(make('div', {class: 'card'}, make('h3', {}, `The same in your run${name}`), select, make('p', {}, found.sentence), found.table ? table(found.table.heads, found.table.rows, 'The same in your run') : null, put || links.length ? make('p', {class: 'ways'}, put, ...links) : null));
  }
  look('').catch(() => box.replaceChildren());
}

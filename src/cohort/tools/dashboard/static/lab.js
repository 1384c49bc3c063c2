// A station: a guess reveals it, controls and presets change its state, the state is kept in the address, and a picture shows the numbers.

import {make, table} from './lab_drawing.js';
import {listDrawings, saveFiles} from './lab_files.js';
import {pictures} from './lab_pictures.js';

const changes = new Map();
let flushing = 0;

function flush() {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of changes) if (value === null) query.delete(name); else query.set(name, value);
  changes.clear();
  const text = query.toString().replaceAll('%2C', ',');
  history.replaceState(null, '', location.pathname + (text && `?${text}`) + location.hash);
}

function readAddress() {
  if (flushing) { clearTimeout(flushing); flushing = 0; flush(); }
  return new URLSearchParams(location.search);
}

function writeAddress(name, value) {
  changes.set(name, value);
  clearTimeout(flushing);
  flushing = setTimeout(() => { flushing = 0; flush(); }, 200);
}

// The numbers of a station from the server.
async function ask(station, state) {
  const answer = await fetch(`/data/lab/${station}?${new URLSearchParams(state)}`);
  if (!answer.ok) throw new Error(`the server returned ${answer.status}`);
  return answer.json();
}

// show: a function of lab_pictures.js.
function openStation(article, show) {
  const name = article.dataset.station, find = selector => article.querySelector(selector);
  const controls = [...article.querySelectorAll('[data-start]')];
  const starts = Object.fromEntries(controls.map(node => [node.dataset.name, node.dataset.start]));
  const state = {...starts}, guesses = [...article.querySelectorAll('[data-guess]')];
  let guess = null, right = Number(article.dataset.right), asking = false, again = false, timer = 0, last = {};

  function read() {
    const query = readAddress();
    for (const key of Object.keys(starts)) state[key] = query.get(key) ?? starts[key];
    guess = query.get(`guess_${name}`);
  }

  function layControls() {
    for (const node of controls) {
      const value = state[node.dataset.name], kind = node.closest('[data-kind]').dataset.kind;
      if (kind === 'range') { node.value = value; node.nextElementSibling.textContent = String(Number(value)).replace('-', '−'); }
      if (kind === 'choice') for (const one of node.querySelectorAll('input')) one.checked = one.value === value;
      if (kind === 'chips') for (const one of node.querySelectorAll('input')) one.checked = value.split(',').includes(one.value);
    }
  }

  function change(changes) {
    for (const [key, value] of Object.entries(changes)) {
      state[key] = String(value);
      writeAddress(key, state[key] === starts[key] ? null : state[key]);
    }
    layControls();
    update();
  }

  // One request at a time: changes made in the meantime are sent after the answer.
  async function update() {
    if (asking) { again = true; return; }
    asking = true;
    try {
      const answer = await ask(name, state);
      article.classList.remove('waiting');
      last = answer;
      tell(answer.problem && !answer.runs?.length ? answer.problem : show(find('.picture'), answer, state, change));
      find('[data-save=svg]').hidden = !listDrawings(find('.picture')).length;
    } catch (problem) { tell(`The server did not answer (${problem.message}).`); }
    asking = false;
    if (again) { again = false; update(); }
  }

  function tell(found) {
    if (typeof found === 'object') { right = found.right ?? right; found = found.sentence; layGuess(); }
    clearTimeout(timer);
    timer = setTimeout(() => { find('.read').textContent = found; }, find('.read').textContent ? 350 : 0);
  }

  function layGuess() {
    const made = guess !== null && guesses[guess] !== undefined;
    guesses.forEach((button, place) => {
      button.setAttribute('aria-pressed', made && String(place) === guess);
      button.classList.toggle('right', made && place === right);
    });
    find('.first').hidden = made;
    find('.revealed').hidden = !made;
    if (!made || right < 0) return;
    const result = String(right) === guess ? `Correct: ${guesses[right].textContent}.` : `Not quite. The answer: ${guesses[right].textContent}.`;
    if (find('.result').textContent !== result) find('.result').textContent = result;
  }

  // A guess before this script is loaded submits the form, which puts the guess into the address.
  guesses.forEach((button, place) => button.addEventListener('click', event => {
    event.preventDefault();
    guess = String(place); writeAddress(`guess_${name}`, guess); layGuess();
  }));
  for (const button of article.querySelectorAll('[data-preset]')) button.addEventListener('click', () => change({...starts, ...keep(), ...Object.fromEntries(new URLSearchParams(button.dataset.preset))}));
  for (const button of article.querySelectorAll('[data-save]')) button.addEventListener('click', () => saveFiles(button.dataset.save, name, find('.picture'), last));
  const keep = () => Object.fromEntries(['run', 'step', 'group', 'weights'].filter(key => key in starts).map(key => [key, state[key]]));
  article.addEventListener('input', event => {
    const node = event.target, box = node.closest('[data-kind]');
    if (!box || !article.contains(box)) return;
    const key = (node.dataset.name ?? box.dataset.name);
    if (box.dataset.kind === 'chips') change({[key]: [...box.querySelectorAll('input:checked')].map(one => one.value).join(',')});
    else change({[key]: node.value});
  });
  const start = () => { read(); layControls(); layGuess(); update(); };
  addEventListener('popstate', start);
  article.classList.add('waiting');
  start();
  if (name !== 'run') openOwn(article, change);
}

// An example for the station from one of the user's runs.
function openOwn(article, change) {
  const station = article.dataset.station, box = article.querySelector('.own');
  async function look(run) {
    const answer = await fetch(`/data/lab/${station}/run?${new URLSearchParams(run ? {run} : {})}`);
    if (!answer.ok) { box.replaceChildren(); return; }
    const found = await answer.json();
    const select = found.runs.length > 1 ? make('select', {'aria-label': 'Run', onchange: event => look(event.target.value)}, found.runs.map(([value, title]) => make('option', {value, selected: value === found.run}, title))) : null;
    const name = found.runs.length === 1 ? `: ${found.runs[0][1]}` : '';
    const put = found.set ? make('button', {type: 'button', onclick: () => { change(found.set); article.querySelector('.picture').scrollIntoView({block: 'center'}); }}, 'show it in the picture') : null;
    const links = (found.links ?? []).map(([label, address]) => make('a', {href: address}, label));
    box.replaceChildren(make('div', {class: 'card'}, make('h3', {}, `In your run${name}`), select, make('p', {}, found.sentence), found.table ? table(found.table.heads, found.table.rows, 'In your run') : null, put || links.length ? make('p', {class: 'ways'}, put, ...links) : null));
  }
  look('').catch(() => box.replaceChildren());
}

const article = document.querySelector('[data-station]');
if (article) openStation(article, pictures[article.dataset.station]);
else ask('group', {});  // the first answer imports torch, so request one before a station is opened

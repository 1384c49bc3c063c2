// The page that needs no server: its own arithmetic, and the state behind the #.
import {answers} from './lab_arithmetic.js';
import {make} from './lab_drawing.js';
import {openAddress, openStation} from './lab.js';
import {pictures} from './lab_pictures.js';

const LISTS = ['rewards', 'format', 'lengths', 'drawn'], TEXTS = ['weights'], MOST = 64;

function readNumbers(state) {
  const read = ([name, value]) => [name, TEXTS.includes(name) ? value : LISTS.includes(name) ? value.split(',').map(Number) : Number(value)];
  return Object.fromEntries(Object.entries(state).map(read));
}

function askHere(station, state) {
  const numbers = readNumbers(state);
  if (!Object.values(numbers).flat().every(value => typeof value === 'string' || Number.isFinite(value))) return {problem: 'A number in the address is none.'};
  if (numbers.rewards && (numbers.rewards.length < 2 || numbers.rewards.length > MOST)) return {problem: `rewards: a group here has 2 to ${MOST} completions.`};
  return answers[station](numbers);
}

// Where a report led here: the rewards in the address are those of one of its groups.
function tellOrigin(article) {
  const origin = address.read().get('from');
  if (article.dataset.station !== 'group' || !origin) return;
  article.querySelector('.own').replaceChildren(make('p', {class: 'card'}, make('b', {}, 'In your run: '), `these were the rewards of ${origin}.`));
}

const address = openAddress('hash');
for (const article of document.querySelectorAll('[data-station]')) openStation(article, askHere, pictures[article.dataset.station], address, tellOrigin);

// Pictures of the stations that only the served lab has.
import {arrow, facts, figure, make, mark, percent, signed, table, write} from './lab_drawing.js';
import {layCards, layMean, WORDS} from './lab_pictures.js';
import {showRun} from './lab_run.js';

const COLOURS = {grpo: 0, critic: 1, ppo: 5, dr_grpo: 2, rloo: 3, lite_ppo: 4, 'reinforce++_baseline': 6, maxrl: 7, gdpo: 3};
const STYLES = {ppo: 'dashed', gdpo: 'dashed', 'reinforce++_baseline': 'dashed'};

function drawLines(answer, shown, width) {
  const {rewards} = answer, height = 270, left = 46, right = 12, top = 14, bottom = 28;
  const values = [0, 1, ...rewards, answer.value, ...shown.flatMap(row => row.advantages)], low = Math.min(...values), high = Math.max(...values), room = 0.07 * (high - low);
  const y = value => height - bottom - (value - low + room) / (high - low + 2 * room) * (height - top - bottom), step = (width - left - right) / rewards.length, x = place => left + (place + 0.5) * step;
  const svg = mark('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': `Rewards as bars and ${shown.map(row => row.label).join(', ')} as lines`});
  for (const [value, words] of [[0, '0'], [answer.mean, 'mean'], [answer.value, 'critic']]) {
    svg.append(mark('line', {class: value === 0 ? 'zero' : 'base', x1: left, x2: width - right, y1: y(value), y2: y(value)}));
    svg.append(mark('text', {class: 'tick', x: left - 6, y: y(value) + 4, 'text-anchor': 'end'}, words));
  }
  rewards.forEach((reward, place) => {
    svg.append(mark('rect', {class: 'scorebar', x: x(place) - step * 0.3, width: step * 0.6, y: Math.min(y(reward), y(0)), height: Math.max(1, Math.abs(y(reward) - y(0))), rx: 4}, mark('title', {}, `completion ${place + 1}: reward ${write(reward)}`)));
    svg.append(mark('text', {class: 'tick', x: x(place), y: height - 8, 'text-anchor': 'middle'}, `${place + 1}`));
  });
  for (const row of shown) {
    const colour = `c${COLOURS[row.preset] ?? 7}`;
    svg.append(mark('polyline', {class: `line ${colour} ${STYLES[row.preset] ?? ''}`, points: row.advantages.map((value, place) => `${x(place).toFixed(1)},${y(value).toFixed(1)}`).join(' ')}));
    row.advantages.forEach((value, place) => svg.append(mark('circle', {class: `dot ${colour}`, cx: x(place), cy: y(value), r: 4}, mark('title', {}, `${row.label}, completion ${place + 1}: ${signed(value)}`))));
  }
  return svg;
}

function showBaselines(box, answer, state, change) {
  if (!box.querySelector('.cards')) box.replaceChildren(make('div', {class: 'chart'}), make('div', {class: 'cards scroll plain', tabindex: -1}), make('div', {class: 'numbers'}));
  const rewards = state.rewards.split(',').map(Number), weight = Number(state.format_weight), critic = {preset: 'critic', label: 'PPO: reward − value', advantages: answer.critic, says: 'GAE with one token: what the completion got, less what the critic expected of it.'};
  const rows = [answer.rows.find(row => row.preset === 'grpo'), critic, ...answer.rows.filter(row => row.preset !== 'grpo')];
  const shown = rows.filter(row => state.show.split(',').includes(row.preset));
  box.querySelector('.chart').replaceChildren(figure('Bars: rewards. Lines: advantages.', drawLines(answer, shown, box.closest('[data-station]').clientWidth < 600 ? 340 : 640), shown.map(row => [COLOURS[row.preset] ?? 7, row.label, STYLES[row.preset] ?? ''])));
  const cards = layCards(box.querySelector('.cards'), rewards, change, weight > 0);
  layMean(cards, rewards.reduce((a, b) => a + b, 0) / rewards.length, 'mean');
  if (weight > 0) {
    const form = rewards.map((_, place) => Number(state.format.split(',')[place] ?? 0));
    form.forEach((value, place) => {
      const extra = cards.grid.children[place + 1].querySelector('.extra');
      const flip = () => change({format: form.map((one, other) => other === place ? 1 - value : one).join(',')});
      const button = extra.querySelector('button') ?? extra.appendChild(make('button', {type: 'button', class: 'reward'}));
      button.onclick = flip; button.textContent = `format ${value}`; button.setAttribute('aria-pressed', value > 0);
    });
  }
  const lines = rows.map(row => [make('span', {title: row.says}, row.label), ...row.advantages.map(value => [`${arrow(value)} ${signed(value)}`, value > 1e-12 ? 'raised' : value < -1e-12 ? 'lowered' : 'none'])]);
  box.querySelector('.numbers').replaceChildren(table(['advantage of', ...rewards.map((_, place) => `${place + 1}`)], lines, 'Advantages of every completion under every baseline'));
  const alike = answer.right % rewards.length === 0 && new Set(rewards).size > 1;
  const grpo = rows[0].advantages, against = grpo.flatMap((value, place) => value * answer.critic[place] < -1e-9 ? [place + 1] : []);
  return `Mean reward ${write(answer.mean)}, the critic expects ${write(answer.value)}. ${against.length ? `GRPO and the critic push completion ${against.join(' and ')} in opposite directions.` : 'GRPO and the critic agree on every direction.'} Of the other group in the batch ${answer.other} are right.${alike ? ` All ${rewards.length} count as ${answer.right ? 'right' : 'wrong'} (${write(answer.success_from)} or more is right), so MaxRL, which reads success alone, pushes nobody.` : ''}`;
}

function showPushed(box, answer, state, change) {
  const drawn = answer.drawn;
  if (!box.querySelector('.words') || box.querySelectorAll('.words .card').length !== drawn.length) {
    const cards = drawn.map((_, place) => make('label', {class: 'card'}, make('span', {}, `completion ${place + 1} says`), make('select', {
      onchange: event => change({drawn: [...box.querySelectorAll('.words select')].map(one => one.value).join(',')}),
    }, WORDS.map((word, value) => make('option', {value}, word))), make('b', {})));
    const bars = WORDS.map(word => make('div', {class: 'wordbar'}, make('div', {class: 'well'}, make('i', {class: 'was'}), make('i', {class: 'is'}), make('b', {class: 'now'})), make('span', {}, word), make('b', {class: 'moved'}), make('small', {})));
    box.replaceChildren(make('p', {class: 'caption'}, 'Prompt: 2 + 3 = ?'), make('div', {class: 'words'}, cards), make('div', {class: 'beside'}, make('div', {}, make('div', {class: 'wordbars'}, bars), make('p', {class: 'caption'}, 'per cent; outlined: before the update, filled: after it, below: by how many points it moved')), make('div', {class: 'numbers'})));
  }
  [...box.querySelectorAll('.words .card')].forEach((card, place) => {
    const value = answer.advantages[place];
    card.querySelector('select').value = drawn[place];
    card.querySelector('b').textContent = `${answer.rewards[place] ? '✓' : '✗'} reward ${answer.rewards[place]}, A ${arrow(value)} ${signed(value)}`;
  });
  const most = 1.15 * Math.max(0.5, ...answer.before, ...answer.after), tall = chance => `${100 * chance / most}%`;
  [...box.querySelectorAll('.wordbar')].forEach((bar, word) => {
    const before = answer.before[word], after = answer.after[word], moved = after - before;
    bar.querySelector('.was').style.height = tall(before);
    bar.querySelector('.is').style.height = tall(after);
    bar.querySelector('.is').classList.toggle('fell', moved < -1e-12);
    bar.querySelector('.now').textContent = percent(after);
    bar.querySelector('.now').style.bottom = tall(Math.max(before, after));
    bar.querySelector('span').textContent = `${WORDS[word]}${word === answer.right ? ' ✓' : ''}`;
    bar.querySelector('.moved').textContent = `${arrow(moved)} ${signed(100 * moved)}`;
    bar.querySelector('small').textContent = answer.undrawn.includes(word) ? 'not drawn' : '';
  });
  box.querySelector('.numbers').replaceChildren(facts([
    [write(answer.loss), 'loss'], [write(answer.norm), 'norm of its gradient'], ...answer.gradient.map((value, word) => [signed(-value), `push on the logit of “${WORDS[word]}”`]),
  ]));
  const quiet = answer.undrawn.map(word => `“${WORDS[word]}”, which nobody drew, goes from ${percent(answer.before[word])} to ${percent(answer.after[word])}`);
  return `Loss ${write(answer.loss)}, gradient norm ${write(answer.norm)}. ${answer.norm < 1e-12 ? 'Nothing moves.' : `“${WORDS[answer.right]}” goes from ${percent(answer.before[answer.right])} to ${percent(answer.after[answer.right])}. ${quiet.join('; ')}${quiet.length ? '.' : ''}`}`;
}

function drawBlocks(row, lengths, most) {
  const width = 300, height = 150, total = lengths.reduce((a, b) => a + b, 0), tall = height - 30;
  const svg = mark('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': lengths.map((length, place) => `completion of ${length} tokens: ${write(row.relative[place])} per token, ${percent(row.share[place])} of all weight`).join('; ')});
  let x = 0;
  lengths.forEach((length, place) => {
    const wide = length / total * width, high = row.relative[place] / most * tall;
    svg.append(mark('rect', {class: `block c${place % 8}`, x, width: wide, y: height - 20 - high, height: high}, mark('title', {}, `${length} tokens, each ${write(row.relative[place])} of the mean, together ${percent(row.share[place])}`)));
    if (wide > 24) svg.append(mark('text', {class: 'tick', x: x + wide / 2, y: height - 5, 'text-anchor': 'middle'}, `${Math.round(100 * row.share[place])} %`));
    x += wide;
  });
  svg.append(mark('line', {class: 'here', x1: 0, x2: width, y1: height - 20 - tall / most, y2: height - 20 - tall / most}));
  return svg;
}

function showLength(box, answer, state, change) {
  const {lengths} = answer;
  if (box.querySelectorAll('.lengthsliders input').length !== lengths.length) {
    const send = () => change({lengths: [...box.querySelectorAll('.lengthsliders input')].map(one => one.value).join(',')});
    box.replaceChildren(make('div', {class: 'lengthsliders'}, lengths.map((_, place) => make('label', {}, make('i', {class: `swatch c${place % 8}`}), make('span', {}), make('input', {type: 'range', min: 1, max: 512, oninput: send})))), make('div', {class: 'drawings'}));
  }
  [...box.querySelectorAll('.lengthsliders label')].forEach((label, place) => {
    label.querySelector('span').textContent = `completion ${place + 1} (group ${answer.groups[place] + 1}): ${lengths[place]} tokens`;
    if (Number(label.querySelector('input').value) !== lengths[place]) label.querySelector('input').value = lengths[place];
  });
  const most = Math.max(2, ...answer.rows.flatMap(row => row.relative));
  const cards = answer.rows.map(row => make('figure', {class: 'drawn small'}, make('figcaption', {}, make('h3', {}, row.name)), drawBlocks(row, lengths, most), make('p', {class: 'caption'}, row.says)));
  const rows = answer.rows.map(row => [row.name, ...row.relative.map((value, place) => `${write(value)} · ${percent(row.share[place])}`)]);
  box.querySelector('.drawings').replaceChildren(make('p', {class: 'caption'}, 'Width: tokens. Height: weight of each, the dashed line is their mean. Area, and the number below: share of the completion.'), make('div', {class: 'multiples'}, cards), table(['weight of a token, of the whole', ...lengths.map(length => `${length} tokens`)], rows, 'Weight of a token and share of a completion'));
  const mean = answer.rows.find(row => row.name === 'sequence_mean').relative, short = lengths.indexOf(Math.min(...lengths)), long = lengths.indexOf(Math.max(...lengths));
  return `Under sequence_mean a token of the shortest completion weighs ${write(mean[short] / mean[long])} times one of the longest; under token_mean and constant as much.`;
}

export const morePictures = {baselines: showBaselines, pushed: showPushed, length: showLength, run: showRun};

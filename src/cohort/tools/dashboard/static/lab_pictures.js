// The pictures of the stations. A function draws an answer into its box and returns a sentence about it; `change` sets the state.
import {arrow, facts, figure, make, mark, meter, percent, plot, pushCell, signed, table, write} from './lab_drawing.js';
import {showRun} from './lab_run.js';

const WORDS = ['four', 'five', 'six', 'seven'];
const HEIGHT = 132;

// A column for each completion with its advantage, a slider and a toggle for its reward. Existing sliders are kept, so that one can be dragged.
function layCards(box, rewards, change, extra = false) {
  let grid = box.querySelector('.columns');
  if (!grid || grid.children.length !== rewards.length + 1 || extra !== (grid.querySelector('.extra') !== null)) {
    const columns = rewards.map((_, place) => {
      const send = value => change({rewards: [...grid.querySelectorAll('input[type=range]')].map((one, i) => i === place ? value : Number(one.value)).join(',')});
      const slider = make('input', {type: 'range', class: 'tall', step: 0.05, 'aria-label': `Reward of completion ${place + 1}`, oninput: event => send(Number(event.target.value))});
      const toggle = make('button', {type: 'button', class: 'reward', onclick: () => send(Number(slider.value) >= 0.5 ? 0 : 1)});
      return make('div', {class: 'column'}, make('div', {class: 'push'}), make('div', {class: 'hold'}, slider), toggle, extra ? make('div', {class: 'extra'}) : null);
    });
    grid = make('div', {class: 'columns'}, make('div', {class: 'across', 'aria-hidden': 'true'}, make('i', {class: 'mean'}), make('span', {})), columns);
    box.replaceChildren(grid);
  }
  const low = Math.min(0, ...rewards), high = Math.max(1, ...rewards);
  rewards.forEach((reward, place) => {
    const column = grid.children[place + 1], slider = column.querySelector('input'), toggle = column.querySelector('.reward');
    Object.assign(slider, {min: low, max: high});
    slider.step = Number.isInteger(reward * 20) ? 0.05 : 'any';
    if (Number(slider.value) !== reward) slider.value = reward;
    toggle.setAttribute('aria-pressed', reward >= 0.5);
    toggle.setAttribute('aria-label', `Completion ${place + 1}: reward ${write(reward)}, ${reward >= 0.5 ? 'right' : 'wrong'}`);
    toggle.textContent = `${reward >= 0.5 ? '✓' : '✗'} ${write(reward)}`;
  });
  return {grid, low, high};
}

function layMean({grid, low, high}, mean, words) {
  const line = grid.querySelector('.mean'), text = grid.querySelector('.across span');
  const top = `${8 + (1 - (mean - low) / (high - low)) * (96 - 16)}px`;
  line.style.top = top; text.style.top = top; text.textContent = words;
}

function showGroup(box, answer, state, change) {
  const {rewards, advantages, largest} = answer;
  if (!box.querySelector('.cards')) box.replaceChildren(make('div', {class: 'beside'}, make('div', {class: 'cards scroll', tabindex: -1}), make('div', {class: 'numbers'})));
  const cards = layCards(box.querySelector('.cards'), rewards, change);
  layMean(cards, answer.mean, `mean ${write(answer.mean)}`);
  const half = HEIGHT / 2 - 16, most = Math.max(largest, 1e-9);
  advantages.forEach((value, place) => {
    const push = cards.grid.children[place + 1].querySelector('.push');
    if (!push.children.length) push.append(make('i', {class: 'force'}), make('b', {}));
    const [bar, number] = push.children, size = Math.min(1, Math.abs(value) / most) * half;
    bar.className = `force ${value > 1e-12 ? 'up' : value < -1e-12 ? 'down' : 'none'}`;
    bar.style.height = `${Math.max(size, 2)}px`;
    bar.style.top = `${HEIGHT / 2 - (value > 0 ? size : 0)}px`;
    number.style.top = `${HEIGHT / 2 + (value > 0 ? -size - 17 : size + 1)}px`;
    number.textContent = advantages.length > 4 ? signed(value, 2) : `${arrow(value)}${signed(value)}`;
  });
  const signal = answer.signal, biggest = Math.max(...answer.shares), count = rewards.length;
  box.querySelector('.numbers').replaceChildren(facts([
    [write(answer.mean), 'mean μ'], [write(answer.std), `std σ, ddof ${answer.ddof}`], [`${answer.right} / ${count}`, 'right: reward 0.5 or more'],
    [write(signal), 'gradient signal: mean of |A|', signal], [percent(biggest), 'of the total push on one completion', biggest], [`√${count - 1} = ${write(answer.root)}`, `advantage of a single success among ${count}`],
  ]));
  const single = signal > 0 && Math.abs(biggest - 0.5) < 1e-9 && count > 2;
  return `Mean ${write(answer.mean)}, std ${write(answer.std)} with ddof ${answer.ddof}, ${answer.right} of ${count} right, gradient signal ${write(signal)}. `
    + (signal === 0 ? 'All rewards are equal, so every advantage is 0 and the group gives no gradient.' : single ? 'One completion gets half of the total push.' : `Advantages from ${signed(Math.min(...advantages))} to ${signed(Math.max(...advantages))}.`);
}

const REGIONS = {none: 'no region', sequence: 'sequence (GSPO)', sequence_product: 'sequence product', soft: 'soft (SAPO)', divergence: 'divergence (DPPO)', cispo: 'CISPO', dpo: 'DPO', dual_clip: 'dual clip', clip: 'clip (PPO, GRPO)'};

function findSilence(ratios, slopes) {
  const shades = [];
  ratios.forEach((ratio, place) => {
    if (slopes[place] !== 0) return;
    const before = place ? (ratios[place - 1] + ratio) / 2 : ratio, after = place + 1 < ratios.length ? (ratios[place + 1] + ratio) / 2 : ratio, last = shades.at(-1);
    if (last && last.to >= before - 1e-9) last.to = after; else shades.push({from: before, to: after});
  });
  return shades;
}

function showClip(box, answer) {
  const silent = [];
  const cards = Object.entries(answer.regions).map(([name, region]) => {
    const {ratios} = answer, surrogate = region.curve.surrogate, slope = region.curve.slope;
    const all = [...surrogate, ...slope, -1, 1], room = 0.08 * (Math.max(...all) - Math.min(...all));
    if (region.silenced) silent.push(REGIONS[name] ?? name);
    const drawing = plot({
      title: `${name}: surrogate and push against the ratio`, plain: true, width: 300, height: 150, x: [0, Math.max(...ratios)], y: [Math.min(...all) - room, Math.max(...all) + room], shades: findSilence(ratios, slope), cursor: answer.ratio,
      lines: [{points: ratios.map((ratio, place) => [ratio, slope[place]]), colour: 1, style: 'dashed'}, {points: ratios.map((ratio, place) => [ratio, surrogate[place]]), colour: 0}],
      dots: [{x: answer.ratio, y: region.slope, colour: 1}, {x: answer.ratio, y: region.surrogate, colour: 0}],
    });
    const push = make('p', {class: 'reading'}, `surrogate ${signed(region.surrogate)} · push ${signed(region.slope)}`, region.silenced ? make('b', {class: 'badge'}, 'silenced') : null);
    return make('figure', {class: 'drawn small'}, make('figcaption', {}, make('h3', {}, REGIONS[name] ?? name)), drawing, push);
  });
  box.replaceChildren(make('div', {class: 'legend'}, make('span', {}, make('i', {class: 'c0'}), 'surrogate: the maximised objective'), make('span', {}, make('i', {class: 'c1 dashed'}), 'push: its slope, −d loss / d log π'), make('span', {}, make('i', {class: 'hatch'}), 'silenced: no push')), make('div', {class: 'multiples'}, cards));
  const cut = answer.ratio < answer.requested - 1e-9 ? ` With this probability the ratio cannot exceed ${write(answer.ratio)}.` : '';
  return `At ratio ${write(answer.ratio)} with advantage ${signed(answer.advantage)}, clip pushes the token by ${signed(answer.regions.clip.slope)}. ${silent.length ? `Silenced under ${silent.join(', ')}.` : 'No region silences it.'}${cut}`;
}

const ADVANTAGES = {group_normalized: 'GRPO', group_centered: 'Dr. GRPO', leave_one_out: 'RLOO', relative_to_mean: 'MaxRL', batch_std: 'batch std', batch_whitened: 'batch whitened', parts_normalized: 'GDPO', best_and_worst: 'best and worst', binary: 'RFT', binary_signed: 'signed RFT', process: 'process', global_normalized: 'REINFORCE++', gae: 'PPO, value 0'};

function drawWaffle({all_wrong, all_right}) {
  let wrong = Math.round(100 * all_wrong), right = Math.round(100 * all_right);
  const svg = mark('svg', {class: 'waffle', viewBox: '0 0 200 200', role: 'img', 'aria-label': `Of 100 groups, ${wrong} are all wrong, ${right} are all right and ${100 - wrong - right} have a gradient`});
  for (let place = 0; place < 100; place += 1) {
    const kind = place < wrong ? 'wrong' : place >= 100 - right ? 'right' : 'useful', x = 20 * (place % 10), y = 20 * Math.floor(place / 10);
    svg.append(mark('rect', {class: `cell ${kind}`, x: x + 2, y: y + 2, width: 16, height: 16, rx: 4}));
    if (kind !== 'useful') svg.append(mark('text', {class: 'cellmark', x: x + 10, y: y + 14.5, 'text-anchor': 'middle'}, kind === 'wrong' ? '✗' : '✓'));
  }
  return svg;
}

function drawOutcomes({outcomes, group_size}) {
  const width = 420, height = 200, most = Math.max(...outcomes), step = (width - 20) / outcomes.length;
  const svg = mark('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'Distribution of the number of successes in a group'});
  outcomes.forEach((chance, k) => {
    const tall = chance / most * (height - 50), x = 10 + k * step, silent = k === 0 || k === group_size;
    svg.append(mark('rect', {class: `outcome ${silent ? 'empty' : 'c0'}`, x: x + 1, width: Math.max(1, step - 2), y: height - 26 - tall, height: Math.max(tall, 0.5), rx: 2}, mark('title', {}, `${k} of ${group_size} right: ${percent(chance)}`)));
    if (outcomes.length <= 17 && chance > 0.005) svg.append(mark('text', {class: 'tick', x: x + step / 2, y: height - 31 - tall, 'text-anchor': 'middle'}, `${Math.round(100 * chance)}`));
    if (outcomes.length <= 17 || k % 8 === 0) svg.append(mark('text', {class: 'tick', x: x + step / 2, y: height - 9, 'text-anchor': 'middle'}, k));
  });
  return svg;
}

function showDifficulty(box, answer, state, change) {
  const names = Object.keys(answer.weights), shown = state.weights.split(',').filter(name => names.includes(name));
  const colours = Object.fromEntries(names.map((name, place) => [name, place % 8]));
  const tallest = Math.max(1.5, ...shown.flatMap(name => answer.curve.weights[name]).filter(value => value < 20));
  const chart = plot({
    title: 'w(p) for each advantage', axis: 'success rate p', x: [0, 1], y: [0, Math.min(12, tallest * 1.05)], cursor: answer.p, height: 240,
    lines: shown.map(name => ({colour: colours[name], points: answer.curve.p.map((p, place) => [p, answer.curve.weights[name][place]])})), dots: shown.map(name => ({x: answer.p, y: answer.weights[name], colour: colours[name]})),
  });
  const chips = make('div', {class: 'chips', role: 'group', 'aria-label': 'Advantages in the chart'}, names.map(name => make('button', {
    type: 'button', 'aria-pressed': shown.includes(name), title: answer.describes[name], onclick: () => change({weights: (shown.includes(name) ? shown.filter(one => one !== name) : [...shown, name]).join(',')}),
  }, make('i', {class: `c${colours[name]}`}), `${ADVANTAGES[name] ?? name} ${write(answer.weights[name])}`)));
  const focused = box.contains(document.activeElement) && document.activeElement.closest('.chips') ? [...box.querySelectorAll('.chips button')].indexOf(document.activeElement) : -1;
  const batch = answer.batched.length ? 'The batch has a second prompt that is solved half of the time. ' : '';
  box.replaceChildren(
    make('div', {class: 'sides3'}, figure('Of 100 groups', drawWaffle(answer), [], `✗ all wrong ${percent(answer.all_wrong)}, ✓ all right ${percent(answer.all_right)}, filled: with a gradient ${percent(answer.useful)}`), figure('Right completions in a group', drawOutcomes(answer), [], 'percent of groups; outlined: without a gradient'), figure('Average push of a prompt: w(p)', chart, [], `${batch}The expected gradient is w(p) times the gradient of p.${answer.left_out.length ? ` Not computed for such large groups: ${answer.left_out.map(name => ADVANTAGES[name] ?? name).join(', ')}.` : ''}`)), chips,
  );
  if (focused >= 0) box.querySelectorAll('.chips button')[focused]?.focus();
  return `At p = ${write(answer.p)}, ${percent(answer.useful)} of groups of ${answer.group_size} have a gradient, ${percent(answer.all_wrong)} are all wrong and ${percent(answer.all_right)} all right.${shown.length ? ` w(p): ${shown.map(name => `${ADVANTAGES[name] ?? name} ${write(answer.weights[name])}`).join(', ')}.` : ''}`;
}

function showKl(box, answer) {
  const names = Object.keys(answer.estimators), colour = name => names.indexOf(name);
  const {policy, reference, shape} = answer, width = 420, height = 170;
  const bars = mark('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': WORDS.map((word, place) => `${word}: reference ${percent(reference[place])}, policy ${percent(policy[place])}`).join('; ')});
  WORDS.forEach((word, place) => {
    const x = 14 + place * 101, tall = chance => chance * (height - 46);
    bars.append(mark('rect', {class: 'outcome empty', x, width: 38, y: height - 24 - tall(reference[place]), height: tall(reference[place]), rx: 3}));
    bars.append(mark('rect', {class: 'outcome c0', x: x + 42, width: 38, y: height - 24 - tall(policy[place]), height: tall(policy[place]), rx: 3}));
    bars.append(mark('text', {class: 'tick', x: x + 61, y: height - 28 - tall(policy[place]), 'text-anchor': 'middle'}, percent(policy[place]).replace(' %', '')));
    bars.append(mark('text', {class: 'tick', x: x + 40, y: height - 8, 'text-anchor': 'middle'}, word));
  });
  const gaps = policy.map((chance, place) => Math.log(chance / reference[place]));
  const values = plot({
    title: 'Value of each estimator against the log-ratio', axis: 'log policy − log reference', x: [-2, 2], y: [-2, 3],
    lines: names.map(name => ({colour: colour(name), points: shape.gap.map((gap, place) => [gap, shape[name][place]])})),
    dots: names.flatMap(name => gaps.map((gap, word) => ({x: gap, y: answer.estimators[name].values[word], colour: colour(name), r: 2 + 6 * Math.sqrt(policy[word]), label: `${WORDS[word]}: ${name} ${write(answer.estimators[name].values[word])}`}))),
  });
  const error = value => [make('span', {}, value < 1e-9 ? '0, exact' : percent(value), meter(value, 1)), value < 1e-9 ? 'up' : ''];
  const heads = ['estimator', 'mean', 'true KL', 'std of one sample', 'gradient error: in the loss', 'corrected', 'in the reward'];
  const rows = names.map(name => {
    const one = answer.estimators[name];
    return [make('span', {}, make('i', {class: `c${colour(name)}`}), name), write(one.mean), write(answer.exact), write(one.deviation), error(one.loss_error), error(one.corrected_error), error(one.reward_error)];
  });
  const drawings = [figure('Four words', bars, [], 'outlined: reference; filled: policy'), figure('Value', values, names.map(name => [colour(name), name]), 'one dot per word; its size shows the probability')];
  const along = answer.curve.drift;
  drawings.push(
    figure('Mean and standard deviation', plot({title: 'Mean and deviation along the drift', axis: 'drift', x: [0, 3], y: [-1, 3], cursor: answer.drift, lines: [...names.map(name => ({colour: colour(name), points: along.map((drift, place) => [drift, answer.curve.mean[name][place]]), band: along.map((drift, place) => [drift, answer.curve.mean[name][place] - answer.curve.deviation[name][place], answer.curve.mean[name][place] + answer.curve.deviation[name][place]])})), {colour: 7, style: 'dashed', points: along.map((drift, place) => [drift, answer.curve.exact[place]])}]}), [...names.map(name => [colour(name), name]), [7, 'true KL', 'dashed']]),
    figure('Gradient error in the loss', plot({title: 'Gradient error along the drift', axis: 'drift', x: [0, 3], y: [0, 1.1], cursor: answer.drift, lines: names.map(name => ({colour: colour(name), points: along.map((drift, place) => [drift, answer.curve.loss_error[name][place]]).slice(1)}))}), names.map(name => [colour(name), name]), '0: exact; 1: as bad as no gradient'),
  );
  box.replaceChildren(make('div', {class: 'grid2'}, drawings), table(heads, rows, 'Estimators of the KL'));
  return `The KL is ${write(answer.exact)}. ${names.map(name => `${name}: mean ${write(answer.estimators[name].mean)}, std ${write(answer.estimators[name].deviation)}, gradient error in the loss ${percent(answer.estimators[name].loss_error)}`).join('; ')}.`;
}

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
  const rewards = state.rewards.split(',').map(Number), weight = Number(state.format_weight), critic = {preset: 'critic', label: 'PPO: reward − value', advantages: answer.critic, describes: 'GAE with one token: reward minus the critic\'s estimate.'};
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
  const lines = rows.map(row => [make('span', {title: row.describes}, row.label), ...row.advantages.map(pushCell)]);
  box.querySelector('.numbers').replaceChildren(table(['advantages', ...rewards.map((_, place) => `${place + 1}`)], lines, 'Advantages of every completion under every baseline'));
  const alike = answer.right % rewards.length === 0 && new Set(rewards).size > 1;
  const grpo = rows[0].advantages, against = grpo.flatMap((value, place) => value * answer.critic[place] < -1e-9 ? [place + 1] : []);
  return `The mean reward is ${write(answer.mean)}, the critic expects ${write(answer.value)}. ${against.length ? `GRPO and the critic push completion ${against.join(' and ')} in opposite directions.` : 'GRPO and the critic push every completion in the same direction.'} The other group of the batch has ${answer.other} right completions.${alike ? ` All ${rewards.length} rewards count as ${answer.right ? 'right' : 'wrong'} (${write(answer.success_from)} or more is right). MaxRL uses only success, so it pushes no completion.` : ''}`;
}

function showPushed(box, answer, state, change) {
  const drawn = answer.drawn;
  if (!box.querySelector('.words') || box.querySelectorAll('.words .card').length !== drawn.length) {
    const cards = drawn.map((_, place) => make('label', {class: 'card'}, make('span', {}, `completion ${place + 1}`), make('select', {
      onchange: event => change({drawn: [...box.querySelectorAll('.words select')].map(one => one.value).join(',')}),
    }, WORDS.map((word, value) => make('option', {value}, word))), make('b', {})));
    const bars = WORDS.map(word => make('div', {class: 'wordbar'}, make('div', {class: 'well'}, make('i', {class: 'was'}), make('i', {class: 'is'}), make('b', {class: 'now'})), make('span', {}, word), make('b', {class: 'moved'}), make('small', {})));
    box.replaceChildren(make('p', {class: 'caption'}, 'Prompt: 2 + 3 = ?'), make('div', {class: 'words'}, cards), make('div', {class: 'beside'}, make('div', {}, make('div', {class: 'wordbars'}, bars), make('p', {class: 'caption'}, 'percent; outlined: before the update; filled: after it; below: change in percentage points')), make('div', {class: 'numbers'})));
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
    bar.querySelector('small').textContent = answer.undrawn.includes(word) ? 'not sampled' : '';
  });
  box.querySelector('.numbers').replaceChildren(facts([
    [write(answer.loss), 'loss'], [write(answer.norm), 'gradient norm'], ...answer.gradient.map((value, word) => [signed(-value), `push on the logit of “${WORDS[word]}”`]),
  ]));
  const quiet = answer.undrawn.map(word => `“${WORDS[word]}”, which was not sampled, goes from ${percent(answer.before[word])} to ${percent(answer.after[word])}`);
  return `Loss ${write(answer.loss)}, gradient norm ${write(answer.norm)}. ${answer.norm < 1e-12 ? 'No probability changes.' : `“${WORDS[answer.right]}” goes from ${percent(answer.before[answer.right])} to ${percent(answer.after[answer.right])}. ${quiet.join('; ')}${quiet.length ? '.' : ''}`}`;
}

function drawBlocks(row, lengths, most) {
  const width = 300, height = 150, total = lengths.reduce((a, b) => a + b, 0), tall = height - 30;
  const svg = mark('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': lengths.map((length, place) => `completion of ${length} tokens: ${write(row.relative[place])} per token, ${percent(row.share[place])} of all weight`).join('; ')});
  let x = 0;
  lengths.forEach((length, place) => {
    const wide = length / total * width, high = row.relative[place] / most * tall;
    svg.append(mark('rect', {class: `block c${place % 8}`, x, width: wide, y: height - 20 - high, height: high}, mark('title', {}, `${length} tokens, each with ${write(row.relative[place])} times the mean weight, together ${percent(row.share[place])}`)));
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
  const cards = answer.rows.map(row => make('figure', {class: 'drawn small'}, make('figcaption', {}, make('h3', {}, row.name)), drawBlocks(row, lengths, most), make('p', {class: 'caption'}, row.describes)));
  const rows = answer.rows.map(row => [row.name, ...row.relative.map((value, place) => `${write(value)} · ${percent(row.share[place])}`)]);
  box.querySelector('.drawings').replaceChildren(make('p', {class: 'caption'}, 'Width: tokens. Height: weight of a token; the dashed line is the mean. Area and number below: share of the completion.'), make('div', {class: 'multiples'}, cards), table(['token weight · share', ...lengths.map(length => `${length} tokens`)], rows, 'Weight of a token and share of a completion'));
  const mean = answer.rows.find(row => row.name === 'sequence_mean').relative, short = lengths.indexOf(Math.min(...lengths)), long = lengths.indexOf(Math.max(...lengths));
  return `Under sequence_mean, a token of the shortest completion weighs ${write(mean[short] / mean[long])} times as much as one of the longest. Under token_mean and constant, both weigh the same.`;
}

export const pictures = {group: showGroup, baselines: showBaselines, pushed: showPushed, clip: showClip, difficulty: showDifficulty, length: showLength, kl: showKl, run: showRun};

// The pictures of the four stations that every lab has. Each is given its box, the answer, the state and a way to change the state, and says in words what it shows.
import {arrow, facts, figure, make, mark, percent, plot, signed, table, write} from './lab_drawing.js';

export const WORDS = ['four', 'five', 'six', 'seven'];
export const HEIGHT = 132;

// One column for each completion: its push, a slider and a switch for its reward. What a person holds stays where it is.
export function layCards(box, rewards, change, extra = false) {
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

export function layMean({grid, low, high}, mean, words) {
  const line = grid.querySelector('.mean'), text = grid.querySelector('.across span');
  const top = `${8 + (1 - (mean - low) / (high - low)) * (96 - 16)}px`;
  line.style.top = top; text.style.top = top; text.textContent = words;
}

export function showGroup(box, answer, state, change) {
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
    [write(signal), 'gradient signal: mean of |A|', signal], [percent(biggest), 'of all push on one completion', biggest], [`√${count - 1} = ${write(answer.root)}`, 'a lone success among ' + count],
  ]));
  const lone = signal > 0 && Math.abs(biggest - 0.5) < 1e-9 && count > 2;
  return `Mean ${write(answer.mean)}, std ${write(answer.std)} with ddof ${answer.ddof}, ${answer.right} of ${count} right, gradient signal ${write(signal)}. `
    + (signal === 0 ? 'All rewards are equal: every advantage is 0, and the group teaches nothing.' : lone ? 'One stands alone: half of all push is on it.' : `Advantages from ${signed(Math.min(...advantages))} to ${signed(Math.max(...advantages))}.`);
}

const REGION_WORDS = {none: 'no region', sequence: 'sequence (GSPO)', sequence_product: 'sequence product', soft: 'soft (SAPO)', divergence: 'divergence (DPPO)', cispo: 'CISPO', dpo: 'DPO', dual_clip: 'dual clip', clip: 'clip (PPO, GRPO)'};

function findSilence(ratios, slopes) {
  const shades = [];
  ratios.forEach((ratio, place) => {
    if (slopes[place] !== 0) return;
    const before = place ? (ratios[place - 1] + ratio) / 2 : ratio, after = place + 1 < ratios.length ? (ratios[place + 1] + ratio) / 2 : ratio, last = shades.at(-1);
    if (last && last.to >= before - 1e-9) last.to = after; else shades.push({from: before, to: after});
  });
  return shades;
}

export function showClip(box, answer) {
  const silent = [];
  const cards = Object.entries(answer.regions).map(([name, region]) => {
    const {ratios} = answer, surrogate = region.curve.surrogate, slope = region.curve.slope;
    const all = [...surrogate, ...slope, -1, 1], room = 0.08 * (Math.max(...all) - Math.min(...all));
    if (region.silenced) silent.push(REGION_WORDS[name] ?? name);
    const drawing = plot({
      title: `${name}: surrogate and push against the ratio`, plain: true, width: 300, height: 150, x: [0, Math.max(...ratios)], y: [Math.min(...all) - room, Math.max(...all) + room], shades: findSilence(ratios, slope), cursor: answer.ratio,
      lines: [{points: ratios.map((ratio, place) => [ratio, slope[place]]), colour: 1, style: 'dashed'}, {points: ratios.map((ratio, place) => [ratio, surrogate[place]]), colour: 0}],
      dots: [{x: answer.ratio, y: region.slope, colour: 1}, {x: answer.ratio, y: region.surrogate, colour: 0}],
    });
    const push = make('p', {class: 'reading'}, `surrogate ${signed(region.surrogate)} · push ${signed(region.slope)}`, region.silenced ? make('b', {class: 'badge'}, 'silenced') : null);
    return make('figure', {class: 'drawn small'}, make('figcaption', {}, make('h3', {}, REGION_WORDS[name] ?? name)), drawing, push);
  });
  box.replaceChildren(make('div', {class: 'legend'}, make('span', {}, make('i', {class: 'c0'}), 'surrogate: what is maximised'), make('span', {}, make('i', {class: 'c1 dashed'}), 'push: slope, −d loss / d log π'), make('span', {}, make('i', {class: 'hatch'}), 'silenced: no push left')), make('div', {class: 'multiples'}, cards));
  const cut = answer.ratio < answer.asked - 1e-9 ? ` A token of this probability cannot rise beyond ${write(answer.ratio)} times.` : '';
  return `At ratio ${write(answer.ratio)} with advantage ${signed(answer.advantage)}: clip pushes by ${signed(answer.regions.clip.slope)}. ${silent.length ? `Silenced under ${silent.join(', ')}.` : 'No region silences it.'}${cut}`;
}

export const WEIGHT_WORDS = {group_normalized: 'GRPO', group_centered: 'Dr. GRPO', leave_one_out: 'RLOO', relative_to_mean: 'MaxRL', batch_std: 'batch std', batch_whitened: 'batch whitened', parts_normalized: 'GDPO', best_and_worst: 'best and worst', binary: 'RFT', binary_signed: 'signed RFT', process: 'process', global_normalized: 'REINFORCE++', gae: 'PPO, value 0'};

function drawWaffle({all_wrong, all_right}) {
  let wrong = Math.round(100 * all_wrong), right = Math.round(100 * all_right);
  const svg = mark('svg', {class: 'waffle', viewBox: '0 0 200 200', role: 'img', 'aria-label': `Of 100 groups ${wrong} are all wrong, ${right} all right, ${100 - wrong - right} teach`});
  for (let place = 0; place < 100; place += 1) {
    const kind = place < wrong ? 'wrong' : place >= 100 - right ? 'right' : 'useful', x = 20 * (place % 10), y = 20 * Math.floor(place / 10);
    svg.append(mark('rect', {class: `cell ${kind}`, x: x + 2, y: y + 2, width: 16, height: 16, rx: 4}));
    if (kind !== 'useful') svg.append(mark('text', {class: 'cellmark', x: x + 10, y: y + 14.5, 'text-anchor': 'middle'}, kind === 'wrong' ? '✗' : '✓'));
  }
  return svg;
}

function drawOutcomes({outcomes, group_size}) {
  const width = 420, height = 200, most = Math.max(...outcomes), step = (width - 20) / outcomes.length;
  const svg = mark('svg', {viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': 'How often a group has how many successes'});
  outcomes.forEach((chance, k) => {
    const tall = chance / most * (height - 50), x = 10 + k * step, silent = k === 0 || k === group_size;
    svg.append(mark('rect', {class: `outcome ${silent ? 'empty' : 'c0'}`, x: x + 1, width: Math.max(1, step - 2), y: height - 26 - tall, height: Math.max(tall, 0.5), rx: 2}, mark('title', {}, `${k} of ${group_size} right: ${percent(chance)}`)));
    if (outcomes.length <= 17 && chance > 0.005) svg.append(mark('text', {class: 'tick', x: x + step / 2, y: height - 31 - tall, 'text-anchor': 'middle'}, `${Math.round(100 * chance)}`));
    if (outcomes.length <= 17 || k % 8 === 0) svg.append(mark('text', {class: 'tick', x: x + step / 2, y: height - 9, 'text-anchor': 'middle'}, k));
  });
  return svg;
}

export function showDifficulty(box, answer, state, change) {
  const names = Object.keys(answer.weights), shown = (state.weights ?? '').split(',').filter(name => names.includes(name));
  const colours = Object.fromEntries(names.map((name, place) => [name, place % 8]));
  const tallest = Math.max(1.5, ...shown.flatMap(name => answer.curve.weights[name]).filter(value => value < 20));
  const chart = plot({
    title: 'w(p) for each advantage', axis: 'success rate p', x: [0, 1], y: [0, Math.min(12, tallest * 1.05)], cursor: answer.p, height: 240,
    lines: shown.map(name => ({colour: colours[name], points: answer.curve.p.map((p, place) => [p, answer.curve.weights[name][place]])})), dots: shown.map(name => ({x: answer.p, y: answer.weights[name], colour: colours[name]})),
  });
  const chips = make('div', {class: 'chips', role: 'group', 'aria-label': 'Weights that are shown'}, names.map(name => make('button', {
    type: 'button', 'aria-pressed': shown.includes(name), title: answer.says?.[name], onclick: () => change({weights: (shown.includes(name) ? shown.filter(one => one !== name) : [...shown, name]).join(',')}),
  }, make('i', {class: `c${colours[name]}`}), `${WEIGHT_WORDS[name] ?? name} ${write(answer.weights[name])}`)));
  const focused = box.contains(document.activeElement) && document.activeElement.closest('.chips') ? [...box.querySelectorAll('.chips button')].indexOf(document.activeElement) : -1;
  const batch = answer.batched?.length ? `In a batch with a second prompt that is solved half the time. ` : '';
  box.replaceChildren(
    make('div', {class: 'sides3'}, figure('Of 100 groups', drawWaffle(answer), [], `✗ all wrong ${percent(answer.all_wrong)}, ✓ all right ${percent(answer.all_right)}, filled: teach ${percent(answer.useful)}`), figure('Right completions in a group', drawOutcomes(answer), [], 'per cent of groups; the outlined ones teach nothing'), figure('How hard a prompt pushes on average: w(p)', chart, [], `${batch}The expected gradient is w(p) times the gradient of p.${answer.left_out?.length ? ` Not computed in groups this large: ${answer.left_out.map(name => WEIGHT_WORDS[name] ?? name).join(', ')}.` : ''}`)), chips,
  );
  if (focused >= 0) box.querySelectorAll('.chips button')[focused]?.focus();
  return `p ${write(answer.p)}, groups of ${answer.group_size}: ${percent(answer.useful)} teach; ${percent(answer.all_wrong)} are all wrong and ${percent(answer.all_right)} all right. ${shown.map(name => `${WEIGHT_WORDS[name] ?? name} weighs it by ${write(answer.weights[name])}`).join(', ')}.`;
}

export function showKl(box, answer) {
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
  const known = 'loss_error' in answer.estimators[names[0]], error = value => [make('span', {}, value < 1e-9 ? '0, right' : percent(value), meter2(value)), value < 1e-9 ? 'up' : ''];
  const heads = ['estimator', 'mean', 'KL itself', 'std of one sample', ...(known ? ['gradient error: in the loss', 'corrected', 'in the reward'] : [])];
  const rows = names.map(name => {
    const one = answer.estimators[name];
    return [make('span', {}, make('i', {class: `c${colour(name)}`}), name), write(one.mean), write(answer.exact), write(one.deviation), ...(known ? [error(one.loss_error), error(one.corrected_error), error(one.reward_error)] : [])];
  });
  const drawings = [figure('Four words', bars, [], 'outlined: the reference; filled: the policy'), figure('Value', values, names.map(name => [colour(name), name]), 'a dot for each word, as large as it is likely')];
  if (answer.curve) {
    const along = answer.curve.drift;
    drawings.push(
      figure('Mean of a sample, and how far it scatters', plot({title: 'Mean and deviation along the drift', axis: 'drift', x: [0, 3], y: [-1, 3], cursor: answer.drift, lines: [...names.map(name => ({colour: colour(name), points: along.map((drift, place) => [drift, answer.curve.mean[name][place]]), band: along.map((drift, place) => [drift, answer.curve.mean[name][place] - answer.curve.deviation[name][place], answer.curve.mean[name][place] + answer.curve.deviation[name][place]])})), {colour: 7, style: 'dashed', points: along.map((drift, place) => [drift, answer.curve.exact[place]])}]}), [...names.map(name => [colour(name), name]), [7, 'the KL', 'dashed']]),
      figure('Error of the gradient, in the loss', plot({title: 'Gradient error along the drift', axis: 'drift', x: [0, 3], y: [0, 1.1], cursor: answer.drift, lines: names.map(name => ({colour: colour(name), points: along.map((drift, place) => [drift, answer.curve.loss_error[name][place]]).slice(1)}))}), names.map(name => [colour(name), name]), '0: that of the KL; 1: as good as none'),
    );
  }
  box.replaceChildren(make('div', {class: 'grid2'}, drawings), table(heads, rows, 'Estimators of the KL'));
  return `The KL is ${write(answer.exact)}. ${names.map(name => `${name} has mean ${write(answer.estimators[name].mean)} and std ${write(answer.estimators[name].deviation)}${known ? `, gradient error ${percent(answer.estimators[name].loss_error)}` : ''}`).join('; ')}.`;
}

const meter2 = share => mark('svg', {class: 'meter c1', viewBox: '0 0 100 5', preserveAspectRatio: 'none', 'aria-hidden': 'true'}, mark('rect', {class: 'rest', width: 100, height: 5}), mark('rect', {width: 100 * Math.min(1, share), height: 5}));

export const pictures = {group: showGroup, clip: showClip, difficulty: showDifficulty, kl: showKl};

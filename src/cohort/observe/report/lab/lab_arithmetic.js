// The arithmetic of the page that needs no server: a group, the clip, the values of KL estimators, difficulty. It mirrors
// cohort/algorithms, and a test holds it to the functions that train. Every number is a double, every name that of the answer.
const sum = values => values.reduce((total, value) => total + value, 0);
const range = count => [...Array(count).keys()];

function group({rewards, ddof = 0, epsilon = 1e-6}) {
  const size = rewards.length, mean = sum(rewards) / size, equal = rewards.every(reward => reward === rewards[0]);
  const centred = rewards.map(reward => reward - mean);
  const std = equal ? 0 : Math.sqrt(sum(centred.map(value => value * value)) / Math.max(size - ddof, 1));
  const advantages = centred.map(value => equal ? 0 : value / (std + epsilon));
  const total = sum(advantages.map(Math.abs));
  return {
    rewards, mean, std, ddof, advantages, right: rewards.filter(reward => reward >= 0.5).length,
    shares: advantages.map(value => total ? Math.abs(value) / total : 0), signal: total / size,
    largest: (1 - 1 / size) / (Math.sqrt((1 - 1 / size) / (size - ddof)) + epsilon), root: Math.sqrt(size - 1),
  };
}

// [surrogate, slope] of a token: what it adds to the objective, and -d loss / d log pi of it.
function bound(rho, A, low, high) {
  const held = Math.min(Math.max(rho, 1 - low), 1 + high), value = Math.min(rho * A, held * A);
  return [value, value === rho * A ? rho * A : 0];
}
const REGIONS = {
  clip: ({rho, A, clip_low, clip_high}) => bound(rho, A, clip_low, clip_high),
  dual_clip: ({rho, A, clip_low, clip_high}) => {
    const [value, slope] = bound(rho, A, clip_low, clip_high);
    return A < 0 && 3 * A > value ? [3 * A, 0] : [value, slope];
  },
  sequence_product: ({rho, A, clip_low, clip_high, length}) => {
    const [value, slope] = bound(rho, A, clip_low, clip_high);
    return [value, length * slope];
  },
  sequence: ({rho, A, length}) => bound(Math.exp(Math.log(rho) / length), A, 3e-4, 4e-4),
  cispo: ({rho, A, probability}) => [Math.min(rho, 5) * A * Math.log(rho * probability), Math.min(rho, 5) * A],
  soft: ({rho, A}) => {
    const tau = A > 0 ? 1 : 1.05, gate = 1 / (1 + Math.exp(-tau * (rho - 1)));
    return [4 / tau * gate * A, 4 * gate * (1 - gate) * rho * A];
  },
  divergence: ({rho, A, probability}) => (rho - 1) * probability * Math.sign(A) > 0.15 ? [0, 0] : [rho * A, rho * A],
  none: ({rho, A, probability}) => [A * Math.log(rho * probability), A],
  dpo: ({rho, A, length}) => {
    const lost = Math.exp(-0.1 * A * Math.log(rho));
    return [-Math.log1p(lost), 2 * length * 0.1 * A * lost / (1 + lost)];
  },
};

function clip({ratio, advantage, clip_low, clip_high, probability, length}) {
  const last = Math.min(4, 1 / probability), ratios = range(161).map(place => 0.02 + (last - 0.02) * place / 160);
  const at = Math.min(ratio, last), regions = {};
  for (const [name, region] of Object.entries(REGIONS)) {
    const look = rho => region({rho, A: advantage, clip_low, clip_high, probability, length});
    const [surrogate, slope] = look(at), curve = ratios.map(look);
    regions[name] = {
      surrogate, slope, silenced: slope === 0,
      curve: {surrogate: curve.map(one => one[0]), slope: curve.map(one => one[1])},
    };
  }
  return {ratio: at, asked: ratio, advantage, ratios, regions};
}

function kl({drift, toward, reference = [0.4, 0.3, 0.2, 0.1]}) {
  const raised = reference.map((chance, word) => chance * (word === toward ? Math.exp(drift) : 1));
  const policy = raised.map(chance => chance / sum(raised)), gaps = policy.map((chance, word) => Math.log(chance / reference[word]));
  const kinds = {k1: gap => gap, k2: gap => 0.5 * gap * gap, k3: gap => Math.expm1(-gap) + gap}, estimators = {};
  const gap = range(41).map(place => (place - 20) / 10), shape = {gap};
  const weigh = values => sum(values.map((value, word) => policy[word] * value)), exact = weigh(gaps);
  for (const [name, kind] of Object.entries(kinds)) {
    shape[name] = gap.map(kind);
    const values = gaps.map(kind), mean = weigh(values), variance = weigh(values.map(value => (value - mean) ** 2));
    estimators[name] = {values, mean, bias: mean - exact, variance, deviation: Math.sqrt(variance)};
  }
  return {drift, toward, policy, reference, exact, estimators, shape};
}

function chance(k, count, p) {
  return range(k).reduce((ways, i) => ways * (count - i) / (i + 1), 1) * p ** k * (1 - p) ** (count - k);
}
const lay = (k, size) => range(size).map(place => Number(place < k));
const CREDITS = {
  group_normalized: (k, size) => group({rewards: lay(k, size)}).advantages,
  group_centered: (k, size) => lay(k, size).map(success => k % size ? success - k / size : 0),
  leave_one_out: (k, size) => lay(k, size).map(success => k % size ? (success - k / size) * size / (size - 1) : 0),
  relative_to_mean: (k, size) => lay(k, size).map(success => k % size ? (success - k / size) / (k / size) : 0),
};
function difficulty({p, group_size}) {
  const size = group_size, weigh = {}, rates = range(51).map(place => place / 50);
  for (const [name, credit] of Object.entries(CREDITS)) {
    const gaps = range(size).map(others => credit(others + 1, size)[0] - credit(others, size)[size - 1]);
    weigh[name] = rate => sum(gaps.map((gap, others) => chance(others, size - 1, rate) * gap));
  }
  const useful = rate => 1 - chance(0, size, rate) - chance(size, size, rate), outcomes = range(size + 1).map(k => chance(k, size, p));
  const each = read => Object.fromEntries(Object.entries(weigh).map(([name, weight]) => [name, read(weight)]));
  return {
    p, group_size, outcomes, all_wrong: outcomes[0], all_right: outcomes[size], useful: useful(p), weights: each(weight => weight(p)),
    curve: {p: rates, useful: rates.map(useful), weights: each(weight => rates.map(weight))},
  };
}

export const answers = {group, clip, kl, difficulty};

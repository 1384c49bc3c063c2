// A cursor over the tokens of a completion, moved by pointer or arrow keys. A panel shows the token's numbers, and screen readers announce them.
const flow = document.getElementById('tokens');
if (flow) {
  const tokens = [...flow.querySelectorAll('.t')], first = Number(flow.dataset.first);
  const panel = document.getElementById('values'), name = document.getElementById('token-name');
  const list = document.getElementById('token-values'), status = document.getElementById('token-status');
  const chosen = document.querySelector('.chips a[data-keep][aria-current]')?.textContent;
  let here = Number(flow.dataset.at) - first, numbers = null, timer = 0;

  const write = value => value === null ? 'none' : String(value);
  const values = at => numbers.labels.map((label, i) => [label, write(numbers.columns[i][at])]);

  function show(at) {
    if (!numbers) return;
    panel.hidden = false;
    const trained = numbers.trained[at] ? '' : ' · masked out of training';
    name.textContent = `${numbers.pieces[at]} · token ${first + at + 1} of ${numbers.total} · id ${numbers.ids[at]}${trained}`;
    list.replaceChildren(...values(at).map(([label, value]) => {
      const entry = document.createElement('div'), term = document.createElement('dt'), number = document.createElement('dd');
      entry.className = label === chosen ? 'chosen' : '';
      term.textContent = label; number.textContent = value;
      entry.append(term, number);
      return entry;
    }));
  }

  function keep() {
    const address = new URL(location.href);
    address.searchParams.set('at', first + here);
    history.replaceState(null, '', address);
    for (const link of document.querySelectorAll('a[data-keep]')) {
      const goal = new URL(link.href);
      goal.searchParams.set('at', first + here);
      link.href = goal;
    }
  }

  function move(to, block = 'nearest') {
    tokens[here]?.classList.remove('here');
    here = Math.max(0, Math.min(tokens.length - 1, to));
    tokens[here].classList.add('here');
    tokens[here].scrollIntoView({block});
    show(here);
    clearTimeout(timer);  // browsers limit how often an address may change, and speech needs time
    timer = setTimeout(() => {
      keep();
      if (numbers) status.textContent = `${name.textContent}: ${values(here).map(one => one.join(' ')).join(', ')}`;
    }, 180);
  }

  // The nearest token in the next or previous line.
  function line(step) {
    const box = tokens[here].getBoundingClientRect(), middle = (box.left + box.right) / 2;
    let best = here, row = null;
    for (let at = here + step; at >= 0 && at < tokens.length; at += step) {
      const other = tokens[at].getBoundingClientRect();
      if (Math.abs(other.top - box.top) < box.height / 2) continue;
      row ??= other.top;
      if (Math.abs(other.top - row) > box.height / 2) break;
      const away = one => Math.abs((one.left + one.right) / 2 - middle);
      if (best === here || away(other) < away(tokens[best].getBoundingClientRect())) best = at;
    }
    return best;
  }

  const KEYS = {
    ArrowRight: () => here + 1, ArrowLeft: () => here - 1, ArrowDown: () => line(1), ArrowUp: () => line(-1),
    Home: () => 0, End: () => tokens.length - 1, PageDown: () => here + 50, PageUp: () => here - 50,
  };
  flow.addEventListener('keydown', event => {
    if (!(event.key in KEYS) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    move(KEYS[event.key]());
  });
  const places = new Map(tokens.map((token, at) => [token, at]));
  flow.addEventListener('pointerover', event => { if (places.has(event.target)) show(places.get(event.target)); });
  flow.addEventListener('pointerleave', () => show(here));
  flow.addEventListener('click', event => { if (places.has(event.target)) move(places.get(event.target)); });
  flow.addEventListener('focus', () => tokens[here]?.classList.add('here'));

  try {
    numbers = await (await fetch(flow.dataset.source)).json();
    if (new URL(location.href).searchParams.has('at')) move(here, 'center'); else show(here);
  } catch { name.textContent = 'The server did not return the numbers.'; panel.hidden = false; }
}

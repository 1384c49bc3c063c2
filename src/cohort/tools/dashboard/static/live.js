// Live pages: requests the sections again and replaces those that changed. Open details, scroll positions, focus and form values stay.
// A hidden tab requests nothing.
const main = document.querySelector('main[data-live]');
const pulse = document.getElementById('pulse');
const LEAST = 2, MOST = 60;
const FOCUSABLE = 'a,button,input,select,textarea,summary,[tabindex]';
let tag = main?.dataset.live, written = Date.now(), wait = LEAST, failures = 0, gone = false, timer = 0, asking = false;

function showAge() {
  const age = Math.max(0, Math.round((Date.now() - written) / 1000));
  pulse.textContent = gone ? 'this page no longer exists' : failures > 1 ? 'the server does not answer' : age < 3 ? 'live' : `live · updated ${age < 120 ? `${age} s` : `${Math.round(age / 60)} min`} ago`;
}

// The identity of an element, independent of its position: lists grow, and runs change places.
const naming = node => [node.tagName, node.getAttribute('href'), node.name, node.type === 'checkbox' ? node.value : ''].join(' ');
const find = (part, selector, {name, place}) => {
  const inner = [...part.querySelectorAll(selector)];
  return naming(inner[place] ?? part) === name ? inner[place] : inner.find(one => naming(one) === name);
};

function remember(part) {
  const inner = selector => [...part.querySelectorAll(selector)], key = (one, place) => ({one, place, name: naming(one)});
  return {
    open: inner('details').map(one => one.open),
    scrolled: inner('.scroll,pre').map(one => [one.scrollLeft, one.scrollTop]),
    focus: inner(FOCUSABLE).map(key).find(({one}) => one === document.activeElement),
    chosen: inner('input,select').map(key).map(kept => ({...kept, value: kept.one.type === 'checkbox' ? kept.one.checked : kept.one.value})),
  };
}

function restore(part, kept) {
  part.querySelectorAll('details').forEach((one, i) => { if (kept.open[i] !== undefined) one.open = kept.open[i]; });
  part.querySelectorAll('.scroll,pre').forEach((one, i) => { if (kept.scrolled[i]) [one.scrollLeft, one.scrollTop] = kept.scrolled[i]; });
  for (const chosen of kept.chosen) {
    const one = find(part, 'input,select', chosen);
    if (one?.type === 'checkbox') one.checked = chosen.value; else if (one) one.value = chosen.value;
  }
  if (kept.focus) find(part, FOCUSABLE, kept.focus)?.focus({preventScroll: true});
}

// The HTML as received, before other scripts change it.
const known = new Map();
const remembered = part => known.get(part.id) ?? part.innerHTML;
if (main) for (const part of main.children) known.set(part.id, part.innerHTML);

function replaceParts(text) {
  const fresh = new DOMParser().parseFromString(text, 'text/html').body;
  const ids = new Set();
  let waiting = false;
  let before = null;
  for (const part of [...fresh.children]) {
    ids.add(part.id);
    const text = part.innerHTML, old = document.getElementById(part.id);
    if (old === null) { before === null ? main.prepend(part) : before.after(part); before = part; }
    else {
      const read = old.querySelector('.tip:not([hidden])') !== null;  // values are being read: try again later
      if (read) { waiting = true; before = old; continue; }
      if (remembered(old) !== text) { const kept = remember(old); old.replaceChildren(...part.childNodes); restore(old, kept); }
      before = old;
    }
    known.set(part.id, text);
  }
  for (const old of [...main.children]) if (!ids.has(old.id)) old.remove();
  document.dispatchEvent(new CustomEvent('parts'));
  return !waiting;
}

async function ask() {
  if (asking || document.hidden) return;
  asking = true;
  try {
    const answer = await fetch(`/live${location.pathname}${location.search}`, {headers: {'If-None-Match': tag}, cache: 'no-store'});
    if (answer.status === 200) { if (replaceParts(await answer.text())) tag = answer.headers.get('ETag'); }
    else if (answer.status !== 304 && answer.status !== 404) throw new Error(answer.status);
    gone = answer.status === 404;
    if (!gone) written = Date.now() - 1000 * Number(answer.headers.get('X-Age') ?? 0);
    wait = Math.min(MOST, Math.max(LEAST, Number(answer.headers.get('X-Wait') ?? (gone ? MOST : LEAST))));
    failures = 0;
  } catch { failures += 1; wait = Math.min(MOST, LEAST * 2 ** failures); }
  asking = false; showAge();
  clearTimeout(timer); timer = setTimeout(ask, 1000 * wait);
}

if (main) {
  document.addEventListener('visibilitychange', () => { if (!document.hidden) { clearTimeout(timer); ask(); } });
  setInterval(() => { if (!document.hidden) showAge(); }, 1000);
  timer = setTimeout(ask, 1000 * LEAST);
}

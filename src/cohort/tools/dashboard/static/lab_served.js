// The lab as it is served: every number is asked for, and the functions that train answer.
import {openAddress, openStation} from './lab.js';
import {pictures} from './lab_pictures.js';
import {morePictures} from './lab_more.js';
import {openOwn} from './lab_own.js';

async function ask(station, state) {
  const answer = await fetch(`/data/lab/${station}?${new URLSearchParams(state)}`);
  if (!answer.ok) throw new Error(`the server says ${answer.status}`);
  return answer.json();
}

const article = document.querySelector('[data-station]');
if (article) {
  const address = openAddress('search'), station = article.dataset.station;
  openStation(article, ask, {...pictures, ...morePictures}[station], address, openOwn);
} else ask('group', {});  // whoever reads the list will open one: the first answer loads what trains

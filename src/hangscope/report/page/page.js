"use strict";
/* What all views share: the data, what is picked and filtered (also in the address), and the tip at the pointer.
   Everything shown is set as text, never as markup. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

/** A column of numbers: base64 of raw deflate of int32, the bytes of one weight together (columns.py packs them). */
async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = planes.length / 4;
  const values = new Int32Array(count);
  for (let i = 0; i < count; i++) {
    values[i] = planes[i] | (planes[count + i] << 8) | (planes[2 * count + i] << 16) | (planes[3 * count + i] << 24);
  }
  return values;
}

/** The same for numbers that are each told from the one before. */
async function unpackSums(text) {
  const values = await unpack(text);
  for (let i = 1; i < values.length; i++) values[i] += values[i - 1];
  return values;
}

const within = (runs, rank) => runs.some(([first, last, step]) => rank >= first && rank <= last && (rank - first) % step === 0);

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

/* ---- what is picked ------------------------------------------------------------------------------------------------ */

const picked = { rank: "", node: "", group: "" };
const listeners = [];
const onPick = (listener) => listeners.push(listener);

function parseRanks(text) {
  const parts = text.split(/[,\s]+/).filter(Boolean).map((part) => part.match(/^(\d+)(?:-(\d+))?$/));
  if (!parts.length || parts.includes(null)) return null;
  return parts.map((m) => [Number(m[1]), Number(m[2] || m[1]), 1]);
}

/** Whether a rank passes the filter; a test for each, so that thousands of rows are quick. */
function wanted() {
  const ranks = parseRanks(picked.rank);
  const node = DATA.places.nodes.find(([name]) => name === picked.node);
  const group = DATA.places.groups.find(([name]) => name === picked.group);
  return (rank) => (!ranks || within(ranks, rank)) && (!node || within(node[1], rank)) && (!group || within(group[1], rank));
}

function pick(change) {
  Object.assign(picked, change);
  const parts = Object.entries(picked).filter(([, value]) => value).map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  const hash = parts.length ? `#${parts.join("&")}` : "";
  if (location.hash !== hash) history.replaceState(null, "", hash || location.pathname + location.search);
  announce();
}

function announce() {
  byId("f-rank").value = picked.rank;
  byId("f-node").value = picked.node;
  byId("f-group").value = picked.group;
  const said = Object.entries(picked).filter(([, value]) => value).map(([name, value]) => `${name} ${value}`);
  const bad = picked.rank && !parseRanks(picked.rank);
  byId("picked").textContent = bad ? `"${picked.rank}" is not a rank: write 6, 0-7 or 0-7, 12` : said.length ? `showing ${said.join(", ")}` : "";
  for (const listener of listeners) listener();
}

function readAddress() {
  for (const name of Object.keys(picked)) picked[name] = "";
  for (const part of location.hash.slice(1).split("&")) {
    const [name, value] = part.split("=");
    if (name in picked && value) {
      try { picked[name] = decodeURIComponent(value); } catch { /* not written by us */ }
    }
  }
  announce();
}

function fill(select, entries, more) {
  for (const [name] of entries) {
    const option = element("option", "", name);
    option.value = name;
    select.append(option);
  }
  if (more) {
    const option = element("option", "", `${more} more are not listed`);
    option.disabled = true;
    select.append(option);
  }
}

/* ---- the tip ------------------------------------------------------------------------------------------------------- */

function showTip(lines, x, y) {
  const tip = byId("tip");
  tip.replaceChildren(...lines.filter(Boolean).map((line, i) => element(i ? "div" : "b", "", line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
}
const hideTip = () => { byId("tip").hidden = true; };

/* ---- buttons ------------------------------------------------------------------------------------------------------- */

const onTheme = [];
byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  for (const listener of onTheme) listener();
});
byId("print").addEventListener("click", () => print());
byId("copy").addEventListener("click", async (event) => {
  const button = event.currentTarget;
  try {
    await navigator.clipboard.writeText(button.dataset.text);
    button.textContent = "copied";
  } catch {
    button.textContent = "not allowed";
  }
  setTimeout(() => { button.textContent = "copy"; }, 1500);
});

fill(byId("f-node"), DATA.places.nodes, 0);
fill(byId("f-group"), DATA.places.groups, DATA.places.more_groups);
byId("f-rank").addEventListener("input", (event) => pick({ rank: event.target.value.trim() }));
byId("f-node").addEventListener("change", (event) => pick({ node: event.target.value }));
byId("f-group").addEventListener("change", (event) => pick({ group: event.target.value }));
byId("f-clear").addEventListener("click", () => pick({ rank: "", node: "", group: "" }));

for (const box of document.querySelectorAll(".graph .box")) {
  const runs = JSON.parse(box.dataset.ranks);
  const choose = () => pick({ rank: runs.map(([a, b, step]) => (step === 1 || a === b ? (a === b ? `${a}` : `${a}-${b}`) : null)).filter(Boolean).join(", ") });
  box.addEventListener("click", choose);
  box.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } });
  onPick(() => {
    const test = parseRanks(picked.rank);
    box.classList.toggle("off", Boolean(test) && !test.some(([a, b]) => { for (let r = a; r <= Math.min(b, a + 4096); r++) if (within(runs, r)) return true; return false; }));
  });
}
addEventListener("hashchange", readAddress);
addEventListener("DOMContentLoaded", readAddress);

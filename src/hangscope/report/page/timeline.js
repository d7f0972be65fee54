/* The timeline: one row a rank on a canvas, drawn for what is in view. */
(async () => {
  const box = byId("lines");
  if (!box) return;
  const data = DATA.timeline;
  const canvas = byId("lines-canvas");
  const pen = canvas.getContext("2d");
  let columns;
  try {
    columns = await Promise.all([unpackSums(data.begin), unpack(data.length), unpack(data.call), unpackSums(data.seq), unpack(data.bits)]);
  } catch {
    box.replaceChildren(element("p", "faint", "This browser cannot unpack the timeline's data (it needs DecompressionStream, 2023 or newer)."));
    return;
  }
  const [begin, length, call, seq, bits] = columns;
  const UNFINISHED = 1, HUNG = 2, QUEUED = 4, STARTED = 8;
  const offsets = [0];
  for (const count of data.counts) offsets.push(offsets.at(-1) + count);
  const names = data.names;
  const colourOf = data.calls.map((c) => Math.min(c[7], 7));
  const ROW = 20, TOP = 40, UNIT_S = data.unit_us / 1e6;

  let view = [...data.view];
  let rows = data.rows.map((_, i) => i);
  let pinned = 0;
  let cursor = { row: 0, op: -1 };
  let style = {};
  let hatch, stripes;

  const fault = (row) => "X><-".includes(data.rows[row][2]);
  const gutter = () => (canvas.clientWidth < 520 ? 84 : 168);
  const x = (t) => gutter() + ((t - view[0]) / (view[1] - view[0])) * (canvas.clientWidth - gutter());
  const timeAt = (px) => view[0] + ((px - gutter()) / (canvas.clientWidth - gutter())) * (view[1] - view[0]);
  const seconds = (t) => {
    const s = t * UNIT_S, a = Math.abs(s), sign = s < 0 ? "-" : "+";
    if (a === 0) return "0";
    if (a < 1e-3) return `${sign}${(a * 1e6).toPrecision(3)} µs`;
    if (a < 1) return `${sign}${Number((a * 1e3).toPrecision(3))} ms`;
    if (a < 120) return `${sign}${Number(a.toPrecision(4))} s`;
    const both = (large, unit, small, part) => `${sign}${large} ${unit}${small ? ` ${small} ${part}` : ""}`;
    if (a < 7200) return both(Math.floor(a / 60), "min", Math.floor(a % 60), "s");
    return both(Math.floor(a / 3600), "h", Math.floor((a % 3600) / 60), "min");
  };
  const duration = (t) => seconds(t).replace("+", "");
  const cut = (text, room) => {
    if (pen.measureText(text).width <= room) return text;
    let keep = text.length;
    while (keep > 2 && pen.measureText(`${text.slice(0, keep / 2)}…${text.slice(-keep / 2)}`).width > room) keep -= 2;
    return `${text.slice(0, Math.ceil(keep / 2))}…${text.slice(-Math.floor(keep / 2))}`;
  };

  function pattern(draw, size) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = size;
    draw(tile.getContext("2d"), size);
    return pen.createPattern(tile, "repeat");
  }
  function readStyle() {
    const css = getComputedStyle(document.documentElement);
    style = {};
    for (const name of ["back", "panel", "line", "text", "faint", "culprit", "culprit-tint", "wait", "wait-tint", "hatch", "op0", "op1", "op2", "op3", "op4", "op5", "op6", "op7"]) style[name] = css.getPropertyValue(`--${name}`).trim();
    const lines = (colour, width) => (p, n) => {
      p.strokeStyle = colour; p.lineWidth = width;
      for (const d of [-n, 0, n]) { p.beginPath(); p.moveTo(d - 1, n + 1); p.lineTo(d + n + 1, -1); p.stroke(); }
    };
    hatch = pattern(lines(style.hatch, 1), 7);
    stripes = pattern(lines(style["wait-tint"], 1.6), 8);
  }

  function draw() {
    const wide = box.clientWidth, ratio = devicePixelRatio || 1;
    const high = Math.min(TOP + rows.length * ROW + 6, 478);
    byId("lines-size").style.height = `${TOP + rows.length * ROW + 6}px`;
    canvas.style.height = `${high}px`;
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.font = "12px ui-monospace, 'DejaVu Sans Mono', monospace";
    pen.textBaseline = "middle";
    const top = TOP + pinned * ROW;
    const first = pinned + Math.floor(box.scrollTop / ROW);
    const shift = box.scrollTop % ROW;
    pen.save();
    pen.beginPath(); pen.rect(0, top, wide, high - top); pen.clip();
    for (let i = first; i < rows.length && top + (i - first) * ROW - shift < high; i++) drawRow(rows[i], top + (i - first) * ROW - shift, wide, i === cursor.row);
    pen.restore();
    for (let i = 0; i < pinned; i++) drawRow(rows[i], TOP + i * ROW, wide, i === cursor.row);
    drawMarks(wide, high);
    box.dataset.from = Math.round(view[0]);
    box.dataset.to = Math.round(view[1]);
    box.dataset.rows = rows.length;
    drawAxis(wide);
    if (!rows.length) { pen.fillStyle = style.faint; pen.fillText("no rank matches the filter", gutter(), TOP + 10); }
  }

  function drawRow(row, y, wide, marked) {
    const [rank, node, , silent] = data.rows[row];
    const bad = fault(row), left = gutter();
    if (bad) { pen.fillStyle = style["culprit-tint"]; pen.fillRect(0, y, wide, ROW); }
    pen.save();
    pen.beginPath(); pen.rect(left, y, wide - left, ROW); pen.clip();
    let last = -Infinity, open = false, edge = -1;
    for (let i = offsets[row]; i < offsets[row + 1]; i++) {
      const until = begin[i] + length[i];
      if (bits[i] & UNFINISHED) open = true; else last = Math.max(last, until);
      if (begin[i] > view[1] || (until < view[0] && !(bits[i] & UNFINISHED))) continue;
      // What has not ended goes on beyond the evidence, and beyond the edge.
      const a = Math.max(x(begin[i]), left - 2), b = bits[i] & UNFINISHED ? wide + 2 : Math.min(x(until), wide + 2);
      const dim = picked.group && data.calls[call[i]][1] !== picked.group;
      if (!(bits[i] & UNFINISHED) && b - a < 1 && Math.floor(b) === edge) continue;
      edge = Math.floor(b);
      pen.globalAlpha = dim ? 0.15 : 1;
      if (bits[i] & QUEUED) { pen.fillStyle = style.wait; pen.fillRect(a, y + ROW - 5, Math.max(b - a, 1.5), 2); continue; }
      pen.fillStyle = bits[i] & UNFINISHED ? (bad ? style.culprit : style.wait) : style[`op${colourOf[call[i]]}`];
      pen.fillRect(a, y + 3, Math.max(b - a - 0.6, 1.5), ROW - 7);
      if (bits[i] & UNFINISHED) {
        pen.fillStyle = stripes; pen.fillRect(a, y + 3, Math.max(b - a - 0.6, 1.5), ROW - 7);
        if (bits[i] & HUNG) { pen.strokeStyle = style.text; pen.lineWidth = 1.5; pen.strokeRect(a + 0.7, y + 3.7, Math.max(b - a - 2, 1), ROW - 8.4); }
      }
    }
    pen.globalAlpha = 1;
    if (silent && offsets[row] === offsets[row + 1]) {
      pen.fillStyle = hatch; pen.fillRect(left, y + 3, wide - left, ROW - 7);
      pen.fillStyle = style.panel; pen.fillRect(left + 8, y + 3, 64, ROW - 7);
      pen.fillStyle = style.text; pen.fillText("no dump", left + 13, y + ROW / 2);
    } else if (!open && data.hang && Number.isFinite(last)) {
      const a = Math.max(x(last), left), b = wide;
      pen.strokeStyle = bad ? style.culprit : style.faint;
      pen.lineWidth = bad ? 2.5 : 1;
      pen.setLineDash([7, 5]); pen.beginPath(); pen.moveTo(a + 8, y + ROW / 2); pen.lineTo(b, y + ROW / 2); pen.stroke(); pen.setLineDash([]);
      if (bad) {
        pen.lineWidth = 3.5; pen.beginPath();
        pen.moveTo(a, y + 4); pen.lineTo(a + 11, y + ROW - 5); pen.moveTo(a + 11, y + 4); pen.lineTo(a, y + ROW - 5); pen.stroke();
      }
    }
    pen.restore();
    pen.fillStyle = bad ? style.culprit : style.text;
    if (bad) { pen.beginPath(); pen.moveTo(3, y + 5); pen.lineTo(11, y + ROW / 2); pen.lineTo(3, y + ROW - 5); pen.fill(); }
    pen.font = `${bad ? "700 " : ""}12px ui-monospace, 'DejaVu Sans Mono', monospace`;
    const label = String(rank);
    pen.fillText(label, 15, y + ROW / 2);
    const used = 15 + pen.measureText(label).width + 8;
    if (!bad) pen.fillStyle = style.faint;
    pen.fillText(cut(node, left - used - 6), used, y + ROW / 2);
    pen.font = "12px ui-monospace, 'DejaVu Sans Mono', monospace";
    if (marked && document.activeElement === box) { pen.strokeStyle = style.op1; pen.lineWidth = 2; pen.strokeRect(1, y + 1, wide - 2, ROW - 2); }
  }

  function drawMarks(wide, high) {
    const marks = [[0, "", style.text, [2, 3]]];
    if (data.deviation !== null) marks.push([data.deviation, `first divergence: ${data.deviation_text}`, style.culprit, [6, 3]]);
    for (const [t, text, colour, dash] of marks) {
      const at = x(t);
      if (at < gutter() - 1 || at > wide) continue;
      pen.strokeStyle = colour; pen.lineWidth = 1.6; pen.setLineDash(dash);
      pen.beginPath(); pen.moveTo(at, 22); pen.lineTo(at, high); pen.stroke(); pen.setLineDash([]);
      const room = pen.measureText(text).width;
      const left = at + room + 8 > wide ? Math.max(at - room - 5, 2) : at + 5;
      if (text) {
        pen.fillStyle = style.back; pen.fillRect(left - 2, 22, room + 4, 15);
        pen.fillStyle = colour; pen.fillText(text, left, 30);
      }
    }
  }

  function drawAxis(wide) {
    pen.fillStyle = style.panel; pen.fillRect(0, 0, wide, 20);
    pen.strokeStyle = style.line; pen.lineWidth = 1;
    pen.beginPath(); pen.moveTo(0, 20.5); pen.lineTo(wide, 20.5); pen.stroke();
    const least = ((view[1] - view[0]) * UNIT_S) / ((wide - gutter()) / 100);
    const step = niceStep(least) / UNIT_S;
    let free = 0;
    for (let t = Math.ceil(view[0] / step) * step; t <= view[1]; t += step) {
      const at = x(t), zero = Math.abs(t) < step / 2;
      if (at < gutter()) continue;
      pen.strokeStyle = style.line; pen.beginPath(); pen.moveTo(at, 15); pen.lineTo(at, 20); pen.stroke();
      const label = zero ? (data.hang ? "0 hang" : "0") : seconds(Math.round(t));
      const left = Math.min(at + 3, wide - pen.measureText(label).width - 2);
      if (left < free) continue;
      pen.fillStyle = zero ? style.text : style.faint;
      pen.fillText(label, left, 9);
      free = left + pen.measureText(label).width + 8;
    }
  }

  /** The distance of ticks in seconds, no less than `least`: 1, 2 or 5 of a power of ten, or what clocks count in. */
  function niceStep(least) {
    if (least > 5) {
      const clock = [10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200];
      return clock.find((value) => value >= least) || Math.ceil(least / 86400) * 86400;
    }
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].find((value) => value * power >= least) * power;
  }

  /* ---- moving ---- */
  const limits = () => { const span = Math.max(data.end, 1); let low = 0; for (let i = 0; i < begin.length; i++) if (begin[i] < low) low = begin[i]; return [low - span * 0.02, span * 1.02]; };
  const [lowest, highest] = limits();
  function setView(a, b) {
    const span = Math.min(Math.max(b - a, 20 / data.unit_us), (highest - lowest) * 1.1);
    const middle = Math.min(Math.max((a + b) / 2, lowest), highest);
    view = [middle - span / 2, middle + span / 2];
    draw();
  }
  const zoom = (factor, around = (view[0] + view[1]) / 2) => setView(around + (view[0] - around) * factor, around + (view[1] - around) * factor);
  const pan = (share) => { const by = (view[1] - view[0]) * share; setView(view[0] + by, view[1] + by); };
  const actions = {
    in: () => zoom(0.6), out: () => zoom(1 / 0.6), left: () => pan(-0.25), right: () => pan(0.25),
    home: () => setView(...data.view), all: () => setView(lowest, highest),
  };
  for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => { actions[button.dataset.do](); });

  /* ---- pointing ---- */
  function rowAt(y) {
    if (y < TOP) return -1;
    const place = Math.floor((y - TOP) / ROW);
    if (place < pinned) return place;
    const found = pinned + Math.floor((y - TOP - pinned * ROW + box.scrollTop) / ROW);
    return found < rows.length ? found : -1;
  }
  function opAt(row, t, slack) {
    let best = -1;
    for (let i = offsets[row]; i < offsets[row + 1]; i++) {
      if (begin[i] - slack > t || (begin[i] + length[i] + slack < t && !(bits[i] & UNFINISHED))) continue;
      if (best < 0 || !(bits[i] & QUEUED)) best = i;
    }
    return best;
  }
  function describe(row, i) {
    const [rank, node] = data.rows[row];
    if (i < 0) return [`rank ${rank}${node ? ` on ${node}` : ""}`, DATA.roles[data.rows[row][2]] || ""];
    const [name, group, size, type, line, caller, pair] = data.calls[call[i]];
    const at = new Date(data.zero_ms + (begin[i] * data.unit_us) / 1000);
    const open = bits[i] & UNFINISHED;
    return [
      pair ? name : `${name} #${seq[i]}`,
      `${group}${size ? ` · ${size}` : ""}${type ? ` · ${type}` : ""}`,
      open ? `${bits[i] & STARTED ? "started" : "scheduled"}, not finished; waiting for ${duration(length[i])}` : `took ${duration(length[i])}`,
      `${seconds(begin[i])} · ${Number.isNaN(at.getTime()) ? "" : at.toISOString().replace("T", " ")}`,
      line ? `${line}${caller ? ` in ${caller}` : ""}` : "code line not recorded",
      `rank ${rank}${node ? ` on ${node}` : ""}`,
    ];
  }
  let drag = null;
  const touches = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    touches.set(event.pointerId, event.offsetX);
    drag = { at: event.offsetX, moved: false, view: [...view] };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag && touches.size === 2 && touches.has(event.pointerId)) {
      const before = [...touches.values()];
      touches.set(event.pointerId, event.offsetX);
      const after = [...touches.values()];
      drag.moved = true;
      return zoom(Math.abs(before[0] - before[1]) / Math.max(Math.abs(after[0] - after[1]), 8), timeAt((after[0] + after[1]) / 2));
    }
    if (drag) {
      const by = ((event.offsetX - drag.at) / (canvas.clientWidth - gutter())) * (drag.view[1] - drag.view[0]);
      if (Math.abs(event.offsetX - drag.at) > 3) drag.moved = true;
      if (drag.moved) { hideTip(); return setView(drag.view[0] - by, drag.view[1] - by); }
    }
    const place = rowAt(event.offsetY);
    if (place < 0) return hideTip();
    const slack = (4 / (canvas.clientWidth - gutter())) * (view[1] - view[0]);
    const i = event.offsetX < gutter() ? -1 : opAt(rows[place], timeAt(event.offsetX), slack);
    showTip(describe(rows[place], i), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerup", (event) => {
    touches.delete(event.pointerId);
    if (drag && !drag.moved) {
      const place = rowAt(event.offsetY);
      if (place >= 0) { cursor = { row: place, op: -1 }; togglePick(place); }
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", (event) => { touches.delete(event.pointerId); drag = null; });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(Math.exp(event.deltaY / 300), timeAt(event.offsetX)); }
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); pan((event.deltaX || event.deltaY) / 900); }
  }, { passive: false });

  function togglePick(place) {
    const rank = String(data.rows[rows[place]][0]);
    pick({ rank: picked.rank === rank ? "" : rank });
  }
  function stepOp(by) {
    const row = rows[cursor.row];
    if (row === undefined || offsets[row] === offsets[row + 1]) return;
    let i = cursor.op;
    if (i < offsets[row] || i >= offsets[row + 1]) i = by < 0 ? offsets[row + 1] : offsets[row + 1] - 2;
    i = Math.min(Math.max(i + by, offsets[row]), offsets[row + 1] - 1);
    cursor.op = i;
    const span = view[1] - view[0];
    if (begin[i] < view[0] || begin[i] > view[1]) setView(begin[i] - span / 2, begin[i] + span / 2); else draw();
    const place = canvas.getBoundingClientRect();
    showTip(describe(row, i), place.left + Math.max(x(begin[i]), gutter()), place.top + TOP + Math.min(cursor.row, 18) * ROW);
  }
  function moveCursor(by) {
    cursor = { row: Math.min(Math.max(cursor.row + by, 0), rows.length - 1), op: -1 };
    const at = (cursor.row - pinned) * ROW, room = canvas.clientHeight - TOP - pinned * ROW - ROW;
    if (cursor.row >= pinned && at < box.scrollTop) box.scrollTop = at;
    if (cursor.row >= pinned && at > box.scrollTop + room) box.scrollTop = at - room;
    draw();
  }
  box.addEventListener("keydown", (event) => {
    const keys = {
      "+": actions.in, "=": actions.in, "-": actions.out, 0: actions.home, a: actions.all,
      ArrowLeft: () => (event.shiftKey ? stepOp(-1) : actions.left()), ArrowRight: () => (event.shiftKey ? stepOp(1) : actions.right()),
      ArrowUp: () => moveCursor(-1), ArrowDown: () => moveCursor(1), PageUp: () => moveCursor(-18), PageDown: () => moveCursor(18),
      Enter: () => { if (rows.length) togglePick(cursor.row); }, Escape: hideTip,
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  box.addEventListener("focus", draw);
  box.addEventListener("blur", () => { hideTip(); draw(); });
  box.addEventListener("scroll", draw);

  function applyFilter() {
    const test = wanted();
    rows = data.rows.map((_, i) => i).filter((i) => test(data.rows[i][0]));
    const atFault = rows.filter(fault);
    pinned = rows.length * ROW + TOP > 478 ? Math.min(atFault.length, 4) : 0;
    cursor = { row: Math.min(cursor.row, Math.max(rows.length - 1, 0)), op: -1 };
    box.scrollTop = 0;
    draw();
  }

  const legend = byId("lines-legend");
  const entry = (kind, text) => { const item = element("li"); item.append(element("i", `op op-${kind}`), text); legend.append(item); };
  names.slice(0, 8).forEach((name, i) => entry(i, i === 7 && names.length > 8 ? `${name} and ${names.length - 8} more` : name));
  if (bits.some((b) => b & UNFINISHED)) entry("w", "not finished");
  const busy = (row) => { for (let i = offsets[row]; i < offsets[row + 1]; i++) if (bits[i] & UNFINISHED) return true; return false; };
  const atFault = data.hang ? data.rows.map((_, i) => i).filter(fault) : [];
  if (atFault.some(busy)) entry("f", "at fault: not finished");
  if (atFault.some((row) => !busy(row) && !data.rows[row][3])) entry("x", "at fault: no operation in flight");
  if (data.rows.some((row) => row[3])) entry("q", "no dump: unknown");

  readStyle();
  onPick(applyFilter);
  onTheme.push(() => { readStyle(); draw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readStyle(); draw(); });
  new ResizeObserver(draw).observe(box);
  applyFilter();
  document.documentElement.dataset.drawn = "yes";
})();

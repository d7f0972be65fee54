/* The matrix: a table of cells, a row for ranks that look alike, those at fault first. */
{
  const CELLS = { C: "c", S: "s", s: "h", "-": "n", "?": "q", D: "c d", T: "s d", t: "h d" };
  const SAYS = {
    C: "completed", S: "started, not finished", s: "scheduled, not started", "-": "not launched", "?": "unknown",
    D: "completed, a different call than most", T: "started, a different call than most", t: "scheduled, a different call than most",
  };
  const ROLES = { X: "x", ">": "x", "<": "x", "-": "x", W: "w", S: "w", w: "b", s: "b", "?": "q" };
  const { blocks, rows } = DATA.matrix;
  const table = byId("matrix-table");
  const columns = blocks.flatMap((block) => block.columns.map((column, i) => ({ ...column, block, first: i === 0 })));

  const head = table.createTHead();
  const names = head.insertRow();
  names.className = "blocks";
  names.append(element("th"));
  const places = head.insertRow();
  places.append(element("th"));
  for (const block of blocks) {
    const cell = element("th", block.hung ? "hung" : "", block.label);
    cell.colSpan = block.columns.length;
    cell.title = block.note || block.label;
    names.append(cell);
  }
  for (const column of columns) {
    const cell = element("th", column.frontier ? "frontier" : "", column.at);
    cell.title = column.name;
    cell.scope = "col";
    places.append(cell);
  }

  const body = table.createTBody();
  let node = null;
  for (const [number, row] of rows.entries()) {
    const line = body.insertRow();
    line.dataset.row = number;
    line.tabIndex = 0;
    const fault = "X><-".includes(row.role);
    if (fault) line.className = "culprit";
    const label = element("th");
    label.scope = "row";
    label.append(element("i", `role role-${ROLES[row.role] || "o"}`));
    label.append(row.count > 1 && !row.label.includes("more rank") ? `${row.label} (${row.count}) ` : `${row.label} `);
    label.append(element("span", "node", row.node && (row.node !== node || fault) ? row.node : ""));
    node = row.node;
    label.title = `${row.label} ${row.node}: ${DATA.roles[row.role] || ""}`;
    line.append(label);
    const summary = [];
    for (const [i, column] of columns.entries()) {
      const letter = row.cells[i] || " ";
      const cell = element("td", `${column.first ? "first " : ""}${column.frontier ? "frontier" : ""}`);
      if (letter !== " ") {
        const mark = element("i", `cell cell-${CELLS[letter]}`);
        cell.append(mark);
        cell.dataset.column = i;
        if (column.frontier) summary.push(`${column.name} ${column.at} ${SAYS[letter]}`);
      }
      line.append(cell);
    }
    line.setAttribute("aria-label", `rank ${row.label}, ${DATA.roles[row.role] || ""}; ${summary.join("; ")}`);
  }

  const rankText = (row) => row.ranks.filter(([a, b, step]) => step === 1 || a === b).slice(0, 12).map(([a, b]) => (a === b ? a : `${a}-${b}`)).join(", ") || String(row.ranks[0][0]);
  const choose = (line) => {
    const text = rankText(rows[Number(line.dataset.row)]);
    pick({ rank: picked.rank === text ? "" : text });
  };
  body.addEventListener("click", (event) => { const line = event.target.closest("tr"); if (line) choose(line); });
  body.addEventListener("keydown", (event) => {
    const line = event.target.closest("tr");
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(line); }
    const next = { ArrowDown: line.nextElementSibling, ArrowUp: line.previousElementSibling }[event.key];
    if (next) { event.preventDefault(); next.focus(); }
  });
  body.addEventListener("pointermove", (event) => {
    const cell = event.target.closest("td[data-column]");
    if (!cell) return hideTip();
    const row = rows[Number(cell.parentElement.dataset.row)];
    const column = columns[Number(cell.dataset.column)];
    showTip([
      `${column.name} ${column.at}`, SAYS[row.cells[Number(cell.dataset.column)]],
      `${column.block.label}${column.block.note ? `; ${column.block.note}` : ""}`,
      `rank ${row.label}${row.node ? ` on ${row.node}` : ""}`, DATA.roles[row.role] || "",
    ], event.clientX, event.clientY);
  });
  body.addEventListener("pointerleave", hideTip);

  onPick(() => {
    const test = wanted();
    const any = picked.rank || picked.node || picked.group;
    for (const line of body.rows) {
      const row = rows[Number(line.dataset.row)];
      const hit = !any || row.ranks.some(([a, b, step]) => { for (let r = a; r <= b; r += step) if (test(r)) return true; return false; });
      line.classList.toggle("off", !hit);
      line.classList.toggle("picked", Boolean(any) && hit && row.cells !== "");
    }
  });
}

// What the ranks send each other: by axis, and from rank to rank.
const LEVELS = 5;
const shade = (kind, level) => `color-mix(in srgb, ${TRAFFIC_COLOURS[kind]} ${[24, 42, 60, 80, 100][level - 1]}%, var(--panel))`;

function bytes_by_kind(cell) {
  return `${bytes(sum(cell))} (${cell.map((b, k) => b > 0 && `${TRAFFIC[k]} ${bytes(b)}`).filter(Boolean).join(", ")})`;
}

function matrix(m, name) {
  const n = m.blocks, cells = new Map(m.cells.map(([from, to, ...b]) => [from * n + to, b]));
  if (cells.size === 0) return null;
  const sums = [...cells.values()].map(sum), low = Math.min(...sums), high = Math.max(...sums);
  const level = (b) => (high <= low * 1.01 ? LEVELS : 1 + Math.min(LEVELS - 1, Math.floor((LEVELS * Math.log(b / low)) / Math.log(high / low))));
  const strongest = (b) => b.indexOf(Math.max(...b));
  const block = (k) => (m.block === 1 ? String(k) : `${k * m.block}-${Math.min((k + 1) * m.block, m.ranks) - 1}`);
  const told = (k) => `${block(Math.floor(k / n))} to ${block(k % n)}: ${cells.has(k) ? bytes_by_kind(cells.get(k)) : "nothing"}`;
  let at = [...cells.keys()][0];
  const host = chart((width) => {
    const left = 34, top = 20, size = clamp((width - left - 2) / n, 4, 30), every = Math.ceil(34 / size);
    const squares = [];
    for (let k = 0; k < n * n; ++k) {
      const b = cells.get(k);
      squares.push(svg("rect", { x: left + (k % n) * size + 0.5, y: top + Math.floor(k / n) * size + 0.5, width: size - 1, height: size - 1, fill: b ? shade(strongest(b), level(sum(b))) : "var(--page)", "data-cell": k, "data-told": b ? told(k) : undefined }));
    }
    const mark = svg("rect", { class: "picked-mark", width: size, height: size, x: -99, y: -99 });
    const put = (k) => { at = k; mark.setAttribute("x", left + (k % n) * size), mark.setAttribute("y", top + Math.floor(k / n) * size); };
    const side = left + n * size + 1;
    const node = svg("svg", { class: "chart matrix", id: name, viewBox: `0 0 ${width} ${top + n * size + 2}`, tabindex: 0, role: "application", "aria-roledescription": "matrix", "aria-label": "bytes from rank to rank: arrow keys go from cell to cell",
      onkeydown: (e) => {
        const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[e.key];
        if (!by) return;
        e.preventDefault();
        put(clamp(Math.floor(at / n) + by[0], 0, n - 1) * n + clamp((at % n) + by[1], 0, n - 1));
        tell_at(squares[at], told(at));
      }, onfocus: () => { if (node.matches(":focus-visible")) { put(at); tell_at(squares[at], told(at)); } }, onblur: () => { hush(); mark.setAttribute("x", -99); },
      onpointermove: (e) => { if (e.target.dataset.cell) tell(told(Number(e.target.dataset.cell)), e.clientX, e.clientY); else hush(); }, onpointerleave: hush },
      Array.from({ length: n }, (_, k) => k % every === 0 && [svg("text", { class: "soft", x: left + k * size + 1, y: 13 }, k * m.block), svg("text", { class: "soft", x: left - 5, y: top + (k + 0.5) * size + 4, "text-anchor": "end" }, k * m.block)]),
      svg("rect", { x: left, y: top, width: side - left - 1, height: n * size, fill: "none", stroke: "var(--line)" }), squares, mark);
    return node;
  });
  const used = TRAFFIC.map((_, k) => k).filter((k) => [...cells.values()].some((b) => strongest(b) === k)), first = level(low);
  const scale = el("table", { class: "legend-table", style: "width:auto" },
    el("thead", {}, el("tr", {}, el("th", {}, "at least"), Array.from({ length: LEVELS - first + 1 }, (_, k) => el("th", { scope: "col" }, bytes(low * (high / low) ** (k / LEVELS)))))),
    el("tbody", {}, used.map((k) => el("tr", {}, el("th", { scope: "row" }, TRAFFIC[k]), Array.from({ length: LEVELS - first + 1 }, (_, l) => el("td", {}, el("span", { style: `display:block;width:2.6rem;height:.9rem;background:${shade(k, first + l)}` })))))));
  return [host, el("div", { class: "scroll" }, scale)];
}

function traffic_section() {
  const t = data.traffic;
  if (t.axes.length === 0) return section("communication", "Communication", el("p", {}, "Nothing: one rank."));
  const big = t.matrices[0], node = t.devices_per_node, all = big.ranks < plan.devices ? `the first ${big.ranks} ranks` : "the ranks";
  const each = big.block === 1 ? "one rank" : `${big.block} ranks${big.block === node ? ", a node" : node > 0 && big.block % node === 0 ? `, ${big.block / node} nodes` : ""} (the label is the first)`;
  return section("communication", "Communication",
    table(["axis", "what moves", "how", ">a rank sends in a step", ">waited for"], t.axes.map((a) => [
      el("span", {}, el("span", { class: "key", style: `background:${TRAFFIC_COLOURS[a.kind]}` }), `${TRAFFIC[a.kind]} ${a.sizes}`), a.moves, a.how,
      bytes(a.most) === bytes(a.least) ? bytes(a.most) : `${bytes(a.least)} to ${bytes(a.most)}`, time(a.waited)])),
    el("h3", {}, "From rank to rank"),
    el("p", { class: "soft" }, `Bytes in a step from ${all} (rows) to ${all} (columns). Each row and each column is ${each}.`, big.block > 1 && " What the ranks of one block send each other is on the diagonal.",
      " The colour is that of the axis that sends most, stronger for more.", t.multicast && " What a switch multicasts is counted where it arrives.", " Point at a cell, or focus the matrix and use the arrow keys."),
    matrix(big, "matrix"),
    t.matrices.slice(1).map((m) => el("details", {}, el("summary", {}, `The first ${m.ranks} ranks one by one`), matrix(m, "matrix-ranks"))));
}

// What all parts of the page draw with.
const data = JSON.parse(document.getElementById("data").textContent);
const plan = data.plan;
const SPACE = document.getElementById("space").namespaceURI;

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(9)) {
    if (child !== undefined && child !== null && child !== false && child !== "") node.append(child);
  }
  return node;
}
const el = (tag, attributes, ...children) => make(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => make(document.createElementNS(SPACE, tag), attributes, children);

const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
const sum = (list) => list.reduce((a, b) => a + b, 0);
const digits = (x, n = 4) => String(Number(Number(x).toPrecision(n)));
const percent = (x) => (100 * x).toFixed(1) + " %";
const time = (s) => (s === 0 ? "0" : Math.abs(s) < 1e-3 ? digits(s * 1e6) + " µs" : Math.abs(s) < 1 ? digits(s * 1e3) + " ms" : digits(s) + " s");
function scaled(x, units, n = 3) {
  for (const [unit, size] of units) if (Math.abs(x) >= 0.9995 * size) return digits(x / size, n) + " " + unit;
  return digits(x, n);
}
const bytes = (b, n = 3) => scaled(b, [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3], ["B", 1]], n);
const count = (x, n = 3) => scaled(x, [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]], n);
const parameters = (x) => scaled(x, [["T", 1e12], ["B", 1e9], ["M", 1e6], ["k", 1e3]]);
const dollars = (x) => "$" + (x >= 100 ? Math.round(x).toLocaleString("en-US") : digits(x, 3));
const words = (name) => name.replace(/_assumed$/, " (assumed)").replace(/_/g, " ");
const colour = (k) => `var(--c${1 + (k % 8)})`;

// What is coloured, and how.
const PASSES = ["forward", "backward", "weight gradients", "update and after"];
const PASS_COLOURS = [colour(0), colour(1), colour(2), colour(3)];
const MEMORY = ["parameters", "gradients", "optimizer", "stash", "communicators_assumed", "reserve_assumed", "transient", "activations"];
const MEMORY_COLOURS = Object.fromEntries(MEMORY.map((name, k) => [name, colour([0, 1, 3, 7, 4, 6, 5, 2][k])]));
const TRAFFIC = ["tensor", "context", "expert", "data", "pipeline"];
const TRAFFIC_COLOURS = [colour(0), colour(5), colour(4), colour(1), colour(2)];
const PARTS = { compute: 0, recompute: 7, tensor: 2, context: 5, expert: 4, gathers: 3, gradients: 1, send: 4, tied: 5, bubble: 6, optimizer: 5, offload: 7, host: 2, statistics: 1, stragglers: 6 };
const part_colour = (name) => colour(PARTS[name] ?? 6);

const key = (fill, text) => el("li", {}, el("span", { class: "key", style: `background:${fill}` }), text);
const legend = (...keys) => el("ul", { class: "legend" }, keys);
// The navigation calls it "Step" where `title` is "Step: where its time goes".
const section = (id, title, ...children) => el("section", { id, "data-short": title.split(":")[0], "aria-labelledby": id + "-title" }, el("h2", { id: id + "-title" }, title), children);
// `columns`: a title each; one that begins with ">" is of numbers.
function table(columns, rows, attributes) {
  const numeric = columns.map((c) => c.startsWith(">"));
  const cell = (c, k) => el("td", { class: numeric[k] ? "n" : undefined }, c);
  const all = rows.map((r) => (r instanceof Node ? r : el("tr", {}, r.map(cell))));
  // Where a row does not fit side by side, its cells stand one below the other, each with its title.
  for (const r of all) [...r.children].forEach((c, k) => { c.dataset.title = columns[k].replace(/^>/, ""); });
  return el("div", { class: "scroll" },
    el("table", { class: columns.length > 4 ? "stacks" : undefined, ...attributes },
      el("thead", {}, el("tr", {}, columns.map((c, k) => el("th", { scope: "col", class: numeric[k] ? "n" : undefined }, c.replace(/^>/, ""))))),
      el("tbody", {}, all)));
}

const tip = document.getElementById("tip");
function tell(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), width = document.documentElement.clientWidth;
  tip.style.left = clamp(x + 14, 8, Math.max(8, width - box.width - 8)) + "px";
  tip.style.top = (y + 18 + box.height > innerHeight ? Math.max(8, y - box.height - 12) : y + 18) + "px";
}
const hush = () => { tip.hidden = true; };
function tell_at(node, text) {
  const box = node.getBoundingClientRect();
  tell(text, box.left + box.width / 2, box.bottom - 12);
}

// The end of an axis of bytes, and whether the device's memory lies so far beyond what is `used` that it is told in words.
function reach(used, capacity) {
  const far = capacity > 3 * used;
  return { far, most: 1.06 * (far ? 1.3 * used : Math.max(used, capacity)) };
}
// Round values from low to high, some `n` of them.
function ticks(low, high, n) {
  const raw = (high - low) / Math.max(1, n), power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= raw * 0.999) || raw;
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k) out.push(k * step);
  return out;
}
function log_ticks(low, high) {
  const some = (factors) => {
    const out = [];
    for (let p = Math.floor(Math.log10(low)) - 1; p <= Math.log10(high) + 1; ++p)
      for (const f of factors) if (f * 10 ** p >= low * 0.999 && f * 10 ** p <= high * 1.001) out.push(f * 10 ** p);
    return out;
  };
  for (const factors of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]]) if (some(factors).length >= 3) return some(factors);
  return ticks(low, high, 8);
}

const fits = [];  // of all charts: what draws each at the width that it has
// A chart that is drawn anew, `draw(width)`, when its place gets another width.
function chart(draw) {
  const host = el("div", {});
  let width = 0;
  host.redraw = () => { if (width > 0) host.replaceChildren(draw(width)); };
  const fit = () => {
    const now = Math.floor(host.clientWidth);
    if (now > 0 && now !== width) { width = now; host.redraw(); }
  };
  fits.push(fit);
  new ResizeObserver(() => requestAnimationFrame(fit)).observe(host);
  return host;
}
// Seconds that a scale can be read in: all ticks in the unit of the largest.
function time_axis(most) {
  const [unit, size] = [["s", 1], ["ms", 1e-3], ["µs", 1e-6]].find(([, s]) => most >= s) || ["µs", 1e-6];
  return { unit, text: (t) => digits(t / size, 4) };
}

// The plan among the best layouts of other families: time against memory.
function family(pin) {
  const split = ["pipeline", "tensor", "context", "expert"].filter((a) => pin && pin[a] > 1);
  if (split.length) return split.join(" + ");
  return pin && pin.zero > 0 ? "data, sharded (ZeRO)" : "data";
}
const SHAPES = [
  (x, y) => `M${x - 5} ${y}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z`,
  (x, y) => `M${x - 4.5} ${y - 4.5}h9v9h-9z`,
  (x, y) => `M${x} ${y - 6}l5.5 10h-11z`,
  (x, y) => `M${x} ${y - 6}l6 6l-6 6l-6 -6z`,
  (x, y) => `M${x} ${y + 6}l5.5 -10h-11z`,
  (x, y) => `M${x - 6} ${y - 2}h4v-4h4v4h4v4h-4v4h-4v-4h-4z`,
];
const STAR = (x, y) => "M" + Array.from({ length: 10 }, (_, k) => { const r = k % 2 ? 4.2 : 10, a = (Math.PI * (k - 2.5)) / 5; return `${(x + r * Math.cos(a)).toFixed(1)} ${(y + r * Math.sin(a)).toFixed(1)}`; }).join("L") + "z";

function candidates_section() {
  const all = [
    { layout: plan.layout, pin: plan.pin, step_seconds: step, memory_bytes: Math.max(...predicted.memory_bytes), breakdown: predicted.breakdown, fits: predicted.fits, reason: predicted.fits === false ? "the plan, which does not fit" : "the plan", chosen: true },
    ...(plan.candidates || []), ...(plan.compared || []).map((c) => ({ ...c, named: true }))];
  const drawn = all.filter((c) => c.step_seconds > 0 && c.memory_bytes > 0);
  const families = [...new Set(drawn.map((c) => family(c.pin)))];
  const capacity = plan.stages[0].capacity_bytes;
  // Whatever is not slower takes more memory.
  const frontier = drawn.filter((c) => c.fits !== false).sort((a, b) => a.step_seconds - b.step_seconds || a.memory_bytes - b.memory_bytes)
    .reduce((kept, c) => (kept.length === 0 || c.memory_bytes < kept[kept.length - 1].memory_bytes ? [...kept, c] : kept), []);
  let picked = drawn[0];
  const detail = el("div", { id: "candidate", "aria-live": "polite" });
  const show = (c, from_keys) => {
    picked = c;
    const names = [...new Set([...Object.keys(c.breakdown || {}), ...Object.keys(predicted.breakdown)])];
    const rows = names.map((n) => [n, (c.breakdown || {})[n] || 0, predicted.breakdown[n] || 0]).filter(([n, a, b]) => n !== "total" && Math.max(a, b) > step * 5e-4).sort((a, b) => Math.abs(b[1] - b[2]) - Math.abs(a[1] - a[2]));
    detail.replaceChildren(...[el("h3", {}, (c.chosen ? "The plan: " : c.named ? c.like + ": " : "") + (c.layout || "")),
      el("p", {}, `${time(c.step_seconds)} a step, ${bytes(c.memory_bytes)} on the fullest device. `, el("strong", { class: c.fits === false ? "bad" : undefined }, c.chosen && c.fits !== false ? "The fastest that fits." : c.chosen ? "It does not fit, nor does any other that was looked at." : c.fits === false ? "Does not fit: " + (c.reason || "") : c.reason || "")),
      !c.chosen && c.breakdown && table(["part", ">this layout", ">the plan", ">difference"], rows.map(([n, a, b]) => [words(n), time(a), time(b), (a >= b ? "+" : "−") + time(Math.abs(a - b))]), { class: "narrow" })].filter(Boolean));
    for (const row of document.querySelectorAll("tr[data-pick]")) row.classList.toggle("picked", all[row.dataset.pick] === c);
    host.redraw();
    if (from_keys) host.querySelector(`[data-point="${drawn.indexOf(c)}"]`).focus();
  };
  const order = drawn.slice().sort((a, b) => a.step_seconds - b.step_seconds);
  const host = chart((width) => {
    const left = 58, right = width - 12, bottom = 300, height = bottom + 40;
    const low = Math.min(...drawn.map((c) => c.step_seconds)) / 1.06, high = Math.max(...drawn.map((c) => c.step_seconds)) * 1.06, { far, most } = reach(Math.max(...drawn.map((c) => c.memory_bytes)), capacity);
    const x = (t) => left + ((right - left) * Math.log(t / low)) / Math.log(high / low), y = (b) => bottom - ((bottom - 8) * b) / most, axis = time_axis(low);
    let last = -99;
    return svg("svg", { class: "chart", id: "candidates-chart", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "candidates: time of a step against memory; arrow keys go from one to the next" },
      log_ticks(low, high).map((t) => {
        const room = x(t) - last > 44;
        if (room) last = x(t);
        return [svg("line", { class: "grid", x1: x(t), x2: x(t), y1: 4, y2: bottom }), room && svg("text", { class: "soft", x: x(t), y: bottom + 16, "text-anchor": "middle" }, axis.text(t))];
      }),
      ticks(0, most, 6).map((b) => [svg("line", { class: "grid", x1: left, x2: right, y1: y(b), y2: y(b) }), svg("text", { class: "soft", x: left - 6, y: y(b) + 4, "text-anchor": "end" }, b ? bytes(b) : "0")]),
      svg("text", { class: "soft", x: right, y: bottom + 34, "text-anchor": "end" }, `${axis.unit} a step (logarithmic) →`), svg("text", { class: "soft", x: 0, y: bottom + 34 }, "↑ bytes of the fullest device"),
      !far && svg("line", { class: "limit", x1: left, x2: right, y1: y(capacity), y2: y(capacity) }),
      svg("text", { x: right - 4, y: far ? 16 : y(capacity) - 5, "text-anchor": "end" }, far ? `↑ the device has ${bytes(capacity)}` : "memory of the device"),
      frontier.length > 1 && svg("polyline", { points: frontier.map((c) => `${x(c.step_seconds)},${y(c.memory_bytes)}`).join(" "), fill: "none", stroke: "var(--soft)", "stroke-width": 1.5 }),
      order.slice().reverse().map((c) => {
        const px = x(c.step_seconds), py = y(c.memory_bytes), f = families.indexOf(family(c.pin)), at = order.indexOf(c);
        const text = `${c.chosen ? "the plan: " : c.named ? c.like + ": " : ""}${c.layout}\n${time(c.step_seconds)}, ${bytes(c.memory_bytes)}${c.chosen ? "" : "\n" + (c.reason || "")}`;
        const next = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
        return [svg("path", { d: (c.chosen ? STAR : SHAPES[f % SHAPES.length])(px, py), fill: colour(f), stroke: "var(--panel)", "stroke-width": 1, "data-point": drawn.indexOf(c), tabindex: c === picked ? 0 : -1, role: "button", "aria-pressed": String(c === picked), "aria-label": text, style: "cursor:pointer",
          onclick: () => show(c), onpointermove: (e) => tell(text, e.clientX, e.clientY), onpointerleave: hush, onblur: hush, onfocus: (e) => e.target.matches(":focus-visible") && tell_at(e.target, text),
          onkeydown: (e) => {
            if (e.key in next) { e.preventDefault(); show(order[clamp(at + next[e.key], 0, order.length - 1)], true); }
          } }),
          c === picked && svg("circle", { class: "picked-mark", cx: px, cy: py, r: 13 })];
      }));
  });
  show(picked);
  const rows = all.map((c, k) => el("tr", { "data-pick": k, class: c === picked ? "chosen picked" : undefined, onclick: () => drawn.includes(c) && show(c) },
    el("td", { class: "wide" }, (c.named ? c.like + ": " : "") + (c.layout || "")), el("td", { class: "n" }, c.step_seconds ? time(c.step_seconds) : "-"), el("td", { class: "n" }, c.memory_bytes ? bytes(c.memory_bytes) : "-"),
    el("td", { class: "wide" }, c.error || (c.fits === false && !c.chosen ? "does not fit: " : "") + (c.reason || ""))));
  return section("candidates", "Candidates", el("p", { class: "soft" }, "The plan (the star) and the best layout of each other family of axes. The line joins those that nothing beats in both. Choose one to see why it lost."),
    el("div", {}, host, legend(families.map((f, k) => el("li", {}, svg("svg", { width: 16, height: 14, "aria-hidden": "true" }, svg("path", { d: SHAPES[k % SHAPES.length](7, 8), fill: colour(k) })), " ", f)))), detail,
    el("details", { open: all.length <= 12 }, el("summary", {}, `All ${all.length} as a table`), table(["layout", ">step", ">memory", "why not"], rows, { class: "stacks" })));
}

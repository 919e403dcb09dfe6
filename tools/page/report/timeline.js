// The passes of a step, stage by stage, and what a stage keeps meanwhile: two charts over one stretch of time.
const steps = data.timeline;
const view = { from: 0, to: 1, at: null, charts: [] };  // seconds; `at`: of the cursor
const whole = steps.seconds;
view.to = whole;

function look(from, to) {
  const length = clamp(to - from, whole * 1e-4, whole);
  view.from = clamp(from, 0, whole - length);
  view.to = view.from + length;
  view.charts.forEach((c) => c.redraw());
}
function zoom(factor, around = (view.from + view.to) / 2) { look(around - (around - view.from) * factor, around + (view.to - around) * factor); }
function pan(share) { const by = (view.to - view.from) * share; look(view.from + by, view.to + by); }

// Of a stage: {kind, chunk, micro, start, end} in the order of time; what follows the last pass too, with its part.
const lanes = steps.events.map((flat, stage) => {
  const list = [];
  for (let k = 0; k < flat.length; k += 4)
    list.push({ stage, kind: flat[k] % 3, chunk: Math.floor(flat[k] / 3), micro: flat[k + 1], start: flat[k + 2] * steps.tick, end: (flat[k + 2] + flat[k + 3]) * steps.tick });
  const after = steps.after[stage];
  for (let k = 0; k < after.length; k += 3)
    list.push({ stage, kind: 3, part: steps.parts[after[k]], start: after[k + 1] * steps.tick, end: (after[k + 1] + after[k + 2]) * steps.tick });
  return list;
});

function pass_text(e) {
  const span = `${time(e.start)} to ${time(e.end)} (${time(e.end - e.start)})`;
  if (e.kind === 3) return `stage ${e.stage}, after the passes: ${words(e.part)}\n${span}`;
  const parts = ((plan.stages[e.stage].chunks[e.chunk] || {}).parts || {})[["forward", "backward", "weight"][e.kind]] || {};
  const told = Object.entries(parts).sort((a, b) => b[1] - a[1]).map(([n, s]) => `${words(n)} ${time(s)}`).join(", ");
  return `stage ${e.stage}, ${PASSES[e.kind]} of micro-batch ${e.micro}${steps.chunks > 1 ? `, chunk ${e.chunk}` : ""}\n${span}${told ? "\n" + told : ""}`;
}
function pass_at(stage, t) {
  const list = lanes[stage] || [];
  return list.find((e) => e.start <= t && t < e.end && e.kind !== 3) || list.find((e) => e.start <= t && t < e.end);
}

// Drag, wheel with the control key, pinch and keys, for a chart whose time runs from x = left to right.
function moving(node, left, right, on_point, on_key) {
  const fingers = new Map();
  const seconds = (e) => {
    const box = node.getBoundingClientRect();
    return view.from + (view.to - view.from) * clamp((e.clientX - box.left - left) / (right - left), 0, 1);
  };
  node.addEventListener("pointerdown", (e) => { fingers.set(e.pointerId, e.clientX); try { node.setPointerCapture(e.pointerId); } catch { /* gone */ } });
  node.addEventListener("pointermove", (e) => {
    if (!fingers.has(e.pointerId)) return on_point(e, seconds(e));
    const before = [...fingers.values()], last = fingers.get(e.pointerId);
    fingers.set(e.pointerId, e.clientX);
    if (fingers.size === 2) {
      const now = [...fingers.values()], spread = (p) => Math.max(8, Math.abs(p[0] - p[1]));
      zoom(spread(before) / spread(now), seconds({ clientX: (now[0] + now[1]) / 2 }));
    } else if (view.to - view.from < whole) {
      pan((last - e.clientX) / (right - left));
    } else {
      on_point(e, seconds(e));
    }
  });
  for (const end of ["pointerup", "pointercancel"]) node.addEventListener(end, (e) => fingers.delete(e.pointerId));
  node.addEventListener("pointerleave", () => { hush(); on_point(null); });
  node.addEventListener("blur", hush);
  node.addEventListener("dblclick", (e) => zoom(0.5, seconds(e)));
  node.addEventListener("wheel", (e) => {
    if (!e.ctrlKey && !e.metaKey && document.activeElement !== node) return;
    e.preventDefault();
    if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) pan(e.deltaX / (right - left));
    else zoom(Math.exp(e.deltaY * 0.002), seconds(e));
  }, { passive: false });
  node.addEventListener("keydown", (e) => {
    const does = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), 0: () => look(0, whole), Home: () => look(0, view.to - view.from), End: () => look(whole - view.to + view.from, whole) }[e.key]
      || (e.shiftKey && { ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25) }[e.key]) || on_key(e.key);
    if (!does) return;
    e.preventDefault();
    does();
  });
}
// A chart that is drawn anew keeps the keyboard.
function kept_focus(host) {
  const draw = host.redraw;
  host.redraw = () => {
    const had = host.contains(document.activeElement);
    draw();
    if (had && host.firstChild) host.firstChild.focus({ preventScroll: true });
  };
  view.charts.push(host);
  return host;
}

function time_scale(left, right, y, height) {
  const axis = time_axis(view.to - view.from), x = (t) => left + ((right - left) * (t - view.from)) / (view.to - view.from);
  return { x, drawn: ticks(view.from, view.to, (right - left) / 64).filter((t) => t <= view.to).map((t, k) => [
    svg("line", { class: "grid", x1: x(t), x2: x(t), y1: 0, y2: y }),
    svg("text", { class: "soft", x: Math.min(x(t), right - 8), y: height - 5, "text-anchor": "middle" }, axis.text(t) + (k === 0 ? " " + axis.unit : ""))]) };
}

function timeline_section() {
  const tall = lanes.length <= 4 ? 34 : lanes.length <= 16 ? 22 : lanes.length <= 32 ? 14 : 9, left = 30;
  const picked = { stage: 0, index: -1 };
  const host = kept_focus(chart((width) => {
    const bottom = lanes.length * tall, height = bottom + 24, right = width - 6, { x, drawn } = time_scale(left, right, bottom, height);
    const rows = lanes.map((list, stage) => {
      const paths = ["", "", "", ""], numbers = [];
      for (const e of list) {
        if (e.end < view.from || e.start > view.to) continue;
        const a = Math.max(left, x(e.start)), b = Math.min(right, x(e.end)), w = b - a > 3 ? b - a - 0.6 : Math.max(b - a, 0.35);
        paths[e.kind] += `M${a.toFixed(2)} ${stage * tall + 2}h${w.toFixed(2)}v${tall - 4}h${(-w).toFixed(2)}z`;
        if (w > 24 && tall > 16 && e.kind < 3) numbers.push(svg("text", { class: "on", x: a + w / 2, y: stage * tall + tall / 2 + 4, "text-anchor": "middle" }, e.micro));
      }
      return [lanes.length * tall <= 22 * lanes.length && tall < 12 && stage % 4 ? null : svg("text", { class: "soft", x: 0, y: stage * tall + tall / 2 + 4 }, stage),
        paths.map((d, kind) => d && svg("path", { d, fill: PASS_COLOURS[kind] })), numbers];
    });
    const chosen = lanes[picked.stage][picked.index], cursor = svg("line", { class: "cursor", x1: -9, x2: -9, y1: 0, y2: bottom });
    const node = svg("svg", { class: "chart", id: "timeline-chart", viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "application", "aria-roledescription": "timeline",
      "aria-label": "timeline of the step: left and right go from pass to pass, up and down from stage to stage, plus and minus zoom, shift with left and right pans, 0 shows the whole step" },
      drawn, rows, chosen && chosen.end > view.from && chosen.start < view.to && svg("rect", { class: "picked-mark", x: Math.max(left, x(chosen.start)), y: chosen.stage * tall + 1, width: Math.max(2, Math.min(right, x(chosen.end)) - Math.max(left, x(chosen.start))), height: tall - 2 }), cursor);
    moving(node, left, right, (e, t) => {
      cursor.setAttribute("x1", e ? x(t) : -9), cursor.setAttribute("x2", e ? x(t) : -9);
      if (!e) return;
      const stage = clamp(Math.floor((e.clientY - node.getBoundingClientRect().top) / tall), 0, lanes.length - 1), found = pass_at(stage, t);
      tell(found ? pass_text(found) : `stage ${stage} waits at ${time(t)}`, e.clientX, e.clientY);
    }, (name) => {
      const go = (stage, index) => () => {
        const list = lanes[stage];
        Object.assign(picked, { stage, index: clamp(index, 0, list.length - 1) });
        const e = list[picked.index], length = view.to - view.from;
        if (!e) return;
        if (e.start < view.from || e.end > view.to) look(e.start - length / 3, e.start + (2 * length) / 3);
        else host.redraw();
        const box = host.firstChild.getBoundingClientRect();
        tell(pass_text(e), box.left + clamp(left + ((right - left) * (e.start - view.from)) / (view.to - view.from), left, right), box.top + (stage + 1) * tall);
      };
      const beside = (stage) => {
        const now = lanes[picked.stage][picked.index], list = lanes[stage];
        return Math.max(0, now ? list.findIndex((e) => e.end > now.start) : 0);
      };
      return { ArrowRight: go(picked.stage, picked.index + 1), ArrowLeft: go(picked.stage, picked.index - 1),
        ArrowDown: () => { const s = Math.min(lanes.length - 1, picked.stage + 1); go(s, beside(s))(); }, ArrowUp: () => { const s = Math.max(0, picked.stage - 1); go(s, beside(s))(); } }[name];
    });
    return node;
  }));
  const used = new Set(lanes.flat().map((e) => e.kind)), all = steps.micro_batches >= steps.planned;
  const button = (text, title, does) => el("button", { type: "button", title, "aria-label": title, onclick: does }, text);
  return section("timeline", "Timeline",
    el("div", { class: "tools" }, button("+", "zoom in", () => zoom(0.5)), button("−", "zoom out", () => zoom(2)), button("◀", "earlier", () => pan(-0.25)), button("▶", "later", () => pan(0.25)), button("whole step", "show the whole step", () => look(0, whole)),
      el("span", { class: "soft" }, "Drag to pan; zoom with the buttons, control and the wheel, a double click, two fingers; or focus the chart and use the arrow keys, + and −.")),
    host, legend(PASSES.map((name, k) => used.has(k) && key(PASS_COLOURS[k], name)).filter(Boolean), key("transparent", "nothing: the stage waits")),
    el("p", { class: "soft" }, `${all ? steps.planned : `The first ${steps.micro_batches} of ${steps.planned}`} micro-batch${steps.planned === 1 ? "" : "es"}, ${time(whole)}`,
      steps.events.length < plan.stages.length && `; the first ${steps.events.length} of ${plan.stages.length} stages`, !all && ", as if the step ended with them", `; schedule ${plan.pin.schedule || "1f1b"}. Rows are stages; all ranks of a stage do the same.`));
}

// What is kept changes with the passes; all else is there all the time.
function memory_over_time_section() {
  let stage = Math.min(fullest, steps.held.length - 1);
  const left = 58;
  const kept_at = (t) => {
    const flat = steps.held[stage].at;
    let n = 0;
    for (let k = 0; k < flat.length && flat[k] * steps.tick <= t; k += 2) n = flat[k + 1];
    return n * steps.held[stage].each;
  };
  const host = kept_focus(chart((width) => {
    const s = plan.stages[stage], kinds = MEMORY.filter((m) => m !== "activations" && s.memory[m] > 0), bottom = 220, height = bottom + 24, right = width - 6;
    const { far, most } = reach(s.memory.total, s.capacity_bytes), y = (b) => bottom - ((bottom - 4) * b) / most, { x, drawn } = time_scale(left, right, bottom, height);
    let base = 0;
    const fixed = kinds.map((m) => {
      const from = base;
      base += s.memory[m];
      return svg("rect", { x: left, y: y(base), width: right - left, height: Math.max(0, y(from) - y(base)), fill: MEMORY_COLOURS[m] });
    });
    const points = [], flat = steps.held[stage].at, each = steps.held[stage].each;
    const to = (t, n) => points.push(`${clamp(x(t), left, right).toFixed(1)},${y(base + n * each).toFixed(1)}`);
    for (let k = 0, n = 0; k < flat.length; k += 2) {
      to(flat[k] * steps.tick, n);
      n = flat[k + 1];
      to(flat[k] * steps.tick, n);
    }
    const area = `${left},${y(base)} ${points.join(" ")} ${clamp(x(whole), left, right)},${y(base)}`;
    const cursor = svg("line", { class: "cursor", x1: -9, x2: -9, y1: 0, y2: bottom });
    const told = (t) => `stage ${stage} at ${time(t)}: ${bytes(base + kept_at(t))}\nactivations ${bytes(kept_at(t))}` + kinds.slice().reverse().map((m) => `\n${words(m)} ${bytes(s.memory[m])}`).join("");
    const node = svg("svg", { class: "chart", id: "memory-chart", viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": "memory over time: left and right move the cursor, plus and minus zoom, 0 shows the whole step" },
      drawn, ticks(0, most, 5).map((b) => [svg("line", { class: "grid", x1: left, x2: right, y1: y(b), y2: y(b) }), svg("text", { class: "soft", x: left - 6, y: y(b) + 4, "text-anchor": "end" }, b ? bytes(b) : "0")]),
      fixed, svg("polygon", { points: area, fill: MEMORY_COLOURS.activations }),
      far ? svg("text", { x: right - 4, y: 14, "text-anchor": "end" }, `↑ the device has ${bytes(s.capacity_bytes)}`)
        : svg("line", { class: "limit", x1: left, x2: right, y1: y(s.capacity_bytes), y2: y(s.capacity_bytes) }), cursor);
    const set = (t) => { cursor.setAttribute("x1", x(t)), cursor.setAttribute("x2", x(t)); };
    moving(node, left, right, (e, t) => {
      if (!e) { cursor.setAttribute("x1", -9), cursor.setAttribute("x2", -9); return; }
      set(t);
      tell(told(t), e.clientX, e.clientY);
    }, (name) => ({ ArrowRight: 0.02, ArrowLeft: -0.02 }[name] ? () => {
      view.at = clamp((view.at ?? view.from) + { ArrowRight: 0.02, ArrowLeft: -0.02 }[name] * (view.to - view.from), view.from, view.to);
      set(view.at);
      const box = node.getBoundingClientRect();
      tell(told(view.at), box.left + x(view.at), box.top + 30);
    } : null));
    return node;
  }));
  const choose = plan.stages.length > 1 && el("label", {}, "Stage ", el("select", { id: "memory-stage", onchange: (e) => { stage = Number(e.target.value); host.redraw(); } },
    steps.held.map((_, k) => el("option", { value: k, selected: k === stage }, k === fullest ? `${k}, the fullest` : String(k)))));
  const kinds = MEMORY.filter((m) => stage_memory.some((s) => s[m] > 0));
  return section("memory-time", "Memory over time", choose && el("div", { class: "tools" }, choose), host, legend(kinds.map((m) => key(MEMORY_COLOURS[m], words(m))), key("var(--bad)", "the device")),
    el("p", { class: "soft" }, "A rank's bytes over the same time as the timeline, which zooms with it. Activations come with each forward pass and go with the last pass that needs them; transient values are shown at their most."));
}

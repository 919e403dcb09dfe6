// The cards, where the time of a step goes, and memory against the devices.
const predicted = plan.predicted, step = predicted.step_seconds;
const rate = predicted.tokens_per_second || 0;
const unit_of_rate = Math.abs(rate * step - plan.global_batch) < 0.5 ? "samples" : "tokens";
const stage_memory = plan.stages.map((s) => s.memory);
const fullest = plan.stages.map((s) => s.memory.total - s.capacity_bytes).reduce((best, over, k, all) => (over > all[best] ? k : best), 0);

function quoted(word) { return /^[\w@%+=:,./~-]+$/.test(word) ? word : "'" + word.replace(/'/g, "'\\''") + "'"; }
function plan_command() {
  const given = plan.inputs || {};
  const say = (flag, value) => (value ? [flag, value] : []);
  if (!given.model) return [];
  return ["partita", "plan", given.model, ...say("--train", given.train), ...say("--cluster", given.cluster_path), ...say("--profiles", given.profiles),
    ...say("--precision", given.precision), ...(given.like || []).flatMap((v) => ["--like", v]), ...(given.pins || []).flatMap((v) => ["--pin", v]),
    ...say("--refine", given.refined)];
}
// "llama3_8b" of "…/llama3_8b/model.onnx".
function model_name() {
  const path = ((plan.inputs || {}).model || "a model").split("/").filter((w) => w && w !== "..");
  const file = path.pop();
  return file === "model.onnx" && path.length ? path.pop() : file.replace(/\.onnx$/, "");
}

function card(title, value, ...more) {
  const small = String(value).length > 16;
  return el("dl", { class: "card" + (small ? " wide" : ""), style: "margin:0" }, el("dt", {}, title), el("dd", { class: small ? "text" : undefined }, value), more.filter(Boolean).map((m) => el("dd", {}, m)));
}

function cards() {
  const units = plan.units || [], weights = sum(units.map((u) => u.count * u.parameters));
  const hour = predicted.price_per_hour || 0;
  const over = stage_memory[fullest].total / plan.stages[fullest].capacity_bytes;
  const each = rate * step;
  return el("div", { class: "cards", id: "cards" },
    card("Model", model_name(), weights > 0 && parameters(weights) + " parameters", predicted.model_flops > 0 && count(predicted.model_flops) + "FLOP a step"),
    card("Cluster", plan.hardware || plan.devices + " devices", plan.links, `${plan.devices} rank${plan.devices === 1 ? "" : "s"}`),
    card("Step time", time(step), `global batch ${plan.global_batch}, ${plan.micro_batches} micro-batch${plan.micro_batches === 1 ? "" : "es"} of ${plan.pin.micro_batch || 1} on each replica`),
    card(unit_of_rate === "tokens" ? "Tokens/s" : "Samples/s", count(rate), unit_of_rate === "tokens" && `${count(each)} tokens a step`, `${count(rate / plan.devices)} on each device`),
    card("MFU", percent(predicted.mfu || 0), "model FLOPs against the devices' peak"),
    card("Cost", hour > 0 ? dollars(hour) + " / h" : "no price", hour > 0 ? `${dollars((hour / 3600) * (1e12 / rate))} for 1T ${unit_of_rate}` : "the cluster file and its devices give none",
      hour > 0 && `${dollars((hour / 3600) * step)} a step`),
    card("Fullest device", bytes(stage_memory[fullest].total), `${percent(over)} of ${bytes(plan.stages[fullest].capacity_bytes)}` + (plan.stages.length > 1 ? `, stage ${fullest} of ${plan.stages.length}` : ""),
      predicted.fits !== false && over > 1 && "by the count, which its program is below",
      predicted.fits === false && el("span", { class: "bad" }, `does not fit: ${bytes(predicted.missing_bytes || 0)} missing`)),
    card("Search", `${plan.search.considered ?? 0} priced`, `${plan.search.unfit ?? 0} did not fit, ${plan.search.bounded ?? 0} groups bounded away` + (plan.search.laid_out ? `, ${plan.search.laid_out} laid out` : ""),
      `gap ${digits(100 * (plan.search.gap || 0), 2)} % of the cost model`));
}

// The program as it was laid out does not fit although its count does.
const refused = predicted.fits !== false && (predicted.program_bytes || []).some((b, k) => b > plan.stages[k].capacity_bytes - plan.stages[k].memory.reserve_assumed);

function head() {
  return [
    el("h1", {}, plan.layout),
    el("p", { class: "soft" }, `${model_name()} on ${plan.hardware || plan.devices + " devices"}. Page of ${data.made.date}.`),
    data.notes.map((n) => el("p", { class: "note" }, n)),
    predicted.fits === false && el("p", { class: "note" }, `It does not fit: ${bytes(predicted.missing_bytes || 0)} are missing on stage ${fullest}.`),
    refused && el("p", { class: "note" }, "Compile will refuse it: its program takes more than is counted, and more than the device has beside the reserve. The graph spells out what the cost model takes for one op; export that op in another way."),
    [plan_command(), data.made.command].filter((c) => c.length).map((c) => el("p", {}, el("code", {}, ["$", ...c].map((w) => [el("span", { class: "word" }, w === "$" ? w : quoted(w)), " "])))),
  ];
}

// Parts of the step, the largest first: one bar, and a table.
function breakdown_section() {
  const parts = Object.entries(predicted.breakdown).filter(([n, s]) => n !== "total" && s > 0).sort((a, b) => b[1] - a[1]);
  const shown = parts.filter(([, s]) => s > step * 5e-4), whole = Math.max(step, sum(parts.map((p) => p[1])));
  const strip = chart((width) => {
    let x = 0;
    return svg("svg", { class: "chart", viewBox: `0 0 ${width} 30`, role: "img", "aria-label": "share of each part in the step" },
      shown.map(([name, s]) => {
        const w = (width * s) / whole, at = x;
        x += w;
        const text = `${words(name)}: ${time(s)}, ${percent(s / step)}`;
        return [svg("rect", { x: at, y: 2, width: Math.max(0.5, w - 1), height: 26, fill: part_colour(name), onpointermove: (e) => tell(text, e.clientX, e.clientY), onpointerleave: hush }),
          w > 9 * name.length && svg("text", { class: "on", x: at + 5, y: 19 }, words(name))];
      }));
  });
  return section("step", "Step: where its time goes", strip,
    table(["part", ">time", ">of the step", ""], shown.map(([name, s]) => el("tr", {},
      el("td", {}, el("span", { class: "key", style: `background:${part_colour(name)}` }), words(name)), el("td", { class: "n" }, time(s)), el("td", { class: "n" }, percent(s / step)),
      el("td", { class: "wide" }, el("span", { class: "bar", style: `width:${(100 * s) / step}%;background:${part_colour(name)}` })))), { class: "bars" }),
    el("p", { class: "soft" }, `What binds: ${parts.length ? words(parts[0][0]) : "nothing"}.`,
      predicted.bubble_share > 0 && ` Devices wait for others of the pipeline ${percent(predicted.bubble_share)} of the step.`,
      predicted.gradient_collective && plan.pin.data > 1 && ` Gradient sums: ${predicted.gradient_collective}.`));
}

// Consecutive stages that are alike, as one.
function stage_runs() {
  const runs = [], like = (s) => JSON.stringify([s.device, s.capacity_bytes, s.memory, (plan.pin.stages || [])[plan.stages.indexOf(s)]]);
  plan.stages.forEach((s, k) => {
    if (runs.length && like(s) === like(plan.stages[runs[runs.length - 1].first])) runs[runs.length - 1].last = k;
    else runs.push({ first: k, last: k });
  });
  return runs;
}
const run_name = (r) => (r.first === r.last ? `stage ${r.first}` : `stages ${r.first}-${r.last}`);

function memory_section() {
  const runs = stage_runs(), kinds = MEMORY.filter((m) => stage_memory.some((s) => s[m] > 0));
  const { far, most } = reach(Math.max(...stage_memory.map((m) => m.total)), Math.max(...plan.stages.map((s) => s.capacity_bytes)));
  const program = predicted.program_bytes || [];
  const tall = runs.length > 24 ? 12 : 26;
  const bars = chart((width) => {
    const left = runs.length > 1 ? 92 : 8, right = width - 8, x = (b) => left + ((right - left) * b) / most, height = runs.length * tall + 30;
    return svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "memory of each stage against its device" },
      ticks(0, most, Math.max(2, width / 130)).map((t) => [svg("line", { class: "grid", x1: x(t), x2: x(t), y1: 0, y2: height - 22 }),
        svg("text", { class: "soft", x: clamp(x(t), 12, width - 26), y: height - 6, "text-anchor": "middle" }, t ? bytes(t) : "0")]),
      runs.map((r, row) => {
        const s = plan.stages[r.first];
        let at = 0;
        return [left > 20 && (tall > 12 || row % 2 === 0) && svg("text", { x: 0, y: row * tall + tall / 2 + 5 }, run_name(r)),
          kinds.map((m) => {
            const from = x(at), w = x(at + (s.memory[m] || 0)) - from;
            at += s.memory[m] || 0;
            const text = `${run_name(r)}, ${words(m)}: ${bytes(s.memory[m] || 0)}, ${percent((s.memory[m] || 0) / s.capacity_bytes)} of the device`;
            return w > 0.05 && svg("rect", { x: from, y: row * tall + 3, width: w, height: tall - 6, fill: MEMORY_COLOURS[m], onpointermove: (e) => tell(text, e.clientX, e.clientY), onpointerleave: hush });
          }),
          !far && ["halo", "limit"].map((c) => svg("line", { class: c, x1: x(s.capacity_bytes), x2: x(s.capacity_bytes), y1: row * tall, y2: row * tall + tall }))];
      }));
  });
  const rows = runs.map((r) => {
    const s = plan.stages[r.first], of = plan.stages.slice(r.first, r.last + 1), axes = (plan.pin.stages || [])[r.first] || plan.pin;
    const first = s.first_rank, last = of[of.length - 1];
    const busiest = Math.max(...of.map((one) => sum(one.chunks.map((c) => c.forward_seconds + c.backward_seconds + (plan.pin.schedule === "zero_bubble" ? c.weight_seconds : 0)))));
    const held = of.map((one) => sum(one.chunks.map((c) => c.units))), laid = program.slice(r.first, r.last + 1);
    return [run_name(r), s.device || "", first === undefined ? "" : `${first}-${last.first_rank + last.ranks - 1}`,
      ["data", "tensor", "context", "expert"].filter((a) => axes[a] > 1).map((a) => `${a} ${axes[a]}`).join(" x ") || "one rank",
      Math.min(...held) === Math.max(...held) ? String(held[0]) : `${Math.min(...held)} to ${Math.max(...held)}`, time(busiest), bytes(s.memory.total), bytes(s.capacity_bytes),
      laid.length ? bytes(Math.max(...laid)) : "-"];
  });
  const f = stage_memory[fullest], capacity = plan.stages[fullest].capacity_bytes;
  return section("memory", "Memory: each stage against its device", bars,
    legend(kinds.map((m) => key(MEMORY_COLOURS[m], words(m))), far ? key("transparent", `the device has ${bytes(plan.stages[fullest].capacity_bytes)}`) : key("var(--bad)", "the device")),
    el("details", { open: runs.length <= 4 }, el("summary", {}, plan.stages.length > 1 ? `The fullest, stage ${fullest}, by kind` : "By kind"),
      table(["kind", ">of a rank", ">of the device", ""], [...kinds].sort((a, b) => f[b] - f[a]).map((m) => el("tr", {},
        el("td", {}, el("span", { class: "key", style: `background:${MEMORY_COLOURS[m]}` }), words(m)), el("td", { class: "n" }, bytes(f[m])), el("td", { class: "n" }, percent(f[m] / capacity)),
        el("td", { class: "wide" }, el("span", { class: "bar", style: `width:${clamp((100 * f[m]) / capacity, 0, 100)}%;background:${MEMORY_COLOURS[m]}` })))), { class: "bars" })),
    el("details", { open: runs.length <= 4 }, el("summary", {}, "What each stage holds and does"),
      table(["stages", "device", "ranks", "axes", ">units", ">busy a micro-batch", ">memory", ">of", ">program as laid out"], rows)));
}

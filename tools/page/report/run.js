// Other hardware, and a run of the plan: what it measured, what it learned.
function what_if_section() {
  if (!data.what_if) {
    return section("what-if", "What if", el("p", {}, "What other hardware would change is searched with ", el("code", {}, "partita report --what-if"), " (the model has to be there)."));
  }
  const most = Math.max(...data.what_if.map((w) => w.step_seconds || 0)), now = data.what_if[0];
  return section("what-if", "What if", el("p", { class: "soft" }, "The plan searched anew under each change of the hardware."),
    table(["change", ">step", ">against now", "", "layout"], data.what_if.map((w, k) => (w.step_seconds
      ? el("tr", { class: k ? undefined : "chosen" }, el("td", { class: "wide" }, w.change), el("td", { class: "n" }, time(w.step_seconds)), el("td", { class: "n" }, k && now.step_seconds ? `${w.step_seconds > now.step_seconds ? "+" : ""}${(100 * (w.step_seconds / now.step_seconds - 1)).toFixed(1)} %` : "-"),
        el("td", { class: "wide drawn" }, el("span", { class: "bar", style: `width:${(100 * w.step_seconds) / most}%;background:${colour(k ? 0 : 2)}` })), el("td", { class: "wide" }, k && w.layout === now.layout ? "the same layout" : w.layout))
      : el("tr", {}, el("td", {}, w.change), el("td", { class: "n" }, "-"), el("td", { class: "n" }, "-"), el("td", {}), el("td", {}, w.note))))));
}

function measured_section() {
  return section("measured", "Predicted and measured", data.measured.groups.map((g) => {
    const most = Math.max(...g.rows.flatMap((r) => [r.predicted, r.measured]));
    const both = (r) => el("td", { class: "wide drawn" }, [[r.predicted, 0], [r.measured, 1]].map(([s, c]) => el("span", { class: "bar", style: `width:${(100 * s) / most}%;background:${colour(c)};margin:1px 0` })));
    return [el("h3", {}, g.of),
      el("p", { class: "soft" }, `${data.measured.trace}: ${g.training_steps} training steps`, g.ranks > 1 && `; of ${g.ranks} ranks, rank ${g.slowest_rank} works longest, ${time(g.slowest_work)} a step beside communication, the median rank ${time(g.median_work)}`, "."),
      table(["work", ">predicted", ">measured", ">ratio", ""], g.rows.map((r) => el("tr", {}, el("td", {}, r.work), el("td", { class: "n" }, time(r.predicted)), el("td", { class: "n" }, time(r.measured)), el("td", { class: "n" }, r.measured > 0 ? (r.predicted / r.measured).toFixed(2) : "-"), both(r)))),
      legend(key(colour(0), "predicted"), key(colour(1), "measured"))];
  }));
}

// Points of a training run: steps from 1, the loss of each (or the mean of some), evaluations.
function learning_section() {
  const l = data.learning, loss = l.points.filter((p) => p[1] !== null), evals = l.evaluations;
  const values = [...loss.map((p) => p[1]), ...evals.map((p) => p[1])], low = Math.min(...values), high = Math.max(...values), steps_taken = l.steps;
  const host = chart((width) => {
    const left = 44, right = width - 12, bottom = 240, height = bottom + 36, pad = (high - low || 1) * 0.05;
    const x = (s) => left + ((right - left) * s) / steps_taken, y = (v) => bottom - ((bottom - 6) * (v - low + pad)) / (high - low + 2 * pad || 1);
    const cursor = svg("line", { class: "cursor", x1: -9, x2: -9, y1: 0, y2: bottom });
    let at = loss.length - 1;
    const told = (k) => {
      const [s, v, lr, norm] = loss[k];
      return `step ${s}: loss ${digits(v)}${lr ? `\nlearning rate ${digits(lr, 3)}` : ""}${norm ? `\ngradient norm ${digits(norm, 3)}` : ""}`;
    };
    const put = (k) => { at = k; cursor.setAttribute("x1", x(loss[k][0])), cursor.setAttribute("x2", x(loss[k][0])); };
    const node = svg("svg", { class: "chart", id: "learning-chart", viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": `loss over ${steps_taken} steps, from ${digits(loss[0][1])} to ${digits(loss[loss.length - 1][1])}: left and right read its values`,
      onpointermove: (e) => {
        const s = ((e.clientX - node.getBoundingClientRect().left - left) / (right - left)) * steps_taken;
        put(loss.reduce((best, p, k) => (Math.abs(p[0] - s) < Math.abs(loss[best][0] - s) ? k : best), 0));
        tell(told(at), e.clientX, e.clientY);
      }, onpointerleave: () => { hush(); cursor.setAttribute("x1", -9), cursor.setAttribute("x2", -9); }, onblur: hush,
      onkeydown: (e) => {
        const by = { ArrowLeft: -1, ArrowRight: 1 }[e.key] * Math.max(1, Math.round(loss.length / 100));
        if (!by) return;
        e.preventDefault();
        put(clamp(at + by, 0, loss.length - 1));
        const box = node.getBoundingClientRect();
        tell(told(at), box.left + x(loss[at][0]), box.top + 30);
      } },
      ticks(0, steps_taken, width / 110).map((s) => [svg("line", { class: "grid", x1: x(s), x2: x(s), y1: 0, y2: bottom }), svg("text", { class: "soft", x: Math.min(x(s), right - 8), y: bottom + 16, "text-anchor": "middle" }, s)]),
      ticks(low, high, 5).map((v) => [svg("line", { class: "grid", x1: left, x2: right, y1: y(v), y2: y(v) }), svg("text", { class: "soft", x: left - 6, y: y(v) + 4, "text-anchor": "end" }, digits(v))]),
      svg("text", { class: "soft", x: right, y: bottom + 32, "text-anchor": "end" }, "step →"),
      svg("polyline", { points: loss.map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" "), fill: "none", stroke: colour(0), "stroke-width": 1.6 }),
      evals.map((p) => svg("circle", { cx: x(p[0]), cy: y(p[1]), r: 4, fill: colour(1) })), cursor);
    return node;
  });
  return section("learning", "Learning curve", host, legend(key(colour(0), l.every > 1 ? `loss, the mean of ${l.every} steps` : "loss of each step"), evals.length > 0 && key(colour(1), "loss of an evaluation")),
    el("p", { class: "soft" }, `${l.file}: ${steps_taken} steps; loss ${digits(loss[0][1])} at first, ${digits(loss[loss.length - 1][1])} at last`, l.rate > 0 && `; ${count(l.rate)} ${l.unit}/s, ${time(l.step_seconds)} a step (the medians)`, "."));
}

function proof_section() {
  const p = data.proof, c = p.counts;
  return section("proof", "Proof",
    el("p", {}, el("strong", {}, `Verified: ${p.ranks} rank${p.ranks === 1 ? "" : "s"}${p.programs > 1 ? ` in ${p.programs} stages` : ""}.`), ` ${c.values} values, ${c.states} states and ${c.outputs} outputs were derived from what the ranks run, through ${c.steps} steps and ${c.collectives} collectives.`),
    el("ul", {}, p.proved.map((text) => el("li", {}, text))),
    p.numeric && el("p", {}, `Run as well: ${p.numeric.steps} steps, ${p.numeric.tensors} tensors; the largest relative difference is ${digits(p.numeric.loss_error, 2)} of a loss and ${digits(p.numeric.tensor_error, 2)} of a tensor.`),
    el("p", { class: "soft" }, `${p.file}, which holds the hashes of ${p.files} files.`));
}

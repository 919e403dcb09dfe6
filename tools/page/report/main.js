// Puts the page together.
function units_section() {
  return section("model", "Model: its units", table(["unit", ">count", ">FLOP a sample", ">parameters", "tensor splits"], plan.units.map((u) => [
    u.name, u.count, count(u.forward_flops + u.backward_flops, 4), parameters(u.parameters), (u.tensor_split || "nothing") + (u.grouped_matrices > 0 ? `; experts: the rows of each of ${u.grouped_matrices} are multiplied together, no weights are copied` : "")])));
}
function words_section() {
  return section("words", "In words", el("details", {}, el("summary", {}, "What partita explain says of the plan"), el("pre", {}, data.explanation)));
}

function theme_button() {
  const dark = () => document.documentElement.dataset.theme === "dark";
  const set = (on) => {
    document.documentElement.dataset.theme = on ? "dark" : "light";
    button.textContent = on ? "light" : "dark";
    button.setAttribute("aria-label", `switch to ${button.textContent} colours`);
  };
  const button = el("button", { type: "button", onclick: () => set(!dark()) });
  const wish = matchMedia("(prefers-color-scheme: dark)");
  wish.addEventListener("change", () => set(wish.matches));
  set(wish.matches);
  return button;
}

document.title = plan.layout;
const theme = theme_button();
const sections = [breakdown_section(), memory_section(), timeline_section(), memory_over_time_section(), candidates_section(), what_if_section(), traffic_section(),
  data.measured && measured_section(), data.learning && learning_section(), data.proof && proof_section(), (plan.units || []).length > 0 && units_section(), words_section()].filter(Boolean);
document.getElementById("head").append(...head().flat().filter(Boolean));
document.getElementById("page").append(cards(), ...sections);
document.getElementById("head").after(el("nav", { "aria-label": "Sections" }, el("div", {}, el("ul", {}, sections.map((s) => el("li", {}, el("a", { href: "#" + s.id }, s.dataset.short)))), theme)));
addEventListener("beforeprint", () => {
  for (const d of document.querySelectorAll("details")) d.open = true;
  for (const fit of fits) fit();
});
addEventListener("keydown", (e) => { if (e.key === "Escape") hush(); });
addEventListener("scroll", hush, { passive: true });

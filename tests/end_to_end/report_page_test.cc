// The page of `report`: what it carries, and what a browser makes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <sstream>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/report_page.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

class ReportPage : public testing::Test {
 protected:
  void write_model(const std::string& sizes) {
    Outcome o = run_partita("model gpt " + sizes + " -o " + (out_ / "m.onnx"));
    ASSERT_EQ(o.code, 0) << o.text;
    out_.write("t.yaml", "optimizer: {kind: adamw}\nbatch: {global: 16}\nprecision: bf16\n");
  }
  // The page of a plan for the cluster.
  std::string page(const std::string& cluster, const std::string& pins, const std::string& flags = "") {
    out_.write("c.yaml", cluster);
    Outcome o = run_partita("plan " + (out_ / "m.onnx") + " --train " + (out_ / "t.yaml") + " --cluster " +
                            (out_ / "c.yaml") + " --quiet -o " + (out_ / "p.json") + " " + pins);
    EXPECT_EQ(o.code, 0) << o.text;
    o = run_partita("report " + (out_ / "p.json") + " -o " + (out_ / "r.html") + " " + flags);
    EXPECT_EQ(o.code, 0) << o.text;
    return TempFolder::read(out_ / "r.html");
  }

  TempFolder out_;
};

constexpr const char* kSmall = "--layers 8 --hidden 256 --heads 8 --vocab 1000 --seq 64";

// All that it needs is in it, and no other host is named but by the data.
void expect_self_contained(std::string page) {
  const size_t at = page.find("id=\"data\">"), end = page.find("</script>", at);
  ASSERT_NE(end, page.npos);
  const std::string around = page.substr(0, at) + page.substr(end);
  EXPECT_THAT(
      around,
      Not(testing::ContainsRegex("https?:|//[a-z]|(src|href)=\"[^#]|url\\(|@import|<link|fetch\\(|XMLHttp|import\\(")));
}

TEST_F(ReportPage, CarriesThePlanAndWhatFollowsFromIt) {
  write_model(kSmall);
  for (const auto& [pins, stages, kinds] :
       {std::tuple{"--pin tensor=2 --pin pipeline=2 --pin schedule=1f1b", 2, 2},
        std::tuple{"--pin pipeline=2 --pin schedule=zero_bubble", 2, 3}, std::tuple{"--like zero3", 1, 2}}) {
    SCOPED_TRACE(pins);
    const std::string text = page("nodes: 2\ndevices_per_node: 4\ndevice: A100-80GB\nprice_per_hour: 2\n", pins);
    EXPECT_LT(text.size(), 300000u);
    expect_self_contained(text);
    const Json data = page_data(text), plan = Json::parse(TempFolder::read(out_ / "p.json"));
    ASSERT_TRUE(data.is_object());
    EXPECT_EQ(data["plan"], plan);
    EXPECT_EQ(data["explanation"].get<std::string>(), run_partita("explain " + (out_ / "p.json")).text);
    EXPECT_THAT(data["made"]["date"].get<std::string>(), testing::MatchesRegex("20..-..-.. ..:.. UTC"));
    EXPECT_EQ(data["made"]["command"], Json({"partita", "report", out_ / "p.json", "-o", out_ / "r.html"}));
    // Every pass of every micro-batch of each stage, none before the one in front of it has ended, within the step.
    const Json& timeline = data["timeline"];
    ASSERT_EQ(timeline["events"].size(), static_cast<size_t>(stages));
    for (const Json& flat : timeline["events"]) {
      EXPECT_EQ(flat.size(), 4u * static_cast<size_t>(kinds) * plan["micro_batches"].get<size_t>());
      int64_t last = 0;
      for (size_t k = 0; k < flat.size(); k += 4) {
        EXPECT_GE(flat[k + 2].get<int64_t>(), last);
        last = flat[k + 2].get<int64_t>() + flat[k + 3].get<int64_t>();
      }
      EXPECT_LE(static_cast<double>(last) * timeline["tick"].get<double>(),
                timeline["seconds"].get<double>() * 1.00001);
    }
    EXPECT_NEAR(timeline["seconds"].get<double>() / plan["predicted"]["step_seconds"].get<double>(), 1, 1e-6);
    // At its fullest a stage keeps the activations that the plan counts, and none in the end.
    for (size_t s = 0; s < timeline["held"].size(); ++s) {
      const Json& held = timeline["held"][s];
      int64_t most = 0;
      for (size_t k = 1; k < held["at"].size(); k += 2) most = std::max(most, held["at"][k].get<int64_t>());
      EXPECT_NEAR(held["each"].get<double>() * static_cast<double>(most),
                  plan["stages"][s]["memory"]["activations"].get<double>(), 1);
      EXPECT_EQ(held["at"].back(), 0);
    }
  }
}

TEST_F(ReportPage, TextOfThePlanEndsNoElement) {
  write_model(kSmall);
  const std::string text = page("device: {like: A100-80GB, name: '</script><script>alert(1)//'}\n", "");
  EXPECT_THAT(text, Not(HasSubstr("</script><script>alert")));
  EXPECT_EQ(page_data(text)["plan"]["stages"][0]["device"], "</script><script>alert(1)//");
}

TEST_F(ReportPage, WhatIfsAreThoseOfExplain) {
  write_model(kSmall);
  const Json rows = page_data(page("devices_per_node: 2\ndevice: A100-80GB\n", "", "--what-if"))["what_if"];
  const std::string told = run_partita("explain --what-if " + (out_ / "p.json")).text;
  ASSERT_GT(rows.size(), 2u);
  for (const Json& row : rows) EXPECT_THAT(told, HasSubstr("  " + row["change"].get<std::string>())) << row;
  EXPECT_EQ(rows[0]["change"], "as it is");
  EXPECT_EQ(rows[0]["layout"], page_data(TempFolder::read(out_ / "r.html"))["plan"]["layout"]);
}

TEST_F(ReportPage, PagesOfADateAreTheSame) {
  write_model(kSmall);
  page("device: A100-80GB\n", "");
  auto again = [&] {
    const std::string report = "SOURCE_DATE_EPOCH=86400 " + partita_program() + " report " + (out_ / "p.json");
    EXPECT_EQ(run_command(report + " -o " + (out_ / "r.html")).code, 0);
    return TempFolder::read(out_ / "r.html");
  };
  const std::string first = again();
  EXPECT_EQ(page_data(first)["made"]["date"], "1970-01-02 00:00 UTC");
  EXPECT_TRUE(first == again());
}

// The cells of the page against counts by hand: 8 micro-batches of 256 positions of 1024 values. Sums over a tensor's
// ranks are of 2 bytes; gradients, and what crosses to the next stage, are sent as they are stored, in 4.
TEST_F(ReportPage, TheMatrixHasTheBytesOfThePlan) {
  write_model("--layers 8 --hidden 1024 --heads 8 --vocab 1000 --seq 256");
  const Json data =
      page_data(page("nodes: 2\ndevices_per_node: 4\ndevice: A100-80GB\n"
                     "links:\n  - {kind: nvlink3, group: 4}\n  - {kind: infiniband}\n",
                     "--pin data=2 --pin tensor=2 --pin pipeline=2 --pin zero=0 --pin micro_batch=1 "
                     "--pin sequence_parallel=false --pin recompute=none"));
  ASSERT_EQ(data["traffic"]["matrices"].size(), 1u);
  EXPECT_EQ(data["traffic"]["matrices"][0]["blocks"], 8);
  enum { kTensor = 2, kData = 5, kPipeline = 6 };  // columns of a cell, after from and to
  auto cell = [&](int from, int to) -> Json {
    for (const Json& c : data["traffic"]["matrices"][0]["cells"]) {
      if (c[0] == from && c[1] == to) return c;
    }
    return {};
  };
  auto alone = [&](int from, int to, int kind) {
    const Json c = cell(from, to);
    for (int k = 2; k < 7; ++k) {
      if (k != kind) {
        EXPECT_EQ(c[static_cast<size_t>(k)], 0) << from << " to " << to;
      }
    }
    return c[static_cast<size_t>(kind)].get<double>() / 1e6;
  };
  const double value = 256 * 1024 * 2 / 1e6, blocks = 4;
  // Two sums a block forward and two backward, and one of the split embedding; of two ranks each sends half twice.
  EXPECT_NEAR(alone(0, 1, kTensor), 8 * (blocks * 4 + 1) * value, 0.05);
  // The gradients of half of a stage's blocks, tokens and positions, four bytes each.
  EXPECT_NEAR(alone(0, 2, kData), 2 * (blocks * 12 * 1024 * 1024 + (1000 + 256) * 1024) / 1e6, 0.2);
  // A rank has half of what its tensor pair has, of the tied embedding as well, which the last stage reads as it is
  // stored.
  EXPECT_NEAR(alone(0, 4, kPipeline), 8 * value + 1000 * 1024 * 4 / 2e6, 0.01);
  EXPECT_TRUE(cell(0, 3).is_null());
}

std::string browser() {
  for (const char* name : {"chromium-headless-shell", "chromium"}) {
    if (run_command(cat("command -v ", name)).code == 0) return name;
  }
  return "";
}

// What stands in a frame around the page and looks at it, as JSON, when it is drawn.
constexpr const char* kLook = R"js(
const f = document.getElementById('f'), found = document.getElementById('found');
f.onload = () => setTimeout(() => {
  const d = f.contentDocument, w = f.contentWindow, by = (id) => d.getElementById(id);
  const press = (node, key) => node.dispatchEvent(new w.KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
  const numbers = (text) => {
    const n = text.match(/[\d.]+/g).map(Number), scale = text.startsWith('color(') ? 255 : 1;
    return [n[0] * scale, n[1] * scale, n[2] * scale, n[3] ?? 1];
  };
  const over = (a, b) => [0, 1, 2].map((k) => a[k] * a[3] + b[k] * (1 - a[3])).concat(1);
  const ground = (e) => {
    if (!e) return [255, 255, 255, 1];
    const own = numbers(w.getComputedStyle(e).backgroundColor);
    return own[3] === 1 ? own : over(own, ground(e.parentElement));
  };
  const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((a, v, k) => a + v * [0.2126, 0.7152, 0.0722][k], 0);
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  let worst = 99, worst_text = '';
  const weigh = (ink, paper, text) => { const c = contrast(over(ink, paper), paper); if (c < worst) { worst = c; worst_text = text; } };
  const fills = [...Array(8).keys()].map((k) => { const p = d.createElement('i'); p.style.color = `var(--c${k + 1})`; d.body.append(p); const c = numbers(w.getComputedStyle(p).color); p.remove(); return c; });
  for (const e of d.querySelectorAll('body *')) {
    const text = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.textContent.trim()).join('');
    if (!text || ['SCRIPT', 'NOSCRIPT', 'STYLE', 'OPTION'].includes(e.tagName.toUpperCase()) || e.getClientRects().length === 0) continue;
    const s = w.getComputedStyle(e);
    if (e instanceof w.SVGElement) (e.classList.contains('on') ? fills : [ground(e.closest('section'))]).forEach((paper) => weigh(numbers(s.fill), paper, text));
    else weigh(numbers(s.color), ground(e), text);
  }
  const tip = by('tip'), told = () => (tip.hidden ? '' : tip.textContent);
  const timeline = () => by('timeline-chart');
  timeline().focus(); press(timeline(), 'ArrowRight'); const first_pass = told();
  press(timeline(), 'ArrowRight'); const next_pass = told();
  const length = () => w.eval('view.to - view.from'), before = length();
  press(timeline(), '+'); press(timeline(), '+'); const zoomed = length() / before; const still = d.activeElement === timeline();
  press(timeline(), '0'); const back = length() / before;
  const memory = by('memory-chart'); memory.focus(); press(memory, 'ArrowRight'); const memory_told = told();
  const point = () => d.querySelector('#candidates-chart [tabindex="0"]');
  const plan_detail = by('candidate').textContent;
  point().focus(); press(point(), 'ArrowRight'); const other_detail = by('candidate').textContent;
  const matrix = by('matrix'); matrix.focus(); press(matrix, 'ArrowRight'); press(matrix, 'ArrowLeft'); const cell = told();
  found.textContent = JSON.stringify({
    width: d.documentElement.scrollWidth, title: d.title, head: d.querySelector('h1').textContent, back_colour: w.getComputedStyle(d.body).backgroundColor,
    clipped: [...d.querySelectorAll('.scroll, section, .card, header')].filter((e) => e.getClientRects().length && e.scrollWidth > e.clientWidth + 1).map((e) => e.textContent.slice(0, 60)),
    sections: [...d.querySelectorAll('section')].map((s) => s.id), links: [...d.querySelectorAll('nav a')].every((a) => d.querySelector(a.getAttribute('href'))),
    cards: Object.fromEntries([...d.querySelectorAll('.card')].map((c) => [c.querySelector('dt').textContent, c.querySelector('dd').textContent])),
    charts: [...d.querySelectorAll('svg.chart')].filter((c) => c.getClientRects().length).map((c) => c.querySelectorAll('rect, path, polyline, polygon').length),
    points: d.querySelectorAll('#candidates-chart [data-point]').length, cells: matrix.querySelectorAll('[data-told]').length, all_cells: matrix.querySelectorAll('[data-cell]').length,
    loads: w.performance.getEntriesByType('resource').length, worst, worst_text, first_pass, next_pass, zoomed, back, still, memory_told, plan_detail, other_detail, cell });
}, 400);
)js";

struct Seen {
  Json found;
  std::string complaints;  // of the browser's console
};

Seen look(const TempFolder& folder, const std::string& page, int width, bool dark) {
  std::string quoted;
  for (char c : page) quoted += c == '&' ? "&amp;" : c == '"' ? "&quot;" : std::string(1, c);
  folder.write("frame.html",
               cat("<!doctype html><meta charset=utf-8><body style=\"margin:0\"><pre id=found></pre><iframe id=f "
                   "style=\"border:0;height:900px;width:",
                   width, "px\" srcdoc=\"", quoted, "\"></iframe><script>", kLook, "</script>"));
  Outcome o = run_command(cat(browser(),
                              " --headless --no-sandbox --disable-gpu --hide-scrollbars "
                              "--window-size=1400,1000 --virtual-time-budget=5000 --enable-logging=stderr ",
                              dark ? "--blink-settings=preferredColorScheme=0 " : "", "--dump-dom file://",
                              folder / "frame.html", " 2>", folder / "console.txt"));
  Seen seen;
  std::istringstream lines(TempFolder::read(folder / "console.txt"));
  for (std::string line; std::getline(lines, line);) {
    if (line.find("CONSOLE") != line.npos) append(seen.complaints, line, "\n");
  }
  const std::string tag = "<pre id=\"found\">";
  const size_t at = o.text.find(tag), end = o.text.find("</pre>", at);
  if (at == o.text.npos || end == o.text.npos) return seen;
  std::string text = o.text.substr(at + tag.size(), end - at - tag.size());
  for (auto [code, mark] : {std::pair{"&lt;", "<"}, {"&gt;", ">"}, {"&amp;", "&"}}) {
    for (size_t k = 0; (k = text.find(code, k)) != text.npos; ++k) text.replace(k, std::string(code).size(), mark);
  }
  seen.found = Json::parse(text, nullptr, false);
  return seen;
}

TEST_F(ReportPage, IsDrawnOnPhonesAndDesksInLightAndDark) {
  if (browser().empty()) GTEST_SKIP() << "no chromium on this machine: apt-get install chromium-headless-shell";
  write_model(kSmall);
  for (auto [cluster, blocks] : {std::pair{"nodes: 2\ndevices_per_node: 4\ndevice: A100-80GB\n", 8},
                                 std::pair{"nodes: 16\ndevices_per_node: 4\ndevice: A100-80GB\n", 16}}) {
    const std::string text = page(cluster, "--pin tensor=2 --pin pipeline=2 --pin micro_batch=1 --compare ddp,zero3");
    const Json plan = page_data(text)["plan"];
    std::set<std::string> backs;
    for (int width : {390, 1280}) {
      for (bool dark : {false, true}) {
        SCOPED_TRACE(cat(blocks, " blocks, ", width, " pixels, ", dark ? "dark" : "light"));
        const Seen seen = look(out_, text, width, dark);
        EXPECT_EQ(seen.complaints, "");
        const Json& found = seen.found;
        ASSERT_TRUE(found.is_object());
        EXPECT_EQ(found["loads"], 0);
        EXPECT_LE(found["width"], width);
        EXPECT_EQ(found["clipped"], Json::array());
        EXPECT_EQ(found["head"], plan["layout"]);
        EXPECT_EQ(found["title"], plan["layout"]);
        EXPECT_EQ(found["sections"], Json({"step", "memory", "timeline", "memory-time", "candidates", "what-if",
                                           "communication", "model", "words"}));
        EXPECT_TRUE(found["links"].get<bool>());
        for (const char* card :
             {"Model", "Cluster", "Step time", "Tokens/s", "MFU", "Cost", "Fullest device", "Search"})
          EXPECT_TRUE(found["cards"].contains(card)) << card;
        EXPECT_EQ(found["cards"]["Cluster"], plan["hardware"]);
        for (const Json& shapes : found["charts"]) EXPECT_GT(shapes, 2);
        EXPECT_GE(found["charts"].size(), 6u);
        EXPECT_GE(found["points"], 1 + plan["candidates"].size());
        EXPECT_EQ(found["all_cells"], blocks * blocks);
        EXPECT_GT(found["cells"], blocks);
        EXPECT_GE(found["worst"], 4.5) << found["worst_text"];
        // By keys alone.
        EXPECT_THAT(found["first_pass"].get<std::string>(), HasSubstr("stage 0, forward of micro-batch 0"));
        EXPECT_THAT(found["first_pass"].get<std::string>(), HasSubstr("compute "));
        EXPECT_THAT(found["next_pass"].get<std::string>(), testing::ContainsRegex("^stage 0, .*of micro-batch "));
        EXPECT_NE(found["first_pass"], found["next_pass"]);
        EXPECT_NEAR(found["zoomed"].get<double>(), 0.25, 1e-6);
        EXPECT_NEAR(found["back"].get<double>(), 1, 1e-6);
        EXPECT_TRUE(found["still"].get<bool>());
        EXPECT_THAT(found["memory_told"].get<std::string>(), HasSubstr("activations "));
        EXPECT_THAT(found["plan_detail"].get<std::string>(), HasSubstr("The fastest that fits."));
        EXPECT_NE(found["plan_detail"], found["other_detail"]);
        EXPECT_THAT(found["other_detail"].get<std::string>(), testing::AnyOf(HasSubstr("slower"), HasSubstr("fit")));
        EXPECT_THAT(found["cell"].get<std::string>(), testing::ContainsRegex("^[0-9-]+ to [0-9-]+: "));
        backs.insert(found["back_colour"].get<std::string>());
      }
    }
    EXPECT_EQ(backs.size(), 2u);
  }
}

}  // namespace
}  // namespace partita

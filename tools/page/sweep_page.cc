#include "tools/page/sweep_page.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "fmt/format.h"
#include "partitioner/planner/report/missing.h"

namespace partita {
namespace {

// Without exponents where the number is large.
std::string plain(double v) { return v < 1000 ? fmt::format("{:.4g}", v) : fmt::format("{:.0f}", v); }

}  // namespace

std::string sweep_table(const Sweep& s, double tokens) {
  std::string text = fmt::format("{:>8} {:>10} {:>7}{} {:>9}{}  layout\n", "devices", "step s", "effic.",
                                 s.failures ? fmt::format(" {:>8}", "goodput") : "", "memory",
                                 tokens > 0 ? fmt::format(" {:>9} {:>12}", "days", "$") : "");
  for (size_t k = 0; k < s.rows.size(); ++k) {
    const SweepRow& r = s.rows[k];
    if (!r.best) {
      text += fmt::format("{:>8} {:>10} {}\n", r.devices, "-", r.note);
      continue;
    }
    const Prediction& p = r.best->prediction;
    text += fmt::format(
        "{:>8} {:>10.4g} {:>6.1f}%{} {:>9}{}  {}{}\n", r.devices, p.step_seconds, 100 * r.efficiency,
        s.failures ? fmt::format(" {:>7.1f}%", 100 * r.goodput) : "", gigabytes(p.most_memory()),
        tokens > 0 ? fmt::format(" {:>9} {:>12}", plain(r.days), r.dollars > 0 ? plain(r.dollars) : "-") : "",
        describe(r.best->layout), k == s.knee ? "   <- the knee" : "");
  }
  double most = 0;
  for (const SweepRow& r : s.rows) most = r.best ? std::max(most, 1 / r.best->prediction.step_seconds) : most;
  if (most > 0) text += "steps a second (logarithmic)\n";
  for (const SweepRow& r : s.rows) {
    if (!r.best) continue;
    double level = 1 + std::log2(1 / r.best->prediction.step_seconds / most) / 12;
    text += fmt::format("{:>8} {}\n", r.devices,
                        std::string(static_cast<size_t>(std::lround(60 * std::clamp(level, 0.02, 1.0))), '#'));
  }
  const bool planned = most > 0;
  const bool allocated = std::all_of(s.rows.begin(), s.rows.end(), [](const SweepRow& r) {
    return !r.best || !r.best->prediction.program_bytes.empty();
  });
  if (planned && allocated)  // `plan` begins with the count, which is another number
    text += "memory is that of the fullest stage's program, as compile lays it out, and the reserve\n";
  if (planned && !s.knee)
    text += fmt::format("no knee: throughput per device stays above {:.0f} % of the best\n", 100 * Sweep::kKnee);
  if (planned)
    text += fmt::format("{} are expected within {:.0f} % (docs/planning.md)\n",
                        tokens > 0 ? "times, days and $" : "times", 100 * s.band);
  return s.assumed.empty() ? text : cat(text, s.assumed, "\n");
}

std::string sweep_csv(const Sweep& s) {
  std::string text = "devices,step_seconds,low,high,efficiency,goodput,memory_bytes,days,dollars,layout\n";
  for (const SweepRow& r : s.rows) {
    if (!r.best) {
      text += fmt::format("{},,,,,,,,,\"{}\"\n", r.devices, r.note);
      continue;
    }
    double t = r.best->prediction.step_seconds;
    text += fmt::format("{},{:.6g},{:.6g},{:.6g},{:.4f},{:.4f},{:.0f},{:.5g},{:.6g},\"{}\"\n", r.devices, t,
                        t * (1 - s.band), t * (1 + s.band), r.efficiency, r.goodput, r.best->prediction.most_memory(),
                        r.days, r.dollars, describe(r.best->layout));
  }
  return text;
}

std::string sweep_svg(const Sweep& s, double tokens_per_step) {
  double low_x = 1e300, high_x = 0, low_y = 1e300, high_y = 0;
  for (const SweepRow& r : s.rows) {
    if (!r.best) continue;
    double rate = tokens_per_step / r.best->prediction.step_seconds;
    low_x = std::min(low_x, static_cast<double>(r.devices)), high_x = std::max(high_x, static_cast<double>(r.devices));
    low_y = std::min(low_y, rate / (1 + s.band)), high_y = std::max(high_y, rate / (1 - s.band));
  }
  std::string text =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 400\" font-family=\"sans-serif\" "
      "font-size=\"12\">\n<rect width=\"640\" height=\"400\" fill=\"#fff\"/>\n";
  if (high_x == 0) return text + "<text x=\"20\" y=\"30\">nothing fits</text></svg>\n";
  auto place = [](double v, double low, double high, double from, double to) {
    return high > low ? from + (to - from) * std::log(v / low) / std::log(high / low) : (from + to) / 2;
  };
  std::string line, points, over, under;
  for (const SweepRow& r : s.rows) {
    if (!r.best) continue;
    double rate = tokens_per_step / r.best->prediction.step_seconds;
    auto height = [&](double v) { return place(v, low_y, high_y, 340, 40); };
    double x = place(static_cast<double>(r.devices), low_x, high_x, 80, 600), y = height(rate);
    line += fmt::format("{:.1f},{:.1f} ", x, y);
    over += fmt::format("{:.1f},{:.1f} ", x, height(rate / (1 - s.band)));
    under = fmt::format("{:.1f},{:.1f} ", x, height(rate / (1 + s.band))) + under;
    const bool knee = s.knee && &r == &s.rows[*s.knee], left = x < 160;  // there is no room to the left of the first
    points += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\"><title>{} devices: {:.4g} s a step{}</title></circle><text "
        "x=\"{:.1f}\" "
        "y=\"{:.1f}\"{}>{}/s{}</text><text x=\"{:.1f}\" y=\"370\" text-anchor=\"middle\">{}</text>\n",
        x, y, knee ? 7 : 4, r.devices, r.best->prediction.step_seconds,
        r.days > 0 ? cat(", ", plain(r.days), " days", r.dollars > 0 ? cat(", $", plain(r.dollars)) : "") : "",
        left ? x + 8 : x - 8, left ? y + 14 : y - 8, left ? "" : " text-anchor=\"end\"", plain(rate),
        knee ? ", the knee" : "", x, r.devices);
  }
  // As many times the throughput as devices, from the first size on.
  const auto first = std::find_if(s.rows.begin(), s.rows.end(), [](const SweepRow& r) { return r.best.has_value(); });
  const double start = tokens_per_step / first->best->prediction.step_seconds;
  const double reach = std::min(high_x, low_x * high_y / start);
  text += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#888\" stroke-dasharray=\"4\"><title>as "
      "many "
      "times the throughput as devices</title></line>\n",
      place(low_x, low_x, high_x, 80, 600), place(start, low_y, high_y, 340, 40), place(reach, low_x, high_x, 80, 600),
      place(start * reach / low_x, low_y, high_y, 340, 40));
  return text +
         fmt::format(
             "<polygon points=\"{}{}\" fill=\"#36c\" fill-opacity=\"0.15\"/>\n<polyline points=\"{}\" fill=\"none\" "
             "stroke=\"#36c\" stroke-width=\"2\"/>\n{}<text x=\"340\" y=\"392\" "
             "text-anchor=\"middle\">devices</text><text "
             "x=\"10\" y=\"20\">tokens or samples a second; the band is the error to expect, {:.0f} %; dashed: as many "
             "times "
             "as devices</text></svg>\n",
             over, under, line, points, 100 * s.band);
}

}  // namespace partita

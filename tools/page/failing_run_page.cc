#include "tools/page/failing_run_page.h"

#include "absl/time/time.h"
#include "base/cat.h"
#include "fmt/format.h"

namespace partita {
namespace {

constexpr double kDay = 86400;

// "12.3 s", "4.5 min", "6.7 h", "8.9 days"
std::string duration(double seconds) {
  if (seconds < 120) return fmt::format("{:.3g} s", seconds);
  if (seconds < 2 * 3600) return fmt::format("{:.3g} min", seconds / 60);
  if (seconds < 2 * kDay) return fmt::format("{:.3g} h", seconds / 3600);
  return fmt::format("{:.1f} days", seconds / kDay);
}

std::string date(int64_t begin, double seconds) {
  return absl::FormatTime("%Y-%m-%d", absl::FromUnixSeconds(begin + static_cast<int64_t>(seconds)),
                          absl::UTCTimeZone());
}

}  // namespace

std::string failing_run_text(const FailingRun& run, const ExpectedRun& e, int64_t begin, double price_per_hour) {
  const FailingRun::Size& whole = run.sizes[0];
  const double rate = run.node_failures() * static_cast<double>(whole.nodes), total = e.times.total();
  std::string text = fmt::format("{:.0f} steps of {:.4g} s are {} on {} {}{}\n", run.steps, whole.step_seconds,
                                 duration(run.undisturbed()), whole.nodes, whole.nodes == 1 ? "node" : "nodes",
                                 run.spare_nodes > 0 ? fmt::format(" ({} more to spare)", run.spare_nodes) : "");
  if (rate <= 0) return cat(text, "nothing fails: failures: of the cluster has no rates\n");
  append(text, "something fails every ", duration(1 / rate), ", ", fmt::format("{:.1f}", e.failures), " times in all (",
         run.rates.source.empty() ? "rates of the cluster file" : run.rates.source, ")\n");
  append(text,
         fmt::format("checkpoints every {:.0f} steps ({}): training waits {} for each, and it is complete {} after\n",
                     e.interval, duration(e.interval * whole.step_seconds), duration(run.checkpoint_wait),
                     duration(run.checkpoint_write)));
  for (const auto& [name, time] : kRunTimes) {
    if (e.times.*time != 0)
      append(text, fmt::format("  {:<22} {:>10}  {:>6.2f} %\n", name, duration(e.times.*time),
                               100 * (e.times.*time) / total));
  }
  if (e.stragglers > 0) append(text, fmt::format("  {:.1f} slow nodes were found and replaced\n", e.stragglers));
  append(text, fmt::format("goodput {:.1f} %: {} in all, 9 of 10 runs between {} and {}\n", 100 * e.goodput(run),
                           duration(total), duration(e.low), duration(e.high)));
  append(text, fmt::format("begun on {}, done on {} ({} to {})\n", date(begin, 0), date(begin, total),
                           date(begin, e.low), date(begin, e.high)));
  if (price_per_hour > 0) {
    const double all = (price_per_hour + run.spares_per_hour) / 3600;
    append(text, fmt::format("${:.0f} (${:.0f} to ${:.0f}), ${:.0f} of them for what was not training\n", all * total,
                             all * e.low, all * e.high, all * (total - e.times.training)));
  }
  return text;
}

}  // namespace partita

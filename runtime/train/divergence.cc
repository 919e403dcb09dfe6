#include "runtime/train/divergence.h"

#include <cmath>
#include <numeric>

#include "base/cat.h"
#include "base/exit_code.h"
#include "fmt/format.h"

namespace partita::runtime {
namespace {

bool is_bad(const std::optional<double>& value) { return value && !std::isfinite(*value); }

// Whatever the sign of a nan.
std::string number_text(double value) { return std::isnan(value) ? "nan" : fmt::format("{}", value); }

std::string step_text(const StepMetrics& m) { return cat("step ", m.step, " (counted from 0)"); }

}  // namespace

bool DivergenceWatch::is_good(const StepMetrics& m) {
  return m.loss && std::isfinite(*m.loss) && !is_bad(m.grad_norm) && !m.skipped;
}

std::optional<Divergence> DivergenceWatch::look(const StepMetrics& m) {
  if (auto bad = nonfinite(m)) return bad;
  return spike(m);
}

std::optional<Divergence> DivergenceWatch::nonfinite(const StepMetrics& m) {
  skips_ = m.skipped ? skips_ + 1 : 0;
  const bool too_many = skips_ > kMostSkips, scaled = m.skipped && m.loss_scale;
  const bool overflow = is_bad(m.grad_norm) && (!scaled || too_many);
  if (!is_bad(m.loss) && !overflow) return std::nullopt;
  std::string what = step_text(m);
  if (is_bad(m.loss)) {
    append(what, ": the loss is ", number_text(*m.loss));
  } else {
    append(what, ": the norm of the gradients is ", number_text(*m.grad_norm));
    if (m.loss) append(what, fmt::format(", where the loss is {:.6g}", *m.loss));
  }
  if (scaled) append(what, fmt::format(", its scale {:g}", *m.loss_scale));
  if (too_many) append(what, ", and it was not finite in the ", skips_ - 1, " steps before");
  const bool skip = options_.on_nonfinite == DivergenceAction::kSkip;
  return Divergence{skip && (too_many || !m.skipped) ? DivergenceAction::kStop : options_.on_nonfinite, what,
                    /*nonfinite=*/true};
}

std::optional<Divergence> DivergenceWatch::spike(const StepMetrics& m) {
  if (!options_.spike || !m.loss || !std::isfinite(*m.loss)) return std::nullopt;
  const LossSpike& spike = *options_.spike;
  const size_t window = static_cast<size_t>(spike.window);
  const double mean =
      std::accumulate(losses_.begin(), losses_.end(), 0.0) / static_cast<double>(std::max<size_t>(1, losses_.size()));
  const bool known = losses_.size() == window && mean > 0;
  if (known && *m.loss > spike.factor * mean) {
    return Divergence{spike.action,
                      fmt::format("{}: the loss is {:.6g}, {:.3g} times the mean of the {} before it, {:.6g}",
                                  step_text(m), *m.loss, *m.loss / mean, window, mean)};
  }
  losses_.push_back(*m.loss);
  if (losses_.size() > window) losses_.pop_front();
  return std::nullopt;
}

void DivergenceWatch::restore(const std::vector<double>& losses) {
  losses_.assign(losses.begin(), losses.end());
  while (options_.spike && losses_.size() > static_cast<size_t>(options_.spike->window)) losses_.pop_front();
}

absl::Status diverged_error(const std::string& message) { return diverged_status(message); }

}  // namespace partita::runtime

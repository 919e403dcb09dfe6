#include "runtime/batch_ramp.h"

#include <algorithm>
#include <limits>

#include "base/cat.h"
#include "base/status.h"

namespace partita::runtime {

BatchRamp::BatchRamp(const std::vector<BatchPhase>& phases, Executor& own, Communicator* communicator, int threads)
    : own_(own), communicator_(communicator), threads_(threads) {
  for (const BatchPhase& p : phases) phases_.push_back({p.from, p.samples, &p.programs});
  if (phases_.empty()) phases_.push_back({0, own.program().samples_per_step, nullptr});
}

size_t BatchRamp::phase(int64_t step) const {
  size_t k = 0;
  while (k + 1 < phases_.size() && phases_[k + 1].from <= step) ++k;
  return k;
}

int64_t BatchRamp::end(int64_t step) const {
  const size_t k = phase(step);
  return k + 1 < phases_.size() ? phases_[k + 1].from : std::numeric_limits<int64_t>::max();
}

std::string BatchRamp::changes(int64_t step) const {
  std::string text;
  for (size_t k = phase(step) + 1; k < phases_.size(); ++k)
    append(text, "; ", phases_[k].samples, " samples from step ", phases_[k].from, " on");
  return text;
}

absl::StatusOr<int64_t> BatchRamp::end_of_data(int64_t first, const DataSource& source,
                                               const DataConfig& config) const {
  if (source.samples_per_epoch() == kUnlimited) return absl::InvalidArgumentError("the data have no end; say --steps");
  const int64_t all = source.samples_per_epoch() * std::max<int64_t>(config.epochs, 1);
  if (all < samples(first)) PARTITA_RETURN_IF_ERROR(source.check_steps(0, 1));
  int64_t left = std::max<int64_t>(0, all - config.sample_offset - first * samples(first));
  for (; left / samples(first) > end(first) - first; first = end(first)) left -= (end(first) - first) * samples(first);
  return first + left / samples(first);
}

absl::StatusOr<Executor*> BatchRamp::enter(int64_t step) {
  const size_t k = phase(step);
  if (k != now_) {
    other_.reset();
    if (const LoadedPrograms* programs = phases_[k].programs; programs != nullptr && !programs->empty()) {
      PARTITA_ASSIGN_OR_RETURN(
          other_, Executor::create(programs->of(own_.rank()), communicator_,
                                   {.threads = threads_, .states_of = &own_, .recorder = own_.recorder()}));
    }
    now_ = k;
  }
  return other_ != nullptr ? other_.get() : &own_;
}

}  // namespace partita::runtime

#include "runtime/train/divergence_guard.h"

#include <cstdio>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/communicate/exchanges.h"

namespace partita::runtime {

void DivergenceGuard::look_at(StepMetrics& m, Checkpointer* checkpoints) {
  if (rolled_back_to_) m.extra.emplace_back("rolled_back_to", static_cast<double>(*rolled_back_to_));
  rolled_back_to_.reset();
  if (divergence_) return;  // the ranks are still to learn of an earlier step
  divergence_ = watch_.look(m);
  if (!divergence_) {
    if (checkpoints == nullptr || !DivergenceWatch::is_good(m)) return;
    checkpoints->mark_good(m.step, cat("step ", m.step, " (counted from 0) was finite"));
    const int64_t newest = checkpoints->last_saved();
    if (newest > rolled_back_last_ && newest <= m.step) rollbacks_ = 0;  // there is another one to go back to
    return;
  }
  m.extra.emplace_back("diverged", 1);
  const bool skip = divergence_->action == DivergenceAction::kSkip;
  if (!skip && divergence_->action != DivergenceAction::kWarn) return;
  if (skip || !warned_)
    std::fprintf(stderr, "warning: %s; %s\n", divergence_->what.c_str(),
                 skip ? "the step is skipped" : "training goes on");
  warned_ = true;
  divergence_.reset();
}

int64_t DivergenceGuard::flag() const {
  if (!divergence_) return 0;
  return divergence_->action == DivergenceAction::kStop ? kStops : kRollsBack;
}

absl::StatusOr<std::optional<int64_t>> DivergenceGuard::bad_step(int64_t step, int64_t said, bool must_know) const {
  const bool alone = communicator_ == nullptr || communicator_->size() == 1;
  if (!alone && said != 0) return step - 1;
  if (!alone && !must_know) return std::nullopt;
  int64_t largest = flag();
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, {&largest, 1}, ReduceOp::kMax, "whether the step diverged"));
  return largest != 0 ? std::optional(step) : std::nullopt;
}

absl::StatusOr<DivergenceGuard::Verdict> DivergenceGuard::decide() {
  Verdict verdict;
  const bool last = divergence_ && rollbacks_ >= kMostRollbacks;
  if (divergence_) verdict.what = cat(divergence_->what, last ? cat(", after ", rollbacks_, " rollbacks") : "");
  PARTITA_RETURN_IF_ERROR(broadcast_text(communicator_, verdict.what, "what went wrong"));
  int64_t stops = flag() == kStops || last;
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, {&stops, 1}, ReduceOp::kMax, "whether the run ends"));
  verdict.stops = stops != 0;
  verdict.nonfinite = divergence_ && divergence_->nonfinite;
  divergence_.reset();
  return verdict;
}

void DivergenceGuard::rolled_back(int64_t step) {
  ++rollbacks_;
  rolled_back_last_ = step;
  rolled_back_to_ = step;
}

}  // namespace partita::runtime

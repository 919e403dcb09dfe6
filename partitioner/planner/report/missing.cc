#include "partitioner/planner/report/missing.h"

#include "base/cat.h"
#include "fmt/format.h"

namespace partita {

std::string gigabytes(double bytes) { return fmt::format("{:.1f} GB", bytes / 1e9); }

namespace {

std::string on_rank(const Candidate& c) {
  const Prediction& p = c.prediction;
  return cat(gigabytes(p.missing_bytes), " (", static_cast<int64_t>(p.missing_bytes), " bytes) too much on rank ",
             c.layout.first_rank(p.worst_stage), " (stage ", p.worst_stage, " of ", c.layout.pipeline, "): ");
}

}  // namespace

std::string explain_missing(const Candidate& c) {
  const Prediction& p = c.prediction;
  const size_t worst = static_cast<size_t>(p.worst_stage);
  if (!p.program_bytes.empty() && !p.fits)
    return cat(on_rank(c), "its program needs ", gigabytes(p.program_bytes[worst]), " of the ",
               gigabytes(p.room(worst)), " beside the reserve");
  const MemoryUse& m = p.memory[static_cast<size_t>(p.worst_stage)];
  std::string text =
      cat("needs ", gigabytes(m.total()), " of ", gigabytes(p.capacity[static_cast<size_t>(p.worst_stage)]),
          " (parameters ", gigabytes(m.parameters), ", gradients ", gigabytes(m.gradients), ", optimizer ",
          gigabytes(m.optimizer), ", activations ", gigabytes(m.activations), ", transient ", gigabytes(m.transient),
          ", reserve ", gigabytes(m.reserve),
          m.communicators > 0 ? cat(", more communicators ", gigabytes(m.communicators)) : "", ")");
  if (p.missing_bytes <= 0) return text;
  return cat(on_rank(c), text);
}

}  // namespace partita

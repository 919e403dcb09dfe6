#include "tests/partitioner/support/enumerated_space.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace partita {

double enumerate(const Problem& p, const std::function<bool(const Layout&, const Prediction&)>& allowed) {
  CostModel model(p);
  auto space = layout_space(p, {}, RecomputeMode::kAuto, std::nullopt);
  EXPECT_TRUE(space.ok());
  double best = 1e300;
  auto price = [&](Layout l) {
    if (!invalid(p, l).empty()) return;
    for (bool uneven : {false, true}) {
      if (uneven && (l.pipeline == 1 || l.interleave > 1)) continue;
      Layout x = l;
      if (uneven) x.cuts = model.balanced_cuts(x);
      Prediction r = model.predict(x, false);
      if (allowed(x, r)) best = std::min(best, r.step_seconds);
    }
  };
  Layout l;
  for (int64_t t : space->tensor)
    for (int64_t pp : space->pipeline)
      for (int64_t c : space->context)
        for (int64_t mb : space->micro_batch)
          for (int z : space->zero)
            for (bool sp : {false, true})
              for (RecomputeMode r : space->recompute)
                for (OffloadMode o : space->offload)
                  for (PipelineSchedule s : space->schedule)
                    for (int64_t v = 1; v <= 16; ++v) {
                      if (p.devices() % (t * pp * c) != 0 || (sp && t == 1)) continue;
                      if ((s == PipelineSchedule::kInterleaved) != (v > 1) && pp > 1) continue;
                      if (pp == 1 && (v > 1 || s != space->schedule.front())) continue;
                      l.tensor = t, l.pipeline = pp, l.context = c, l.data = p.devices() / (t * pp * c),
                      l.micro_batch = mb, l.zero = z;
                      if ((z > 0 && l.data * c == 1) || (z >= 2 && pp > 1)) continue;
                      l.sequence_parallel = sp, l.recompute = r, l.offload = o, l.schedule = s, l.interleave = v;
                      price(l);
                    }
  return best;
}

}  // namespace partita

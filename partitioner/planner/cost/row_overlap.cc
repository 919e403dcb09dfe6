// Products in parts of rows (partitioner/communicate/overlap_products.h). Of a collective in K parts all but one part
// can travel beside products, as far as these take so long:
//
//   gather 1 | gather 2 ·······|            waited for: a part, and what parts take beyond the products beside them
//            | product 1       | product 2
//
// Products are taken to stand evenly beside a unit's collectives.
#include <algorithm>

#include "partitioner/planner/cost/cost_model.h"

namespace partita {
namespace {

constexpr double kWorthParts = 5e-3;  // of the step
constexpr int64_t kParts[] = {2, 4};  // that are searched

}  // namespace

// Where the rows that a rank has of a value divide.
int64_t CostModel::row_parts(const Layout& l) const {
  const int64_t parts = l.row_parts();
  if (!problem_.own_programs || problem_.reproducible || l.tensor == 1) return 1;
  const double positions =
      problem_.workload->sequence / static_cast<double>(l.context * (l.sequence_parallel ? l.tensor : 1));
  const bool samples = l.micro_batch % parts == 0;
  return samples || std::llround(positions) % parts == 0 ? parts : 1;
}

void CostModel::hide_beside_products(const DeviceGroup& group, const Layout& l, const UnitTime& t, UnitCost& c) const {
  const double parts = static_cast<double>(row_parts(l)), share = share_beside(group);
  auto hide = [&](const std::vector<CollectiveUse>& list, double products, double& waited, double& hidden) {
    double all = 0, edge = 0;  // edge: a part of each
    for (const CollectiveUse& use : list) {
      if (use.kind != TrafficKind::kTensor) continue;
      const double part = use.times * collective_time(group, use.collective, use.axis, use.bytes / parts).seconds;
      all += parts * part, edge += part;
    }
    hidden = share * std::min(all - edge, products * (parts - 1) / parts);
    waited = all - hidden;
  };
  hide(c.forward_collectives, t.beside_forward, c.tensor_forward, c.hidden_forward);
  hide(c.backward_collectives, t.beside_backward, c.tensor_backward, c.hidden_backward);
}

std::optional<Layout> CostModel::with_products_in_parts(const Layout& l) {
  std::optional<Layout> best;
  const Prediction as_is = predict(l, false);
  double fastest = (1 - kWorthParts) * as_is.step_seconds;
  if (l.row_parts() > 1 || as_is.step_seconds - as_is.breakdown.tensor > fastest) return best;
  for (int64_t parts : kParts) {
    Layout cut = l;
    cut.overlap_products = parts;
    if (row_parts(cut) == 1) continue;
    const double seconds = predict(cut, false).step_seconds;
    if (seconds <= fastest) fastest = seconds, best = cut;
  }
  return best;
}

}  // namespace partita

#include "partitioner/planner/report/plan.h"

namespace partita {

std::vector<double> Plan::room() const {
  std::vector<double> room;
  if (!predicted.fits) return room;
  for (const Stage& s : stages) room.push_back(s.capacity - s.memory.reserve);
  return room;
}

size_t Plan::fullest_stage() const {
  auto over = [&](size_t s) { return stages[s].memory.total() - stages[s].capacity; };
  size_t worst = 0;
  for (size_t s = 1; s < stages.size(); ++s) {
    if (over(s) > over(worst)) worst = s;
  }
  return worst;
}

}  // namespace partita

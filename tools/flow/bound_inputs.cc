#include "tools/flow/bound_inputs.h"

#include "ir/graph/index_bounds.h"

namespace partita {

void bound_inputs(const Graph& serial, std::vector<runtime::Program>& programs) {
  const std::map<std::string, IndexBounds> bounds = index_bounds(serial);
  for (runtime::Program& program : programs) {
    for (runtime::ProgramInput& in : program.inputs) {
      if (auto at = bounds.find(in.name); at != bounds.end()) in.bounds = at->second;
    }
  }
}

}  // namespace partita

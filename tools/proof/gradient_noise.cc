#include "tools/proof/gradient_noise.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/cat.h"
#include "ir/graph/builder.h"

namespace partita {
namespace {

bool updates(const Node& node) { return node.segment == Segment::kReduce || node.segment == Segment::kUpdate; }

}  // namespace

GradientProbe probe_gradients(const Graph& serial) {
  GradientProbe probe;
  Rewriter r(serial);
  Builder& b = r.builder();
  std::map<ValueId, ValueId> noisy;  // by the serial graph's value
  const auto with_noise = [&](ValueId v) {
    const Node* made = v == kNoValue ? nullptr : serial.producer(v);
    if (made == nullptr || updates(*made) || made->segment == Segment::kPrologue || !is_float(serial.type(v).dtype))
      return r(v);
    if (!noisy.count(v)) {
      const std::string name = cat("noise ", probe.names.size());
      const ValueId noise = b.state(
          {.name = name, .kind = StateKind::kFrozen, .parameter = {}, .initial = InitialRule{}}, serial.type(v));
      noisy[v] = b.add(r(v), noise);
      b.output(cat("grad/", name), r(v));
      probe.names.push_back(name);
    }
    return noisy.at(v);
  };
  for (const Node& node : serial.nodes) {
    if (!updates(node)) {
      r.copy(node);
      continue;
    }
    r.at(node);
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) inputs.push_back(v == kNoValue ? v : with_noise(v));
    const std::vector<ValueId> outputs = b.emit_all(node.op->name, std::move(inputs), node.attrs);
    for (size_t k = 0; k < outputs.size(); ++k) r.replace(node.outputs[k], outputs[k]);
  }
  probe.graph = std::move(r).finish();
  return probe;
}

std::vector<double> gradient_noise(const std::vector<double>& gradient, const std::vector<double>& other,
                                   int64_t columns) {
  std::vector<double> noise(gradient.size(), 0);
  for (size_t from = 0; from < gradient.size(); from += static_cast<size_t>(columns)) {
    const size_t to = std::min(gradient.size(), from + static_cast<size_t>(columns));
    double sum = 0;
    for (size_t k = from; k < to; ++k) sum += (gradient[k] - other[k]) * (gradient[k] - other[k]);
    const double off = std::sqrt(sum / static_cast<double>(to - from));
    for (size_t k = from; k < to; ++k) noise[k] = gradient[k] == 0 && other[k] == 0 ? 0 : off;
  }
  return noise;
}

}  // namespace partita

#include "tools/verify/layout/affine_index.h"

#include <cstdlib>
#include <utility>

namespace partita::verifier {
namespace {

constexpr int64_t kLargest = int64_t{1} << 40;

Affine sum(const Affine& a, const Affine& b) {
  Affine out = a;
  out.constant += b.constant;
  out.micro += b.micro;
  out.run += b.run;
  for (auto [axis, factor] : b.axes) out.axes[axis] += factor;
  return out;
}

Affine scaled(const Affine& a, int64_t by) {
  Affine out = a;
  out.constant *= by;
  out.micro *= by;
  out.run *= by;
  for (auto& [axis, factor] : out.axes) factor *= by;
  return out;
}

bool is_small(const Affine& a) {
  bool small = std::abs(a.constant) < kLargest && std::abs(a.micro) < kLargest && std::abs(a.run) < kLargest;
  for (auto [axis, factor] : a.axes) small = small && std::abs(factor) < kLargest;
  return small;
}

}  // namespace

int Affine::axis() const {
  bool alone = constant == 0 && micro == 0 && run == 0 && axes.size() == 1 && axes.begin()->second == 1;
  return alone ? axes.begin()->first : -1;
}

std::optional<Affine> combined(std::string_view op, const Affine& a, const Affine& b, const MicroSlices& slices) {
  std::optional<Affine> out;
  if (op == "add") {
    out = sum(a, b);
  } else if (op == "mul" && (a.is_constant() || b.is_constant())) {
    out = a.is_constant() ? scaled(b, a.constant) : scaled(a, b.constant);
  } else if (op == "div" || op == "mod") {
    bool index = a.micro == 1 && a.run == 0 && a.constant == 0 && a.axes.empty();
    if (!index || !b.is_constant() || b.constant != slices.count || slices.axis < 0) return std::nullopt;
    out = op == "div" ? Affine{0, 0, 1, {}} : Affine{0, 0, 0, {{slices.axis, 1}}};
  }
  return out && is_small(*out) ? out : std::nullopt;
}

int IndexValues::first_along(ValueId v) const {
  auto at = first_along_.find(v);
  return at == first_along_.end() ? -1 : at->second;
}

bool IndexValues::visit(const Node& node) {
  if (node.outputs.size() != 1 || node.inputs.size() != 2) return false;
  if (node.inputs[0] == kNoValue || node.inputs[1] == kNoValue) return false;
  ValueId out = node.outputs[0];
  const auto &a = affine_[node.inputs[0]], &b = affine_[node.inputs[1]];
  if (!a || !b || g_.type(out).rank() != 0) return false;
  if (node.op->name == "eq") {
    if (a->axis() < 0 || !b->is_constant() || b->constant != 0) return false;
    first_along_[out] = a->axis();
    return true;
  }
  auto result = combined(node.op->name, *a, *b, slices_);
  if (!result || g_.type(out).dtype != DType::kI64) return false;
  affine_[out] = std::move(result);
  return true;
}

}  // namespace partita::verifier

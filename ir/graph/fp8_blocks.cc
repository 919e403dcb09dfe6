#include "ir/graph/fp8_blocks.h"

#include <algorithm>

#include "ir/graph/storage.h"

namespace partita {
namespace {

// Takes the last of `dims_left` dimensions whose sizes are `count` elements together: the elements of a block among
// them, which must be the innermost; nullopt where there are none such.
std::optional<int64_t> take(const Shape& shape, const std::vector<int64_t>& dims, size_t& dims_left, int64_t count) {
  int64_t taken = 1, block = 1;
  for (bool inside = true; dims_left > 0 && taken < count; --dims_left) {
    const int64_t size = shape[dims_left - 1];
    if (size == 1) continue;
    const bool blocked = std::find(dims.begin(), dims.end(), static_cast<int64_t>(dims_left - 1)) != dims.end();
    if (blocked && !inside) return std::nullopt;
    inside = blocked;
    taken *= size;
    if (blocked) block *= size;
  }
  return taken == count ? std::optional(block) : std::nullopt;
}

}  // namespace

std::optional<Fp8Block> fp8_block(const Shape& shape, const std::vector<int64_t>& dims, int64_t columns) {
  const int64_t count = elements(shape);
  if (columns < 1 || count == 0 || count % columns != 0) return std::nullopt;
  size_t left = shape.size();
  const std::optional<int64_t> across = take(shape, dims, left, columns);
  const std::optional<int64_t> down = across ? take(shape, dims, left, count / columns) : std::nullopt;
  return down ? std::optional(Fp8Block{*down, *across}) : std::nullopt;
}

BlockedShape in_blocks(const Shape& shape, const std::vector<int64_t>& dims, int64_t block) {
  BlockedShape out;
  for (size_t d = 0; d < shape.size(); ++d) {
    const bool blocked = std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end();
    out.shape.push_back(blocked ? shape[d] / block : shape[d]);
    if (!blocked) continue;
    out.dims.push_back(static_cast<int64_t>(out.shape.size()));
    out.shape.push_back(block);
  }
  return out;
}

std::map<ValueId, Fp8Rounding> fp8_roundings(const Graph& graph, const Graph& now, const std::vector<ValueId>& became) {
  const auto storage = [&](ValueId v) {
    v = became[static_cast<size_t>(v)];
    return v == kNoValue ? v : storage_of(now, v);
  };
  std::map<ValueId, Fp8Rounding> found;
  for (const Node& node : graph.nodes) {
    if (node.op->name != "round_to_fp8") continue;
    const ValueId result = storage(node.outputs[0]);
    const ValueId of = storage(node.inputs[0]);
    if (result == kNoValue || of == kNoValue) continue;
    found[result] = {in_blocks(graph.type(node.inputs[0]).shape, node.attrs.ints("dims"), node.attrs.i("block")), of,
                     node.attrs.s("format")};
  }
  return found;
}

}  // namespace partita

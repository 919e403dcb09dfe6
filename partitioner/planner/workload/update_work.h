// Products of matrices in the update (Muon's), and what a split of the parameter makes of them.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// The axes that a parameter may lie along in its update.
enum class UpdateAxis : uint8_t { kTensor, kShards };
inline constexpr size_t kUpdateAxes = 2;

struct UpdateProduct {
  double m = 1, n = 1, k = 1, element_bytes = 4;
  std::array<bool, kUpdateAxes> divided = {};  // by UpdateAxis
  double count = 1;
};

// Values that an axis' ranks gather, or sum up: the size of each in bytes -> how many.
struct UpdateMoves {
  std::map<double, double> gathered, summed;
};

struct UpdateWork {
  std::vector<UpdateProduct> products;
  std::array<UpdateMoves, kUpdateAxes> moves;  // by UpdateAxis

  // Of another parameter beside it. Equal work is counted, not listed again.
  void operator+=(const UpdateWork& other);
};

// The update's nodes behind each parameter whose update multiplies matrices.
class UpdateProducts {
 public:
  explicit UpdateProducts(const Graph& graph);

  bool multiplies(ValueId parameter) const { return nodes_.contains(parameter); }

  // `dims`: of each axis, the parameter's dimension that it splits; -1: none. Each axis is taken by itself, and what
  // localize() makes of the nodes is counted.
  UpdateWork work(ValueId parameter, const std::array<int, kUpdateAxes>& dims) const;

 private:
  const Graph& graph_;
  std::map<ValueId, std::vector<NodeId>> nodes_;  // by parameter, in the graph's order
};

}  // namespace partita

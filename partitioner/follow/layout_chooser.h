// How an axis splits a model's parameters and inputs: a choice among the factors that propagate through the
// forward graph (factor_propagation.h). Megatron's layout of a transformer is what comes out; nothing here knows of
// transformers.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/mesh/mesh.h"
#include "ir/mesh/sharding.h"
#include "partitioner/follow/factor_propagation.h"

namespace partita {

// What an axis may split.
enum class AxisRole {
  kTensor,    // features, heads, vocabulary, channels: what parameters have and data has not
  kSequence,  // positions of the data
  kExpert,    // experts: parameters one for each, batched
};

// A factor that an axis was given to split, and what it is worth.
struct ChosenFactor {
  int axis = 0;
  int64_t size = 0;             // the most ranks that can divide it
  std::vector<ValueId> values;  // that have it, ascending
  size_t nodes = 0;             // of the forward graph, that work on a part each
  double flops = 0;             // of these, before the split
  double moved_bytes = 0;       // forward and backward
  int64_t parameter_elements = 0;
};

class LayoutChooser {
 public:
  // `sample_parts`: into which ranks and micro-batches divide the samples of a run of the graph. What is computed and
  // moved at a time is divided by them; what a rank has of parameters is not.
  LayoutChooser(const Graph& graph, const Mesh& mesh, int64_t sample_parts)
      : graph_(graph), mesh_(mesh), propagation_(graph), sample_parts_(static_cast<double>(sample_parts)) {}

  // Splits over `axis` whatever divides most work for the bytes it moves, piece by piece, each node at most once. Goes
  // on from what other axes split. An axis of size 1 stands for one of any size: what some number of ranks could divide
  // is chosen. Where it may not `gather`, it leaves what would have to be gathered for some reader.
  // `allowed`: which factors it may take; empty: all. Returns the share of the forward graph's operations that the axis
  // divides.
  double choose(int axis, AxisRole role, bool gather = true,
                const std::function<bool(const PropagatedFactor&)>& allowed = {});

  // The chosen sharding of a value; unsplit where nothing was chosen.
  Sharding sharding(ValueId v) const;
  // The chosen factors that a value has, and the size of each: the most ranks that can divide it.
  const std::vector<size_t>& factors_of(ValueId v) const;
  int64_t size(size_t factor) const { return factors_[factor].size; }
  const std::vector<ChosenFactor>& factors() const { return factors_; }
  // What one rank does under all axes chosen for: forward operations, and gathered bytes as what could be done
  // meanwhile.
  double cost() const;

 private:
  std::vector<PropagatedFactor> candidates(AxisRole role, int64_t n) const;
  bool fits(const PropagatedFactor& factor, int axis) const;
  void take(const PropagatedFactor& factor, int axis);

  const Graph& graph_;
  const Mesh& mesh_;
  FactorPropagation propagation_;
  double sample_parts_;
  std::map<ValueId, Sharding> chosen_;
  std::map<ValueId, std::vector<size_t>> factors_of_;
  std::vector<ChosenFactor> factors_;
  std::map<NodeId, int64_t> ways_;  // into how many parts a node's work is divided
  double gathered_bytes_ = 0;
};

// Puts `more` (split along axis 0 of a mesh of its own) on top of `base` as mesh axis `axis`, inside of what splits the
// same piece. False where the pieces do not nest or do not divide.
bool add_axis(Sharding& base, const Sharding& more, int axis, const Mesh& mesh);

}  // namespace partita

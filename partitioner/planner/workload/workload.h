// What a training graph asks of the devices: the graph cut at its blocks into units, each unit's work per
// sample as contractions, attention, bytes moved, parameters, values kept for backward, and the communication that a
// split over the tensor axis costs. Everything is read off formulas: no model or operator names.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/fp8_product.h"
#include "ir/graph/graph.h"
#include "ir/recipe/recipe.h"
#include "partitioner/planner/workload/crossing_values.h"
#include "partitioner/planner/workload/update_work.h"

namespace partita {

// A bit for each RecomputeMode under which something of the forward part is computed again.
using RecomputeModes = unsigned;
constexpr RecomputeModes mode_bit(RecomputeMode mode) { return 1u << static_cast<unsigned>(mode); }

// One contraction C[batch, m, n] += A[batch, m, k] B[batch, k, n] per sample, `count` times.
struct MatrixWork {
  double batch = 1, m = 1, n = 1, k = 1;
  char scaled = 'm';      // the size that grows with the number of samples: b, m, n or k
  char split = 0;         // the size that the tensor axis divides; 0: none
  bool expert = false;    // batch is experts: the expert axis divides it
  bool weight = true;     // B (or A) is a parameter
  double channels = 0;    // of the result, where it is a sum over windows (a convolution or its gradient); else 0
  double plane = 0;       // then: positions that the result has for each channel of a sample,
  bool strided = false;   // and whether windows move on by several of them
  bool of_heads = false;  // makes or takes heads of an attention that the tensor axis divides
  bool fp8 = false;       // of fp8 numbers, where the precision is fp8
  bool shares = false;    // what it reads beside the parameter is an earlier product's too
  double count = 1;
  RecomputeModes again = 0;  // of forward's

  double flops() const { return 2 * batch * m * n * k * count; }
};

struct AttentionWork {
  double heads = 1, queries = 1, keys = 1, head_size = 1;
  double key_heads = 1;                          // heads that keys and values have
  double forward_flops = 0, backward_flops = 0;  // hidden pairs are not counted where the op is causal
  double full_share = 1;                         // visited pairs / all pairs; 1: every query reads all keys
  bool split = false;                            // heads over the tensor axis,
  int64_t split_heads = 1, split_key_heads = 1;  // these: of queries, of keys
  double count = 1;
  RecomputeModes again = 0, operands_again = 0;

  // Ranks of a tensor axis that have heads of their own: it divides the keys' heads, then the queries' of each, as far
  // as they go into it. Groups of so many do the same work.
  double ranks(double tensor) const;
};

// [0]: divided by the tensor axis; [1]: not.
using TensorParts = std::array<double, 2>;

// Per sample, in elements unless said otherwise. "Float" elements take the size of the compute precision.
struct UnitWork {
  std::string name;  // "block 0", "before the blocks", …
  std::vector<MatrixWork> matrices;
  std::vector<AttentionWork> attention;
  std::vector<MatrixWork> input_gradients, weight_gradients;
  TensorParts forward_traffic = {0, 0}, backward_traffic = {0, 0};  // of fused elementwise kernels, norms, losses
  TensorParts copied = {0, 0};  // results of layout changes: software run op by op writes them
  double forward_kernels = 0, backward_kernels = 0;
  std::array<double, kRecomputeModes> again_traffic{};  // what of forward's is computed again, as a share of it
  TensorParts parameters = {0, 0};
  double expert_parameters = 0;
  // Of weights that are not trained: elements; bytes that the graph holds, copies in 16 bits among them.
  TensorParts frozen = {0, 0}, frozen_bytes = {0, 0};
  TensorParts saved = {0, 0};        // float values kept for backward
  TensorParts saved_bytes = {0, 0};  // others (indices, masks), in bytes
  TensorParts composed = {0, 0};     // results of ops that frameworks run as chains of single operations
  double input = 0;                  // float values that come from earlier units
  // Of a program compiled here, in bytes: what it keeps for backward under each mode of recomputation but full, and
  // takes from earlier units; of the parameters, elements that it reads as they are stored, not in the compute
  // precision (program_memory.h).
  std::array<TensorParts, kRecomputeModes> kept{};
  double input_bytes = 0;
  TensorParts read_as_stored = {0, 0};
  TensorParts tied = {0, 0};  // elements of trained parameters that an earlier unit has
  double largest = 0;         // the largest float value that is made here
  bool largest_split = false;
  std::vector<double> forward_reduces, backward_reduces;  // partial sums over the tensor axis, each a collective
  std::vector<double> batch_reduces;  // f32 sums over all samples of a batch, each a collective and one in backward
  double expert_tokens = 0;           // elements of the tokens that experts choose from
  double chosen = 0;                  // matrices that rows choose from, multiplied without copies of them; 0: none
  // Of the above, what is made between such products: a rank has the rows of all ranks of the expert axis.
  TensorParts rows_forward_traffic = {0, 0}, rows_backward_traffic = {0, 0};
  std::array<TensorParts, kRecomputeModes> rows_kept{};
  bool largest_rows = false;
  // Of attention whose heads the tensor axis divides: elements of the trained weights that make its operands and that
  // take its result; bytes of both in a program compiled here.
  double to_heads = 0, from_heads = 0, heads_bytes = 0;
  UpdateWork update;      // of its parameters, once a step
  bool sequence = false;  // what the tensor axis does not divide can be divided along positions
  std::string split;      // in words: "tensor splits 12 x 4096, …"
  double heads = 0;       // smallest size of a split factor: a larger tensor axis pads
  double split_factor = 0;

  // Of the model: attention's backward part, which also makes the scores again, has two products for each of forward.
  double forward_flops() const;
  double backward_flops() const;
  // Where the axis does not divide the heads: the fewest ranks that have heads of their own (else all of the axis),
  // what a rank has of heads beyond its part of the axis, and elements of weights that it has for them beyond its part.
  // With all heads on every rank, the columns that make them are in parts and gathered.
  double head_ranks(double tensor) const;
  double share_beyond(double tensor) const;
  double parameters_beyond(double tensor) const;
  bool is_block() const { return name.starts_with("block"); }
};

// Where a stage could begin: a forward node that data and parameters lead to.
struct UnitPlace {
  int unit = 0;
  bool inside = false;             // what stands before it in the unit is more than views and elementwise steps
  std::vector<std::string> names;  // its ONNX node's, then those of the parameters that it reads
};

// Trained parameters that several units read: the first of them has them, a stage with another one gets them.
struct SharedParameters {
  std::vector<int> units;  // in order, places in Workload::units
  TensorParts elements = {0, 0};
};

struct Workload {
  std::vector<UnitWork> kinds;
  std::vector<int> units;  // in order, indices into kinds
  std::vector<SharedParameters> shared;
  std::vector<CrossingValue> crossing;
  std::vector<UnitPlace> places;  // in order
  double samples = 1;             // of one run of the graph
  // Samples that each run takes, where the file, or the group that shares experts' capacity, has fixed them; 0: any.
  int64_t exported_batch = 0;
  double sequence = 1;            // positions of a sample (1 where there are none): divided by the context axis
  double parameters = 0;          // trained elements
  double experts = 0;             // 0: none
  double optimizer_bytes = 8;     // of states, per parameter element
  double tokens = 1;              // targets of one sample
  RecomputeModes recomputes = 0;  // modes beside full of which units' memory and repeated work are known
  bool whole_batches = false;     // statistics are of all samples of a run, which ranks compute at once
  std::string whole_runs;         // why the ranks cannot compute a run in parts, one after another; empty: they can

  const UnitWork& unit(size_t k) const { return kinds[static_cast<size_t>(units[k])]; }
};

struct WorkloadOptions {
  BatchNormGroup batch_statistics = BatchNormGroup::kGlobal;
  // By NodeId: the modes under which a forward node is computed again (passes/training/recompute.h); empty: not known.
  std::vector<RecomputeModes> again;
  // By NodeId (passes/forward/choose_fp8.h); empty: none.
  std::vector<Fp8Product> fp8;
};

// `graph`: a training graph (all segments) with tagged blocks.
absl::StatusOr<Workload> analyse(const Graph& graph, const WorkloadOptions& options = {});

}  // namespace partita

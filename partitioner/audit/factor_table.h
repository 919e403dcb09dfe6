// Which textbook splits go through: for each matmul pair, attention block, embedding and vocabulary head of a training
// graph, the one transformation (localize.h) is run with just that split pinned, and the communication that it inserts,
// forward and backward, is held against the textbook's:
//
//   batch       gradient reductions, and sums over the batch that the model itself asks for (loss, batch norm)
//   sequence    gather of keys and values, reduce-scatter of their gradients; gradient reductions; the loss
//   heads, features   one all-reduce after the second product, backward one before the first
//   vocabulary  all-reduce of the embedded tokens; of the gradient below the head; per row max, sum and picked logit
//
// Sites are found by structure: no name takes part.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"

namespace partita {

enum class SplitKind : uint8_t { kBatch, kSequence, kHeads, kFeatures, kVocabulary };
inline constexpr int kSplitKinds = 5;
std::string_view split_name(SplitKind kind);

// Collectives of whole activations in one direction.
struct Moves {
  int all_reduce = 0, all_gather = 0, reduce_scatter = 0, all_to_all = 0;
};

struct SplitOutcome {
  int64_t ways = 2;  // over how many ranks it was tried: the smallest number above 1 that divides the factor
  Moves forward, backward;
  int gradients = 0;  // reductions of parameters' gradients
  int rows = 0;       // all-reduces of one number per row (a softmax's max and sum)
  int update = 0;     // gathers and exchanges between gradient and update
  bool textbook = false;
};

enum class SiteKind : uint8_t { kAttention, kPlainAttention, kPair, kEmbedding, kHead, kRest };
std::string_view site_name(SiteKind kind);

struct FactorSite {
  SiteKind kind;
  std::string name;                                 // the ONNX op and node that it is seen at
  int64_t repeats = 1;                              // how many equal ones the model has
  std::optional<SplitOutcome> splits[kSplitKinds];  // unset: does not apply
};

struct FactorTable {
  std::vector<FactorSite> sites;  // the last one is the rest of the model
  int tried() const;
  int passed() const;
};

// `graph` is a training graph, best one of folded blocks (fold_blocks.h, whose `repeats` these are) and with a plain
// optimizer. With several micro-batches the batch is split by whole micro-batches. Errors are localize's.
absl::StatusOr<FactorTable> factor_table(const Graph& graph, const std::vector<int64_t>& repeats,
                                         int64_t micro_batches);

}  // namespace partita

// The ranks' graph as it would be without `compress` (train.yaml): sums of gradients that travel in fewer bits become
// sums of what they are made from. What is left is to be the serial program; what was taken away is only rounding.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"

namespace partita::verifier {

struct Uncompressed {
  Graph graph;
  std::vector<NodeId> from;  // per node, the one of the ranks' graph that it stands for
  int64_t sums = 0;          // that were compressed
  // States that it kept, which are not in the graph. Ranks that differ only along `shared` mesh axes have the same, all
  // others their own; what no ranks share are remainders. Of what is shared, so may ranks be whose gradients are alike:
  // `gradient`, of `graph`, has to be the same along any axis more (kNoValue: along none).
  struct Kept {
    std::string name;
    std::vector<int64_t> shared;
    ValueId gradient = kNoValue;
  };
  std::vector<Kept> kept;
};

// `kind`: "none", which changes nothing, or
//   bf16: a value is cast to bf16, summed over ranks once or several times, and cast back; the sums are done in the
//         backward part and read after it or summed up over micro-batches, or done later on.
//   int8: undo_quantization.h;  powersgd: undo_factorization.h.
// What is not exactly that stays in the graph. InvalidArgument where the kind is unknown, Aborted
// where a value has not the type that its op gives.
absl::StatusOr<Uncompressed> undo_compression(const Graph& ranks, std::string_view kind);

}  // namespace partita::verifier

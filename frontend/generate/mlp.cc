#include "frontend/generate/mlp.h"

#include <cmath>

#include "base/cat.h"
#include "base/status.h"
#include "frontend/generate/layers.h"

namespace partita {

absl::StatusOr<GraphWriter> generate_mlp(const MlpSpec& s) {
  size_t layers = s.sizes.size() - 1;
  if (s.sizes.size() < 2 || layers > static_cast<size_t>(kMaxLayers)) {
    return absl::InvalidArgumentError(
        cat("--layers: expected 2 to ", kMaxLayers + 1, " sizes, as in 784,128,10, found ", s.sizes.size()));
  }
  if (s.batch != kBatchSymbol) PARTITA_RETURN_IF_ERROR(check_sizes({{"--batch", s.batch}}));
  for (int64_t size : s.sizes) {
    PARTITA_RETURN_IF_ERROR(check_sizes({{"--layers", size}}));
    PARTITA_RETURN_IF_ERROR(check_product("batch x size of a layer", {s.batch, size}));
  }
  GraphWriter g("mlp");
  std::string x = g.input("x", Element::kFloat, {s.batch, s.sizes.front()});
  for (size_t k = 0; k < layers; ++k) {
    double deviation = std::sqrt(2.0 / static_cast<double>(s.sizes[k]));  // He, so that a deep one trains
    x = dense(g, cat("fc", k + 1), x, s.sizes[k], s.sizes[k + 1], deviation, k + 1 == layers ? "logits" : "");
    if (k + 1 < layers) x = g.add_node("Relu", {x});
  }
  g.output("logits", {s.batch, s.sizes.back()});
  PARTITA_RETURN_IF_ERROR(g.status());
  return g;
}

}  // namespace partita

// The layers that the generators share, each spelled as PyTorch's exporter spells the module of that name.
#pragma once

#include <string>
#include <vector>

#include "frontend/generate/graph_writer.h"

namespace partita {

// x [..., in] -> [..., out]; the weight NAME.weight is [out, in], the bias NAME.bias.
std::string linear(GraphWriter& g, const std::string& name, const std::string& x, int64_t in, int64_t out,
                   bool bias = true);
// The same with weights that exist, on x of rank 3 or more; an empty bias: none.
std::string linear_with(GraphWriter& g, const std::string& x, const std::string& weight, const std::string& bias);
// x [n, in] -> [n, out], as Gemm. `deviation`: of the first weights.
std::string dense(GraphWriter& g, const std::string& name, const std::string& x, int64_t in, int64_t out,
                  double deviation, const std::string& output = "");

std::string layer_norm(GraphWriter& g, const std::string& name, const std::string& x, int64_t size, double epsilon,
                       bool bias = true);
std::string rms_norm(GraphWriter& g, const std::string& name, const std::string& x, int64_t size, double epsilon);

std::string gelu_erf(GraphWriter& g, const std::string& x);
std::string gelu_tanh(GraphWriter& g, const std::string& x);
std::string silu(GraphWriter& g, const std::string& x);

// [b, s, heads * size] -> [b, heads, s, size] and back. `sequence`: s, or kSequenceSymbol.
std::string split_heads(GraphWriter& g, const std::string& x, int64_t sequence, int64_t heads, int64_t size);
std::string merge_heads(GraphWriter& g, const std::string& x, int64_t sequence, int64_t hidden);
// A packed projection [b, s, 3 * heads * size] -> query, key and value, each [b, heads, s, size].
std::vector<std::string> split_packed(GraphWriter& g, const std::string& x, int64_t sequence, int64_t heads,
                                      int64_t size);
// Scaled dot-product attention on [b, heads, s, size]; `mask` is added to the scores, "" for none.
std::string attention(GraphWriter& g, const std::string& query, const std::string& key, const std::string& value,
                      int64_t size, const std::string& mask);

// Positions 0 to size - 1, int64 [size]; with kSequenceSymbol, as many as `ids` [b, s] has.
std::string positions(GraphWriter& g, int64_t size, const std::string& ids = "");
// Float [s, s]: 0 where key <= query, else -inf. Made of positions [s], so the file holds no table.
std::string causal_mask(GraphWriter& g, const std::string& positions);

// Mean cross entropy of logits [b, s, classes] against labels [b, s]; -100 is not counted.
std::string token_loss(GraphWriter& g, const std::string& logits, const std::string& labels, int64_t classes,
                       const std::string& output);
// labels[b, t + 1] at t, and -100 at the end. `sequence`: as above.
std::string next_tokens(GraphWriter& g, const std::string& labels, int64_t sequence);

}  // namespace partita

#include "tools/verify/bundle/claims.h"

#include <charconv>

#include "base/cat.h"
#include "runtime/program/library_kernels.h"

namespace partita::verifier {
namespace {

// Takes one integer off the front of `line`.
template <typename T>
bool take(std::string_view& line, T& value) {
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc()) return false;
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  return true;
}

// A number of a value, plain or with its channels last; or of none.
bool has_value(const Graph& graph, int v) {
  const auto count = static_cast<int>(graph.values.size());
  if (v < count) return true;
  if (v - count >= count) return false;
  const Shape& shape = graph.type(v - count).shape;
  return shape.size() == kChannelsLast.size() && !is_in_both_orders(shape);
}

}  // namespace

std::string print_claims(const std::vector<Claim>& claims) {
  std::string text;
  for (const Claim& c : claims) {
    append(text, c.node, ":");
    for (int v : c.values) append(text, " ", v);
    text += "\n";
  }
  return text;
}

absl::StatusOr<std::vector<Claim>> parse_claims(std::string_view text, const Graph& graph) {
  std::vector<Claim> claims;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    auto fault = [&](std::string_view what) {
      return absl::DataLossError(cat("line ", claims.size() + 1, ": ", what));
    };
    Claim c;
    if (!take(line, c.node) || line.empty() || line.front() != ':') return fault("expected a node and ':'");
    line.remove_prefix(1);
    if (c.node < kNoNode || c.node >= static_cast<NodeId>(graph.nodes.size())) return fault("no such node");
    while (!line.empty()) {
      int v = 0;
      if (!take(line, v)) return fault("expected a value");
      if (!has_value(graph, v)) return fault("no such value");
      c.values.push_back(v);
    }
    claims.push_back(std::move(c));
  }
  return claims;
}

}  // namespace partita::verifier

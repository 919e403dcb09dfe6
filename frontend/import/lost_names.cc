#include "frontend/import/lost_names.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "base/cat.h"
#include "base/quote.h"

namespace partita {
namespace {

constexpr int64_t kSamples = 257;

// Element (row, column) of a matrix, as bits.
uint64_t bits_at(const Literal& l, int64_t row, int64_t column) {
  uint64_t bits = 0;
  size_t size = static_cast<size_t>(dtype_size(l.type.dtype));
  std::memcpy(&bits, l.data + static_cast<size_t>(row * l.type.shape[1] + column) * size, size);
  return bits;
}

bool same_values(const Literal& a, const Literal& b, bool transposed) {
  int64_t rows = a.type.shape[0], columns = a.type.shape[1], step = std::max<int64_t>(1, rows * columns / kSamples);
  auto equal = [&](int64_t k) {
    int64_t r = k / columns, c = k % columns;
    return bits_at(a, r, c) == (transposed ? bits_at(b, c, r) : bits_at(b, r, c));
  };
  for (int64_t k = 0; k < rows * columns; k += step) {
    if (!equal(k)) return false;
  }
  for (int64_t k = 0; k < rows * columns; ++k) {
    if (!equal(k)) return false;
  }
  return true;
}

bool is_matrix(const Literal& l) { return l.type.rank() == 2 && elements(l.type.shape) >= 64 && !is_uniform(l); }

bool made_up(const std::string& name) {
  if (name.starts_with("onnx::") || name.starts_with('/')) return true;
  std::string_view rest = name;
  if (rest.starts_with("val_")) rest.remove_prefix(4);
  return !rest.empty() && rest.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

std::vector<std::string> lost_name_warnings(const Graph& graph) {
  std::vector<std::string> warnings, unnamed;
  std::map<std::pair<int64_t, int64_t>, std::vector<const State*>> by_size;
  for (const State& s : graph.states) {
    if (s.kind != StateKind::kParameter) continue;
    if (made_up(s.name)) unnamed.push_back(s.name);
    const auto* l = std::get_if<Literal>(&s.initial);
    if (l && is_matrix(*l)) by_size[std::minmax(l->type.shape[0], l->type.shape[1])].push_back(&s);
  }
  for (const auto& [size, group] : by_size) {
    if (group.size() > 512) continue;
    for (size_t a = 0; a < group.size(); ++a) {
      for (size_t b = a + 1; b < group.size(); ++b) {
        const Literal &x = std::get<Literal>(group[a]->initial), &y = std::get<Literal>(group[b]->initial);
        if (x.type.dtype != y.type.dtype) continue;
        bool straight = x.type.shape == y.type.shape && same_values(x, y, false);
        bool turned = !straight && x.type.shape[0] == y.type.shape[1] && same_values(x, y, true);
        if (straight || turned) {
          warnings.push_back(cat("parameters ", quote(group[a]->name), " and ", quote(group[b]->name),
                                 turned ? " hold the same values transposed" : " hold the same values",
                                 ": if they were tied, the export has lost it and they are trained apart; export so "
                                 "that they stay one initializer"));
        }
      }
    }
  }
  if (!unnamed.empty()) {
    warnings.push_back(cat(unnamed.size(), " trained initializers have names that the exporter made up (",
                           quote_list(unnamed, 4), "): checkpoints will use them; names: in train.yaml renames them"));
  }
  return warnings;
}

}  // namespace partita

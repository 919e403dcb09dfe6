// Attributes of a node: a small map from name to a plain value, kept sorted by name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"

namespace partita {

using AttrValue = std::variant<int64_t, double, std::string, DType, std::vector<int64_t>, std::vector<double>>;

class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, AttrValue>> items) {
    for (const auto& [name, value] : items) set(name, value);
  }

  void set(std::string_view name, AttrValue value);
  bool has(std::string_view name) const { return find(name) != nullptr; }
  const AttrValue* find(std::string_view name) const;  // nullptr where there is none

  // The value under `name`; without a default, a missing name or another type is a compiler bug.
  int64_t i(std::string_view name) const;
  int64_t i(std::string_view name, int64_t otherwise) const;
  double f(std::string_view name) const;
  double f(std::string_view name, double otherwise) const;
  const std::string& s(std::string_view name) const;
  std::string s(std::string_view name, std::string_view otherwise) const;
  DType dtype(std::string_view name) const;
  const std::vector<int64_t>& ints(std::string_view name) const;
  std::vector<int64_t> ints(std::string_view name, std::vector<int64_t> otherwise) const;
  const std::vector<double>& floats(std::string_view name) const;

  const std::vector<std::pair<std::string, AttrValue>>& items() const { return items_; }
  bool operator==(const Attrs&) const = default;

 private:
  std::vector<std::pair<std::string, AttrValue>> items_;
};

}  // namespace partita

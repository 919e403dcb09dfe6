#include "ir/type/attr.h"

#include <algorithm>

#include "base/status.h"

namespace partita {
namespace {

template <typename T>
const T& expect(const AttrValue* value, std::string_view name) {
  PARTITA_CHECK(value != nullptr, "attribute '" + std::string(name) + "' is missing");
  PARTITA_CHECK(std::holds_alternative<T>(*value), "attribute '" + std::string(name) + "' has another type");
  return std::get<T>(*value);
}

}  // namespace

void Attrs::set(std::string_view name, AttrValue value) {
  auto at = std::lower_bound(items_.begin(), items_.end(), name,
                             [](const auto& item, std::string_view n) { return item.first < n; });
  if (at != items_.end() && at->first == name) {
    at->second = std::move(value);
  } else {
    items_.insert(at, {std::string(name), std::move(value)});
  }
}

const AttrValue* Attrs::find(std::string_view name) const {
  for (const auto& item : items_) {
    if (item.first == name) return &item.second;
  }
  return nullptr;
}

int64_t Attrs::i(std::string_view name) const { return expect<int64_t>(find(name), name); }
int64_t Attrs::i(std::string_view name, int64_t otherwise) const { return has(name) ? i(name) : otherwise; }
double Attrs::f(std::string_view name) const { return expect<double>(find(name), name); }
double Attrs::f(std::string_view name, double otherwise) const { return has(name) ? f(name) : otherwise; }
const std::string& Attrs::s(std::string_view name) const { return expect<std::string>(find(name), name); }
std::string Attrs::s(std::string_view name, std::string_view otherwise) const {
  return has(name) ? s(name) : std::string(otherwise);
}
DType Attrs::dtype(std::string_view name) const { return expect<DType>(find(name), name); }
const std::vector<int64_t>& Attrs::ints(std::string_view name) const {
  return expect<std::vector<int64_t>>(find(name), name);
}
std::vector<int64_t> Attrs::ints(std::string_view name, std::vector<int64_t> otherwise) const {
  return has(name) ? ints(name) : std::move(otherwise);
}
const std::vector<double>& Attrs::floats(std::string_view name) const {
  return expect<std::vector<double>>(find(name), name);
}

}  // namespace partita

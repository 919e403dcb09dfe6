// Typed access to a step's params.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/program/program.h"

namespace partita::runtime {

// nullptr when absent or of another type.
template <typename T>
const T* find_param(const Params& params, const std::string& name) {
  auto it = params.find(name);
  return it == params.end() ? nullptr : std::get_if<T>(&it->second);
}

inline int64_t int_param(const Params& params, const std::string& name, int64_t otherwise) {
  const int64_t* value = find_param<int64_t>(params, name);
  return value ? *value : otherwise;
}
inline double real_param(const Params& params, const std::string& name, double otherwise) {
  if (const int64_t* value = find_param<int64_t>(params, name)) return static_cast<double>(*value);
  const double* value = find_param<double>(params, name);
  return value ? *value : otherwise;
}
inline std::string text_param(const Params& params, const std::string& name, const std::string& otherwise) {
  const std::string* value = find_param<std::string>(params, name);
  return value ? *value : otherwise;
}
inline std::vector<int64_t> ints_param(const Params& params, const std::string& name, std::vector<int64_t> otherwise) {
  const std::vector<int64_t>* value = find_param<std::vector<int64_t>>(params, name);
  return value ? *value : std::move(otherwise);
}

}  // namespace partita::runtime

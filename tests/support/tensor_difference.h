// Compares files of f32 tensors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "runtime/files/safetensors.h"

namespace partita {

// Largest relative difference (L2, by tensor) of a file of tensors from another; infinite where names differ.
inline double tensor_difference(const std::string& a, const std::string& b) {
  auto x = runtime::SafetensorsFile::open(a), y = runtime::SafetensorsFile::open(b);
  if (!x.ok() || !y.ok() || x->entries().size() != y->entries().size()) return INFINITY;
  double worst = 0;
  for (const auto& entry : x->entries()) {
    const auto* other = y->find(entry.name);
    if (other == nullptr || other->shape != entry.shape) return INFINITY;
    auto p = x->data(entry), q = y->data(*other);
    double off = 0, norm = 0;
    for (size_t k = 0; k + 4 <= p.size(); k += 4) {
      float f, g;
      std::memcpy(&f, p.data() + k, 4);
      std::memcpy(&g, q.data() + k, 4);
      off += (static_cast<double>(f) - g) * (static_cast<double>(f) - g);
      norm += static_cast<double>(g) * g;
    }
    worst = std::max(worst, std::sqrt(off / std::max(norm, 1e-30)));
  }
  return worst;
}

}  // namespace partita

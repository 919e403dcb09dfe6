#include "ir/mesh.h"

namespace partita {

int64_t Mesh::ranks() const {
  int64_t n = 1;
  for (size_t k = 0; k < axes.size(); ++k) n *= static_cast<int>(k) == time ? 1 : axes[k].size;
  return n;
}

int64_t Mesh::ways(const std::vector<int>& some) const {
  int64_t n = 1;
  for (int a : some) n *= axes[a].size;
  return n;
}

int Mesh::find(std::string_view name) const {
  for (size_t k = 0; k < axes.size(); ++k) {
    if (axes[k].name == name) return static_cast<int>(k);
  }
  return -1;
}

std::vector<int64_t> Mesh::coordinates(int64_t rank) const {
  std::vector<int64_t> c(axes.size());
  for (size_t k = axes.size(); k-- > 0;) {
    if (static_cast<int>(k) == time) continue;
    c[k] = rank % axes[k].size;
    rank /= axes[k].size;
  }
  return c;
}

}  // namespace partita

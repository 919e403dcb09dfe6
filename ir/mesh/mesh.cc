#include "ir/mesh/mesh.h"

#include <algorithm>

namespace partita {

namespace {

// Ranks that have coordinate `stage` along the first axis.
int64_t ranks_of(const Mesh& mesh, int64_t stage) {
  int64_t n = 1;
  for (int a = 1; a < static_cast<int>(mesh.axes.size()); ++a)
    n *= a == mesh.time || !mesh.has(a, stage) ? 1 : mesh.axes[static_cast<size_t>(a)].size;
  return n;
}

int64_t stages_of(const Mesh& mesh) { return mesh.axes.empty() || mesh.time == 0 ? 1 : mesh.axes[0].size; }

}  // namespace

int64_t Mesh::ranks() const {
  int64_t n = 0;
  for (int64_t stage = 0; stage < stages_of(*this); ++stage) n += ranks_of(*this, stage);
  return n;
}

bool Mesh::has(int axis, int64_t stage) const {
  const std::vector<int64_t>& absent = axes[static_cast<size_t>(axis)].absent;
  return std::find(absent.begin(), absent.end(), stage) == absent.end();
}

std::vector<int> Mesh::differing(int64_t stage, int64_t other) const {
  std::vector<int> some;
  for (int a = 0; a < static_cast<int>(axes.size()); ++a) {
    if (has(a, stage) != has(a, other)) some.push_back(a);
  }
  return some;
}

std::vector<int> Mesh::irregular() const {
  std::vector<int> some;
  for (int a = 0; a < static_cast<int>(axes.size()); ++a) {
    if (!axes[static_cast<size_t>(a)].absent.empty()) some.push_back(a);
  }
  return some;
}

int64_t Mesh::ways(const std::vector<int>& some) const {
  int64_t n = 1;
  for (int a : some) n *= axes[a].size;
  return n;
}

bool Mesh::is_apart(int axis) const {
  return axis >= 0 && (axis == time || std::find(apart.begin(), apart.end(), axis) != apart.end());
}

int Mesh::find(std::string_view name) const {
  for (size_t k = 0; k < axes.size(); ++k) {
    if (axes[k].name == name) return static_cast<int>(k);
  }
  return -1;
}

std::vector<int64_t> Mesh::coordinates(int64_t rank) const {
  std::vector<int64_t> c(axes.size());
  int64_t stage = 0;
  while (stage + 1 < stages_of(*this) && rank >= ranks_of(*this, stage)) rank -= ranks_of(*this, stage++);
  for (size_t k = axes.size(); k-- > 0;) {
    if (static_cast<int>(k) == time || !has(static_cast<int>(k), stage)) continue;
    c[k] = k == 0 ? stage : rank % axes[k].size;
    rank /= axes[k].size;
  }
  return c;
}

}  // namespace partita

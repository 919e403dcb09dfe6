// The logical mesh of devices: named axes, outermost first. A rank's coordinates are its mixed-radix digits in that
// order.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace partita {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  bool operator==(const MeshAxis&) const = default;
};

struct Mesh {
  std::vector<MeshAxis> axes;
  // The last axis may be one in time: every rank goes through its coordinates one after the other (the micro-batches
  // that one run of the graph is cut into). It multiplies no ranks, and nothing is sent along it.
  int time = -1;

  int64_t ranks() const;
  int64_t ways(const std::vector<int>& axes) const;  // the product of their sizes
  // Index of the axis, or -1.
  int find(std::string_view name) const;
  std::vector<int64_t> coordinates(int64_t rank) const;  // 0 along the axis in time
  bool operator==(const Mesh&) const = default;
};

}  // namespace partita

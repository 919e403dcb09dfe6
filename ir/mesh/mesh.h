// The logical mesh of devices: named axes, outermost first. Ranks are numbered in the order of their coordinates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace partita {

struct MeshAxis {
  std::string name;
  int64_t size = 1;
  // Stages of a pipeline (coordinates along the first axis) without this axis: its coordinate 0 alone exists there.
  std::vector<int64_t> absent = {};
  bool operator==(const MeshAxis&) const = default;
};

struct Mesh {
  std::vector<MeshAxis> axes;
  // The last axis may be one in time: every rank goes through its coordinates one after the other (the micro-batches
  // that one run of the graph is cut into). It multiplies no ranks, and nothing is sent along it.
  int time = -1;
  // Axes along which ranks and micro-batches have parts of a run's samples whose sums have a fixed order (train.yaml's
  // reproducible), so that nothing of them meets before. Without it, what lies apart in time meets in sums alone, too.
  std::vector<int> apart = {};

  int64_t ranks() const;
  bool has(int axis, int64_t stage) const;
  // The axes that stages differ in, ascending: those that one of two has and the other has not; those that some have
  // and others have not.
  std::vector<int> differing(int64_t stage, int64_t other) const;
  std::vector<int> irregular() const;
  int64_t ways(const std::vector<int>& axes) const;  // the product of their sizes
  // Whether the parts of a run's samples along the axis stay by themselves.
  bool is_apart(int axis) const;
  // Index of the axis, or -1.
  int find(std::string_view name) const;
  // 0 along the axis in time.
  std::vector<int64_t> coordinates(int64_t rank) const;
  bool operator==(const Mesh&) const = default;
};

}  // namespace partita

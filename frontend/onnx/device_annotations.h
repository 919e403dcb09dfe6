// How a model is divided over devices, as ONNX says it since IR 11: ModelProto.configuration, and for each node a
// pipeline stage and a ShardingSpecProto for each of its tensors.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace partita {

struct OnnxSharding {
  // A part of a dimension, outermost first, and how many ways it is split.
  struct Part {
    int64_t size = 1, shards = 1;
    bool operator==(const Part&) const = default;
  };
  std::vector<std::pair<int64_t, std::vector<Part>>> dims;  // (axis, its parts); others are whole
  std::vector<std::vector<int64_t>> devices;  // of each shard in row-major order; several have copies of it
  int64_t shards() const;
  bool operator==(const OnnxSharding&) const = default;
};

struct OnnxDevices {
  std::string configuration;
  int64_t devices = 1;
  std::string pins;                       // what ONNX has no words for: the layout's, as train.yaml has them
  std::map<std::string, int64_t> stages;  // by value: the pipeline stage that makes it
  std::vector<std::map<std::string, OnnxSharding>> tensors;  // by stage and name
};

// Writes `model` to `output` with the annotations, in place of others it has. Weights outside of the file stay where
// they are, so `output` must lie in the model's folder then. InvalidArgument, NotFound. Returns the annotated nodes.
absl::StatusOr<int64_t> write_device_annotations(const std::string& model, const std::string& output,
                                                 const OnnxDevices& devices);
// The first configuration of a file. NotFound where it has none, InvalidArgument where it is damaged.
absl::StatusOr<OnnxDevices> read_device_annotations(const std::string& model);

}  // namespace partita

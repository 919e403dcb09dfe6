#include "frontend/onnx/device_annotations.h"

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/onnx/onnx_proto.h"

namespace partita {
namespace {

constexpr int kOldestVersion = 11;
constexpr std::string_view kPinsKey = "partita.pins";

bool has_outside_weights(const onnx::ModelProto& proto) {
  return std::any_of(proto.graph().initializer().begin(), proto.graph().initializer().end(),
                     [](const auto& t) { return t.data_location() == onnx::TensorProto::EXTERNAL; });
}

// A shard's devices are one number where it has one device, else a negative one that stands for the group.
void add_spec(const std::string& tensor, const OnnxSharding& s, onnx::NodeDeviceConfigurationProto& to) {
  onnx::ShardingSpecProto& spec = *to.add_sharding_spec();
  spec.set_tensor_name(tensor);
  for (size_t k = 0; k < s.devices.size(); ++k) {
    if (s.devices[k].size() == 1) {
      spec.add_device(s.devices[k][0]);
      continue;
    }
    const int64_t group = -static_cast<int64_t>(k) - 1;
    spec.add_device(group);
    auto& entry = *spec.add_index_to_device_group_map();
    entry.set_key(group);
    for (int64_t device : s.devices[k]) entry.add_value(device);
  }
  for (const auto& [axis, parts] : s.dims) {
    onnx::ShardedDimProto& dim = *spec.add_sharded_dim();
    dim.set_axis(axis);
    for (const OnnxSharding::Part& part : parts) {
      onnx::SimpleShardedDimProto& simple = *dim.add_simple_sharding();
      simple.set_dim_value(part.size);
      simple.set_num_shards(part.shards);
    }
  }
}

absl::StatusOr<OnnxSharding> read_spec(const onnx::ShardingSpecProto& spec, int64_t devices) {
  OnnxSharding s;
  std::map<int64_t, std::vector<int64_t>> groups;
  for (const auto& entry : spec.index_to_device_group_map())
    groups[entry.key()].assign(entry.value().begin(), entry.value().end());
  for (int64_t device : spec.device()) {
    const auto group = groups.find(device);
    s.devices.push_back(group == groups.end() ? std::vector<int64_t>{device} : group->second);
    for (int64_t d : s.devices.back()) {
      if (d < 0 || d >= devices)
        return absl::InvalidArgumentError(
            cat("the sharding of ", quote(spec.tensor_name()), ": expected devices below ", devices, ", found ", d));
    }
  }
  for (const onnx::ShardedDimProto& dim : spec.sharded_dim()) {
    std::vector<OnnxSharding::Part> parts;
    for (const onnx::SimpleShardedDimProto& p : dim.simple_sharding()) {
      if (p.num_shards() < 1)
        return absl::InvalidArgumentError(
            cat("the sharding of ", quote(spec.tensor_name()), ": expected one shard or more, found ", p.num_shards()));
      parts.push_back({p.has_dim_value() ? p.dim_value() : -1, p.num_shards()});
    }
    s.dims.emplace_back(dim.axis(), std::move(parts));
  }
  if (s.shards() != static_cast<int64_t>(s.devices.size()))
    return absl::InvalidArgumentError(cat("the sharding of ", quote(spec.tensor_name()), ": expected devices for ",
                                          s.shards(), " shards, found ", s.devices.size()));
  return s;
}

}  // namespace

int64_t OnnxSharding::shards() const {
  int64_t n = 1;
  for (const auto& [axis, parts] : dims) {
    for (const Part& p : parts) n *= p.shards;
  }
  return n;
}

absl::StatusOr<int64_t> write_device_annotations(const std::string& model, const std::string& output,
                                                 const OnnxDevices& devices) {
  namespace fs = std::filesystem;
  PARTITA_RETURN_IF_ERROR(load_onnx_model(model).status());  // checks the file
  PARTITA_ASSIGN_OR_RETURN(onnx::ModelProto proto, read_model_proto(model));
  auto folder = [](const std::string& file) { return fs::weakly_canonical(fs::absolute(file)).parent_path(); };
  if (has_outside_weights(proto) && folder(model) != folder(output))
    return absl::InvalidArgumentError(cat(quote(output, 1000), ": the weights of ", quote(model, 1000),
                                          " lie beside it; expected a file in its folder, ", folder(model).string()));
  proto.set_ir_version(std::max<int64_t>(proto.ir_version(), kOldestVersion));
  proto.clear_configuration();
  onnx::DeviceConfigurationProto& configuration = *proto.add_configuration();
  configuration.set_name(devices.configuration);
  configuration.set_num_devices(static_cast<int32_t>(devices.devices));
  auto& metadata = *proto.mutable_metadata_props();
  metadata.erase(std::remove_if(metadata.begin(), metadata.end(), [](const auto& e) { return e.key() == kPinsKey; }),
                 metadata.end());
  if (!devices.pins.empty()) {
    auto& entry = *metadata.Add();
    entry.set_key(std::string(kPinsKey));
    entry.set_value(devices.pins);
  }
  int64_t annotated = 0;
  for (onnx::NodeProto& node : *proto.mutable_graph()->mutable_node()) {
    node.clear_device_configurations();
    onnx::NodeDeviceConfigurationProto own;
    own.set_configuration_id(devices.configuration);
    size_t stage = 0;
    if (devices.tensors.size() > 1) {
      const auto at = std::find_if(node.output().begin(), node.output().end(),
                                   [&](const std::string& name) { return devices.stages.contains(name); });
      if (at == node.output().end()) continue;
      stage = static_cast<size_t>(devices.stages.at(*at));
      own.set_pipeline_stage(static_cast<int32_t>(stage));
    }
    for (const auto* names : {&node.input(), &node.output()}) {
      for (const std::string& name : *names) {
        if (const auto at = devices.tensors[stage].find(name); at != devices.tensors[stage].end())
          add_spec(name, at->second, own);
      }
    }
    if (own.sharding_spec_size() == 0 && !own.has_pipeline_stage()) continue;
    *node.add_device_configurations() = std::move(own);
    ++annotated;
  }
  std::string text;
  if (!proto.SerializeToString(&text))
    return absl::InvalidArgumentError(cat(quote(model, 1000), ": cannot be written again"));
  PARTITA_RETURN_IF_ERROR(write_file_atomically(output, text));
  return annotated;
}

absl::StatusOr<OnnxDevices> read_device_annotations(const std::string& model) {
  PARTITA_RETURN_IF_ERROR(load_onnx_model(model).status());  // checks the file
  PARTITA_ASSIGN_OR_RETURN(const onnx::ModelProto proto, read_model_proto(model));
  if (proto.configuration().empty())
    return absl::NotFoundError(cat(quote(model, 1000),
                                   ": it says nothing of devices (no device configuration, ONNX IR ", kOldestVersion,
                                   "); `partita plan --annotate FILE` writes one"));
  OnnxDevices out;
  out.configuration = proto.configuration(0).name();
  out.devices = proto.configuration(0).num_devices();
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() == kPinsKey) out.pins = entry.value();
  }
  for (const onnx::NodeProto& node : proto.graph().node()) {
    for (const onnx::NodeDeviceConfigurationProto& own : node.device_configurations()) {
      if (own.configuration_id() != out.configuration) continue;
      const int64_t stage = own.has_pipeline_stage() ? own.pipeline_stage() : 0;
      if (stage < 0 || stage >= out.devices)
        return absl::InvalidArgumentError(cat(quote(model, 1000), ": node ", quote(node.name()),
                                              ": expected a stage from 0 to ", out.devices - 1, ", found ", stage));
      out.tensors.resize(std::max(out.tensors.size(), static_cast<size_t>(stage) + 1));
      if (own.has_pipeline_stage()) {
        for (const std::string& name : node.output()) out.stages[name] = stage;
      }
      for (const onnx::ShardingSpecProto& spec : own.sharding_spec()) {
        auto read = read_spec(spec, out.devices);
        if (!read.ok()) return absl::InvalidArgumentError(cat(quote(model, 1000), ": ", read.status().message()));
        out.tensors[static_cast<size_t>(stage)][spec.tensor_name()] = *std::move(read);
      }
    }
  }
  return out;
}

}  // namespace partita

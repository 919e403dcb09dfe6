#include "tools/import_config/accelerate_config.h"

#include <algorithm>

#include "base/cat.h"
#include "base/text_file.h"
#include "ir/recipe/deepspeed_config.h"

namespace partita {
namespace {

struct Draft {
  ImportedConfig config;
  std::string deepspeed_file;
  std::optional<int64_t> replicas, shards;  // of parallelism_config
};
using Rows = KeyRows<Draft>;
constexpr auto kTaken = KeyFate::kTaken, kIdle = KeyFate::kIdle;

std::function<void(Draft&)> zero(int stage, std::optional<int64_t> group = std::nullopt) {
  return [stage, group](Draft& d) {
    d.config.recipe.pin.zero = stage;
    if (group) d.config.recipe.pin.zero_group = group;
  };
}

KeyReader<Draft> launch_flag(std::string name) {
  return [name](const YamlNode& node, const std::string& path, Draft& out) -> absl::StatusOr<KeyOutcome> {
    PARTITA_ASSIGN_OR_RETURN(const std::string value, read_text(node, path));
    out.config.launch.insert(out.config.launch.end(), {name, value});
    return KeyOutcome{kTaken, cat(name, " ", value)};
  };
}

KeyReader<Draft> count(std::optional<int64_t> ImportedConfig::*member, std::string says) {
  return [member, says](const YamlNode& node, const std::string& path, Draft& out) -> absl::StatusOr<KeyOutcome> {
    PARTITA_RETURN_IF_ERROR(integer(member, 1)(node, path, out.config));
    return KeyOutcome{kTaken, cat(says, " ", node.text)};
  };
}

void add_machines(Rows& rows) {
  rows.push_back({"compute_environment",
                  one_of<Draft>({{"LOCAL_MACHINE",
                                  {kIdle, "ranks start where `partita train` or `partita launch` starts them"}}})});
  rows.push_back(
      {"distributed_type", one_of<Draft>({{"NO", {kTaken, "--ranks 1"}, [](Draft& d) { d.config.ranks = 1; }},
                                          {"MULTI_GPU", {kTaken, "pin.zero: 0"}, zero(0)},
                                          {"MULTI_CPU", {kTaken, "pin.zero: 0"}, zero(0)},
                                          {"FSDP", {kIdle, "fsdp_config says what is divided"}},
                                          {"DEEPSPEED", {kIdle, "deepspeed_config says what is divided"}},
                                          {"MEGATRON_LM", {kIdle, "megatron_lm_config says what is divided"}}})});
  rows.push_back({"num_processes", count(&ImportedConfig::ranks, "--ranks")});
  rows.push_back({"num_machines", count(&ImportedConfig::nodes, "partita launch --nodes")});
  rows.push_back({"main_process_ip", launch_flag("--master")});
  rows.push_back({"main_process_port", launch_flag("--port")});
  rows.push_back({"machine_rank", idle<Draft>("each host says its own: `partita launch --torchrun --node-rank`")});
  rows.push_back(
      {"mixed_precision",
       one_of<Draft>(
           {{"no", {kTaken, "precision: fp32"}},
            {"bf16", {kTaken, "precision: bf16"}, [](Draft& d) { d.config.recipe.precision = Precision::kBf16; }},
            {"fp16", {kTaken, "precision: fp16"}, [](Draft& d) { d.config.recipe.precision = Precision::kFp16; }},
            {"fp8", {kTaken, "precision: fp8"}, [](Draft& d) { d.config.recipe.precision = Precision::kFp8; }}})});
  rows.push_back(
      {"fp8_config", idle<Draft>("each block has a scale of its own, of the step; `fp8:` in the recipe says more")});
  rows.push_back(
      {"main_training_function", idle<Draft>("no Python function is run: `partita train` trains an exported model")});
  rows.push_back({"gpu_ids", idle<Draft>("CUDA_VISIBLE_DEVICES says which devices a host lends")});
  rows.push_back({"use_cpu", idle<Draft>("a program for CPUs is the default; `--target` says another")});
  rows.push_back({"downcast_bf16", idle_at<Draft>({"no", "false"}, "it is off", "TPUs are not run on")});
  rows.push_back({"dynamo_config", idle<Draft>("the model is compiled in any case")});
  rows.push_back({"dynamo_backend", idle<Draft>("the model is compiled in any case")});
  rows.push_back({"ipex_config", idle<Draft>("code for CPUs is generated for the CPU at hand")});
  add_rows(rows,
           {"debug", "enable_cpu_affinity", "rdzv_backend", "same_network", "tpu_env", "tpu_use_cluster",
            "tpu_use_sudo", "tpu_name", "tpu_zone", "commands", "command_file", "mpirun_config"},
           idle<Draft>("of accelerate's own launcher"));
}

void add_fsdp(Rows& rows) {
  const std::vector<Meaning<Draft>> strategies = {
      {"FULL_SHARD", {kTaken, "pin.zero: 3"}, zero(3)},
      {"1", {kTaken, "pin.zero: 3"}, zero(3)},
      {"SHARD_GRAD_OP", {kTaken, "pin.zero: 2"}, zero(2)},
      {"2", {kTaken, "pin.zero: 2"}, zero(2)},
      {"NO_SHARD", {kTaken, "pin.zero: 0"}, zero(0)},
      {"3", {kTaken, "pin.zero: 0"}, zero(0)},
      {"HYBRID_SHARD", {kTaken, "pin.zero: 3, pin.zero_group: node"}, zero(3, PinRecipe::kNode)},
      {"4", {kTaken, "pin.zero: 3, pin.zero_group: node"}, zero(3, PinRecipe::kNode)},
      {"HYBRID_SHARD_ZERO2", {kTaken, "pin.zero: 2, pin.zero_group: node"}, zero(2, PinRecipe::kNode)},
      {"5", {kTaken, "pin.zero: 2, pin.zero_group: node"}, zero(2, PinRecipe::kNode)}};
  std::vector<Meaning<Draft>> reshard = strategies;
  auto pin_reshard = [](bool on) { return [on](Draft& d) { d.config.recipe.pin.reshard_after_forward = on; }; };
  reshard.push_back({"true", {kTaken, "pin.reshard_after_forward"}, pin_reshard(true)});
  reshard.push_back({"false", {kTaken, "pin.reshard_after_forward"}, pin_reshard(false)});
  const std::string section = "fsdp_config.";
  rows.push_back({section + "fsdp_version",
                  one_of<Draft>({{"1", {kIdle, "both divide alike"}}, {"2", {kIdle, "both divide alike"}}})});
  rows.push_back({section + "fsdp_sharding_strategy", one_of<Draft>(strategies)});
  rows.push_back({section + "fsdp_reshard_after_forward", one_of<Draft>(reshard)});
  rows.push_back({section + "fsdp_offload_params", one_of<Draft>({{"false", {kIdle, "nothing is offloaded"}},
                                                                  {"true", {kTaken, "pin.offload: all"}, [](Draft& d) {
                                                                     d.config.recipe.pin.offload = OffloadMode::kAll;
                                                                   }}})});
  rows.push_back(
      {section + "fsdp_activation_checkpointing",
       one_of<Draft>({{"false", {kIdle, "what is computed again in backward is planned; `recompute: none` forbids it"}},
                      {"true", {kTaken, "recompute: full"}, [](Draft& d) {
                         d.config.recipe.recompute = RecomputeMode::kFull;
                       }}})});
  add_rows(
      rows,
      {"fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params", "fsdp_backward_prefetch",
       "fsdp_backward_prefetch_policy", "fsdp_forward_prefetch", "fsdp_limit_all_gathers"},
      idle<Draft>("what is gathered together, and when, is planned from the graph"), section);
  add_rows(rows, {"fsdp_use_orig_params", "fsdp_sync_module_states", "fsdp_cpu_ram_efficient_loading"},
           idle<Draft>("each rank reads its own part of the weights; names are the module's"), section);
  rows.push_back(
      {section + "fsdp_state_dict_type", idle<Draft>("checkpoints hold whole tensors, and load under any layout")});
  rows.push_back(
      {section + "fsdp_ignored_modules",
       refused<Draft>(
           "every parameter is divided alike; pin the values that stay whole: `pin: {PATTERN: {factor: }}`")});
}

void add_deepspeed(Rows& rows) {
  const std::string section = "deepspeed_config.";
  auto device = [](OffloadMode mode, std::string says) {
    return one_of<Draft>({{"none", {kIdle, "nothing is offloaded"}},
                          {"cpu",
                           {kTaken, says},
                           [mode](Draft& d) {
                             std::optional<OffloadMode>& pin = d.config.recipe.pin.offload;
                             if (pin != OffloadMode::kAll) pin = mode;
                           }}},
                         "nvme is not offloaded to");
  };
  rows.push_back({section + "zero_stage", becomes<Draft>("pin.zero", in_pins<Draft>(integer(&PinRecipe::zero, 0, 3)))});
  rows.push_back({section + "offload_optimizer_device", device(OffloadMode::kOptimizer, "pin.offload: optimizer")});
  rows.push_back({section + "offload_param_device", device(OffloadMode::kAll, "pin.offload: all")});
  rows.push_back({section + "gradient_accumulation_steps",
                  becomes<Draft>("batch.accumulation", in_batch<Draft>(&BatchRecipe::accumulation))});
  rows.push_back({section + "gradient_clipping", clipping<Draft>()});
  rows.push_back(
      {section + "deepspeed_config_file", becomes<Draft>("the keys of that file", text(&Draft::deepspeed_file))});
  rows.push_back({section + "deepspeed_hostfile", launch_flag("--hosts")});
  add_rows(rows, {"zero3_init_flag", "zero3_save_16bit_model"},
           idle<Draft>("each rank makes and writes its own part of the weights; checkpoints hold whole tensors"),
           section);
  add_rows(rows, {"deepspeed_multinode_launcher", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter"},
           idle<Draft>("of DeepSpeed's own launcher; `partita launch --hosts FILE`"), section);
  add_rows(rows, {"offload_optimizer_nvme_path", "offload_param_nvme_path"}, idle<Draft>("nothing is kept on disks"),
           section);
  rows.push_back({section + "deepspeed_moe_layer_cls_names", idle<Draft>("experts are found in the graph")});
}

void add_megatron(Rows& rows) {
  const std::string section = "megatron_lm_config.megatron_lm_";
  rows.push_back({section + "tp_degree", axis_pin<Draft>("tensor")});
  rows.push_back({section + "pp_degree", axis_pin<Draft>("pipeline")});
  rows.push_back({section + "num_micro_batches",
                  becomes<Draft>("batch.accumulation", in_batch<Draft>(&BatchRecipe::accumulation))});
  rows.push_back({section + "sequence_parallelism",
                  becomes<Draft>("pin.sequence_parallel", in_pins<Draft>(boolean(&PinRecipe::sequence_parallel)))});
  rows.push_back({section + "gradient_clipping", clipping<Draft>()});
  rows.push_back({section + "recompute_activations",
                  one_of<Draft>({{"false", {kIdle, "what is computed again in backward is planned"}},
                                 {"true", {kTaken, "recompute: selective"}, [](Draft& d) {
                                    d.config.recipe.recompute = RecomputeMode::kSelective;
                                  }}})});
  rows.push_back({section + "use_distributed_optimizer", one_of<Draft>({{"false", {kTaken, "pin.zero: 0"}, zero(0)},
                                                                        {"true", {kTaken, "pin.zero: 1"}, zero(1)}})});
}

void add_dimensions(Rows& rows) {
  const std::string section = "parallelism_config.parallelism_config_";
  rows.push_back({section + "dp_replicate_size",
                  becomes<Draft>("pin.zero_group, with dp_shard_size", integer(&Draft::replicas, 1))});
  rows.push_back({section + "dp_shard_size", becomes<Draft>("pin.zero", integer(&Draft::shards, 1))});
  rows.push_back({section + "tp_size", axis_pin<Draft>("tensor")});
  rows.push_back({section + "cp_size", axis_pin<Draft>("context")});
  rows.push_back({section + "cp_comm_strategy", idle<Draft>("how keys and values reach the ranks is planned")});
  rows.push_back(
      {section + "sp_size",
       one_of<Draft>(
           {{"1", {kIdle, "it is off"}}},
           "sequence parallelism beside tensor is `pin.sequence_parallel`; positions are divided by cp_size")});
}

const Rows& accelerate_rows() {
  static const Rows kRows = [] {
    Rows rows;
    add_machines(rows);
    add_fsdp(rows);
    add_deepspeed(rows);
    add_megatron(rows);
    add_dimensions(rows);
    return rows;
  }();
  return kRows;
}

// The configuration that it names, whose keys come under the name of the file.
void add_deepspeed_file(const std::string& folder, Draft& d) {
  const std::string key = "deepspeed_config.deepspeed_config_file";
  const std::string path = d.deepspeed_file.starts_with('/') ? d.deepspeed_file : cat(folder, "/", d.deepspeed_file);
  const auto text = read_text_file(path, kMaxYamlBytes);
  const auto root = text.ok() ? parse_yaml(*text) : text.status();
  if (!root.ok()) return refuse_key(d.config.keys, key, std::string(root.status().message()));
  ImportedConfig other = import_deepspeed_config(**root);
  for (ImportedKey& k : other.keys) {
    k.key = cat(d.deepspeed_file, ": ", k.key);
    if (k.fate == KeyFate::kRefused) k.says = cat(d.deepspeed_file, ":", k.line, ":", k.column, ": ", k.says);
    d.config.keys.push_back(std::move(k));
  }
  const Precision precision = d.config.recipe.precision;
  d.config.recipe = std::move(other.recipe);
  if (precision != Precision::kFp32) d.config.recipe.precision = precision;
  d.config.flags.insert(d.config.flags.end(), other.flags.begin(), other.flags.end());
}

}  // namespace

bool is_accelerate_config(const YamlNode& root) {
  return find_entry(root, "compute_environment") != nullptr || find_entry(root, "distributed_type") != nullptr;
}

ImportedConfig import_accelerate_config(const YamlNode& root, const std::string& folder) {
  Draft d;
  d.config.program = "accelerate";
  import_keys(root, "", accelerate_rows(), d, d.config.keys);
  if (!d.deepspeed_file.empty()) add_deepspeed_file(folder, d);
  PinRecipe& pin = d.config.recipe.pin;
  if (d.shards || d.replicas) pin.zero = d.shards.value_or(1) > 1 ? 3 : 0;
  if (d.shards.value_or(1) > 1 && d.replicas.value_or(1) > 1) pin.zero_group = d.shards;
  if (pin.reshard_after_forward && !pin.zero) pin.zero = 3;  // FSDP 2
  return std::move(d.config);
}

}  // namespace partita

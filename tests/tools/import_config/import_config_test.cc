// Configurations as the programs' own tutorials have them, rewritten.
#include "tools/import_config/import_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/recipe/read_recipe.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ImportConfig : public testing::Test {
 protected:
  ImportedConfig import(const std::string& name, const std::string& text) {
    auto config = import_config(folder_.write(name, text), "");
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? *std::move(config) : ImportedConfig{};
  }
  // As `import`, of a file in which nothing is refused and whose train.yaml reads back.
  ImportedConfig taken(const std::string& name, const std::string& text) {
    ImportedConfig config = import(name, text);
    EXPECT_EQ(first_refusal(config.keys), absl::OkStatus());
    const auto again = parse_recipe(format_train_yaml(config, name), "train.yaml");
    EXPECT_TRUE(again.ok()) << again.status();
    if (again.ok()) {
      EXPECT_EQ(*again, config.recipe);
    }
    return config;
  }
  static KeyFate fate(const ImportedConfig& config, std::string_view key) {
    for (const ImportedKey& k : config.keys) {
      if (k.key == key) return k.fate;
    }
    ADD_FAILURE() << "nothing is said of " << key;
    return KeyFate::kRefused;
  }
  std::string refused(const std::string& name, const std::string& text) {
    return std::string(first_refusal(import(name, text).keys).message());
  }
  TempFolder folder_;
};

// DeepSpeed's tutorials "Getting started", "ZeRO-Offload" and "Monitor" in one.
TEST_F(ImportConfig, DeepSpeed) {
  const ImportedConfig c = taken("ds_config.json", R"({
    "train_batch_size": 32, "gradient_accumulation_steps": 1, "steps_per_print": 10,
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "weight_decay": "auto"}},
    "bf16": {"enabled": true}, "gradient_clipping": 1.0, "communication_data_type": "bfp16",
    "zero_optimization": {"stage": 2, "cpu_offload": true, "contiguous_gradients": true, "overlap_comm": true},
    "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": false},
    "tensorboard": {"enabled": true, "output_path": "runs", "job_name": "x"},
    "wandb": {"enabled": true, "project": "p"}, "wall_clock_breakdown": false})");
  EXPECT_EQ(c.program, "DeepSpeed");
  EXPECT_EQ(c.recipe.compress, Compression::kBf16);
  EXPECT_EQ(c.recipe.pin.offload, OffloadMode::kOptimizer);
  EXPECT_THAT(c.flags, ElementsAre("--log-every", "10", "--metrics", "runs/"));
  EXPECT_EQ(fate(c, "wandb"), KeyFate::kIdle);
  EXPECT_EQ(fate(c, "activation_checkpointing.partition_activations"), KeyFate::kIdle);
  EXPECT_EQ(fate(c, "optimizer.params.weight_decay"), KeyFate::kOpen);
  EXPECT_EQ(command_of(c, "t.yaml"),
            "partita train MODEL.onnx --train t.yaml --data DATA --log-every 10 --metrics runs/");
  const std::string report = format_report(c, "ds_config.json");
  EXPECT_THAT(report, HasSubstr("zero_optimization.cpu_offload: true"));
  EXPECT_THAT(report, HasSubstr("  pin.offload: optimizer\n"));
}

TEST_F(ImportConfig, DeepSpeed_RefusesWhatWouldTrainSomethingElse) {
  const auto with = [&](const std::string& key) {
    return refused("c.json", R"({"train_batch_size": 8, )" + key + "}");
  };
  EXPECT_THAT(with(R"("activation_checkpointing": {"cpu_checkpointing": "gpu"})"),
              HasSubstr("activation_checkpointing.cpu_checkpointing: expected true or false"));
  EXPECT_THAT(with(R"("communication_data_type": "fp16")"),
              HasSubstr("communication_data_type: expected fp32 or bfp16"));
  EXPECT_THAT(with(R"("curriculum_learning": {"enabled": true})"),
              HasSubstr("curriculum_learning: expected it to be off"));
  EXPECT_THAT(with(R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}})"),
              HasSubstr("zero_optimization.offload_param.device: expected cpu or none"));
  EXPECT_THAT(
      with(
          R"("zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu", "ratio": 0.5}})"),
      HasSubstr("zero_optimization.offload_optimizer.ratio: expected 1 beside offload_param"));
  EXPECT_THAT(with(R"("zero_optimization": {"stages": 3})"), HasSubstr("the nearest known key is 'stage'"));
}

// ZeRO-Offload++'s "Twin-Flow".
TEST_F(ImportConfig, DeepSpeed_APartOfTheStatesIsOffloaded) {
  const auto pin = [&](const std::string& offload) {
    return taken("c.json",
                 R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_optimizer": )" + offload + "}}")
        .recipe.pin;
  };
  EXPECT_EQ(pin(R"({"device": "cpu", "pin_memory": true, "ratio": 0.3})").offload_fraction, 0.3);
  EXPECT_EQ(pin(R"({"ratio": 0.3, "device": "none"})").offload_fraction, std::nullopt);
  EXPECT_EQ(pin(R"({"device": "cpu", "ratio": 1.0})").offload_fraction, std::nullopt);
}

// accelerate's "Fully Sharded Data Parallel" guide.
TEST_F(ImportConfig, AccelerateFsdp) {
  const ImportedConfig c = taken("fsdp.yaml", R"(compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: BertLayer
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: false
  fsdp_offload_params: false
  fsdp_activation_checkpointing: true
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_use_orig_params: true
machine_rank: 0
main_process_ip: gpu01
main_process_port: 29501
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 16
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
)");
  EXPECT_EQ(c.recipe.pin.zero, 3);
  EXPECT_EQ(c.recipe.pin.zero_group, PinRecipe::kNode);
  EXPECT_EQ(c.recipe.precision, Precision::kBf16);
  EXPECT_EQ(c.recipe.recompute, RecomputeMode::kFull);
  EXPECT_EQ(command_of(c, "t.yaml"),
            "partita compile MODEL.onnx --train t.yaml --ranks 16 -o BUNDLE && partita launch BUNDLE --nodes 2 "
            "--master gpu01 --port 29501 --data DATA");
  for (const ImportedKey& k : c.keys) EXPECT_FALSE(k.says.empty()) << k.key;
}

TEST_F(ImportConfig, AccelerateFsdp2_AndDimensions) {
  ImportedConfig c = taken("a.yaml",
                           "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nmixed_precision: 'no'\n"
                           "fsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n");
  EXPECT_EQ(c.recipe.pin.zero, 3);
  EXPECT_EQ(c.recipe.pin.reshard_after_forward, false);
  c = taken("b.yaml",
            "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nparallelism_config: "
            "{parallelism_config_dp_replicate_size: 2, parallelism_config_dp_shard_size: 4, "
            "parallelism_config_tp_size: 2, parallelism_config_cp_size: 1}\n");
  EXPECT_EQ(c.recipe.pin.zero_group, 4);
  EXPECT_EQ(c.recipe.pin.axis("tensor"), 2);
  EXPECT_EQ(taken("c.yaml", "compute_environment: LOCAL_MACHINE\nmixed_precision: fp8\n").recipe.precision,
            Precision::kFp8);
  EXPECT_THAT(refused("d.yaml", "compute_environment: LOCAL_MACHINE\nfsdp_config: {fsdp_shard: 1}\n"),
              HasSubstr("unknown key 'fsdp_shard'"));
}

// accelerate's "DeepSpeed" guide: a configuration that names another file.
TEST_F(ImportConfig, AccelerateDeepSpeed_ReadsTheFileThatItNames) {
  folder_.write("zero3.json",
                R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 3}, "gradient_clipping": 0.5,
                                  "gradient_accumulation_steps": 2, "steps_per_print": 2000})");
  const std::string text =
      "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n"
      "  deepspeed_config_file: zero3.json\n  zero3_init_flag: true\nnum_processes: 4\n";
  const ImportedConfig c = taken("a.yaml", text);
  EXPECT_EQ(c.recipe.pin.zero, 3);
  EXPECT_EQ(c.recipe.clip_grad_norm, 0.5);
  EXPECT_EQ(c.ranks, 4);
  EXPECT_EQ(fate(c, "zero3.json: steps_per_print"), KeyFate::kTaken);
  folder_.write("zero3.json", R"({"fp16": {"enabled": 3}})");
  EXPECT_THAT(refused("a.yaml", text), HasSubstr("zero3.json:1:22: fp16.enabled: expected true or false"));
}

// torchtitan's llama3_8b.toml.
TEST_F(ImportConfig, Torchtitan) {
  const std::string text = R"(# a comment
[job]
dump_folder = "./outputs"
description = "Llama 3 8B training"

[profiling]
enable_profiling = true
save_traces_folder = "profile_trace"
profile_freq = 100

[metrics]
log_freq = 10
enable_tensorboard = true
save_tb_folder = "tb"

[model]
name = "llama3"
flavor = "8B"
converters = []   # float8

[optimizer]
name = "AdamW"
lr = 3e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 200  # 20%

[training]
local_batch_size = 1
seq_len = 8192
max_norm = 1.0
steps = 1_000
dataset = "c4"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 1
context_parallel_degree = 1

[checkpoint]
enable = true
folder = "checkpoint"
interval = 500
async_mode = "disabled" # ["disabled", "async"]

[activation_checkpoint]
mode = 'selective'
selective_ac_option = "op"

[compile]
enable = false
components = ["model", "loss"]

[float8]
filter_fqns = ["output"]
)";
  const ImportedConfig c = taken("llama3_8b.toml", text);
  EXPECT_EQ(c.recipe.optimizer->lr, 3e-4);
  EXPECT_EQ(c.recipe.optimizer->betas[1], 0.95);  // torchtitan's, not torch's
  EXPECT_EQ(c.recipe.optimizer->weight_decay, 0.1);
  EXPECT_EQ(c.recipe.schedule.kind, ScheduleKind::kLinear);
  EXPECT_EQ(c.recipe.schedule.total, 1000);
  EXPECT_EQ(c.recipe.clip_grad_norm, 1.0);
  EXPECT_EQ(c.recipe.precision, Precision::kBf16);
  EXPECT_EQ(c.recipe.pin.zero, 3);
  EXPECT_EQ(c.recipe.pin.axis("tensor"), 2);
  EXPECT_EQ(c.recipe.recompute, RecomputeMode::kSelective);
  EXPECT_EQ(fate(c, "optimizer.beta2"), KeyFate::kDefault);
  EXPECT_EQ(fate(c, "compile.components"), KeyFate::kIdle);
  EXPECT_EQ(command_of(c, "t.yaml"),
            "partita train MODEL.onnx --train t.yaml --data DATA --log-every 10 --steps 1000 --metrics tb/ "
            "--checkpoint checkpoint --every 500 --keep 10");
  auto with = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    return other.replace(other.find(from), from.size(), to);
  };
  const ImportedConfig wsd = taken("b.toml", with("warmup_steps = 200", "warmup_steps = 200\ndecay_ratio = 0.3"));
  EXPECT_EQ(wsd.recipe.schedule.kind, ScheduleKind::kWsd);
  EXPECT_EQ(wsd.recipe.schedule.decay, 300);
  EXPECT_EQ(taken("c.toml", with("converters = []", "converters = [\"float8\"]")).recipe.precision, Precision::kFp8);
  EXPECT_THAT(refused("c.toml", with("converters = []", "converters = [\"mx\"]")),
              HasSubstr("model.converters: expected [] or [\"float8\"] (else the graph is trained as it was exported"));
  EXPECT_THAT(refused("d.toml", with("steps = 1_000", "step = 1")), HasSubstr("the nearest known key is 'steps'"));
}

TEST_F(ImportConfig, Toml_SaysWhereItCannotBeRead) {
  const auto error = [&](const std::string& text) {
    return std::string(import_config(folder_.write("x.toml", text), "").status().message());
  };
  EXPECT_THAT(error("[training]\nsteps = \n"), HasSubstr("x.toml:2:9: expected a value"));
  EXPECT_THAT(error("[training\n"), HasSubstr("x.toml:1:10: expected ']'"));
  EXPECT_THAT(error("a = 1\na = 2\n"), HasSubstr("x.toml:2:1: the key 'a' is there twice"));
  EXPECT_THAT(error("a = \"b\n"), HasSubstr("the string does not end on its line"));
  EXPECT_THAT(error("a = [1, 2\n"), HasSubstr("expected ',' or ']'"));
  EXPECT_THAT(error("a = 2020-01-01T00:00:00Z\n"), HasSubstr("found '2020-01-01T00:00:00Z'"));
  EXPECT_THAT(error("[[a]]\n"), HasSubstr("an array of tables is not read here"));
}

// Megatron-LM's examples/gpt3/train_gpt3_175b_distributed.sh.
TEST_F(ImportConfig, Megatron) {
  const std::string text = R"(#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=2
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
CHECKPOINT_PATH=$1 #<Specify path>
TP="4"
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --seq-length 2048
    --attention-backend auto # Can use (flash/fused)
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    --lr-decay-style cosine
    --min-lr 6.0e-6
    --lr-warmup-fraction .001
    --lr-decay-iters 430000
)
PARALLEL="--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 4 \
  --sequence-parallel --use-distributed-optimizer --num-layers-per-virtual-pipeline-stage 12"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} $PARALLEL \
    --data-path 0.7 one_text_document 0.3 other_text_document \
    --log-interval 100 --save-interval 10000 --save /ckpt --load $CHECKPOINT_PATH
)";
  const ImportedConfig c = taken("train.sh", text);
  EXPECT_EQ(c.ranks, 16);
  EXPECT_EQ(c.nodes, 2);
  EXPECT_EQ(c.recipe.batch.global, 1536);
  EXPECT_EQ(c.recipe.optimizer->betas[1], 0.95);
  EXPECT_EQ(c.recipe.schedule.kind, ScheduleKind::kCosine);
  EXPECT_EQ(c.recipe.schedule.warmup, 430);
  EXPECT_EQ(c.recipe.schedule.warmup_start, 0);  // Megatron's first step has the rate lr-warmup-init
  EXPECT_EQ(c.recipe.schedule.total, 430000);
  EXPECT_EQ(c.recipe.schedule.min_lr, 6e-6);
  EXPECT_EQ(c.recipe.precision, Precision::kFp16);
  EXPECT_EQ(c.recipe.loss_scale.initial, 0x1p32);
  EXPECT_EQ(c.recipe.pin.axis("tensor"), 4);
  EXPECT_EQ(c.recipe.pin.interleave, 2);
  EXPECT_EQ(c.recipe.pin.zero, 1);
  EXPECT_THAT(c.flags,
              ElementsAre("--log-every", "100", "--steps", "500000", "--checkpoint", "/ckpt", "--every", "10000"));
  const ImportedConfig waits = taken("c.sh", text + "torchrun x.py --cpu-offloading-num-layers 3\n");
  EXPECT_EQ(waits.recipe.pin.recompute_blocks, std::vector<RecomputeMode>(3, RecomputeMode::kOffload));
  EXPECT_EQ(fate(waits, "cpu-offloading-num-layers"), KeyFate::kTaken);
  const ImportedConfig part =
      taken("d.sh", text + "torchrun x.py --optimizer-cpu-offload --optimizer-offload-fraction 0.4\n");
  EXPECT_EQ(part.recipe.pin.offload, OffloadMode::kOptimizer);
  EXPECT_EQ(part.recipe.pin.offload_fraction, 0.4);
  auto with = [&](const std::string& more) { return refused("b.sh", text + "torchrun x.py " + more + "\n"); };
  EXPECT_THAT(with("--cpu-offloading-num-layers 3 --recompute-granularity full"),
              HasSubstr("cpu-offloading-num-layers: layers wait on the host, or are computed again: leave out one"));
  EXPECT_THAT(with("--rampup-batch-size 16 16 5859375"),
              HasSubstr("41:15: rampup-batch-size: the batch does not grow"));
  EXPECT_THAT(with("--fp8-format hybrid --fp8-recipe delayed"),
              HasSubstr("fp8-recipe: expected one of blockwise, mxfp8 (each block has a scale of its own here"));
  EXPECT_THAT(with("--lr $LR"), HasSubstr("lr: expected a number > 0, found '$LR'"));
  EXPECT_THAT(with("--tensor-model-parallel 2"), HasSubstr("the nearest known key is 'tensor-model-parallel-size'"));
}

TEST_F(ImportConfig, OtherFilesAreRefused) {
  const auto error = [&](const std::string& name, const std::string& text) {
    return std::string(import_config(folder_.write(name, text), "").status().message());
  };
  EXPECT_THAT(error("x.yaml", "loss: {kind: mse}\n"), HasSubstr("x.yaml: expected a configuration of DeepSpeed"));
  EXPECT_THAT(error("x.sh", "echo hello\n"), HasSubstr("found no keys"));
  EXPECT_THAT(error("x.sh", "a --b 'c\n"), HasSubstr("x.sh:1:7: the quote does not end"));
  EXPECT_THAT(std::string(import_config(folder_ / "none", "").status().message()), HasSubstr("none"));
}

}  // namespace
}  // namespace partita

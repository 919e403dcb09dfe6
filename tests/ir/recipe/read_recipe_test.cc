#include "ir/recipe/read_recipe.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ir/support/parsed_recipe.h"

namespace partita {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ParseRecipe_Everything, IsRead) {
  Recipe recipe = parsed_recipe(R"(
loss: {kind: cross_entropy, output: logits, target: labels, ignore_index: -1, reduction: sum}
optimizer: {kind: adamw, lr: 3e-4, betas: [0.9, 0.95], eps: 1.0e-08, weight_decay: 0.1, no_decay: ['*.bias', 123]}
schedule: {kind: wsd, warmup: 2000, total: 1e5, decay: 10000, min_lr: 3.0e-05}
batch: {global: 512, micro: 4}
bind: {batch: 8, sequence: 1024}
precision: bf16
clip_grad_norm: 1
clip_grad_value: 0.5
recompute: selective
kernels: {attention: math}
trainable: '*.weight'
frozen: [mask, "rotary.*"]
seed: 7
init:
- {match: '*norm*.weight', ones}
- {match: '*.bias', zeros: true}
- {match: 'embed*', normal: 0.02}
- {match: 'head*', normal: {mean: 1, std: 0.1}}
- {match: 'a', uniform: 0.5}
- {match: 'b', uniform: {low: -1, high: 3}}
- {match: 'c', constant: -2.5}
- {match: 'd', kaiming}
- {match: 'e', kaiming: {distribution: normal, fan: fan_out, gain: 1}}
- {match: '*', xavier: normal}
data: {kind: tokens, path: text.bin, columns: {input_ids: tokens}, shuffle: true, seed: 3, dtype: uint16, prefetch: 4}
evaluate: {every: 100, batches: 10, data: {kind: synthetic, vocab: 50257}}
semantics: {batch_norm: replica, batch_norm_training: true, moe: {capacity: 32, group: 4}}
compress: bf16
reproducible: 8
names: {'onnx::MatMul_123': fc.weight}
pin:
  data: 8
  tensor: 4
  zero: 1
  zero_group: node
  reshard_after_forward: false
  micro_batch: 4
  sequence_parallel: true
  recompute: full
  offload: optimizer
  schedule: interleaved
  interleave: 2
  cuts: [layers.4.*, head]
  stages: [{data: 4}, {data: 2, tensor: 2}]
  "layers.*.mlp.up": {out: tensor, in: }
  "embed*": {vocab: [data, tensor]}
)");
  EXPECT_EQ(recipe.loss, (std::vector{LossRecipe{LossKind::kCrossEntropy, "logits", "labels", -1, Reduction::kSum}}));
  EXPECT_EQ(recipe.optimizer->lr, 3e-4);
  EXPECT_EQ(recipe.optimizer->betas, (std::array<double, 2>{0.9, 0.95}));
  EXPECT_EQ(recipe.optimizer->no_decay, (std::vector<std::string>{"*.bias", "123"}));
  EXPECT_EQ(recipe.schedule, (ScheduleRecipe{ScheduleKind::kWsd, 2000, 100000, 10000, 3e-5}));
  EXPECT_EQ(recipe.batch, (BatchRecipe{.global = 512, .micro = 4}));
  EXPECT_EQ(recipe.bind, (std::map<std::string, int64_t>{{"batch", 8}, {"sequence", 1024}}));
  EXPECT_EQ(recipe.precision, Precision::kBf16);
  EXPECT_EQ(recipe.clip_grad_norm, 1.0);
  EXPECT_EQ(recipe.clip_grad_value, 0.5);
  EXPECT_EQ(recipe.recompute, RecomputeMode::kSelective);
  EXPECT_EQ(recipe.attention, AttentionKernel::kMath);
  EXPECT_EQ(recipe.trainable, std::vector<std::string>{"*.weight"});
  EXPECT_EQ(recipe.frozen, (std::vector<std::string>{"mask", "rotary.*"}));
  EXPECT_EQ(recipe.seed, 7);
  ASSERT_EQ(recipe.init.size(), 10u);
  EXPECT_EQ(recipe.init[0], (InitRule{.match = "*norm*.weight", .kind = InitKind::kConstant, .value = 1}));
  EXPECT_EQ(recipe.init[1], (InitRule{.match = "*.bias", .kind = InitKind::kConstant}));
  EXPECT_EQ(recipe.init[2], (InitRule{.match = "embed*", .std = 0.02}));
  EXPECT_EQ(recipe.init[3], (InitRule{.match = "head*", .mean = 1, .std = 0.1}));
  EXPECT_EQ(recipe.init[4], (InitRule{.match = "a", .kind = InitKind::kUniform, .low = -0.5, .high = 0.5}));
  EXPECT_EQ(recipe.init[5], (InitRule{.match = "b", .kind = InitKind::kUniform, .low = -1, .high = 3}));
  EXPECT_EQ(recipe.init[6].value, -2.5);
  EXPECT_NEAR(recipe.init[7].gain, 1.41421356, 1e-8);
  EXPECT_EQ(recipe.init[8], (InitRule{.match = "e",
                                      .kind = InitKind::kKaiming,
                                      .distribution = InitDistribution::kNormal,
                                      .fan = FanMode::kFanOut}));
  EXPECT_EQ(recipe.init[9],
            (InitRule{.match = "*", .kind = InitKind::kXavier, .distribution = InitDistribution::kNormal}));
  EXPECT_EQ(
      recipe.data,
      (DataRecipe{DataKind::kTokens, "text.bin", {{"input_ids", "tokens"}}, true, 3, DType::kU16, std::nullopt, 4}));
  EXPECT_EQ(recipe.evaluate->data.vocab, 50257);
  EXPECT_EQ(recipe.evaluate->every, 100);
  EXPECT_EQ(recipe.semantics.batch_norm, BatchNormGroup::kReplica);
  EXPECT_TRUE(recipe.semantics.batch_norm_training);
  EXPECT_EQ(recipe.semantics.moe, (MoeCapacity{32, std::nullopt, 4}));
  EXPECT_EQ(recipe.compress, Compression::kBf16);
  EXPECT_EQ(recipe.reproducible, (ReproducibleRecipe{.samples = 8}));
  EXPECT_EQ(recipe.names.at("onnx::MatMul_123"), "fc.weight");
  EXPECT_EQ(recipe.pin.axis("data"), 8);
  EXPECT_EQ(recipe.pin.axis("pipeline"), std::nullopt);
  EXPECT_EQ(recipe.pin.zero, 1);
  EXPECT_EQ(recipe.pin.zero_group, PinRecipe::kNode);
  EXPECT_EQ(recipe.pin.reshard_after_forward, false);
  EXPECT_EQ(recipe.pin.micro_batch, 4);
  EXPECT_EQ(recipe.pin.sequence_parallel, true);
  EXPECT_EQ(recipe.pin.recompute, RecomputeMode::kFull);
  EXPECT_EQ(recipe.pin.offload, OffloadMode::kOptimizer);
  EXPECT_EQ(recipe.pin.schedule, PipelineSchedule::kInterleaved);
  EXPECT_EQ(recipe.pin.interleave, 2);
  EXPECT_EQ(recipe.pin.cuts, (std::vector<std::string>{"layers.4.*", "head"}));
  EXPECT_EQ(recipe.pin.stages,
            (std::vector<std::map<std::string, int64_t>>{{{"data", 4}}, {{"data", 2}, {"tensor", 2}}}));
  ASSERT_EQ(recipe.pin.values.size(), 2u);
  EXPECT_EQ(recipe.pin.values[0], (ValuePin{"layers.*.mlp.up", {{"out", {"tensor"}}, {"in", {}}}}));
  EXPECT_EQ(recipe.pin.values[1], (ValuePin{"embed*", {{"vocab", {"data", "tensor"}}}}));
}

TEST(ParseRecipe_NothingSaid, IsTheDefault) {
  for (const char* text : {"", "\n", "# only a comment\n", "---\n", "{}", "\xEF\xBB\xBF", "null",
                           "loss:\noptimizer:\npin:\ninit:\nclip_grad_norm: null\n"}) {
    EXPECT_EQ(parsed_recipe(text), Recipe()) << text;
  }
}

TEST(ParseRecipe_Accepted, Table) {
  EXPECT_EQ(parsed_recipe("\xEF\xBB\xBFseed: 5").seed, 5);
  EXPECT_EQ(parsed_recipe("seed: +5\r\n").seed, 5);
  EXPECT_EQ(parsed_recipe("kernels: {attention: flash}").attention, AttentionKernel::kAuto);  // an older word
  EXPECT_EQ(parsed_recipe("batch: {micro: auto}").batch.micro, std::nullopt);
  EXPECT_EQ(parsed_recipe("batch: {global: 1e3}").batch.global, 1000);
  EXPECT_TRUE(parsed_recipe("semantics: {moe: dropless}").semantics.moe_dropless);
  EXPECT_FALSE(parsed_recipe("semantics: {moe: }").semantics.moe_dropless);
  EXPECT_EQ(parsed_recipe("semantics: {moe: {capacity_factor: 1.25}}").semantics.moe->factor, 1.25);
  EXPECT_EQ(parsed_recipe("optimizer: {lr: 0.1, kind: momentum}").optimizer->momentum, 0.9);
  EXPECT_EQ(parsed_recipe("optimizer: {kind: sgd, nesterov: true, momentum: 0.5}").optimizer->nesterov, true);
  EXPECT_EQ(parsed_recipe("loss: {kind: mse}").loss.at(0).target, "target");
  EXPECT_EQ(parsed_recipe("trainable: &names [a, b]\nfrozen: *names").frozen, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parsed_recipe("{\"seed\": 3, \"batch\": {\"global\": 4}}").batch.global, 4);
  EXPECT_EQ(parsed_recipe("bind: {12: 4, \"null\": 1}").bind.size(), 2u);
}

TEST(ParseRecipe_Data, SourcesAndDocuments) {
  auto recipe = parse_recipe(R"(
data:
  documents: pack
  end_of_document: 50256
  pad_token: 3
  shift: true
  sources:
  - {path: wiki.bin, weight: 0.7}
  - {path: code.npy, weight: 0.3, kind: tokens, dtype: uint32, documents: separate, end_of_document: 0}
)",
                             "t");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  const DataRecipe& data = *recipe->data;
  EXPECT_EQ(data.documents, DocumentMode::kPack);
  EXPECT_EQ(data.end_of_document, 50256);
  EXPECT_EQ(data.pad_token, 3);
  EXPECT_EQ(data.shift, true);
  ASSERT_EQ(data.sources.size(), 2u);
  EXPECT_EQ(data.sources[0], (SourceRecipe{.path = "wiki.bin", .weight = 0.7}));
  EXPECT_EQ(data.sources[1], (SourceRecipe{.path = "code.npy",
                                           .weight = 0.3,
                                           .kind = DataKind::kTokens,
                                           .dtype = DType::kU32,
                                           .documents = DocumentMode::kSeparate,
                                           .end_of_document = 0}));
}

TEST(ParseRecipe_Refused, Table) {
  std::string many;
  for (int k = 0; k < 1024; ++k) many += "{path: a}, ";
  const struct {
    std::string text, message;
  } kCases[] = {
      // Unknown keys, at every level.
      {"optimiser: {kind: sgd}", "t:1:1: unknown key 'optimiser'; the nearest known key is 'optimizer'"},
      {"seed: 1\noptimizer:\n  kind: adam\n  weightdecay: 1\n",
       "t:4:3: optimizer: unknown key 'weightdecay'; the nearest known key is 'weight_decay'"},
      {"kernels: {attn: own}", "t:1:11: kernels: unknown key 'attn'; the known keys are attention"},
      {"kernels: {attention: flush}",
       "t:1:22: kernels.attention: expected one of auto, cudnn, own, math, found 'flush'"},
      {"zzz: 1",
       "t:1:1: unknown key 'zzz'; the known keys are loss, metrics, optimizer, schedule, batch, bind, precision, "
       "loss_scale, fp8, "
       "clip_grad_norm, clip_grad_value, ema, recompute, kernels, trainable, frozen, seed, "
       "init, data, evaluate, semantics, compress, reproducible, run, pin, names"},
      {"run: {on_nan: skip}", "t:1:7: run: unknown key 'on_nan'; the known keys are on_nonfinite, loss_spike, timeout"},
      {"run: {on_nonfinite: hope}", "run.on_nonfinite: expected one of warn, skip, rollback, stop, found 'hope'"},
      {"run: {loss_spike: {factor: 1}}", "run.loss_spike.factor: expected a number > 1, found '1'"},
      {"run: {loss_spike: {action: skip}}", "run.loss_spike: expected action warn, rollback or stop"},
      {"run: {timeout: {step: 0}}", "run.timeout.step: expected a number of seconds > 0"},
      {"reproducible: {tensor: 4}", "t:1:15: reproducible: missing key 'samples'"},
      {"data: {path: a, sources: [{path: b}]}", "t:1:7: data: expected `path` or `sources`, found both"},
      {"data: {sources: [{weight: 1}]}", "t:1:18: data.sources[0]: missing key 'path'"},
      {"data: {sources: [{path: a, weight: -1}]}", "data.sources[0].weight: expected"},
      {"data: {sources: [" + many + "{path: a}]}", "data.sources: expected a list of 1 to 1024 sources"},
      {"data: {sources: [{path: a, weight: 1}, {path: b}]}",
       "t:1:40: data.sources[1]: expected a weight for each source or for none"},
      // What the kind of data would ignore.
      {"data: {path: a.npz, images: {flip: 0.5}}", "t:1:21: data: kind npz has no 'images'; remove it"},
      {"data: {kind: npy, path: a, documents: pack}", "t:1:28: data: kind npy has no 'documents'; remove it"},
      {"data: {path: a.tar, shift: false}", "t:1:21: data: kind webdataset has no 'shift'; remove it"},
      {"data: {kind: images, path: a, pad_token: 1}", "t:1:31: data: kind images has no 'pad_token'; remove it"},
      {"evaluate: {data: {path: a, pth: b}}",
       "t:1:28: evaluate.data: unknown key 'pth'; the nearest known key is 'path'"},
      {"semantics: {moe: {capacty: 3}}",
       "t:1:19: semantics.moe: unknown key 'capacty'; the nearest known key is 'capacity'"},
      {"init: [{match: a, normal: {sd: 1}}]",
       "t:1:28: init[0].normal: unknown key 'sd'; the nearest known key is 'std'"},
      {"pin: {tensr: 4}",
       "t:1:7: pin: unknown key 'tensr'; the nearest known key is 'tensor' (a pattern of value names takes a mapping: "
       "{factor: axis})"},
      {"\"a\\x1b[31m\": 1", "t:1:1: unknown key 'a\\x1b[31m'; the known keys are"},
      // Types.
      {"[1, 2]", "t:1:1: the file: expected a mapping, found a list of 2"},
      {"hello", "t:1:1: the file: expected a mapping, found 'hello'"},
      {"loss: cross_entropy", "t:1:7: loss: expected a mapping, found 'cross_entropy'"},
      {"seed: 1.5", "t:1:7: seed: expected an integer >= 0, found '1.5'"},
      {"seed: '1'", "t:1:7: seed: expected an integer >= 0, found the text '1'"},
      {"seed: 0x10", "t:1:7: seed: expected an integer >= 0, found '0x10'"},
      {"seed: 99999999999999999999", "t:1:7: seed: expected an integer >= 0, found '99999999999999999999'"},
      {"seed: 1\ninit: [{match: }]", "t:2:9: init[0].match: expected a name, found nothing"},
      {"seed:", "t:1:1: seed: expected an integer >= 0, found nothing"},
      {"optimizer: {kind: adam, lr: fast}", "t:1:29: optimizer.lr: expected a number >= 0, found 'fast'"},
      {"optimizer: {kind: adam, lr: '0.1'}", "t:1:29: optimizer.lr: expected a number >= 0, found the text '0.1'"},
      {"optimizer: {kind: adam, betas: 0.9}", "t:1:32: optimizer.betas: expected a list of two numbers, found '0.9'"},
      {"optimizer: {kind: adam, betas: [0.9]}",
       "t:1:32: optimizer.betas: expected a list of two numbers, found a list of 1"},
      {"optimizer: {kind: momentum, nesterov: yes}", "t:1:39: optimizer.nesterov: expected true or false, found 'yes'"},
      {"optimizer: {kind: adam, no_decay: [[a]]}",
       "t:1:36: optimizer.no_decay: expected a name pattern, found a list of 1"},
      {"optimizer: {kind: nadam}", "t:1:19: optimizer.kind: expected one of sgd, momentum, adagrad, adam, adamw, lamb"},
      {"optimizer: {lr: 0.1}",
       "t:1:12: optimizer: missing key 'kind'; add one of sgd, momentum, adagrad, adam, adamw, lamb"},
      {"precision: fp4", "t:1:12: precision: expected one of fp32, tf32, bf16, fp16, fp8, found 'fp4'"},
      {"frozen: {a: b}", "t:1:9: frozen: expected a list of name patterns, found a mapping"},
      {"bind: [1]", "t:1:7: bind: expected a mapping, found a list of 1"},
      {"bind: {batch: 0}", "t:1:15: bind.batch: expected an integer >= 1, found '0'"},
      {"bind: {batch: 1e18}", "t:1:15: bind.batch: expected an integer"},
      {"names: {a: [b]}", "t:1:12: names.a: expected a name, found a list of 1"},
      {"init: {match: a}", "t:1:7: init: expected a list of rules, found a mapping"},
      {"init: [{match: a}]",
       "t:1:8: init[0]: expected 'match' and exactly one of normal, uniform, zeros, ones, constant, kaiming, xavier, "
       "found a mapping"},
      {"init: [{match: a, ones, zeros}]", "t:1:8: init[0]: expected 'match' and exactly one of"},
      {"init: [{match: a, ones: false}]", "t:1:25: init[0].ones: expected nothing or true, found 'false'"},
      {"init: [{match: a, uniform: {low: 2}}]", "t:1:28: init[0].uniform: expected low <= high, found a mapping"},
      {"data: {path: a, dtype: q7}",
       "t:1:24: data.dtype: expected an element type, as in uint16 or float32, found 'q7'"},
      {"evaluate: {every: 5}", "t:1:11: evaluate: missing key 'data'"},
      {"data: {kind: raw, path: x, dtype: uint8}", "kind raw has no 'dtype'; remove it"},
      {"data: {prefetch: 0}", "prefetch"},
      {"semantics: {moe: dense}", "t:1:18: semantics.moe: expected dropless or {capacity, group}, found 'dense'"},
      {"semantics: {moe: {group: 1}}",
       "t:1:18: semantics.moe: expected exactly one of capacity (tokens) and capacity_factor, found a mapping"},
      {"pin: {w: {out: tenser}}",
       "t:1:16: pin.w.out: expected one of data, tensor, pipeline, context, expert, found 'tenser'"},
      {"pin: {w: {out: [data, data]}}", "t:1:23: pin.w.out: expected every axis once, found 'data'"},
      {"pin: {schedule: pipe}",
       "t:1:17: pin.schedule: expected one of gpipe, 1f1b, interleaved, zero_bubble, pipedream, found 'pipe'"},
      // Ranges.
      {"optimizer: {kind: adam, lr: -1}", "t:1:29: optimizer.lr: expected a number >= 0, found '-1'"},
      {"optimizer: {kind: adam, lr: .nan}", "t:1:29: optimizer.lr: expected a number >= 0, found '.nan'"},
      {"optimizer: {kind: adam, lr: nan}", "t:1:29: optimizer.lr: expected a number >= 0, found 'nan'"},
      {"optimizer: {kind: adam, lr: .inf}", "t:1:29: optimizer.lr: expected a number >= 0, found '.inf'"},
      {"optimizer: {kind: adam, lr: 1e999}", "t:1:29: optimizer.lr: expected a number >= 0, found '1e999'"},
      {"optimizer: {kind: adam, betas: [0.9, 1.0]}",
       "t:1:38: optimizer.betas: expected a number in [0, 1), found '1.0'"},
      {"optimizer: {kind: adam, betas: [-0.1, 0.9]}",
       "t:1:33: optimizer.betas: expected a number in [0, 1), found '-0.1'"},
      {"optimizer: {kind: sgd, betas: [0.9, 0.9]}", "t:1:24: optimizer: kind sgd has no 'betas'; remove it"},
      {"optimizer: {kind: sgd, nesterov: true}",
       "t:1:24: optimizer.nesterov: expected momentum > 0 and no dampening beside it"},
      {"loss: {kind: output, target: y}", "t:1:22: loss: kind output has no 'target'; remove it"},
      {"loss: {kind: mse, ignore_index: 1}", "t:1:19: loss: kind mse has no 'ignore_index'; remove it"},
      {"batch: {global: 0}", "t:1:17: batch.global: expected an integer >= 1, found '0'"},
      {"batch: {micro: some}", "t:1:16: batch.micro: expected auto or an integer >= 1, found 'some'"},
      {"batch: {global: 8, micro: 3}", "t: batch.micro: expected a divisor of batch.global 8, found 3"},
      {"batch: {micro: 3}\npin: {micro_batch: 4}",
       "t: pin.micro_batch: expected batch.micro 3, found 4; keep one of the two"},
      {"clip_grad_norm: 0", "t:1:17: clip_grad_norm: expected a number > 0, found '0'"},
      {"ema: {decay: 1}", "t:1:14: ema.decay: expected a number in [0, 1), found '1'"},
      {"optimizer: {kind: lion, eps: 1}", "t:1:25: optimizer: kind lion has no 'eps'; remove it"},
      {"optimizer: {kind: adafactor, clip_threshold: 0.5}", "optimizer.clip_threshold: expected a number >= 1"},
      {"optimizer: {kind: sgd, groups: [{lr: 1}]}", "t:1:33: optimizer.groups[0]: missing key 'match'"},
      {"optimizer: {kind: sgd, groups: [{match: w, betas: [0, 0]}]}",
       "t:1:44: optimizer.groups[0]: kind sgd has no 'betas'; remove it"},
      {"optimizer: {kind: sgd, groups: [{match: w, kind: adam}]}", "optimizer.groups[0]: unknown key 'kind'"},
      {"optimizer: {kind: sgd, groups: [{match: w, nesterov: true}]}",
       "t:1:44: optimizer.groups[0].nesterov: expected"},
      {"optimizer: {kind: sgd, lr: 0.1}\nschedule: {min_lr: 0.2}",
       "t: schedule.min_lr: expected at most optimizer.lr 0.1, found 0.2"},
      {"pin: {stages: {data: 4}}",
       "t:1:15: pin.stages: expected a list with one mapping for each stage, as in [{data: 4}, {tensor: 4}], found a "
       "mapping"},
      {"pin: {stages: [{data: 0}]}", "t:1:23: pin.stages[0].data: expected an integer from 1 to 16777216, found '0'"},
      {"pin: {zero: 4}", "t:1:13: pin.zero: expected an integer from 0 to 3, found '4'"},
      {"pin: {tensor: 0}", "t:1:15: pin.tensor: expected an integer from 1 to 16777216, found '0'"},
      // The document.
      {"seed: 1\nseed: 2", "t:2:1: duplicate key 'seed'; keep one of the two"},
      {"optimizer: {kind: adam, lr: 1, lr: 2}", "t:1:32: duplicate key 'lr'; keep one of the two"},
      {"seed: 1\n---\nseed: 2\n", "a second document; keep one"},
      {"seed: !!int 1", "the tag '"},
      {"seed: !2", "the tag '"},
      {"loss: &a {kind: mse}\noptimizer: {<<: *a}", "t:2:13: merge keys '<<' are not supported; repeat the keys"},
      {"? [a]\n: 1", "a key must be a name, found a list or a mapping"},
      {"frozen: &a [*a]", "t:1:13: an alias inside the node that it names"},
      {"frozen: *a", "not valid YAML"},
      {"loss: {kind: mse", "not valid YAML"},
      {"a: b: c", "not valid YAML"},
      {"\tseed: 1", "not valid YAML"},
      {std::string("seed: 1\0", 8), "t:1:8: control character 0x00"},
      {"seed: 1\x04\nbatch: {global: 0}", "t:1:8: control character 0x04"},
      {"frozen: ['\xC3']", "t:1:1: not UTF-8; save the file as UTF-8"},
      {"frozen: ['\xED\xA0\x80']", "t:1:1: not UTF-8"},
      {"\xFF\xFEs\0e\0", "t:1:1: not UTF-8"},
      {"frozen: ['']", "t:1:10: frozen: expected a name pattern of 1 to 1024 bytes, found the text ''"},
      {"frozen: [" + std::string(1025, 'a') + "]",
       "t:1:10: frozen: expected a name pattern of 1 to 1024 bytes, found 'aaa"},
  };
  for (const auto& c : kCases) expect_refused(c.text, c.message);
}

std::string repeated(std::string_view piece, size_t times) {
  std::string text;
  for (size_t i = 0; i < times; ++i) text += piece;
  return text;
}

TEST(ParseRecipe_Bombs, AreRefusedAtOnce) {
  std::string laughs = "frozen: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    std::string name = "k" + std::to_string(i), inner = "*a" + std::to_string(i - 1);
    laughs += name + ": &a" + std::to_string(i) + " [" + inner + repeated(", " + inner, 9) + "]\n";
  }
  const struct {
    const char* what;
    std::string text, message;
  } kCases[] = {
      {"too large", std::string((16 << 20) + 1, 'a'), "t:1:1: larger than 16 MiB"},
      {"deep flow", "frozen: " + std::string(1 << 16, '[') + std::string(1 << 16, ']'), "nested deeper than 64 levels"},
      {"open flow", std::string(1 << 17, '['), ""},
      {"deeper flow", std::string(1 << 22, '['), "brackets, commas, colons"},
      {"deep maps", "a: " + repeated("{a: ", 1 << 16), "nested deeper than 64 levels"},
      {"deep block", repeated("- ", 1 << 17), "nested deeper than 64 levels"},
      {"deep compact", repeated("? ", 1 << 17), ""},
      {"laughs", laughs, "values, aliases expanded"},
      {"deep through aliases",
       "a: &a " + std::string(40, '[') + std::string(40, ']') + "\nb: " + std::string(40, '[') + "*a" +
           std::string(40, ']'),
       "nested deeper than 64 levels"},
      {"many aliases", "a: &a x\nfrozen: [*a" + repeated(", *a", 2000) + "]", "more than 1024 aliases"},
      {"long flow", "frozen: [" + repeated("a,", 1 << 20), "brackets, commas, colons"},
      {"open quote", "frozen: '" + std::string(1 << 22, 'a'), ""},
      {"long plain", std::string(1 << 22, 'a'), "expected a mapping"},
      {"long words", repeated("a ", 1 << 21), "expected a mapping"},
      {"spaces", std::string(1 << 22, ' ') + "a: 1", ""},
      {"newlines", "a: 'b" + repeated("\n", 1 << 17), ""},
      {"long key", std::string(1 << 20, 'a') + ": 1", ""},
      {"many keys",
       [] {
         std::string text;
         for (int i = 0; i < 60000; ++i) text += "k" + std::to_string(i) + ": 1\n";
         return text;
       }(),
       "unknown key 'k0'"},
  };
  for (const auto& c : kCases) {
    auto start = std::chrono::steady_clock::now();
    std::string message = refusal(c.text);
    EXPECT_THAT(message, HasSubstr(c.message)) << c.what;
    EXPECT_NE(message, "accepted") << c.what;
    EXPECT_LT(message.size(), 800u) << c.what;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5)) << c.what;
  }
}

// Whatever bytes come, there is an answer: the mutated recipes reach every branch of the reader.
TEST(ParseRecipe_RandomMutations, NeverCrash) {
  const std::string kSeed =
      "loss: {kind: cross_entropy, output: logits}\noptimizer: &a {kind: adamw, lr: 1e-3, betas: [0.9, 0.95], "
      "no_decay: ['*.bias', \"x\"]}\nschedule:\n  kind: cosine\n  total: 10\n"
      "init:\n- match: '*'\n  normal: 0.02\n# c\npin: {tensor: 2, 'w*': {out: tensor}}\nnames: {a: >\n  b\n , c: *a}\n";
  const std::string kAlphabet = "{}[]:,-?&*!|>'\"%@`# \n\t\\a1.~<=\xC3\xA9\x04";
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::string text = round % 3 ? kSeed : "";
    for (int edit = static_cast<int>(random() % 12); edit >= 0; --edit) {
      size_t at = random() % (text.size() + 1);
      switch (random() % 3) {
        case 0:
          text.insert(at, 1, kAlphabet[random() % kAlphabet.size()]);
          break;
        case 1:
          text.erase(at, random() % 8);
          break;
        default:
          text.insert(at, text.substr(random() % (text.size() + 1), random() % 20));
          break;
      }
    }
    auto recipe = parse_recipe(text, "t");
    if (!recipe.ok()) {
      ASSERT_THAT(std::string(recipe.status().message()), StartsWith("t:"));
    }
  }
}

TEST(ParseRecipe_Groups, TakeOverWhatTheyDoNotSay) {
  const Recipe recipe = parsed_recipe(
      "optimizer: {groups: [{match: 'embed*', lr: 0.5}, {match: [a, 'e*'], betas: [0.5, 0.6]}], kind: adamw, lr: "
      "0.25}");
  const OptimizerRecipe& o = *recipe.optimizer;
  ASSERT_EQ(o.groups.size(), 2u);
  EXPECT_EQ(o.group_of("embed.weight"), &o.groups[0]);  // the first that matches
  EXPECT_EQ(o.group_of("extra"), &o.groups[1]);
  EXPECT_EQ(o.group_of("other"), nullptr);
  EXPECT_EQ(o.groups[0].lr, 0.5);
  EXPECT_EQ(o.groups[0].weight_decay, 0.01);
  EXPECT_EQ(o.groups[1].lr, 0.25);
  EXPECT_EQ(o.groups[1].betas, (std::array<double, 2>{0.5, 0.6}));
}

TEST(LoadRecipe_SharedModels, AllLoad) {
  std::filesystem::path models = PARTITA_MODELS;
  if (!std::filesystem::exists(models)) GTEST_SKIP() << "no " << models;
  int count = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(models)) {
    if (entry.path().filename() != "train.yaml") continue;
    auto recipe = load_recipe(entry.path().string());
    EXPECT_TRUE(recipe.ok()) << recipe.status().message();
    ++count;
  }
  EXPECT_GE(count, 20);
  auto resnet = load_recipe((models / "resnet" / "train.yaml").string());
  ASSERT_TRUE(resnet.ok());
  EXPECT_EQ(resnet->optimizer->kind, OptimizerKind::kMomentum);
  EXPECT_EQ(resnet->frozen.size(), 40u);
}

TEST(LoadRecipe_BadPaths, AreRefused) {
  EXPECT_EQ(load_recipe("/nonexistent/train.yaml").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(load_recipe("/tmp").status().message()), HasSubstr("found a directory"));
  EXPECT_THAT(std::string(load_recipe("/dev/zero").status().message()), HasSubstr("larger than 16 MiB"));
}

TEST(Recipe_Run, SaysWhatIsDoneAboutFaults) {
  auto recipe = parse_recipe(
      "run: {on_nonfinite: skip, loss_spike: {factor: 2.5, action: rollback}, timeout: {step: 90, collective: 0.5}}",
      "t");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_TRUE(recipe->run.skips());
  EXPECT_EQ(recipe->run.loss_spike,
            (LossSpikeRecipe{.factor = 2.5, .window = 100, .action = DivergenceAction::kRollback}));
  EXPECT_EQ(recipe->run.timeout, (TimeoutRecipe{.step = 90, .collective = 0.5}));
}

TEST(Recipe_LossScale, IsANumberOrARule) {
  auto scale = [](const std::string& text) {
    auto recipe = parse_recipe("precision: fp16\nloss_scale: " + text, "t");
    return recipe.ok() ? recipe->loss_scale : LossScaleRecipe{.fixed = -1};
  };
  EXPECT_EQ(scale("512"), LossScaleRecipe{.fixed = 512});
  EXPECT_EQ(scale("{initial: 8, window: 20, minimum: 0.5}"),
            (LossScaleRecipe{.initial = 8, .window = 20, .minimum = 0.5}));
  for (const char* bad : {"0", "-2", "dynamic", "{initial: 0}", "{window: 0}", "{initial: 2, minimum: 4}", "{grow: 2}"})
    EXPECT_EQ(scale(bad).fixed, -1) << bad;
}

}  // namespace
}  // namespace partita

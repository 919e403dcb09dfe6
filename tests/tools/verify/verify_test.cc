// What the compiler makes is verified: every given model, every layout that the command line knows.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "nlohmann/json.hpp"
#include "tests/support/bundle.h"
#include "tests/support/command.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/support/verify_samples.h"
#include "tools/proof/numeric_check.h"
#include "tools/verify/certificate.h"
#include "tools/verify/check_evaluation.h"

namespace partita {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> model_folders() {
  std::vector<std::string> folders{std::string(PARTITA_TEST_DATA) + "/gpt2"};
  if (!fs::exists(PARTITA_MODELS)) return folders;
  for (const auto& entry : fs::directory_iterator(PARTITA_MODELS)) {
    if (fs::exists(entry.path() / "train.yaml") && fs::exists(entry.path() / "expected.npz"))
      folders.push_back(entry.path().string());
  }
  std::sort(folders.begin() + 1, folders.end());
  return folders;
}

void expect_verified(const std::string& folder, const SampleLayout& layout) {
  auto bundle = sample_bundle(folder, layout);
  ASSERT_TRUE(bundle.ok()) << folder << ", " << describe(layout) << ": " << bundle.status();
  auto verdict = verifier::check_bundle(*bundle);
  ASSERT_TRUE(verdict.ok()) << folder << ", " << describe(layout) << ": " << verdict.status();
  EXPECT_EQ(verdict->ranks, layout.ranks);
  EXPECT_EQ(verdict->states, static_cast<int64_t>(bundle->serial.states.size()));
  EXPECT_EQ(verdict->outputs, static_cast<int64_t>(bundle->serial.outputs.size()));
  EXPECT_GT(verdict->steps, 0);
  EXPECT_EQ(verdict->collectives > 0, layout.ranks > 1);
}

// Of a matrix [8, 16].
std::vector<float> some_weights() {
  std::vector<float> weights(8 * 16);
  for (size_t k = 0; k < weights.size(); ++k) weights[k] = 0.1f * static_cast<float>(k * k % 13) - 0.5f;
  return weights;
}

// That the bundle of the folder's model.onnx is proved, kernels and all.
void expect_proved(const TempFolder& out, const std::string& recipe, const std::string& flags) {
  const std::string yaml = out.write("train.yaml", recipe);
  const Outcome compiled = run_command(cat(partita_program(), " compile ", out / "model.onnx", " --train ", yaml,
                                           " --quiet -o ", out / "bundle", flags));
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  const Outcome proved = run_command(cat(partita_program(), " verify ", out / "bundle"));
  EXPECT_EQ(proved.code, 0) << proved.text;
}

TEST(Verify_EveryGivenModel, HoldsUnderDataParallelism) {
  for (const std::string& folder : model_folders()) {
    expect_verified(folder, {.ranks = 1});
    expect_verified(folder, {.ranks = 2, .like = {"ddp"}});
    expect_verified(folder, {.ranks = 4});
  }
}

TEST(Verify_EveryGivenModel, HoldsInStages) {
  for (const std::string& folder : model_folders()) {
    SampleLayout layout{.ranks = 2, .pins = {"pipeline=2", "micro_batch=1"}};
    // A statistic over the batch cannot be cut into micro-batches.
    if (sample_bundle(folder, layout).status().message().find("needs all samples") != std::string::npos)
      layout.pins = {"pipeline=2"};
    expect_verified(folder, layout);
  }
}

TEST(Verify_EveryLayout, Holds) {
  TempFolder out;
  std::string made = made_model(out);  // several micro-batches a step
  for (const std::string& folder : {std::string(PARTITA_TEST_DATA) + "/gpt2", made}) {
    expect_verified(folder, {.ranks = 1});
    expect_verified(folder, {.ranks = 2, .keep_gradients = true});
    expect_verified(folder, {.ranks = 4});
    for (const char* like : {"zero1", "zero2", "zero3", "hsdp"}) expect_verified(folder, {.ranks = 4, .like = {like}});
    expect_verified(folder, {.ranks = 2, .like = {"megatron:tp2"}});
    expect_verified(folder, {.ranks = 4, .like = {"zero3"}, .pins = {"tensor=2"}});
    expect_verified(folder, {.ranks = 2, .pins = {"context=2"}});
    expect_verified(folder, {.ranks = 4, .like = {"megatron:tp2"}, .keep_gradients = true});
  }
  expect_verified(made, {.ranks = 8});
  expect_verified(made, {.ranks = 2, .pins = {"micro_batch=1"}});
  expect_verified(std::string(PARTITA_TEST_DATA) + "/gpt2", {.ranks = 2, .pins = {"micro_batch=2"}});
  expect_verified(made, {.ranks = 8, .like = {"zero3"}});
  for (const std::string& folder : {std::string(PARTITA_TEST_DATA) + "/gpt2", made}) {
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero_bubble"})
      expect_verified(folder, {.ranks = 2, .pins = {"pipeline=2", "micro_batch=1", cat("schedule=", schedule)}});
    expect_verified(folder, {.ranks = 4, .pins = {"pipeline=2", "tensor=2", "micro_batch=1"}});
    expect_verified(folder, {.ranks = 4, .pins = {"pipeline=2", "zero=3"}, .keep_gradients = true});
    expect_verified(folder, {.ranks = 4, .pins = {"pipeline=2", "data=2", "zero=1", "recompute=full"}});
    // Of the made model's runs two are taken side by side.
    expect_verified(folder, {.ranks = 8, .pins = {"stages=[{data: 4}, {data: 2, tensor: 2}]", "zero=1"}});
    expect_verified(folder, {.ranks = 4, .pins = {"stages=[{tensor: 2}, {data: 2}]", "micro_batch=1"}});
  }
}

// y = x + the mean over the features of x w + b: all columns of the gradient of w are alike, and each rank adds up the
// squares of its own for the norm.
TEST(Verify_Sums, OfTermsThatAreAlikeHold) {
  TempFolder out;
  onnx::ModelProto m = empty_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_value(g->add_input(), "x", {8, 4, 8});
  add_value(g->add_output(), "y", {8, 4, 8});
  const std::vector<float> weights = some_weights();
  add_floats(g, "w", {8, 16}, weights);
  add_floats(g, "b", {16}, std::vector<float>(16, 0.25f));
  add_ints(g, "last", {-1});
  add_node(g, "MatMul", {"x", "w"}, {"h"}, "product");
  add_node(g, "Add", {"h", "b"}, {"k"}, "bias");
  add_node(g, "ReduceMean", {"k", "last"}, {"mean"}, "mean");
  add_node(g, "Add", {"x", "mean"}, {"y"}, "residual");
  std::ofstream(out / "model.onnx", std::ios::binary) << m.SerializeAsString();
  out.write("train.yaml", "loss: {kind: mse, output: y}\noptimizer: {kind: adamw, lr: 0.01}\nclip_grad_norm: 1\n");
  expect_verified(out.path(), {.ranks = 2, .pins = {"tensor=2"}});
  expect_verified(out.path(), {.ranks = 4, .pins = {"tensor=4"}, .keep_gradients = true});
  // Along which of two axes of two ranks terms are left out is not in their layout.
  for (const char* zero : {"zero=1", "zero=2", "zero=3"})
    expect_verified(out.path(), {.ranks = 4, .pins = {"tensor=2", "data=2", zero}});
  // A rank's part that is never added to the others' is found.
  auto bundle = sample_bundle(out.path(), {.ranks = 4, .pins = {"tensor=2", "data=2", "zero=2"}});
  ASSERT_TRUE(bundle.ok()) << bundle.status();
  Graph& rank = bundle->programs[0].rank;
  auto sum = std::find_if(rank.nodes.begin(), rank.nodes.end(), [&](const Node& n) {
    return n.op->name == "all_reduce" && rank.type(n.outputs[0]).rank() == 0;
  });
  ASSERT_NE(sum, rank.nodes.end());
  for (Node& n : rank.nodes) {
    for (ValueId& v : n.inputs) {
      auto made = std::find(sum->outputs.begin(), sum->outputs.end(), v);
      if (made != sum->outputs.end()) v = sum->inputs[static_cast<size_t>(made - sum->outputs.begin())];
    }
  }
  const absl::Status found = verifier::check_bundle(*bundle).status();
  EXPECT_NE(found.message().find("partial"), std::string::npos) << found;
}

// What ranks hold is cut inside of a digit of the value's index.
TEST(Verify_Parts, OfViewsHold) {
  TempFolder out;
  // Four heads of 12 over three ranks, of one sample at a time: the projection's rows are a head and a third.
  Outcome made = run_command(cat(partita_program(), " model gpt --layers 2 --hidden 48 --heads 4 --vocab 30 --seq 8",
                                 " --kv-heads 2 --norm rmsnorm --no-bias --positions rotary --quiet --with-weights -o ",
                                 out / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  out.write("train.yaml", "loss: {kind: output, output: loss}\nbatch: {global: 4}\nbind: {batch: 4}\n");
  expect_verified(out.path(), {.ranks = 6, .pins = {"tensor=3", "pipeline=2", "micro_batch=1"}});
  expect_verified(out.path(), {.ranks = 6, .pins = {"tensor=3", "data=2", "zero=2"}});

  // Three heads of four, of which two ranks exchange samples for one and a half each.
  TempFolder heads;
  made = run_command(cat(partita_program(), " model bert --layers 1 --hidden 12 --heads 3 --vocab 30 --seq 8 --ffn 48 ",
                         "--quiet --with-weights -o ", heads / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  heads.write("train.yaml", "batch: {global: 4}\nkernels: {attention: math}\n");
  expect_verified(heads.path(), {.ranks = 2, .pins = {"tensor=2", "sequence_parallel=true"}});

  // Two ranks hold the rows of a head each of queries, keys and values: three parts, whose sum goes in two.
  TempFolder joined;
  made = run_command(cat(partita_program(), " model gpt --layers 1 --hidden 32 --heads 2 --vocab 30 --seq 8 --quiet ",
                         "--with-weights -o ", joined / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  joined.write("train.yaml", "batch: {global: 8}\n");
  expect_verified(joined.path(), {.ranks = 8, .pins = {"tensor=2", "data=4", "hierarchical_group=2", "zero=0"}});

  // Five learned queries that all samples share, positions first: their rows are divided by two ranks.
  TempFolder queries;
  onnx::ModelProto m = empty_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_value(g->add_input(), "x", {5, 8, 16});
  add_value(g->add_output(), "y", {5, 8, 16});
  auto numbers = [](size_t n) {
    std::vector<float> x(n);
    for (size_t k = 0; k < n; ++k) x[k] = 0.01f * static_cast<float>(k * k % 31) - 0.15f;
    return x;
  };
  add_floats(g, "queries", {5, 1, 16}, numbers(5 * 16));
  add_floats(g, "up", {16, 32}, numbers(16 * 32));
  add_floats(g, "down", {32, 16}, numbers(32 * 16));
  add_ints(g, "shape", {5, 8, 16});
  add_node(g, "Expand", {"queries", "shape"}, {"q"}, "expand");
  add_node(g, "MatMul", {"q", "up"}, {"u"}, "up");
  add_node(g, "Relu", {"u"}, {"r"}, "relu");
  add_node(g, "MatMul", {"r", "down"}, {"d"}, "down");
  add_node(g, "Add", {"d", "x"}, {"s"}, "residual");
  add_node(g, "Tanh", {"s"}, {"y"}, "tanh");
  std::ofstream(queries / "model.onnx", std::ios::binary) << m.SerializeAsString();
  queries.write("train.yaml", "loss: {kind: mse, output: y}\n");
  expect_verified(queries.path(), {.ranks = 2, .pins = {"tensor=2", "sequence_parallel=true"}});
}

// Backward's kernel reads a relu's result, and makes what that was made of again for its gradient.
TEST(Verify_Kernels, ThatReadAReluAndItsOperandHold) {
  TempFolder out;
  onnx::ModelProto m = empty_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_value(g->add_input(), "x", {4, 16, 8});
  add_value(g->add_output(), "y", {4, 16, 8});
  const std::vector<float> weights = some_weights();
  add_floats(g, "up", {8, 16}, weights);
  add_floats(g, "bias", {16}, std::vector<float>(16, 0.25f));
  add_floats(g, "down", {16, 8}, weights);
  add_node(g, "MatMul", {"x", "up"}, {"h"}, "up");
  add_node(g, "Add", {"h", "bias"}, {"k"}, "bias");
  add_node(g, "Relu", {"k"}, {"r"}, "relu");
  add_node(g, "Mul", {"r", "r"}, {"s"}, "square");
  add_node(g, "MatMul", {"s", "down"}, {"y"}, "down");
  std::ofstream(out / "model.onnx", std::ios::binary) << m.SerializeAsString();
  expect_proved(out, "loss: {kind: mse, output: y}\n", "");
}

// Both halves of a rotated key are made of what is kept for its gradient, too, and stored once.
TEST(Verify_Kernels, ThatStoreWhatHalvesShareHold) {
  TempFolder out;
  Outcome made =
      run_command(cat(partita_program(), " model gpt --layers 1 --hidden 32 --heads 4 --kv-heads 1 --ffn 64 ",
                      "--norm rmsnorm --no-bias --positions rotary --vocab 96 --seq 16 --with-weights ", "--quiet -o ",
                      out / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  expect_proved(out, "batch: {global: 4}\n",
                " --pin tensor=4 --pin recompute=selective --pin overlap_micro_batches=2 --pin micro_batch=1");
}

// y = the sum of 64 features, of which those of samples above `threshold` cancel: their sum is rounding, and another
// one where two ranks add up 32 each. Samples are drawn from a normal distribution. To the reference evaluator both
// sums are rounding; two compiled sides tell them apart.
Outcome numeric_verdict(float threshold) {
  TempFolder out;
  constexpr int64_t kFeatures = 64;
  onnx::ModelProto m = empty_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_value(g->add_input(), "x", {2, 1});
  add_value(g->add_output(), "y", {2, 1});
  add_floats(g, "first", {1, 2}, {1, 1});
  add_floats(g, "threshold", {2}, {0, -threshold});
  std::vector<float> weights(2 * kFeatures, 0.01f);
  for (int64_t k = 0; k < kFeatures; ++k)
    weights[static_cast<size_t>(kFeatures + k)] = static_cast<float>((k * 7919 % 64 - 31.5) * 1000003.0);
  add_floats(g, "up", {2, kFeatures}, weights);
  add_floats(g, "down", {kFeatures, 1}, std::vector<float>(kFeatures, 1));
  add_node(g, "MatMul", {"x", "first"}, {"a"}, "first");
  add_node(g, "Add", {"a", "threshold"}, {"b"}, "shift");
  add_node(g, "Relu", {"b"}, {"c"}, "relu");
  add_node(g, "MatMul", {"c", "up"}, {"d"}, "up");
  add_node(g, "MatMul", {"d", "down"}, {"y"}, "down");
  std::ofstream(out / "model.onnx", std::ios::binary) << m.SerializeAsString();
  out.write("train.yaml",
            "loss: {kind: mse, output: y}\noptimizer: {kind: sgd, lr: 1.0e-30}\ndata: {kind: synthetic}\n");
  Outcome compiled = run_command(cat(partita_program(), " compile ", out / "model.onnx", " --train ",
                                     out / "train.yaml", " --pin tensor=2 --quiet -o ", out / "bundle"));
  EXPECT_EQ(compiled.code, 0) << compiled.text;
  return run_command(cat(partita_program(), " verify --numeric ", out / "bundle"));
}

TEST(Verify_Numeric, WhatDiffersOnAFewSamplesIsSaidAndOnAllRefused) {
  Outcome all = numeric_verdict(-4), few = numeric_verdict(1.2f), none = numeric_verdict(4);
  EXPECT_EQ(all.code, 4) << all.text;
  EXPECT_EQ(few.code, 0) << few.text;
  EXPECT_NE(few.text.find("kink"), std::string::npos) << few.text;
  EXPECT_NE(few.text.find("reference evaluator"), std::string::npos) << few.text;
  EXPECT_EQ(none.code, 0) << none.text;
  EXPECT_EQ(none.text.find("kink"), std::string::npos) << none.text;
}

// A bundle in 16 bits.
std::string mixed_bundle(const TempFolder& out, const std::string& name, const std::string& precision, double rate,
                         const std::string& pins) {
  const std::string yaml = out.write(
      name + ".yaml", cat("loss: {kind: output, output: loss}\nbatch: {global: 8}\n",
                          "optimizer: {kind: adamw, lr: ", rate, "}\nprecision: ", precision, "\nclip_grad_norm: 1\n"));
  Outcome compiled = run_command(cat(partita_program(), " compile ", PARTITA_TEST_DATA, "/gpt2/model.onnx --train ",
                                     yaml, pins, " --quiet -o ", out / name));
  EXPECT_EQ(compiled.code, 0) << compiled.text;
  return out / name;
}

// Of the bundle of that name, on synthetic samples.
NumericOptions two_steps(const TempFolder& out, const std::string& name) {
  NumericOptions options;
  options.train.steps = 2;
  options.train.threads = 1;
  options.folder = out.path();
  options.train.data.kind = DataKind::kSynthetic;
  options.train.initial = open_weights(cat(out / name, "/initial.safetensors"));
  return options;
}

// How far two steps of bf16 or fp16 may be apart by rounding, in updates: some 0.02 on any processor.
constexpr double kSixteenBits = 0.03;

TEST(Verify_Numeric, SixteenBitsAreHeldToTheirRounding) {
  for (const auto& [precision, pins] : {std::pair{"bf16", " --pin tensor=2"}, {"fp16", " --pin data=2 --pin zero=2"}}) {
    SCOPED_TRACE(cat(precision, pins));
    TempFolder out;
    auto ranks = read_bundle(mixed_bundle(out, "ranks", precision, 0.003, pins));
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    const NumericOptions options = two_steps(out, "ranks");
    auto same = check_numeric(*ranks, options);
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_EQ(same->kink, "");
    EXPECT_TRUE(same->by_reference);
    EXPECT_GT(same->tensor_error, 0);  // some step was taken
    EXPECT_LT(same->tensor_error, kSixteenBits);
    // The same ranks beside a serial program that takes steps of another size.
    auto other = read_bundle(mixed_bundle(out, "other", precision, 0.006, pins));
    ASSERT_TRUE(other.ok()) << other.status();
    ranks->serial = std::move(other->serial);
    EXPECT_EQ(check_numeric(*ranks, options).status().code(), absl::StatusCode::kAborted);
  }
}

// An optimizer turns the sign of a gradient that is all rounding into a step: a few elements of biases differ by twice
// their update where all states of the optimizer agree.
TEST(Verify_Numeric, StepsOfGradientsNearZeroMayTurn) {
  const std::string vit = cat(PARTITA_MODELS, "/vit");
  if (!fs::exists(vit)) GTEST_SKIP() << "no model in " << vit;
  TempFolder out;
  Outcome compiled = run_command(cat(partita_program(), " compile ", vit, "/model.onnx --train ", vit,
                                     "/train.yaml --precision bf16 --pin tensor=2 --quiet -o ", out / "ranks"));
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  auto ranks = read_bundle(out / "ranks");
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  NumericOptions options = two_steps(out, "ranks");
  for (int seed : {1, 2}) {
    options.train.data.seed = seed;
    auto same = check_numeric(*ranks, options);
    ASSERT_TRUE(same.ok()) << same.status();
    EXPECT_EQ(same->kink, "");
    EXPECT_LT(same->tensor_error, kSixteenBits);
  }
}

TEST(Verify_Evaluation, RandomNodesAreSeen) {
  Builder b;
  ValueId index = b.input("index", {DType::kI64, {4}}, InputKind::kData);
  ValueId drawn =
      b.emit("uniform", {index, b.scalar(DType::kI64, 3)}, {{"seed", int64_t{1}}, {"instance", int64_t{2}}});
  b.output("noise", b.add(drawn, drawn));
  EXPECT_EQ(verifier::random_nodes(b.graph()), 1);
}

// Evaluation programs are proved too, in every layout.
TEST(Verify_Evaluation, HoldsInEveryLayout) {
  TempFolder out;
  const std::string made = made_model(out, "--vocab 97"), gpt2 = std::string(PARTITA_TEST_DATA) + "/gpt2";
  for (const auto& [folder, layout] : std::vector<std::pair<std::string, SampleLayout>>{
           {gpt2, {.ranks = 1}},
           {made, {.ranks = 4, .like = {"zero3"}}},
           {made, {.ranks = 2, .like = {"megatron:tp2"}}},
           {gpt2, {.ranks = 4, .pins = {"pipeline=2", "zero=1", "micro_batch=1"}}},
           {gpt2, {.ranks = 2, .pins = {"pipeline=2", "micro_batch=1", "schedule=interleaved"}}},
           {gpt2, {.ranks = 4, .pins = {"stages=[{data: 2}, {tensor: 2}]", "zero=1", "micro_batch=1"}}},
       }) {
    SampleLayout with = layout;
    with.evaluate = true;
    auto bundle = sample_bundle(folder, with);
    ASSERT_TRUE(bundle.ok()) << describe(layout) << ": " << bundle.status();
    auto verdict = verifier::check_bundle(*bundle);
    ASSERT_TRUE(verdict.ok()) << describe(layout) << ": " << verdict.status();
    ASSERT_TRUE(verdict->evaluation.has_value());
    EXPECT_GT(verdict->evaluation->values, 0);
    EXPECT_EQ(verdict->evaluation->random_nodes, 0);
  }
}

TEST(Verify_Command, WritesACertificateThatBindsItsBundle) {
  TempFolder out;
  std::string folder = std::string(PARTITA_TEST_DATA) + "/gpt2", bundle = out / "bundle", other = out / "other";
  for (const std::string& b : {bundle, other}) {
    Outcome compiled = run_command(partita_program() + " compile " + folder + "/model.onnx --train " + folder +
                                   "/train.yaml --quiet --ranks " + (b == bundle ? "2" : "1") + " -o " + b);
    ASSERT_EQ(compiled.code, 0) << compiled.text;
  }
  Outcome verified = run_command(partita_program() + " verify " + bundle + " --numeric --steps 2 --threads 1");
  ASSERT_EQ(verified.code, 0) << verified.text;
  EXPECT_NE(verified.text.find("2 ranks"), std::string::npos) << verified.text;
  std::ifstream file(bundle + "/certificate.json");
  nlohmann::json paper = nlohmann::json::parse(file);
  EXPECT_EQ(paper["version"], 2);
  EXPECT_EQ(paper["root"], (*runtime::BundleFiles::open(bundle))->root());
  EXPECT_EQ(paper["verdict"], "equal to the serial program");
  EXPECT_EQ(paper["numeric"]["steps"], 2);
  EXPECT_EQ(paper["numeric"]["against"],
            "the serial program, compiled for one rank, and by the reference evaluator in double precision");
  std::string text;
  for (int k = 0; k < 2000; ++k) text += "a line of text number " + std::to_string(k * k % 977) + "\n";
  std::string run = " --steps 1 --quiet --threads 1 --data " + out.write("text.bin", text);
  EXPECT_EQ(run_command(partita_program() + " run " + bundle + run).code, 0);
  fs::copy(bundle + "/certificate.json", other + "/certificate.json");
  Outcome refused = run_command(partita_program() + " run " + other + run);
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.text.find("of another bundle"), std::string::npos) << refused.text;
  EXPECT_EQ(run_command(partita_program() + " verify " + other).code, 0);
  EXPECT_EQ(run_command(partita_program() + " run " + other + run).code, 0);
}

TEST(Verify_Command, BadBundlesAreRefused) {
  TempFolder out;
  std::string folder = std::string(PARTITA_TEST_DATA) + "/gpt2", bundle = out / "bundle";
  ASSERT_EQ(run_command(partita_program() + " compile " + folder + "/model.onnx --train " + folder +
                        "/train.yaml --quiet --ranks 2 -o " + bundle)
                .code,
            0);
  EXPECT_EQ(run_command(partita_program() + " verify " + (out / "nowhere")).code, 2);
  std::string path = bundle + "/verify/rank.steps";
  std::ifstream in(path);
  std::string claims{std::istreambuf_iterator<char>(in), {}};
  std::ofstream(path) << claims.substr(0, claims.size() / 2) << " frog";
  Outcome damaged = run_command(partita_program() + " verify " + bundle);
  EXPECT_EQ(damaged.code, 2) << damaged.text;
  EXPECT_NE(damaged.text.find("rank.steps"), std::string::npos) << damaged.text;
  // A step less is no damage but a lie, where the hashes are made to fit.
  std::ofstream(path) << claims.substr(claims.find('\n') + 1);
  ASSERT_TRUE(runtime::seal_bundle(bundle, nlohmann::json::parse(TempFolder::read(bundle + "/manifest.json"))).ok());
  Outcome lie = run_command(partita_program() + " verify " + bundle);
  EXPECT_EQ(lie.code, 4) << lie.text;
  EXPECT_FALSE(fs::exists(bundle + "/certificate.json"));
}

}  // namespace
}  // namespace partita

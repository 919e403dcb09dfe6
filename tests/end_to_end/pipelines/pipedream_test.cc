// PipeDream's asynchronous pipeline against a loop in doubles that keeps the versions of the weights itself; with one
// micro-batch a step it is one rank's training. What the verifier says of it, and refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <span>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "runtime/files/npz.h"
#include "runtime/files/safetensors.h"
#include "tests/support/bundle.h"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensor_difference.h"
#include "tools/verify/certificate.h"
#include "tools/verify/steps/check_versions.h"

namespace partita {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr int kLayers = 4, kBatch = 4, kSamples = 60, kSteps = 3;
constexpr int kWidths[] = {6, 8, 8, 8, 3};
constexpr double kWarmup = 4, kDecay = 0.01;

using Numbers = std::vector<double>;
using Weights = std::map<std::string, Numbers>;  // "w0" [in, out] and "b0" [out] to "b3"

std::vector<float> drawn(size_t count, double scale, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> x(count);
  for (float& v : x) v = static_cast<float>(scale * (static_cast<double>(random() % 2001) / 1000 - 1));
  return x;
}

// Losses and gradients of a chain of matrices with tanh between them, and the mean squared error at its end.
double differentiate(const Weights& w, const double* x, const double* y, Weights& gradients) {
  std::vector<Numbers> h = {Numbers(x, x + kBatch * kWidths[0])};
  for (int l = 0; l < kLayers; ++l) {
    const int in = kWidths[l], out = kWidths[l + 1];
    Numbers next(static_cast<size_t>(kBatch * out));
    for (int s = 0; s < kBatch; ++s) {
      for (int o = 0; o < out; ++o) {
        double sum = w.at(cat("b", l))[static_cast<size_t>(o)];
        for (int i = 0; i < in; ++i)
          sum += h.back()[static_cast<size_t>(s * in + i)] * w.at(cat("w", l))[static_cast<size_t>(i * out + o)];
        next[static_cast<size_t>(s * out + o)] = l + 1 < kLayers ? std::tanh(sum) : sum;
      }
    }
    h.push_back(std::move(next));
  }
  Numbers g = h.back();
  double loss = 0;
  for (size_t k = 0; k < g.size(); ++k) {
    double off = g[k] - y[k];
    loss += off * off / static_cast<double>(g.size());
    g[k] = 2 * off / static_cast<double>(g.size());
  }
  for (int l = kLayers; l-- > 0;) {
    const int in = kWidths[l], out = kWidths[l + 1];
    if (l + 1 < kLayers) {
      for (size_t k = 0; k < g.size(); ++k)
        g[k] *= 1 - h[static_cast<size_t>(l) + 1][k] * h[static_cast<size_t>(l) + 1][k];
    }
    Numbers &gw = gradients[cat("w", l)], &gb = gradients[cat("b", l)], below(static_cast<size_t>(kBatch * in));
    gw.assign(static_cast<size_t>(in * out), 0), gb.assign(static_cast<size_t>(out), 0);
    for (int s = 0; s < kBatch; ++s) {
      for (int o = 0; o < out; ++o) {
        const double d = g[static_cast<size_t>(s * out + o)];
        gb[static_cast<size_t>(o)] += d;
        for (int i = 0; i < in; ++i) {
          gw[static_cast<size_t>(i * out + o)] += d * h[static_cast<size_t>(l)][static_cast<size_t>(s * in + i)];
          below[static_cast<size_t>(s * in + i)] += d * w.at(cat("w", l))[static_cast<size_t>(i * out + o)];
        }
      }
    }
    g = std::move(below);
  }
  return loss;
}

// torch.optim.SGD or AdamW, its rate warmed up over updates.
struct Optimizer {
  bool adam = false;
  double lr = 0;
  int updates = 0;
  Weights m, v;

  void update(Weights& w, const Weights& gradients) {
    const double t = ++updates, rate = lr * std::min(1., t / kWarmup);
    for (auto& [name, x] : w) {
      const Numbers& g = gradients.at(name);
      m[name].resize(x.size()), v[name].resize(x.size());
      for (size_t k = 0; k < x.size(); ++k) {
        if (!adam) {
          x[k] -= rate * g[k];
          continue;
        }
        double &a = m[name][k] = 0.9 * m[name][k] + 0.1 * g[k],
               &b = v[name][k] = 0.999 * v[name][k] + 0.001 * g[k] * g[k];
        x[k] -= rate * kDecay * x[k];
        x[k] -= rate * a / (1 - std::pow(0.9, t)) / (std::sqrt(b / (1 - std::pow(0.999, t))) + 1e-8);
      }
    }
  }
};

class Pipedream : public testing::Test {
 protected:
  void SetUp() override {
    onnx::ModelProto model = empty_model();
    onnx::GraphProto* g = model.mutable_graph();
    add_value(g->add_input(), "x", {kBatch, kWidths[0]});
    std::string at = "x";
    for (int l = 0; l < kLayers; ++l) {
      const int in = kWidths[l], out = kWidths[l + 1];
      std::string n = std::to_string(l);
      add_weights("w" + n, g, {in, out}, 0.6);
      add_weights("b" + n, g, {out}, 0.1);
      add_node(g, "MatMul", {at, "w" + n}, {"m" + n}, "product" + n);
      add_node(g, "Add", {"m" + n, "b" + n}, {at = "a" + n}, "bias" + n);
      if (l + 1 < kLayers) add_node(g, "Tanh", {at}, {"h" + n}, "tanh" + n), at = "h" + n;
    }
    add_value(g->add_output(), at, {kBatch, kWidths[kLayers]});
    out_.write("model.onnx", model.SerializeAsString());
    auto column = [&](const char* name, int width, uint32_t seed, Numbers& into) {
      columns_.push_back(drawn(static_cast<size_t>(kSamples * width), 1, seed));
      into.assign(columns_.back().begin(), columns_.back().end());
      return runtime::NamedArray{name, DType::kF32, {kSamples, width}, std::as_bytes(std::span(columns_.back()))};
    };
    columns_.reserve(2);
    ASSERT_TRUE(runtime::write_npz(out_ / "data.npz",
                                   {column("x", kWidths[0], 100, x_), column("target", kWidths[kLayers], 101, y_)})
                    .ok());
  }

  void add_weights(const std::string& name, onnx::GraphProto* g, std::vector<int64_t> shape, double scale) {
    size_t count = 1;
    for (int64_t d : shape) count *= static_cast<size_t>(d);
    std::vector<float> x = drawn(count, scale, static_cast<uint32_t>(first_.size()));
    first_[name].assign(x.begin(), x.end());
    add_floats(g, name, std::move(shape), std::move(x));
  }

  std::string recipe(int64_t micro_batches, bool adam, const std::string& more = {}) const {
    return out_.write("train.yaml",
                      cat("loss: {kind: mse, target: target}\nschedule: {kind: constant, warmup: 4}\noptimizer: ",
                          adam ? "{kind: adamw, lr: 0.01, weight_decay: 0.01}" : "{kind: sgd, lr: 0.1}",
                          "\nbatch: {global: ", kBatch * micro_batches, "}\n", more));
  }
  Outcome command(const std::string& verb, const std::string& flags) const {
    return run_command(cat(partita_program(), " ", verb, " ", flags));
  }
  static std::string stages(int count) {
    return cat("--ranks ", count, " --pin pipeline=", count,
               " --pin schedule=pipedream --pin 'cuts=", count == 2 ? "[w2]" : "[w1, w2, w3]", "'");
  }
  Outcome compile(const std::string& bundle, const std::string& flags, const std::string& recipe) const {
    return command("compile", cat(out_ / "model.onnx", " --train ", recipe, " -o ", out_ / bundle, " ", flags));
  }
  Outcome run(const std::string& bundle) const {
    return command("run", cat(out_ / bundle, " --data ", out_ / "data.npz", " --quiet --threads 1 --steps ", kSteps,
                              " --metrics ", out_ / (bundle + ".jsonl"), " --save ", out_ / (bundle + ".st")));
  }

  // The losses of the steps, and the weights after them.
  Numbers reference(int stages, int micro_batches, bool adam, Weights& w) const {
    Numbers losses;
    Optimizer optimizer{adam, adam ? 0.01 : 0.1, 0, {}, {}};
    w = first_;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Weights> versions = {w};  // after so many of the step's updates
      losses.push_back(0);
      for (int m = 0; m < micro_batches; ++m) {
        Weights met, gradients;
        for (const auto& [name, x] : w) {
          const int stage = (name.back() - '0') * stages / kLayers;
          met[name] = versions[static_cast<size_t>(std::max(0, m - (stages - 1 - stage)))].at(name);
        }
        const int sample = (step * micro_batches + m) * kBatch;
        losses.back() += differentiate(met, &x_[static_cast<size_t>(sample * kWidths[0])],
                                       &y_[static_cast<size_t>(sample * kWidths[kLayers])], gradients) /
                         micro_batches;
        optimizer.update(w, gradients);
        versions.push_back(w);
      }
    }
    return losses;
  }

  // Largest difference from the weights in a file.
  double difference(const std::string& path, const Weights& w) const {
    auto file = runtime::SafetensorsFile::open(path);
    if (!file.ok()) return INFINITY;
    double worst = 0;
    for (const auto& [name, x] : w) {
      const auto* entry = file->find(name);
      if (entry == nullptr) return INFINITY;
      auto bytes = file->data(*entry);
      for (size_t k = 0; k < x.size(); ++k) {
        float found;
        std::memcpy(&found, bytes.data() + 4 * k, 4);
        worst = std::max(worst, std::abs(found - x[k]));
      }
    }
    return worst;
  }

  TempFolder out_;
  Weights first_;
  std::vector<std::vector<float>> columns_;
  Numbers x_, y_;
};

TEST_F(Pipedream, FollowsTheDelays) {
  for (int count : {2, 4}) {
    for (int micro_batches : {1, 2, 5}) {
      for (bool adam : {false, true}) {
        SCOPED_TRACE(cat(count, " stages, ", micro_batches, " micro-batches", adam ? ", adamw" : ""));
        Outcome compiled = compile("b", stages(count), recipe(micro_batches, adam));
        ASSERT_EQ(compiled.code, 0) << compiled.text;
        Outcome ran = run("b");
        ASSERT_EQ(ran.code, 0) << ran.text;
        Weights expected, sequential;
        Numbers losses = reference(count, micro_batches, adam, expected), found = read_losses(out_ / "b.jsonl");
        ASSERT_EQ(found.size(), losses.size());
        for (size_t k = 0; k < losses.size(); ++k) EXPECT_NEAR(found[k], losses[k], 1e-6);
        EXPECT_LT(difference(out_ / "b.st", expected), 1e-6);
        // The delays are there to be seen.
        reference(1, micro_batches, adam, sequential);
        EXPECT_EQ(difference(out_ / "b.st", sequential) > 1e-5, micro_batches > 1);
        std::filesystem::remove(out_ / "b.jsonl");
      }
    }
  }
}

TEST_F(Pipedream, IsTheSerialProgramWithOneMicroBatch) {
  for (bool adam : {false, true}) {
    ASSERT_EQ(compile("one", "--quiet", recipe(1, adam)).code, 0);
    ASSERT_EQ(compile("four", "--quiet " + stages(4), recipe(1, adam)).code, 0);
    ASSERT_EQ(run("one").code, 0);
    ASSERT_EQ(run("four").code, 0);
    // What is trained has the same bits. A loss is added up in other kernels in the stages, and where a processor's
    // vectors are shorter than a sample's loss in another order.
    EXPECT_THAT(read_losses(out_ / "four.jsonl"),
                testing::Pointwise(testing::DoubleNear(1e-6), read_losses(out_ / "one.jsonl")));
    EXPECT_EQ(tensor_difference(out_ / "four.st", out_ / "one.st"), 0);
    Outcome verified = command("verify", out_ / "four" + " --numeric --threads 1");
    EXPECT_EQ(verified.code, 0) << verified.text;
    EXPECT_THAT(verified.text, testing::Not(HasSubstr("NOT equal")));
    for (const char* name : {"one.jsonl", "four.jsonl"}) std::filesystem::remove(out_ / name);
  }
}

TEST_F(Pipedream, IsNamedWhereverItIsShown) {
  Outcome compiled = compile("b", stages(4), recipe(5, false));
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  EXPECT_THAT(compiled.text, HasSubstr("schedule: pipedream: asynchronous"));
  json manifest = json::parse(TempFolder::read(out_ / "b/manifest.json"));
  EXPECT_EQ(manifest["schedule"], "pipedream");
  EXPECT_EQ(manifest["equal_to_serial"], false);
  EXPECT_EQ(manifest["weight_versions"], json::parse("[4, 3, 2, 0]"));
  Outcome verified = command("verify", out_ / "b");
  ASSERT_EQ(verified.code, 0) << verified.text;
  EXPECT_THAT(verified.text, HasSubstr("up to 3, 2, 1, 0 updates behind (they are NOT equal"));
  json certificate = json::parse(TempFolder::read(out_ / "b/certificate.json"));
  EXPECT_EQ(certificate["schedule"], json::parse(R"({"kind": "pipedream", "updates_behind": [3, 2, 1, 0]})"));
  EXPECT_THAT(certificate["proved"].dump(), HasSubstr("do NOT compute the serial program"));
  EXPECT_THAT(command("verify", out_ / "b" + " --numeric").text, HasSubstr("batch.global of one micro-batch"));
}

// Each forward part copies its stage's weights; what backward reads again (no bias, nor the first matrix, whose input
// needs no gradient) has a slot for each micro-batch in flight.
TEST_F(Pipedream, StashesWhatItSays) {
  ASSERT_EQ(compile("b", "--quiet " + stages(4), recipe(5, false)).code, 0);
  auto images = read_bundle(out_ / "b");
  ASSERT_TRUE(images.ok()) << images.status();
  for (size_t s = 0; s < 4; ++s) {
    const verifier::RankProgram& p = images->programs[s];
    int64_t copies = 0;
    for (const runtime::ProgramSegment& segment : p.program.segments) {
      for (const runtime::Step& step : segment.steps) {
        const Claim& claim = p.claims[step.id];
        if (claim.node < 0 || p.code.nodes[claim.node].op->name != "stash") continue;
        if (segment.kind == Segment::kPrologue) continue;
        const std::vector<int64_t>& shape = step.operands[1].shape;
        copies += 4 * shape[0] * (shape.size() > 1 ? shape[1] : 1);
        EXPECT_EQ(step.operands[1].address.slot_stride > 0, s > 0 && shape.size() > 1);
      }
    }
    const int in = kWidths[s], out = kWidths[s + 1];
    EXPECT_EQ(copies, s == 3 ? 0 : 4 * (in * out + out)) << s;
    EXPECT_EQ(p.program.slots, static_cast<int64_t>(4 - s));
  }
}

TEST_F(Pipedream, WhatItCannotDoIsRefused) {
  for (const auto& [more, flags, expected] : std::vector<std::array<std::string, 3>>{
           {"clip_grad_norm: 1\n", stages(2), "clip_grad_norm"},
           {"precision: fp16\n", stages(2), "precision: fp16"},
           {"compress: bf16\n", stages(2), "compress"},
           {"", stages(2) + " --pin micro_batch=2", "expected micro_batch 4 or none, found 2"},
           {"", "--ranks 1 --pin pipeline=1 --pin schedule=pipedream", "at least 2 stages"},
           {"", stages(2) + " --pin offload=optimizer", "offload"},
           {"", stages(2) + " --pin overlap_micro_batches=2", "overlap_micro_batches"}}) {
    Outcome refused = compile("b", flags, recipe(2, false, more));
    EXPECT_EQ(refused.code, 2) << more << flags;
    EXPECT_THAT(refused.text, HasSubstr(expected));
  }
  EXPECT_EQ(compile("b", stages(2), recipe(2, false, "clip_grad_value: 0.1\n")).code, 0);
  const std::string gpt2 = std::string(PARTITA_TEST_DATA) + "/gpt2";  // its embedding is its head
  std::string free = TempFolder::read(gpt2 + "/train.yaml");
  const size_t clip = free.find("clip_grad_norm");
  if (clip != free.npos) free.erase(clip, free.find('\n', clip) + 1 - clip);
  Outcome tied = command("compile", cat(gpt2, "/model.onnx --train ", out_.write("free.yaml", free), " --quiet -o ",
                                        out_ / "tied", " --ranks 2 --pin pipeline=2 --pin schedule=pipedream"));
  EXPECT_EQ(tied.code, 2);
  EXPECT_THAT(tied.text, HasSubstr("is read by stages 0 and 1"));
}

int64_t count(const std::string& text, std::string_view what) {
  int64_t n = 0;
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + 1)) ++n;
  return n;
}

// A norm at the cut belongs to the stage that runs it, its gradient too: what crosses is what crosses between stages
// that are alike.
TEST_F(Pipedream, StagesOfATransformerThatDivideDifferentThings) {
  auto recipe = [&](int64_t batch) {
    return out_.write("gpt.yaml",
                      cat("loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001}\nbatch: {global: ",
                          batch, "}\ninit: [{match: '*', normal: {std: 0.02}}]\ndata: {kind: tokens, dtype: u8}\n"));
  };
  out_.write("text.bin", std::string(3000, 'a') + std::string(3000, 'b'));
  const std::string llama = " --gated-mlp --norm rmsnorm --positions rotary --no-bias --kv-heads 2";
  for (const std::string& kind : {std::string(), llama}) {
    SCOPED_TRACE(kind);
    const std::string model = out_ / "gpt.onnx";
    ASSERT_EQ(command("model", cat("gpt --layers 4 --hidden 32 --heads 4 --vocab 256 --seq 16 --batch 2 --no-tied",
                                   kind, " -o ", model))
                  .code,
              0);
    auto losses = [&](const std::string& flags) {
      const std::string file = out_ / "gpt.jsonl";
      std::filesystem::remove(file);
      Outcome o = command("train", cat(model, " --train ", recipe(2), " --data ", out_ / "text.bin",
                                       " --steps 3 --quiet ", "--threads 1 --metrics ", file, " ", flags));
      EXPECT_EQ(o.code, 0) << o.text;
      return read_losses(file);
    };
    auto messages = [&](const std::string& flags) {
      Outcome o = command("compile", cat(model, " --train ", recipe(8), " --quiet -o ", out_ / "gpt", " ", flags));
      EXPECT_EQ(o.code, 0) << o.text;
      Outcome verified = command("verify", out_ / "gpt");
      EXPECT_EQ(verified.code, 0) << verified.text;
      std::vector<int64_t> n;
      for (const char* stage : {"0", "1"}) {
        const std::string graph = TempFolder::read(cat(out_ / "gpt", "/verify/rank.", stage, ".ir"));
        n.insert(n.end(), {count(graph, "= send("), count(graph, "= recv("), count(graph, " parameter \"")});
      }
      return n;
    };
    const Numbers alone = losses("");
    const std::vector<int64_t> alike = messages("--pin schedule=pipedream --pin pipeline=2 --pin data=2");
    for (const char* stages : {"[{data: 2}, {tensor: 2}]", "[{tensor: 2}, {data: 2}]"}) {
      const std::string flags = cat("--pin schedule=pipedream --pin 'stages=", stages, "'");
      EXPECT_EQ(messages(flags), alike) << stages;
      const Numbers found = losses(flags);
      ASSERT_EQ(found.size(), alone.size());
      for (size_t k = 0; k < alone.size(); ++k) EXPECT_NEAR(found[k], alone[k], 1e-5 * alone[k]) << stages;
    }
  }
}

// What the verifier would not take: weights read as they are, an update at another time, copies in one place.
TEST_F(Pipedream, FaultsAreFound) {
  ASSERT_EQ(compile("b", "--quiet " + stages(4), recipe(5, true)).code, 0);
  auto read = read_bundle(out_ / "b");
  ASSERT_TRUE(read.ok()) << read.status();
  const verifier::Bundle whole = *std::move(read);
  ASSERT_TRUE(verifier::check_bundle(whole).ok()) << verifier::check_bundle(whole).status();

  verifier::Bundle direct = whole;
  Graph& g = direct.programs[1].code;
  bool changed = false;
  for (Node& node : g.nodes) {
    for (ValueId& v : node.inputs) {
      const Node* stash = v == kNoValue || node.segment != Segment::kBackward ? nullptr : g.producer(v);
      if (changed || stash == nullptr || stash->op->name != "stash" || stash->segment != Segment::kForward) continue;
      v = stash->inputs[0];
      changed = true;
    }
  }
  ASSERT_TRUE(changed);
  EXPECT_THAT(std::string(verifier::check_versions(direct).status().message()),
              HasSubstr("found a read of one as it is"));
  EXPECT_FALSE(verifier::check_bundle(direct).ok());

  for (size_t s = 0; s < 4; ++s) {
    verifier::Bundle late = whole;
    auto& schedule = late.programs[s].program.schedule;
    auto kind = [&](size_t k) {
      return late.programs[s].program.segments[static_cast<size_t>(schedule[k].segment)].kind;
    };
    size_t k = 0;
    while (kind(k) != Segment::kReduce || kind(k + 1) != Segment::kForward) ++k;
    std::swap(schedule[k], schedule[k + 1]);
    EXPECT_FALSE(verifier::check_bundle(late).ok()) << "stage " << s;
  }

  verifier::Bundle one_place = whole;
  for (runtime::ProgramSegment& segment : one_place.programs[1].program.segments) {
    for (runtime::Step& step : segment.steps) {
      const Claim& claim = whole.programs[1].claims[step.id];
      for (size_t k = 0; k < step.operands.size() && k < claim.values.size(); ++k) {
        const Node* made = claim.values[k] < 0 ? nullptr : whole.programs[1].code.producer(claim.values[k]);
        if (made != nullptr && made->op->name == "stash") step.operands[k].address.slot_stride = 0;
      }
    }
  }
  EXPECT_FALSE(verifier::check_bundle(one_place).ok());
}

}  // namespace
}  // namespace partita

// Samples of several lengths: a run is as if each step had been taken by a bundle for its one length, from the states
// that the step before left.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "runtime/files/npz.h"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int kSteps = 6;

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Lengths : public testing::Test {
 protected:
  // Documents of 1 to 16 tokens, each ending with 0.
  void SetUp() override {
    for (int d = 0; d < 40; ++d) {
      std::string document;
      for (int k = 0; k < d * 7 % 16; ++k) document += static_cast<char>(1 + (d * 5 + k * k) % 60);
      documents_.push_back(document + '\0');
    }
    std::string text;
    for (const std::string& d : documents_) text += d;
    out_.write("documents.bin", text);
    partita("model gpt --layers 2 --hidden 16 --heads 2 --vocab 61 --seq 16 --any-seq --with-weights --quiet -o " +
            (out_ / "model.onnx"));
  }

  static std::string partita(const std::string& arguments, int code = 0) {
    Outcome o = run_command(partita_program() + " " + arguments);
    EXPECT_EQ(o.code, code) << arguments << "\n" << o.text;
    return o.text;
  }
  // Arguments that name the model and a recipe; `lengths` of `global` samples a step of the largest.
  std::string model(const std::string& lengths, int global) {
    out_.write("train.yaml",
               cat("loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.01}\nschedule: {kind: linear, "
                   "warmup: 2, total: 9}\nbind: {sequence: ",
                   lengths, "}\nbatch: {global: ", global,
                   "}\ndata: {kind: tokens, dtype: u8, check_ids: false, documents: pad, end_of_document: 0, path: ",
                   out_ / "documents.bin", "}\n"));
    return cat(out_ / "model.onnx", " --train ", out_ / "train.yaml ");
  }
  std::string train(const std::string& layout, int steps, const std::string& more = "") {
    return partita(cat("train ", model("[8, 16]", 2), layout, " --threads 1 --steps ", steps, " --checkpoint ",
                       out_ / "ckpt --keep 0 ", more, " --metrics ", out_ / "m.jsonl"));
  }
  std::vector<double> take_losses() {
    std::vector<double> losses = read_losses(out_ / "m.jsonl");
    for (const char* made : {"ckpt", "m.jsonl"}) std::filesystem::remove_all(out_ / made);
    return losses;
  }

  // The batches of the first epoch: documents by what holds them, and the batches by when their last document would
  // come if each length's were spread evenly.
  struct Batch {
    double due;
    int length;
    std::vector<std::string> documents;
  };
  std::vector<Batch> batches() const {
    std::vector<Batch> all;
    for (const int length : {8, 16}) {
      std::vector<std::string> own;
      for (const std::string& d : documents_) {
        if ((d.size() > 8 ? 16 : 8) == length) own.push_back(d);
      }
      const size_t each = 2 * 16 / static_cast<size_t>(length);
      for (size_t end = each; end <= own.size(); end += each)
        all.push_back({static_cast<double>(end) / static_cast<double>(own.size()),
                       length,
                       {own.begin() + static_cast<ptrdiff_t>(end - each), own.begin() + static_cast<ptrdiff_t>(end)}});
    }
    std::stable_sort(all.begin(), all.end(), [](const Batch& a, const Batch& b) { return a.due < b.due; });
    return all;
  }

  TempFolder out_;
  std::vector<std::string> documents_;
};

TEST_F(Lengths, TakeEachStepAsABundleForThatLengthDoes) {
  train("", kSteps, "--every 1 --quiet");
  for (const int length : {8, 16})
    partita(cat("compile ", model(cat(length), 2 * 16 / length), "--quiet -o ", out_ / cat(length)));
  const std::vector<Batch> expected = batches();
  std::vector<nlohmann::json> told;
  std::ifstream lines(out_ / "m.jsonl");
  for (std::string line; std::getline(lines, line);) told.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(told.size(), static_cast<size_t>(kSteps));
  bool seen[2] = {false, false};
  for (size_t step = 0; step < kSteps; ++step) {
    const Batch& batch = expected[step];
    EXPECT_EQ(told[step]["length"], batch.length);
    size_t tokens = 0;
    // The checkpoint's place in the data is 2 documents a step.
    std::string text(2 * step, '\0');
    for (const std::string& d : batch.documents) text += d, tokens += d.size();
    EXPECT_DOUBLE_EQ(told[step]["padding"].get<double>(), 1 - static_cast<double>(tokens) / 32);
    if (step == 0) continue;
    seen[batch.length / 16] = true;
    const std::string data = out_.write("batch.bin", text), place = out_ / "one";
    const auto states = [&](const std::string& folder, size_t at) {
      return cat(folder, "/step-00000000000", at, "/states.safetensors");
    };
    std::filesystem::remove(out_ / "one.jsonl");
    partita(cat("run ", out_ / cat(batch.length), " --threads 1 --quiet --steps ", step + 1, " --data ", data,
                " --checkpoint ", place, " --resume ", out_ / "ckpt/step-00000000000", step, " --metrics ",
                out_ / "one.jsonl"));
    EXPECT_EQ(read_losses(out_ / "one.jsonl").back(), told[step]["loss"].get<double>()) << step;
    EXPECT_EQ(bytes_of(states(place, step + 1)), bytes_of(states(out_ / "ckpt", step + 1))) << step;
    std::filesystem::remove_all(place);
  }
  EXPECT_TRUE(seen[0] && seen[1]);
}

TEST_F(Lengths, TrainAlikeInEveryLayout_AndGoOnBitForBit) {
  train("", kSteps, "--quiet");
  const std::vector<double> expected = take_losses();
  // Of the positions, a shorter length reads a part: left to itself, it would divide them in another way.
  const char* kTensor = "--ranks 2 --pin tensor=2";
  for (const char* layout : {"--ranks 2 --like ddp", kTensor, "--ranks 2 --pin pipeline=2"}) {
    SCOPED_TRACE(layout);
    train(layout, kSteps, "--quiet");
    const std::vector<double> found = take_losses();
    ASSERT_EQ(found.size(), expected.size());
    for (size_t k = 0; k < expected.size(); ++k) EXPECT_NEAR(found[k], expected[k], 2e-6 * expected[k]) << k;
    if (layout == kTensor) continue;
    train(layout, 3, "--quiet");
    EXPECT_EQ(train(layout, kSteps, "--resume").find("warning"), std::string::npos);
    EXPECT_EQ(take_losses(), found);
  }
}

TEST_F(Lengths, AreProved_AndToldOf) {
  partita(cat("compile ", model("[8, 16]", 2), "--ranks 2 --like zero1 --quiet -o ", out_ / "bundle"));
  const std::string proved =
      partita(cat("verify ", out_ / "bundle", " --model ", out_ / "model.onnx", " --train ", out_ / "train.yaml"));
  EXPECT_THAT(proved, HasSubstr("the part for samples of length 8:\nverified: 2 ranks"));
  const std::string run = partita(cat("run ", out_ / "bundle", " --processes --threads 1 --steps 3"));
  EXPECT_THAT(run, HasSubstr("3 steps of 2 samples (32 tokens); 2 of length 16, 4 of length 8"));
  EXPECT_THAT(run, HasSubstr("  length 8  padding "));
  EXPECT_THAT(partita(cat("data ", out_ / "bundle", " --step 0 --steps 3")),
              HasSubstr("step 0 (counted from 0) takes 2 samples of length 16"));
  partita(cat("disassemble ", out_ / "bundle", " -o ", out_ / "programs.json"));
  partita(cat("assemble ", out_ / "programs.json", " -o ", out_ / "again"));
  EXPECT_THAT(partita(cat("verify ", out_ / "again")), HasSubstr("the part for samples of length 8:\nverified"));
  EXPECT_THAT(partita(cat("compile ", model("[8, 16]", 2), "--ranks 2 --pin tensor=2 -o ", out_ / "whole")),
              HasSubstr("each rank keeps 'transformer.wpe.weight' whole"));
  const char* kDivided = "--ranks 2 --pin tensor=2 --pin '*wpe*={dim0: tensor}'";  // for all lengths
  EXPECT_THAT(partita(cat("compile ", model("[8, 16]", 2), kDivided, " -o ", out_ / "divided")),
              Not(HasSubstr("whole")));
  EXPECT_THAT(partita(cat("compile ", model("[12, 16]", 2), "--quiet -o ", out_ / "no"), 2),
              HasSubstr("no whole number of samples of length 12"));
}

// Arrays are as long as the largest length. Of these samples none is of length 4, and length 8 has 3 for steps of 4.
TEST_F(Lengths, OfArraysAreProvedByRuns) {
  const std::vector<int64_t> own = {16, 5, 7, 12, 8, 9, 13};
  const std::vector<int64_t> ids(own.size() * 16, 3);
  const auto samples = static_cast<int64_t>(own.size());
  const auto bytes = [](const auto& v) { return std::as_bytes(std::span(v)); };
  ASSERT_TRUE(runtime::write_npz(out_ / "data.npz", {{"input_ids", DType::kI64, {samples, 16}, bytes(ids)},
                                                     {"labels", DType::kI64, {samples, 16}, bytes(ids)},
                                                     {"n", DType::kI64, {samples}, bytes(own)}})
                  .ok());
  out_.write("arrays.yaml",
             cat("loss: {kind: output, output: loss}\noptimizer: {kind: sgd, lr: 0.01}\nbind: {sequence: [4, 8, 16]}\n"
                 "batch: {global: 2}\ndata: {lengths: n, path: ",
                 out_ / "data.npz", "}\n"));
  partita(cat("compile ", out_ / "model.onnx", " --train ", out_ / "arrays.yaml", " --quiet -o ", out_ / "bundle"));
  EXPECT_THAT(partita(cat("verify ", out_ / "bundle", " --numeric --steps 1 --threads 1")),
              HasSubstr("the part for samples of length 8:\nverified: 1 rank"));
}

}  // namespace
}  // namespace partita

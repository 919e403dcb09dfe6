// Compressed gradients through the command line: fewer bytes on the wire, training that goes the same way, checkpoints,
// and a verifier that says what is not equal.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/files/safetensors.h"
#include "tests/support/bundle.h"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"
#include "tools/verify/bundle/bundle.h"
#include "tools/verify/certificate.h"

namespace partita {
namespace {

using nlohmann::json;
using testing::Test;

constexpr int kSequence = 16, kVocabulary = 40;

std::vector<float> numbers(const runtime::SafetensorsFile& file, const std::string& name) {
  auto bytes = file.data(*file.find(name));
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// Nearest, ties to even.
float to_bf16(float x) {
  uint32_t bits = std::bit_cast<uint32_t>(x);
  bits += 0x7fff + ((bits >> 16) & 1);
  return std::bit_cast<float>(bits & 0xffff0000u);
}

class Compress : public Test {
 protected:
  void SetUp() override {
    Outcome made = run_command(partita_program() + " model gpt --layers 2 --hidden 32 --heads 4 --vocab " +
                               std::to_string(kVocabulary) + " --seq " + std::to_string(kSequence) +
                               " --quiet --with-weights -o " + (out_ / "model.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    for (int k = 0; k < 20000; ++k) tokens_ += static_cast<char>(k * k % 23 + k % 7);
    out_.write("tokens.bin", tokens_);
  }

  std::string recipe(int batch, const std::string& more) {
    return out_.write("train." + std::to_string(batch) + ".yaml",
                      "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.003}\nbatch: {global: " +
                          std::to_string(batch) + "}\nbind: {batch: " + std::to_string(batch) +
                          "}\ndata: {kind: tokens, dtype: u8}\n" + more);
  }
  Outcome train(const std::string& name, int batch, const std::string& data, const std::string& flags,
                const std::string& more = "") {
    return run_command(partita_program() + " train " + (out_ / "model.onnx") + " --train " + recipe(batch, more) +
                       " --data " + (out_ / data) + " --threads 1 --metrics " + (out_ / (name + ".jsonl")) + " " +
                       flags);
  }
  Outcome compile(const std::string& name, const std::string& flags, const std::string& more) {
    return run_command(partita_program() + " compile " + (out_ / "model.onnx") + " --train " + recipe(8, more) +
                       " -o " + (out_ / name) + " " + flags);
  }
  // Compiles with and without compression in many layouts; a gradient takes 1/`narrower` of the bytes.
  void check_bundles(const std::string& kind, int64_t narrower);
  std::vector<double> losses(const std::string& name) { return read_losses(out_ / (name + ".jsonl")); }

  TempFolder out_;
  std::string tokens_;
};

// Bytes that a rank hands to sums over ranks in a step, and to the exchanges that stand for them.
int64_t summed_bytes(const verifier::Bundle& bundle, int64_t micro_batches) {
  int64_t bytes = 0;
  for (const verifier::RankProgram& p : bundle.programs) {
    for (const auto& segment : p.program.segments) {
      const int64_t times = segment.kind == Segment::kBackward ? micro_batches : 1;
      for (const runtime::Step& step : segment.steps) {
        if (step.kind != runtime::StepKind::kCollectiveStart ||
            !(step.params.count("reduce") || step.name == "all_to_all") || step.name == "all_gather")
          continue;
        for (int k = 0; k < step.inputs; ++k)
          bytes += times * byte_size({step.operands[static_cast<size_t>(k)].dtype,
                                      step.operands[static_cast<size_t>(k)].shape});
      }
    }
  }
  return bytes;
}

TEST_F(Compress, Bf16Gradients_AreNumbersOfThatType) {
  for (const char* like : {"ddp", "zero1", "zero3"}) {
    const std::string flags =
        std::string("--ranks 2 --steps 1 --like ") + like + " --save-gradients " + (out_ / "g.st");
    ASSERT_EQ(train("plain", 8, "tokens.bin", flags).code, 0);
    auto plain = runtime::SafetensorsFile::open(out_ / "g.st");
    ASSERT_TRUE(plain.ok());
    std::map<std::string, std::vector<float>> exact;
    for (const auto& entry : plain->entries()) exact[entry.name] = numbers(*plain, entry.name);
    Outcome both = train("both", 8, "tokens.bin", flags, "compress: bf16\n");
    ASSERT_EQ(both.code, 0) << both.text;
    EXPECT_NE(both.text.find("compress: bf16"), std::string::npos) << both.text;
    auto small = runtime::SafetensorsFile::open(out_ / "g.st");
    ASSERT_TRUE(small.ok());
    std::vector<std::string> as_they_were;
    for (const auto& entry : small->entries()) {
      auto rounded = numbers(*small, entry.name);
      if (rounded == exact[entry.name]) {
        as_they_were.push_back(entry.name);
        continue;
      }
      double off = 0, norm = 0;
      for (size_t k = 0; k < rounded.size(); ++k) {
        ASSERT_EQ(rounded[k], to_bf16(rounded[k])) << like << " " << entry.name << " element " << k;
        off += std::pow(rounded[k] - exact[entry.name][k], 2), norm += std::pow(exact[entry.name][k], 2);
      }
      if (norm > 1e-12) {
        EXPECT_LT(std::sqrt(off / norm), 1e-2) << like << " " << entry.name;
      }
    }
    EXPECT_EQ(as_they_were, std::vector<std::string>{}) << like;
  }
}

TEST_F(Compress, Training_GoesAsWithoutIt) {
  ASSERT_EQ(train("plain", 8, "tokens.bin", "--ranks 2 --steps 60 --quiet").code, 0);
  std::vector<double> plain = losses("plain");
  EXPECT_LT(plain.back(), 0.8 * plain[0]);
  for (const auto& [kind, apart] : {std::pair{"bf16", 0.01}, {"int8", 0.01}, {"powersgd", 0.2}}) {
    const std::string flags = std::string("--ranks 2 --steps 60 --quiet --pin compress=") + kind;
    ASSERT_EQ(train(kind, 8, "tokens.bin", flags).code, 0);
    std::vector<double> small = losses(kind);
    ASSERT_EQ(small.size(), plain.size());
    EXPECT_EQ(small[0], plain[0]) << "no gradient has been summed yet";
    EXPECT_NE(small.back(), plain.back());
    for (size_t k = 0; k < plain.size(); ++k) EXPECT_NEAR(small[k], plain[k], apart * plain[k]) << kind << " " << k;
    ASSERT_EQ(train("again", 8, "tokens.bin", flags).code, 0);
    EXPECT_EQ(losses("again"), small) << "the same bits from run to run";
  }
}

// What error feedback keeps is a part of the checkpoint, of this layout alone.
TEST_F(Compress, PowerSgdCheckpoint_ResumesBitForBitOnTensorRanksToo) {
  const std::string flags = " --quiet --ranks 4 --pin tensor=2 --pin compress=powersgd";
  ASSERT_EQ(train("unbroken", 8, "tokens.bin", "--steps 6" + flags).code, 0);
  ASSERT_EQ(train("first", 8, "tokens.bin", "--steps 3 --checkpoint " + (out_ / "ckpt") + flags).code, 0);
  ASSERT_EQ(train("rest", 8, "tokens.bin", "--steps 6 --resume " + (out_ / "ckpt") + flags).code, 0);
  std::vector<double> whole = losses("unbroken");
  EXPECT_EQ(losses("rest"), std::vector<double>(whole.begin() + 3, whole.end()));
}

// A convolution's weights are whole on every tensor rank, and each of them approximates their gradient: all alike.
TEST_F(Compress, PowerSgd_WhatTensorRanksHoldAlikeStaysAlike) {
  Outcome made = run_command(partita_program() +
                             " model vit --layers 1 --hidden 32 --heads 4 --patch 4 --image 16 --classes 10 --batch 8 "
                             "--quiet --with-weights -o " +
                             (out_ / "vit.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  const std::string recipe = out_.write("vit.yaml",
                                        "loss: {kind: cross_entropy, output: logits, target: labels}\n"
                                        "optimizer: {kind: adamw, lr: 0.001}\ndata: {kind: synthetic}\n");
  Outcome audited = run_command(partita_program() + " train " + (out_ / "vit.onnx") + " --train " + recipe +
                                " --ranks 4 --pin tensor=2 --pin compress=powersgd --steps 2 --audit 1 --threads 1 "
                                "--quiet");
  EXPECT_EQ(audited.code, 0) << audited.text;
  Outcome compiled = run_command(partita_program() + " compile " + (out_ / "vit.onnx") + " --train " + recipe +
                                 " --ranks 4 --pin tensor=2 --pin compress=powersgd --quiet -o " + (out_ / "bundle"));
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  Outcome verified = run_command(partita_program() + " verify " + (out_ / "bundle"));
  EXPECT_EQ(verified.code, 0) << verified.text;
}

TEST_F(Compress, Int8Checkpoint_ResumesBitForBitAndStartsAnewElsewhere) {
  const std::string int8 = " --quiet --ranks 2 --pin compress=int8";
  ASSERT_EQ(train("unbroken", 8, "tokens.bin", "--steps 12" + int8).code, 0);
  ASSERT_EQ(train("first", 8, "tokens.bin", "--steps 6 --checkpoint " + (out_ / "ckpt") + int8).code, 0);
  ASSERT_EQ(train("rest", 8, "tokens.bin",
                  "--steps 12 --resume " + (out_ / "ckpt") + " --checkpoint " + (out_ / "more") + int8)
                .code,
            0);
  std::vector<double> whole = losses("unbroken"), rest = losses("rest");
  EXPECT_EQ(rest, std::vector<double>(whole.begin() + 6, whole.end()));
  for (const char* other :
       {" --quiet --ranks 4 --pin compress=int8", " --quiet --ranks 2 --like zero1 --pin compress=int8"}) {
    Outcome elsewhere = train("elsewhere", 8, "tokens.bin", "--steps 8 --resume " + (out_ / "ckpt") + other);
    ASSERT_EQ(elsewhere.code, 0) << elsewhere.text;
    EXPECT_NE(elsewhere.text.find("start anew"), std::string::npos) << elsewhere.text;
    EXPECT_NEAR(losses("elsewhere")[0], whole[6], 1e-5 * whole[6]) << "before what was kept counts";
  }
  Outcome plain = train("plain", 8, "tokens.bin", "--steps 8 --quiet --ranks 2 --resume " + (out_ / "ckpt"));
  EXPECT_EQ(plain.code, 0) << plain.text;
}

TEST_F(Compress, Bundle_CarriesFewerBytesAndSaysThatItIsNotEqual) {
  for (std::string kind : {"bf16", "int8"}) check_bundles(kind, kind == "bf16" ? 2 : 4);
}

void Compress::check_bundles(const std::string& kind, int64_t narrower) {
  for (const char* flags :
       {"--ranks 2", "--ranks 2 --like zero1", "--ranks 2 --like zero3", "--ranks 4 --like hsdp",
        "--ranks 4 --pin tensor=2", "--ranks 2 --pin micro_batch=1", "--ranks 2 --like zero2 --pin micro_batch=1",
        "--ranks 4 --like hsdp --pin micro_batch=1", "--ranks 4 --pin pipeline=2 --pin micro_batch=1",
        "--ranks 4 --like zero1 --pin context=2", "--ranks 4 --like zero2 --pin context=2 --pin micro_batch=1"}) {
    SCOPED_TRACE(kind + " " + flags);
    ASSERT_EQ(compile("plain", flags + std::string(" --quiet"), "").code, 0);
    Outcome compiled = compile("small", flags, "compress: " + kind + "\n");
    ASSERT_EQ(compiled.code, 0) << compiled.text;
    EXPECT_NE(compiled.text.find("compress: " + kind), std::string::npos) << compiled.text;
    auto plain = read_bundle(out_ / "plain"), small = read_bundle(out_ / "small");
    ASSERT_TRUE(plain.ok() && small.ok()) << small.status();
    const json manifest = json::parse(TempFolder::read(out_ / "small/manifest.json"));
    const json& said = manifest["compress"];
    const int64_t runs = manifest["micro_batches"];
    EXPECT_EQ(said["kind"], kind);
    // The scales travel besides, one for each rank, and what fills the parts up.
    const int64_t shared = said["bytes"].get<int64_t>() - said["plain_bytes"].get<int64_t>() / narrower;
    EXPECT_EQ(shared > 0, kind == "int8");
    EXPECT_LE(shared, (4 + 1) * 4 * said["sums"].get<int64_t>());
    int64_t saved = said["plain_bytes"].get<int64_t>() - said["bytes"].get<int64_t>();
    EXPECT_GT(saved, 0);
    // A joint all-reduce pads each operand to 64 bytes.
    EXPECT_NEAR(static_cast<double>(summed_bytes(*plain, runs) - summed_bytes(*small, runs)),
                static_cast<double>(saved), 64. * said["sums"].get<double>() * static_cast<double>(runs));
    Outcome verified = run_command(partita_program() + " verify " + (out_ / "small"));
    EXPECT_EQ(verified.code, 0) << verified.text;
    EXPECT_NE(verified.text.find("they are NOT equal, by choice"), std::string::npos) << verified.text;
    json certificate = json::parse(TempFolder::read(out_ / "small/certificate.json"));
    EXPECT_EQ(certificate["compress"]["sums"], said["sums"]);
    EXPECT_NE(certificate["proved"].dump().find("NOT compute the serial program"), std::string::npos);
    EXPECT_EQ(certificate["proved"].dump().find("every state, gradient and output equals"), std::string::npos);
    // Named otherwise, it is another program.
    small->compress = "none";
    EXPECT_EQ(verifier::check_bundle(*small).status().code(), absl::StatusCode::kAborted);
    plain->compress = kind;
    auto nothing = verifier::check_bundle(*plain);
    ASSERT_TRUE(nothing.ok()) << nothing.status();
    EXPECT_EQ(nothing->compressed_sums, 0);
  }
  Outcome run =
      run_command(partita_program() + " verify " + (out_ / "small") + " --numeric --data " + (out_ / "tokens.bin"));
  EXPECT_EQ(run.code, 0) << run.text;
  EXPECT_NE(run.text.find("not held to a limit after the first loss"), std::string::npos) << run.text;
}

TEST_F(Compress, Bf16_TakesTheSumsOfEveryMicroBatchToo) {
  std::vector<json> said;
  for (const char* flags : {"--ranks 2 --like zero2", "--ranks 2 --like zero2 --pin micro_batch=1"}) {
    Outcome compiled = compile("small", flags, "compress: bf16\n");
    ASSERT_EQ(compiled.code, 0) << compiled.text;
    said.push_back(json::parse(TempFolder::read(out_ / "small/manifest.json"))["compress"]);
  }
  EXPECT_EQ(said[0]["sums"], said[1]["sums"]);
  // Four micro-batches; small gradients, which no rank stores in parts, are summed once.
  EXPECT_GT(said[1]["plain_bytes"].get<int64_t>(), 3 * said[0]["plain_bytes"].get<int64_t>());
}

// The one head of keys is whole on both tensor ranks: they sum parts of its gradient, and gather them.
TEST_F(Compress, Bf16_SumsThatAreGatheredOrNarrowedAgainAreProved) {
  const std::string model = out_ / "one_key_head.onnx",
                    recipe = out_.write("one_key_head.yaml", "compress: bf16\nbatch: {global: 4}\n");
  Outcome made =
      run_command(partita_program() + " model gpt --layers 1 --hidden 32 --heads 2 --kv-heads 1 --vocab 31 " +
                  "--seq 16 --with-weights --quiet -o " + model);
  ASSERT_EQ(made.code, 0) << made.text;
  for (const char* pins : {"--pin data=2 --pin tensor=2 --pin sequence_parallel=true",
                           // In two levels, between which positions' parts are summed up in 32 bits.
                           "--pin data=4 --pin context=2 --pin zero=2 --pin zero_group=2"}) {
    Outcome compiled = run_command(partita_program() + " compile " + model + " --train " + recipe + " --quiet -o " +
                                   (out_ / "gathered") + " " + pins);
    ASSERT_EQ(compiled.code, 0) << compiled.text;
    const Outcome proved = run_command(partita_program() + " verify " + (out_ / "gathered"));
    EXPECT_EQ(proved.code, 0) << pins << ": " << proved.text;
  }
}

TEST_F(Compress, PowerSgdBundle_IsProvedButForIt) {
  for (const char* flags :
       {"--ranks 2", "--ranks 4 --pin tensor=2", "--ranks 2 --pin micro_batch=1",
        "--ranks 4 --pin pipeline=2 --pin micro_batch=1", "--ranks 2 --like zero1", "--ranks 4 --like zero3"}) {
    SCOPED_TRACE(flags);
    Outcome compiled = compile("small", flags, "compress: powersgd\n");
    ASSERT_EQ(compiled.code, 0) << compiled.text;
    json said = json::parse(TempFolder::read(out_ / "small/manifest.json"))["compress"];
    EXPECT_EQ(said["kind"], "powersgd");
    EXPECT_LT(said["bytes"].get<int64_t>() * 2, said["plain_bytes"].get<int64_t>());
    Outcome verified = run_command(partita_program() + " verify " + (out_ / "small"));
    EXPECT_EQ(verified.code, 0) << verified.text;
    json certificate = json::parse(TempFolder::read(out_ / "small/certificate.json"));
    EXPECT_EQ(certificate["compress"]["sums"], said["sums"]);
    auto small = read_bundle(out_ / "small");
    ASSERT_TRUE(small.ok()) << small.status();
    for (const char* kind : {"none", "bf16", "int8"}) {
      small->compress = kind;
      EXPECT_EQ(verifier::check_bundle(*small).status().code(), absl::StatusCode::kAborted) << kind;
    }
  }
}

TEST_F(Compress, UnknownKinds_AreRefused) {
  Outcome unknown = compile("x", "--ranks 2", "compress: zip\n");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.text.find("compress: expected"), std::string::npos) << unknown.text;
  Outcome pinned = compile("x", "--ranks 2 --pin compress=zip", "");
  EXPECT_EQ(pinned.code, 2);
  EXPECT_NE(pinned.text.find("--pin"), std::string::npos) << pinned.text;
  Outcome scaled = compile("x", "--ranks 2", "compress: int8\nprecision: fp16\n");
  EXPECT_EQ(scaled.code, 2);
  EXPECT_NE(scaled.text.find("the loss scale of precision: fp16 changes"), std::string::npos) << scaled.text;
  // Nothing to compress is no error, and no claim either.
  Outcome alone = compile("alone", "--ranks 1", "compress: bf16\n");
  EXPECT_EQ(alone.code, 0) << alone.text;
  EXPECT_EQ(json::parse(TempFolder::read(out_ / "alone/manifest.json")).count("compress"), 0u);
}

}  // namespace
}  // namespace partita

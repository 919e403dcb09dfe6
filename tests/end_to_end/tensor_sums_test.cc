// What a block of a transformer adds to the residual stream is summed over the tensor axis once, as it is.
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

// Llama-like: its embedding is split by the vocabulary, so that the stream begins as a sum over the tensor axis.
class TensorSums : public testing::Test {
 protected:
  void SetUp() override {
    const Outcome made = run_partita(
        "model gpt --layers 4 --hidden 64 --heads 4 --ffn 128 --gated-mlp --norm rmsnorm --positions rotary --no-bias "
        "--no-tied --vocab 128 --seq 16 --quiet --with-weights -o " +
        (out_ / "model.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    out_.write("train.yaml",
               "loss: {kind: output, output: loss}\noptimizer: {kind: adamw}\nbatch: {global: 4}\nprecision: bf16\n");
  }
  // Lines of a rank's graph, proved. `file`: of its stage, in the bundle's folder of what is verified.
  std::vector<std::string> graph(const std::string& pins, const std::string& file) {
    const Outcome compiled = run_partita("compile " + (out_ / "model.onnx") + " --train " + (out_ / "train.yaml") +
                                         " --quiet " + pins + " -o " + (out_ / "b"));
    EXPECT_EQ(compiled.code, 0) << compiled.text;
    const Outcome verified = run_partita("verify " + (out_ / "b"));
    EXPECT_EQ(verified.code, 0) << verified.text;
    std::istringstream text(TempFolder::read(out_ / ("b/verify/" + file)));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }
  TempFolder out_;
};

bool has(const std::string& line, const std::string& part) { return line.find(part) != std::string::npos; }

TEST_F(TensorSums, OfBlocksAreSentIn16BitsAndTheStreamIsNotSummedAgain) {
  for (const auto& [pins, op] : std::map<std::string, std::string>{
           {"--pin sequence_parallel=false", "all_reduce("}, {"--pin sequence_parallel=true", "reduce_scatter("}}) {
    SCOPED_TRACE(pins);
    int halves = 0, whole = 0, sends = 0;
    std::map<std::string, std::string> type_of;
    for (const std::string& line : graph("--pin tensor=2 --pin pipeline=2 --pin micro_batch=1 " + pins, "rank.0.ir")) {
      const size_t space = line.find(' ');
      if (line[0] == '%' && space != std::string::npos) type_of[line.substr(0, space)] = line.substr(space + 1);
      if (!has(line, "@forward")) continue;
      if (has(line, op)) ++(has(line, " bf16[") ? halves : whole);
      if (!has(line, "send(%")) continue;
      ++sends;
      const size_t at = line.find("send(") + 5;
      const std::string sent = type_of.at(line.substr(at, line.find(')', at) - at));
      EXPECT_TRUE(has(sent, op == "all_reduce(" ? "f32[1,16,64]" : "f32[1,8,64]")) << sent;
    }
    EXPECT_EQ(sends, 1);
    EXPECT_EQ(halves, 4);  // attention's and the MLP's of two blocks
    EXPECT_EQ(whole, 1);   // of looked-up f32 rows
  }
}

// Gradients of the stream are divided as it is, by positions where the ranks are more than the samples of a
// micro-batch: what is sent backward is in 16 bits, and never the whole stream in f32.
TEST_F(TensorSums, GradientsAreScatteredAsTheStreamIsDivided) {
  for (const char* micro : {"1", "2", "4"}) {
    SCOPED_TRACE(micro);
    int scattered = 0, gathered = 0, wide = 0;
    const std::string pins =
        std::string("--ranks 4 --pin tensor=4 --pin sequence_parallel=true --pin micro_batch=") + micro;
    for (const std::string& line : graph(pins, "rank.ir")) {
      if (!has(line, "@backward")) continue;
      scattered += has(line, "reduce_scatter(") && has(line, " bf16[");
      const bool gathers = has(line, "all_gather(");
      gathered += gathers && has(line, " bf16[");
      wide += gathers && has(line, " f32[") && has(line, ",64]") && !has(line, "weight_gradient");  // but the table's
    }
    EXPECT_EQ(scattered, 9);  // two of each of four blocks, and the head's
    EXPECT_EQ(gathered, 17);  // inputs of products again, and gradients of their results
    EXPECT_EQ(wide, 0);
  }
}

}  // namespace
}  // namespace partita

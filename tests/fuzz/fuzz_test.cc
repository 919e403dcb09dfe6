// Every reader of untrusted bytes against spoiled inputs from a fixed seed: nothing crashes, hangs, throws or asks for
// memory without bound. In full ten times as many inputs are read. PARTITA_FUZZ_SECONDS=600 fuzz_test goes on for
// longer, from a new seed for each second.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "frontend/onnx_import.h"
#include "ir/recipe/read_recipe.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "runtime/files/npy.h"
#include "runtime/files/npz.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/program_image.h"
#include "tests/fuzz/mutator.h"
#include "tests/runtime/support/program_samples.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_options.h"

namespace partita {
namespace {

// What is being read, for the message of a crash.
std::string current;  // NOLINT: a signal handler reads it

void on_crash(int signal_number) {
  int fd = creat("fuzz_crash.bin", 0600);
  if (fd >= 0 && write(fd, current.data(), current.size()) > 0) close(fd);
  const char text[] = "fuzz_test: crashed; the input is in fuzz_crash.bin\n";
  if (write(2, text, sizeof text - 1) < 0) _exit(3);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

struct Target {
  std::vector<std::string> corpus;
  std::vector<std::string_view> words;
  std::function<absl::Status(const std::string&)> read;
};

void fuzz(const Target& target, int inputs) {
  inputs *= sample_or_all(1, 10);
  for (int s : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) signal(s, on_crash);
  for (const std::string& sound : target.corpus) EXPECT_TRUE(target.read(sound).ok()) << target.read(sound);
  const char* wanted = std::getenv("PARTITA_FUZZ_SECONDS");
  auto start = std::chrono::steady_clock::now();
  auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  double limit = wanted ? std::atof(wanted) : sample_or_all(60, 600);
  int64_t accepted = 0, refused = 0;
  for (uint64_t seed = 1; wanted ? elapsed() < limit : seed == 1; ++seed) {
    Mutator mutator(seed, target.words);
    for (int k = 0; k < inputs && elapsed() < limit; ++k) {
      current = mutator.next(target.corpus);
      auto began = std::chrono::steady_clock::now();
      absl::Status status;
      try {
        status = target.read(current);
      } catch (const std::exception& e) {
        std::ofstream("fuzz_fault.bin", std::ios::binary) << current;
        FAIL() << "seed " << seed << " input " << k << " threw: " << e.what() << " (the input is in fuzz_fault.bin)";
      }
      ++(status.ok() ? accepted : refused);
      ASSERT_TRUE(is_utf8({status.message().data(), status.message().size()})) << seed << " " << k;
      ASSERT_NE(status.code(), absl::StatusCode::kInternal) << seed << " " << k << ": " << status;
      double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      if (seconds > 20) std::ofstream("fuzz_slow.bin", std::ios::binary) << current;
      ASSERT_LT(seconds, 20) << "seed " << seed << " input " << k << " (fuzz_slow.bin)";
    }
  }
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  EXPECT_LT(used.ru_maxrss, int64_t{2} << 20);  // KiB
  EXPECT_GT(refused, 0);
  std::printf("%lld refused, %lld accepted\n", static_cast<long long>(refused), static_cast<long long>(accepted));
}

onnx::ModelProto layered_model() {
  onnx::ModelProto m = linear_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_ints(g, "shape", {2, 2, 2});
  add_ints(g, "axes", {1});
  add_node(g, "Reshape", {"y", "shape"}, {"r"});
  add_int(add_node(g, "Softmax", {"r"}, {"s"}), "axis", -1);
  add_node(g, "ReduceMean", {"s", "axes"}, {"t"});
  add_node(g, "Where", {"b", "t", "s"}, {"u"});
  add_node(g, "Greater", {"s", "t"}, {"b"});
  auto* transpose = add_node(g, "Transpose", {"u"}, {"v"})->add_attribute();
  transpose->set_name("perm");
  transpose->set_type(onnx::AttributeProto::INTS);
  for (int64_t d : {2, 0, 1}) transpose->add_ints(d);
  add_int(add_node(g, "Concat", {"v", "u"}, {"c"}), "axis", 0);
  g->mutable_output(0)->set_name("c");
  return m;
}

TEST(Fuzz, OnnxModels) {
  TempFolder folder;
  std::string path = folder / "model.onnx";
  Target target{{linear_model().SerializeAsString(), layered_model().SerializeAsString()},
                {"Conv",      "Gemm",  "Slice",   "Expand", "Tile",     "Pad",       "Resize", "Loop",
                 "Scan",      "LSTM",  "Einsum",  "TopK",   "GatherND", "ScatterND", "OneHot", "Split",
                 "Attention", "Range", "MaxPool", "axis",   "x",        "w",         "shape"},
                [&](const std::string& bytes) -> absl::Status {
                  auto model = parse_onnx_model(bytes, path);
                  return model.ok() ? import_onnx_model(*model).status() : model.status();
                }};
  // One node's operator is exchanged, so that each converter meets operands that it does not expect.
  for (const char* op : {"Conv", "Gemm", "Slice", "Expand", "Tile", "Pad", "Resize", "Einsum", "TopK", "GatherND",
                         "ScatterElements", "OneHot", "Split", "Range", "LSTM", "MaxPool", "CumSum", "Trilu"}) {
    onnx::ModelProto m = layered_model();
    m.mutable_graph()->mutable_node(1)->set_op_type(op);
    auto read = target.read;
    (void)read(m.SerializeAsString());
    target.words.push_back(op);
  }
  fuzz(target, 3000);
}

TEST(Fuzz, Recipes) {
  Target target{
      {"loss: {kind: cross_entropy, output: logits, target: labels, ignore_index: -1}\n"
       "optimizer: {kind: adamw, lr: 3.0e-4, betas: [0.9, 0.95], weight_decay: 0.1, no_decay: ['*norm*', '*.bias']}\n"
       "schedule: {kind: cosine, warmup: 20, total: 100, min_lr: 3.0e-5}\nbatch: {global: 512, micro: auto}\n",
       "bind: &b {batch: 8}\npin:\n  data: 8\n  \"layers.*.up\": {out: tensor}\ninit:\n  - {match: '*', normal: 0.02}\n"
       "data: {kind: npz, path: x.npz, columns: {a: b}}\nsemantics: {moe: {capacity: 32, group: 1}}\n"},
      {"&a", "*a", "[", "{", "- ", ": ", "\n  ", "'", "\"", "|", ">", "<<: ", "!!int", "---\n", "# ", "lr", "pin",
       "1e309"},
      [](const std::string& text) { return parse_recipe(text, "train.yaml").status(); }};
  fuzz(target, 4000);
}

TEST(Fuzz, GraphTexts) {
  TempFolder folder;
  auto model = parse_onnx_model(layered_model().SerializeAsString(), folder / "model.onnx");
  ASSERT_TRUE(model.ok());
  auto imported = import_onnx_model(*model);
  ASSERT_TRUE(imported.ok()) << imported.status();
  Target target{
      {print(imported->graph)},
      {"f32[4,3]", "%0", "%999999999", "matmul", "reshape", "conv", "{", "}", "[", "]", "=", "i64", "nan", "\""},
      [](const std::string& text) { return parse_graph(text).status(); }};
  fuzz(target, 4000);
}

TEST(Fuzz, ProgramImages) {
  runtime::Program program = runtime::least_squares(2, 4, 2);
  const std::string image = runtime::serialize_program(program);
  // Half of the inputs carry the right checksum and sizes, so that what lies behind them is reached.
  auto mended = [](std::string bytes) {
    if (bytes.size() < 40 || bytes.back() % 2 == 0) return bytes;
    uint64_t body = bytes.size() - 40, zero = 0;
    std::memcpy(bytes.data() + 16, &body, 8);
    std::memcpy(bytes.data() + 24, &zero, 8);
    uint64_t sum = checksum64(as_byte_span(std::string_view(bytes).substr(40)));
    std::memcpy(bytes.data() + 32, &sum, 8);
    return bytes;
  };
  Target target{{image}, {"w", "parameter"}, [&](const std::string& bytes) {
                  return runtime::parse_program(as_byte_span(mended(bytes))).status();
                }};
  fuzz(target, 20000);
}

TEST(Fuzz, Safetensors) {
  TempFolder folder;
  std::string path = folder / "t.safetensors";
  {
    auto writer =
        runtime::SafetensorsWriter::create(path, {{"w", DType::kF32, {2, 2}}, {"b", DType::kF16, {3}}}, {{"k", "v"}});
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->write("w", as_byte_span(std::string_view("0123456789abcdef"))).ok());
    ASSERT_TRUE((*writer)->write("b", as_byte_span(std::string_view("012345"))).ok());
    ASSERT_TRUE((*writer)->finish().ok());
  }
  Target target{
      {TempFolder::read(path)},
      {"\"dtype\"", "\"F32\"", "\"shape\"", "\"data_offsets\"", "__metadata__", "[", "{", ":", "\\ud800", "1e99"},
      [&](const std::string& bytes) {
        return runtime::SafetensorsFile::open(folder.write("f.safetensors", bytes)).status();
      }};
  fuzz(target, 3000);
}

TEST(Fuzz, NumpyArrays) {
  TempFolder folder;
  std::vector<float> values(6, 1);
  auto bytes = std::as_bytes(std::span(values));
  ASSERT_TRUE(
      runtime::write_npz(folder / "a.npz", {{"x", DType::kF32, {2, 3}, bytes}, {"t", DType::kI64, {3}, bytes}}).ok());
  ASSERT_TRUE(runtime::write_npy(folder / "a.npy", DType::kF32, std::vector<int64_t>{2, 3}, bytes).ok());
  const std::vector<std::string_view> words = {
      "PK\1\2",     "PK\3\4",      "PK\5\6", "'descr': '<f4'", "'fortran_order': True",
      "'shape': (", "9999999999,", ")",      "\x93NUMPY",      "x.npy"};
  Target npz{{TempFolder::read(folder / "a.npz")}, words, [&](const std::string& text) -> absl::Status {
               auto file = runtime::NpzFile::open(folder.write("f.npz", text));
               if (!file.ok()) return file.status();
               absl::Status status;
               for (const std::string& name : file->names()) {
                 if (auto array = file->read(name); !array.ok()) status = array.status();
               }
               return status;
             }};
  fuzz(npz, 3000);
  Target npy{{TempFolder::read(folder / "a.npy")}, words, [&](const std::string& text) {
               return runtime::open_npy(folder.write("f.npy", text)).status();
             }};
  fuzz(npy, 3000);
}

}  // namespace
}  // namespace partita

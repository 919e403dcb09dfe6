// ONNX's own node tests: each model is imported, run by the reference evaluator, and compared with the outputs that
// come with it. A test whose operator we refuse must be refused with a status. With PARTITA_WRITE_DOCS set to a path,
// the table of operators is written there (docs/onnx_ops.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "frontend/onnx_import.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string name, op;
  OnnxModel model;
  std::vector<OnnxTensor> inputs, outputs;
};

std::vector<OnnxTensor> tensors(const std::string& folder, const std::string& kind) {
  std::vector<OnnxTensor> out;
  for (int k = 0;; ++k) {
    auto file = MappedFile::open(cat(folder, "/", kind, "_", k, ".pb"));
    if (!file.ok()) return out;
    auto t = parse_onnx_tensor(file->text(), file->path());
    out.push_back(t.ok() ? *std::move(t) : OnnxTensor{});
  }
}

// The operator that a test is for: of its only node, or of the one that its name starts with.
std::string operator_of(const OnnxModel& model) {
  std::map<std::string, int> ops;
  for (const OnnxNode& n : model.graph.nodes) ++ops[n.domain.empty() ? n.op : cat(n.domain, "::", n.op)];
  ops.erase("Constant");
  return ops.size() == 1 ? ops.begin()->first : "";
}

std::optional<Case> read_case(const fs::path& folder) {
  auto model = load_onnx_model((folder / "model.onnx").string());
  if (!model.ok()) return std::nullopt;
  Case c{folder.filename().string(), operator_of(*model), *std::move(model), {}, {}};
  c.inputs = tensors((folder / "test_data_set_0").string(), "input");
  c.outputs = tensors((folder / "test_data_set_0").string(), "output");
  for (size_t k = 0; k < std::min(c.inputs.size(), c.model.graph.inputs.size()); ++k) {
    OnnxValueInfo& in = c.model.graph.inputs[k];
    if (in.kind != OnnxValueInfo::Kind::kTensor || !c.inputs[k].literal) continue;
    in.shape.emplace();
    for (int64_t d : c.inputs[k].type.shape) in.shape->push_back({d, ""});
  }
  return c;
}

enum class Fixed { kNone, kIntegers, kAllButFirst, kAll };

// As data inputs if that works; else with those inputs fixed that set shapes (integers), or all but the first.
absl::StatusOr<ImportedModel> import_case(const Case& c, Fixed fixed) {
  ImportOptions options;
  for (size_t k = 0; k < std::min(c.inputs.size(), c.model.graph.inputs.size()); ++k) {
    const std::optional<Literal>& value = c.inputs[k].literal;
    if (!value || fixed == Fixed::kNone) continue;
    bool integers = !is_float(value->type.dtype);
    if ((fixed == Fixed::kIntegers && integers) || fixed == Fixed::kAll || (fixed == Fixed::kAllButFirst && k > 0))
      options.fixed[c.model.graph.inputs[k].name] = *value;
  }
  return import_onnx_model(c.model, options);
}

std::string difference(const Tensor& found, const OnnxTensor& expected) {
  if (!expected.literal) return "expected output is of an unsupported type";
  Tensor e = to_tensor(*expected.literal);
  if (found.type != e.type) return cat("expected ", to_string(e.type), ", found ", to_string(found.type));
  bool half = dtype_size(e.type.dtype) < 4;
  double relative = half ? 2e-2 : 1e-3, absolute = half ? 1e-3 : 1e-5;
  Tensor rounded = to_tensor(to_literal(found));
  for (size_t k = 0; k < e.f.size(); ++k) {
    double a = e.f[k], b = rounded.f[k];
    bool same = a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= absolute + relative * std::abs(a);
    if (!same) return cat("element ", k, ": expected ", a, ", found ", b);
  }
  for (size_t k = 0; k < e.i.size(); ++k) {
    if (e.i[k] != found.i[k]) return cat("element ", k, ": expected ", e.i[k], ", found ", found.i[k]);
  }
  return "";
}

std::string run(const Case& c, const ImportedModel& model) {
  const Graph& g = model.graph;
  std::map<ValueId, Tensor> feeds;
  for (const GraphInput& in : g.inputs) {
    if (in.kind == InputKind::kMicroBatch) feeds[in.value] = Tensor::zeros(g.type(in.value));
  }
  for (size_t k = 0; k < c.model.graph.inputs.size(); ++k) {
    for (const GraphInput& in : g.inputs) {
      if (in.name != c.model.graph.inputs[k].name) continue;
      if (k >= c.inputs.size() || !c.inputs[k].literal) return "an input has no data";
      feeds[in.value] = to_tensor(*c.inputs[k].literal);
    }
  }
  std::vector<Tensor> found = evaluate_graph(g, feeds);
  for (size_t k = 0; k < std::min(found.size(), c.outputs.size()); ++k) {
    if (std::string d = difference(found[k], c.outputs[k]); !d.empty()) return cat("output ", k, ": ", d);
  }
  return "";
}

// Draws from another generator than ours: only that they import and run is checked.
bool is_random(const std::string& name) {
  return name.starts_with("test_bernoulli") ||
         (name.starts_with("test_training_dropout") && name.find("zero_ratio") == std::string::npos);
}

struct Score {
  int tests = 0, accepted = 0, fixed = 0, passed = 0;
};

void write_docs(const char* path, const std::map<std::string, Score>& scores,
                const std::map<std::string, std::string>& refusals) {
  std::ofstream out(path);
  out << "# ONNX operators\n\nWritten by `frontend_test` from ONNX's node tests (opsets 7 to 28). `passed`: "
         "imported, and equal to the expected outputs in the reference\n"
         "evaluator. `fixed`: of these, the ones that need an input (a shape, axes, scales) to be a constant of the "
         "graph. Operators that ONNX defines as functions\n"
         "of others are expanded and counted where they stand.\n\n| operator | tests | passed | fixed | first refusal "
         "|\n|---|---|---|---|---|\n";
  for (const auto& [op, s] : scores) {
    if (s.passed == 0) continue;
    auto refusal = refusals.find(op);
    out << "| " << op << " | " << s.tests << " | " << s.passed << " | " << s.fixed << " | "
        << (refusal == refusals.end() ? "" : refusal->second) << " |\n";
  }
  out << "\nRefused:";
  for (const auto& [op, s] : scores) {
    if (s.passed == 0) out << " " << op;
  }
  out << ".\n";
}

std::string short_reason(std::string message, const std::string& path) {
  if (size_t at = message.find(path); at != std::string::npos)
    message.erase(0, std::min(message.size(), at + path.size() + 3));
  std::replace(message.begin(), message.end(), '|', '/');
  return message.substr(0, 140);
}

TEST(OnnxBackend, NodeTests_PassOrAreRefused) {
  fs::path root = fs::path(PARTITA_DEPS) / "share/onnx/node";
  if (!fs::exists(root)) GTEST_SKIP() << root << " is missing";
  std::vector<fs::path> folders;
  for (const char* kind : {"node", "simple", "pytorch-converted", "pytorch-operator"}) {
    for (const auto& entry : fs::directory_iterator(root.parent_path() / kind)) {
      if (fs::exists(entry.path() / "model.onnx")) folders.push_back(entry.path());
    }
  }
  std::sort(folders.begin(), folders.end());
  std::map<std::string, Score> scores;
  std::map<std::string, std::string> refusals;
  int accepted = 0, refused = 0, unreadable = 0;
  for (const fs::path& folder : folders) {
    std::optional<Case> c = read_case(folder);
    if (!c) {
      ++unreadable;
      continue;
    }
    Score ignored, &score = c->op.empty() ? ignored : scores[c->op];
    ++score.tests;
    absl::StatusOr<ImportedModel> model = absl::UnknownError("");
    std::string first;
    bool fixed = false;
    for (Fixed way : {Fixed::kNone, Fixed::kIntegers, Fixed::kAllButFirst, Fixed::kAll}) {
      model = import_case(*c, way);
      fixed = way != Fixed::kNone;
      if (model.ok()) break;
      std::string message(model.status().message());
      EXPECT_TRUE(is_utf8(message) && message.find('\n') == std::string::npos) << message;
      if (first.empty()) first = message;
      if (way == Fixed::kAllButFirst) first = message;
    }
    if (!model.ok()) {
      ++refused;
      refusals.emplace(c->op, short_reason(first, (folder / "model.onnx").string()));
      if (std::getenv("PARTITA_LIST_REFUSED"))
        std::printf("refused %s: %s\n", c->name.c_str(), short_reason(first, (folder / "model.onnx").string()).c_str());
      continue;
    }
    if (c->op.empty()) score = Score{};
    ++accepted;
    ++score.accepted;
    if (std::getenv("PARTITA_LIST_REFUSED")) std::fprintf(stderr, "%s\n", c->name.c_str());
    std::string fault = run(*c, *model);
    if (fault.empty() && !fixed) {  // folding means the same as running
      auto folded = import_case(*c, Fixed::kAll);
      if (folded.ok()) fault = run(*c, *folded);
    }
    if (is_random(c->name)) fault.clear();
    EXPECT_EQ(fault, "") << c->name;
    if (fault.empty()) {
      ++score.passed;
      score.fixed += fixed;
    }
  }
  std::printf("%zu tests: %d accepted, %d refused, %d unreadable\n", folders.size(), accepted, refused, unreadable);
  EXPECT_GT(accepted, 1200);
  if (const char* path = std::getenv("PARTITA_WRITE_DOCS")) write_docs(path, scores, refusals);
}

}  // namespace
}  // namespace partita

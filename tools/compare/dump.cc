#include "tools/compare/dump.h"

#include <algorithm>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/files/safetensors.h"

namespace partita {
namespace {

// By ONNX's name, or the state's or input's own.
ValueId value_named(const Graph& g, const std::string& name, std::vector<std::string>& names) {
  for (const State& s : g.states) names.push_back(s.name);
  for (const State& s : g.states) {
    if (s.name == name) return s.value;
  }
  for (const GraphInput& in : g.inputs) {
    if (in.name == name) return in.value;
    names.push_back(in.name);
  }
  for (size_t v = 0; v < g.values.size(); ++v) {
    if (g.values[v].name == name) return static_cast<ValueId>(v);
    if (!g.values[v].name.empty()) names.push_back(g.values[v].name);
  }
  return kNoValue;
}

// In the type of the value, as numbers: what was dumped in another float type is so many roundings off.
Tensor converted(const Tensor& from, DType dtype) {
  Tensor to = Tensor::zeros({dtype, from.type.shape});
  for (size_t k = 0; k < to.f.size(); ++k) to.f[k] = from.f.empty() ? static_cast<double>(from.i[k]) : from.f[k];
  for (size_t k = 0; k < to.i.size(); ++k) to.i[k] = from.i.empty() ? static_cast<int64_t>(from.f[k]) : from.i[k];
  return to;
}

class DumpReader {
 public:
  DumpReader(const runtime::SafetensorsFile& file, const verifier::SerialValues& serial, StepRuns runs)
      : file_(file), serial_(serial), runs_(runs.count) {}

  absl::Status add(const runtime::SafetensorsEntry& entry) {
    const Graph& g = serial_.graph();
    std::vector<std::string> names;
    const ValueId v = value_named(g, entry.name, names);
    if (v == kNoValue)
      return wrong(entry, cat("the model has no value of this name",
                              nearest_name(entry.name, names).empty()
                                  ? ""
                                  : cat("; is it ", quote(nearest_name(entry.name, names)), "?")));
    const TensorType& type = g.type(v);
    const int32_t root = serial_.layout(v).root;
    const int64_t parts = serial_.per_run(root) ? runs_ : 1;
    Shape whole = type.shape;
    if (parts > 1 && !whole.empty()) whole[0] *= parts;
    if (entry.dtype == DType::kInvalid || is_float(entry.dtype) != is_float(type.dtype) || entry.shape != whole ||
        (parts > 1 && whole.empty()))
      return wrong(entry, cat("expected ", dtype_name(type.dtype), to_string(whole), ", found ", entry.dtype_text,
                              to_string(entry.shape)));
    const auto bytes = file_.data(entry);
    const Tensor all = to_tensor(make_literal({entry.dtype, entry.shape}, {bytes.begin(), bytes.end()}));
    const int64_t count = elements(type.shape);
    const std::vector<int64_t> at = root_indices(serial_.layout(v), count, {});
    for (int64_t run = 0; run < parts; ++run) {
      RootCopy copy;
      const int64_t size = 1 + *std::max_element(at.begin(), at.end());
      copy.held = entry.dtype;
      copy.values = Tensor::zeros({type.dtype, {size}});
      copy.filled.assign(static_cast<size_t>(size), false);
      const Tensor t = converted(all, type.dtype);
      for (int64_t k = 0; k < count; ++k) {
        const size_t to = static_cast<size_t>(at[static_cast<size_t>(k)]), from = static_cast<size_t>(run * count + k);
        copy.filled[to] = true;
        if (is_float(type.dtype)) {
          copy.values.f[to] = t.f[from];
        } else {
          copy.values.i[to] = t.i[from];
        }
      }
      copy.whole = std::find(copy.filled.begin(), copy.filled.end(), false) == copy.filled.end();
      copy.written = true;
      copies[{root, run}].push_back(std::move(copy));
    }
    return absl::OkStatus();
  }

  std::map<std::pair<int32_t, int64_t>, std::vector<RootCopy>> copies;

 private:
  absl::Status wrong(const runtime::SafetensorsEntry& entry, const std::string& why) const {
    return absl::InvalidArgumentError(cat(quote(file_.path()), ": ", quote(entry.name), ": ", why));
  }

  const runtime::SafetensorsFile& file_;
  const verifier::SerialValues& serial_;
  const int64_t runs_;
};

}  // namespace

absl::StatusOr<RankCopies::Copies> read_dump(const std::string& path, const verifier::SerialValues& serial,
                                             StepRuns runs) {
  PARTITA_ASSIGN_OR_RETURN(const runtime::SafetensorsFile file, runtime::SafetensorsFile::open(path));
  DumpReader reader(file, serial, runs);
  for (const runtime::SafetensorsEntry& entry : file.entries()) PARTITA_RETURN_IF_ERROR(reader.add(entry));
  if (reader.copies.empty()) return absl::InvalidArgumentError(cat(quote(path), " has no tensors"));
  RankCopies::Copies copies;
  for (auto& [key, own] : reader.copies) copies[key].copies = [own = std::move(own)] { return own; };
  return copies;
}

}  // namespace partita

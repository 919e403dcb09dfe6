// If, Loop and Scan where constants decide them; sequences and optionals, which exist only while importing.
#include <algorithm>

#include "base/cat.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

constexpr int64_t kMaxIterations = 10'000;

void if_else(Conversion& c) {
  bool condition = c.known_float(0, "cond") != 0;
  std::vector<OnnxValue> results = c.services.run_subgraph(c.graph(condition ? "then_branch" : "else_branch"), {});
  c.require(results.size() >= c.outputs.size(), "the branch has too few outputs");
  for (size_t k = 0; k < c.outputs.size(); ++k) c.outputs[k] = results[k];
}

ValueId stacked(Conversion& c, std::vector<ValueId> parts, int axis) {
  Emitter& e = c.e;
  c.require(!parts.empty(), "a loop that never runs has no scan output");
  for (ValueId& v : parts) {
    Shape s = e.shape(v);
    c.require(axis <= static_cast<int>(s.size()), "the scan output's axis does not exist");
    s.insert(s.begin() + axis, 1);
    v = e.reshape(v, s);
  }
  return e.concat(std::move(parts), axis);
}

ValueId tensor_of(const Conversion& c, const OnnxValue& v) {
  c.require(v.kind == OnnxValue::Kind::kTensor, "expected a tensor");
  return v.value;
}

void loop(Conversion& c) {
  Emitter& e = c.e;
  const OnnxGraph& body = c.graph("body");
  int64_t limit = c.has(0) ? c.known_int(0, "M") : -1;
  bool running = !c.has(1) || c.known_float(1, "cond") != 0;
  int carried = c.count() - 2;
  c.require(carried >= 0 && static_cast<int>(body.outputs.size()) >= carried + 1,
            "the body's outputs do not fit the loop's inputs");
  std::vector<OnnxValue> values;
  for (int k = 0; k < carried; ++k) values.push_back(c.any(k + 2));
  std::vector<std::vector<ValueId>> scans(body.outputs.size() - 1 - static_cast<size_t>(carried));
  for (int64_t step = 0; running && (limit < 0 || step < limit); ++step) {
    c.require(step < kMaxIterations, cat("the loop runs more than ", kMaxIterations, " times"));
    std::vector<OnnxValue> inputs = {OnnxValue::tensor(e.ints(DType::kI64, {}, {step})),
                                     OnnxValue::tensor(e.ints(DType::kBool, {}, {1}))};
    inputs.insert(inputs.end(), values.begin(), values.end());
    std::vector<OnnxValue> results = c.services.run_subgraph(body, inputs);
    Literal again = e.known(tensor_of(c, results[0]), "the loop's condition");
    c.require(elements(again.type.shape) == 1, "the loop's condition must be a scalar");
    running = element_i(again, 0) != 0;
    values.assign(results.begin() + 1, results.begin() + 1 + carried);
    for (size_t k = 0; k < scans.size(); ++k)
      scans[k].push_back(tensor_of(c, results[1 + static_cast<size_t>(carried) + k]));
  }
  for (size_t k = 0; k < c.outputs.size(); ++k) {
    if (k < static_cast<size_t>(carried))
      c.outputs[k] = values[k];
    else if (c.wants(static_cast<int>(k)))
      c.out(static_cast<int>(k), stacked(c, scans.at(k - static_cast<size_t>(carried)), 0));
  }
}

void scan(Conversion& c) {
  Emitter& e = c.e;
  const OnnxGraph& body = c.graph("body");
  int64_t scanned = c.i("num_scan_inputs");
  c.require(scanned > 0 && scanned <= c.count() && static_cast<int>(body.inputs.size()) == c.count(),
            "num_scan_inputs does not fit");
  size_t carried = static_cast<size_t>(c.count() - scanned), in = static_cast<size_t>(scanned),
         out = body.outputs.size() - carried;
  c.require(body.outputs.size() >= carried, "the body has too few outputs");
  auto input_axes = c.ints("scan_input_axes", std::vector<int64_t>(in, 0)),
       output_axes = c.ints("scan_output_axes", std::vector<int64_t>(out, 0));
  auto input_back = c.ints("scan_input_directions", std::vector<int64_t>(in, 0)),
       output_back = c.ints("scan_output_directions", std::vector<int64_t>(out, 0));
  c.require(
      input_axes.size() == in && input_back.size() == in && output_axes.size() == out && output_back.size() == out,
      "axes or directions have the wrong length");
  int64_t steps = -1;
  for (size_t k = 0; k < in; ++k) {
    int at = static_cast<int>(carried + k);
    input_axes[k] = c.axis(input_axes[k], c.rank(at));
    int64_t n = c.shape(at)[input_axes[k]];
    c.require(steps < 0 || n == steps, "the scanned inputs differ in length");
    steps = n;
  }
  c.require(steps <= kMaxIterations, cat("the scan runs more than ", kMaxIterations, " times"));
  std::vector<OnnxValue> values;
  for (size_t k = 0; k < carried; ++k) values.push_back(c.any(static_cast<int>(k)));
  std::vector<std::vector<ValueId>> scans(out);
  for (int64_t step = 0; step < steps; ++step) {
    std::vector<OnnxValue> inputs = values;
    for (size_t k = 0; k < in; ++k) {
      ValueId x = c.in(static_cast<int>(carried + k));
      int axis = static_cast<int>(input_axes[k]);
      int64_t at = input_back[k] != 0 ? steps - 1 - step : step;
      Shape s = e.shape(x);
      s.erase(s.begin() + axis);
      inputs.push_back(OnnxValue::tensor(e.reshape(e.slice(x, axis, at, at + 1), s)));
    }
    std::vector<OnnxValue> results = c.services.run_subgraph(body, inputs);
    values.assign(results.begin(), results.begin() + static_cast<std::ptrdiff_t>(carried));
    for (size_t k = 0; k < out; ++k) scans[k].push_back(tensor_of(c, results[carried + k]));
  }
  for (size_t k = 0; k < c.outputs.size(); ++k) {
    if (k < carried) {
      c.outputs[k] = values[k];
    } else if (c.wants(static_cast<int>(k))) {
      size_t j = k - carried;
      if (output_back.at(j) != 0) std::reverse(scans[j].begin(), scans[j].end());
      c.require(!scans[j].empty(), "a scan that never runs has no scan output");
      c.out(static_cast<int>(k), stacked(c, scans[j], c.axis(output_axes[j], e.rank(scans[j][0]) + 1)));
    }
  }
}

void sequence_empty(Conversion& c) { c.out(0, OnnxValue::list({})); }

void sequence_construct(Conversion& c) {
  std::vector<ValueId> v;
  for (int k = 0; k < c.count(); ++k) v.push_back(c.in(k));
  c.out(0, OnnxValue::list(std::move(v)));
}

int64_t position(const Conversion& c, int k, int64_t size, bool end_allowed) {
  int64_t at = c.known_int(k, "position");
  if (at < 0) at += size;
  c.require(at >= 0 && at < size + (end_allowed ? 1 : 0), cat("position ", at, " is outside of a sequence of ", size));
  return at;
}

void sequence_at(Conversion& c) {
  const auto& v = c.sequence(0);
  c.out(v[static_cast<size_t>(position(c, 1, static_cast<int64_t>(v.size()), false))]);
}

void sequence_insert(Conversion& c) {
  std::vector<ValueId> v = c.sequence(0);
  int64_t size = static_cast<int64_t>(v.size());
  v.insert(v.begin() + (c.has(2) ? position(c, 2, size, true) : size), c.in(1));
  c.out(0, OnnxValue::list(std::move(v)));
}

void sequence_erase(Conversion& c) {
  std::vector<ValueId> v = c.sequence(0);
  int64_t size = static_cast<int64_t>(v.size());
  c.require(size > 0, "the sequence is empty");
  v.erase(v.begin() + (c.has(1) ? position(c, 1, size, false) : size - 1));
  c.out(0, OnnxValue::list(std::move(v)));
}

void sequence_length(Conversion& c) { c.out(c.e.ints(DType::kI64, {}, {static_cast<int64_t>(c.sequence(0).size())})); }

void split_to_sequence(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = c.in(0);
  int axis = c.axis(c.i("axis", 0), e.rank(x));
  int64_t size = e.shape(x)[axis];
  std::vector<int64_t> sizes;
  if (c.has(1) && c.rank(1) == 1) {
    sizes = c.known_ints(1, "split");
  } else {
    int64_t chunk = c.has(1) ? c.known_int(1, "split") : 1;
    c.require(chunk > 0 && size / chunk <= kMaxIterations, "the split is not positive, or gives too many parts");
    for (int64_t at = 0; at < size; at += chunk) sizes.push_back(std::min(chunk, size - at));
  }
  int64_t at = 0;
  std::vector<ValueId> parts;
  for (int64_t n : sizes) {
    c.require(n >= 0 && n <= size - at, "the parts are larger than the axis");
    ValueId part = e.slice(x, axis, at, at + n);
    if (!c.has(1) && c.i("keepdims", 1) == 0) {
      Shape s = e.shape(part);
      s.erase(s.begin() + axis);
      part = e.reshape(part, s);
    }
    parts.push_back(part);
    at += n;
  }
  c.require(at == size, "the parts do not add up to the axis");
  c.out(0, OnnxValue::list(std::move(parts)));
}

void concat_from_sequence(Conversion& c) {
  const auto& v = c.sequence(0);
  c.require(!v.empty(), "the sequence is empty");
  bool fresh = c.i("new_axis", 0) != 0;
  int axis = c.axis(c.i("axis"), c.e.rank(v[0]) + (fresh ? 1 : 0));
  c.out(fresh ? stacked(c, v, axis) : c.e.concat(v, axis));
}

void sequence_map(Conversion& c) {
  const OnnxGraph& body = c.graph("body");
  const auto& v = c.sequence(0);
  std::vector<std::vector<ValueId>> results(body.outputs.size());
  for (size_t k = 0; k < v.size(); ++k) {
    std::vector<OnnxValue> inputs = {OnnxValue::tensor(v[k])};
    for (int j = 1; j < c.count(); ++j) {
      const OnnxValue& other = c.any(j);
      if (other.kind == OnnxValue::Kind::kSequence)
        c.require(other.sequence->size() == v.size(), "the sequences differ in length");
      inputs.push_back(other.kind == OnnxValue::Kind::kSequence ? OnnxValue::tensor((*other.sequence)[k]) : other);
    }
    std::vector<OnnxValue> out = c.services.run_subgraph(body, inputs);
    for (size_t j = 0; j < out.size(); ++j) results[j].push_back(tensor_of(c, out[j]));
  }
  for (size_t j = 0; j < results.size(); ++j) c.out(static_cast<int>(j), OnnxValue::list(std::move(results[j])));
}

void optional(Conversion& c) {
  if (c.has(0))
    c.out(0, c.any(0));
  else
    c.out(0, {OnnxValue::Kind::kNothing, kNoValue, nullptr, {}});
}

void optional_has_element(Conversion& c) { c.out(c.e.ints(DType::kBool, {}, {c.has(0)})); }

void optional_get_element(Conversion& c) {
  c.require(c.has(0), "the optional has no element");
  c.out(0, c.any(0));
}

constexpr ConvertEntry kTable[] = {
    {"If", 1, if_else},
    {"Loop", 1, loop},
    {"Scan", 9, scan},
    {"SequenceEmpty", 11, sequence_empty},
    {"SequenceConstruct", 11, sequence_construct},
    {"SequenceAt", 11, sequence_at},
    {"SequenceInsert", 11, sequence_insert},
    {"SequenceErase", 11, sequence_erase},
    {"SequenceLength", 11, sequence_length},
    {"SplitToSequence", 11, split_to_sequence},
    {"ConcatFromSequence", 11, concat_from_sequence},
    {"SequenceMap", 17, sequence_map},
    {"Optional", 15, optional},
    {"OptionalHasElement", 15, optional_has_element},
    {"OptionalGetElement", 15, optional_get_element},
};

}  // namespace

std::span<const ConvertEntry> control_table() { return kTable; }

}  // namespace partita

#include "tools/proof/reference_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/mix64.h"
#include "base/status.h"
#include "ir/graph/evaluate.h"
#include "runtime/data/data_source.h"
#include "tools/proof/trials/bounded_value.h"

namespace partita {
namespace {

constexpr double kOperations = 8e8, kElements = 8e7;  // that the evaluator does in a second

class Run {
 public:
  Run(const Graph& serial, const runtime::Program& program, size_t draw) : g_(serial), program_(program) {
    if (draw > 0) random_ = [draw, n = uint64_t{0}]() mutable { return mix64(draw, ++n); };
    for (size_t k = 0; k < g_.states.size(); ++k) {
      const State& s = g_.states[k];
      if (s.next == kNoValue || s.next == s.value) continue;
      (each_micro_batch(s) ? each_ : once_).push_back(k);
    }
  }

  absl::Status open(const runtime::DataConfig& data) {
    std::vector<runtime::InputSpec> specs;
    for (const runtime::ProgramInput& in : program_.inputs) {
      if (in.kind != InputKind::kData) continue;
      runtime::InputSpec s{in.name, in.operand.dtype, in.placement.logical, !in.placement.logical.empty(), in.bounds};
      if (s.batched) s.sample_shape.erase(s.sample_shape.begin());
      specs.push_back(std::move(s));
    }
    PARTITA_ASSIGN_OR_RETURN(source_, runtime::DataSource::open(data, std::move(specs), program_.samples_per_step));
    return absl::OkStatus();
  }

  void begin(const std::map<std::string, std::vector<double>>& first) {
    for (const State& s : g_.states) {
      Tensor value = Tensor::zeros(g_.type(s.value));
      if (const auto at = first.find(s.name); at != first.end()) {
        if (is_float(value.type.dtype)) {
          value.f = at->second;
        } else {
          value.i.assign(at->second.begin(), at->second.end());
        }
      } else if (const Literal* known = std::get_if<Literal>(&s.initial)) {
        value = to_tensor(*known);
      }
      feeds_.insert_or_assign(s.value, std::move(value));
    }
  }

  // The outputs' values, in order.
  absl::StatusOr<std::vector<Tensor>> step(int64_t number) {
    for (const State& s : g_.states) {
      if (s.kind == StateKind::kAccumulator) feeds_.insert_or_assign(s.value, Tensor::zeros(g_.type(s.value)));
    }
    const int64_t last = program_.micro_batches - 1;
    for (int64_t m = 0; m < last; ++m) {
      PARTITA_RETURN_IF_ERROR(feed(number, m));
      advance(each_, evaluate(nexts(each_)));
    }
    PARTITA_RETURN_IF_ERROR(feed(number, last));
    std::vector<size_t> all = each_;
    all.insert(all.end(), once_.begin(), once_.end());
    std::vector<ValueId> wanted = nexts(all);
    for (const GraphOutput& o : g_.outputs) wanted.push_back(o.value);
    std::vector<Tensor> values = evaluate(wanted);
    std::vector<Tensor> outputs(std::make_move_iterator(values.begin() + static_cast<int64_t>(all.size())),
                                std::make_move_iterator(values.end()));
    advance(all, std::move(values));
    return outputs;
  }

  std::map<std::string, std::vector<double>> states() const {
    std::map<std::string, std::vector<double>> all;
    for (const State& s : g_.states) all.emplace(s.name, numbers(feeds_.at(s.value)));
    return all;
  }

  static std::vector<double> numbers(const Tensor& t) {
    return is_float(t.type.dtype) ? t.f : std::vector<double>(t.i.begin(), t.i.end());
  }

 private:
  bool each_micro_batch(const State& s) const {
    const Node* made = g_.producer(s.next);
    return s.kind == StateKind::kAccumulator ||
           (made != nullptr && (made->segment == Segment::kForward || made->segment == Segment::kBackward));
  }

  std::vector<Tensor> evaluate(const std::vector<ValueId>& wanted) {
    return evaluate_graph(g_, feeds_, wanted, [&](Tensor& t) { round_values(t, random_); });
  }

  std::vector<ValueId> nexts(const std::vector<size_t>& states) const {
    std::vector<ValueId> values;
    for (size_t k : states) values.push_back(g_.states[k].next);
    return values;
  }

  void advance(const std::vector<size_t>& states, std::vector<Tensor> values) {
    for (size_t k = 0; k < states.size(); ++k)
      feeds_.insert_or_assign(g_.states[states[k]].value, std::move(values[k]));
  }

  absl::Status feed(int64_t step, int64_t m) {
    const int64_t slices = program_.micro_slices, run = program_.samples_per_step / (program_.micro_batches / slices);
    int column = 0;
    for (size_t k = 0; k < g_.inputs.size(); ++k) {
      const TensorType& type = g_.type(g_.inputs[k].value);
      Tensor value = Tensor::zeros(type);
      if (g_.inputs[k].kind == InputKind::kData) {
        const int64_t at = m / slices * run + m % slices * program_.inputs[k].slice_samples;
        std::vector<std::byte> bytes(static_cast<size_t>(byte_size(type)));
        PARTITA_RETURN_IF_ERROR(source_->fetch(step, at, type.shape.empty() ? 1 : type.shape[0], column++, bytes));
        value = to_tensor(make_literal(type, std::move(bytes)));
      } else if (g_.inputs[k].kind == InputKind::kMicroBatch) {
        value.i[0] = m;
      }
      feeds_.insert_or_assign(g_.inputs[k].value, std::move(value));
    }
    return absl::OkStatus();
  }

  const Graph& g_;
  const runtime::Program& program_;
  std::function<uint64_t()> random_;
  std::vector<size_t> each_, once_;  // states that become another value with each micro-batch, or once a step
  std::unique_ptr<runtime::DataSource> source_;
  std::map<ValueId, Tensor> feeds_;
};

}  // namespace

void round_values(Tensor& values, const std::function<uint64_t()>& random) {
  const DType type = values.type.dtype;
  const bool narrow = type == DType::kBF16 || type == DType::kF16;
  if (!is_float(type) || (!random && !narrow)) return;
  for (double& x : values.f) {
    if (!random || x == 0 || !std::isfinite(x)) continue;  // zero has no neighbours that rounding goes to
    int exponent = 0;
    const bool least = std::abs(std::frexp(x, &exponent)) == 0.5;  // of its exponent: the next smaller one is nearer
    double share = static_cast<double>(random() >> 11) * 0x1p-52 - 1;  // in [-1, 1)
    if (least && share * x < 0) share /= 2;
    x += share * std::ldexp(half_unit(type), exponent - 1);
  }
  if (type != DType::kF64) values = to_tensor(to_literal(values));
}

double reference_seconds(const Graph& serial, int64_t micro_batches, int64_t steps) {
  double seconds = 0;
  for (const Node& n : serial.nodes) {
    double made = 0;
    for (ValueId v : n.outputs) made += static_cast<double>(elements(serial.type(v).shape));
    const bool each = n.segment == Segment::kForward || n.segment == Segment::kBackward;
    seconds += (node_flops(serial, n) / kOperations + made / kElements) * static_cast<double>(each ? micro_batches : 1);
  }
  return seconds * static_cast<double>(steps);
}

absl::StatusOr<ReferenceRun> run_reference(const Graph& serial, const runtime::Program& program,
                                           const runtime::DataConfig& data,
                                           const std::map<std::string, std::vector<double>>& first, int64_t steps,
                                           size_t draw) {
  Run run(serial, program, draw);
  PARTITA_RETURN_IF_ERROR(run.open(data));
  run.begin(first);
  ReferenceRun result;
  for (int64_t step = 0; step < steps; ++step) {
    PARTITA_ASSIGN_OR_RETURN(const std::vector<Tensor> outputs, run.step(step));
    for (size_t k = 0; k < outputs.size(); ++k) {
      const std::string& name = serial.outputs[k].name;
      const std::vector<double> value = Run::numbers(outputs[k]);
      if (name == "loss") result.losses.push_back(value[0]);
      if (name == "lr") result.rates.push_back(value[0]);
      if (name == "grad_norm") result.norms.push_back(value[0]);
      if (step == 0 && name.starts_with("grad/")) result.gradients.emplace(name.substr(5), value);
    }
  }
  result.states = run.states();
  return result;
}

}  // namespace partita

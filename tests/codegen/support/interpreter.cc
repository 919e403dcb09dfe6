#include "tests/codegen/support/interpreter.h"

#include <cmath>
#include <cstring>
#include <random>

#include "base/cat.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ir/graph/evaluate.h"
#include "runtime/program/batched_launches.h"
#include "tests/codegen/support/attention_reference.h"
#include "tests/codegen/support/product_reference.h"
#include "tools/verify/bundle/turned_values.h"
#include "tools/verify/layout/serial_values.h"
#include "tools/verify/steps/check_steps.h"

namespace partita {
Interpreter::Interpreter(runtime::Program program) : program_(std::move(program)) {
  if (!program_.kernels.empty() && program_.portable_kernels.empty()) {
    auto module = runtime::KernelModule::load(program_.kernels);
    PARTITA_CHECK(module.ok(), std::string(module.status().message()));
    module_ = *std::move(module);
  }
  for (int64_t bytes : program_.region_bytes) regions_.emplace_back(static_cast<size_t>(bytes) / 8 + 9, ~uint64_t{0});
  std::memcpy(regions_[static_cast<int>(runtime::Region::kConstant)].data(), program_.constants.data(),
              program_.constants.size());
}

Interpreter::Interpreter(runtime::Program program, ptx::Order order) : Interpreter(std::move(program)) {
  if (!program_.portable_kernels.empty()) device_ = std::make_unique<PtxKernels>(program_);
  order_ = order;
}

char* Interpreter::address(const runtime::Operand& o) const {
  if (o.dtype == DType::kInvalid) return nullptr;
  int r = static_cast<int>(o.address.region);
  int64_t bytes = byte_size({o.dtype, o.shape});
  PARTITA_CHECK(o.address.offset % 64 == 0 && o.address.offset + bytes <= program_.region_bytes[r],
                "an operand outside its region");
  char* base = const_cast<char*>(reinterpret_cast<const char*>(regions_[r].data()));
  base += (64 - reinterpret_cast<uintptr_t>(base) % 64) % 64;
  if (r == static_cast<int>(runtime::Region::kConstant))
    base = const_cast<char*>(reinterpret_cast<const char*>(regions_[r].data()));
  return base + o.address.offset;
}

Tensor Interpreter::read(const runtime::Operand& o) const {
  TensorType type{o.dtype, o.shape};
  std::vector<std::byte> bytes(static_cast<size_t>(byte_size(type)));
  std::memcpy(bytes.data(), address(o), bytes.size());
  return to_tensor(make_literal(type, std::move(bytes)));
}

void Interpreter::write(const runtime::Operand& o, const Tensor& value) const {
  Literal l = to_literal(value);
  PARTITA_CHECK(static_cast<int64_t>(l.bytes().size()) == byte_size({o.dtype, o.shape}), "a value of another size");
  std::memcpy(address(o), l.data, l.bytes().size());
}

void Interpreter::set_state(const std::string& name, const Tensor& value) {
  for (const auto& s : program_.states) {
    if (s.name == name) write(s.operand, value);
  }
}
void Interpreter::set_input(const std::string& name, const Tensor& value) {
  for (const auto& i : program_.inputs) {
    if (i.name == name) write(i.operand, value);
  }
}
Tensor Interpreter::state(const std::string& name) const {
  for (const auto& s : program_.states) {
    if (s.name == name) return read(s.operand);
  }
  PARTITA_CHECK(false, "no such state");
}
Tensor Interpreter::output(const std::string& name) const {
  for (const auto& o : program_.outputs) {
    if (o.name == name) return read(o.operand);
  }
  PARTITA_CHECK(false, "no such output");
}

int Interpreter::kernels() const {
  int n = 0;
  for (const auto& s : program_.segments) {
    for (const auto& step : s.steps) n += step.kind == runtime::StepKind::kKernel;
  }
  return n;
}

void Interpreter::run_step(const runtime::Step& step, int parts) {
  std::vector<char*> buffers;
  for (const auto& o : step.operands) buffers.push_back(address(o));
  switch (step.kind) {
    case runtime::StepKind::kKernel: {
      if (device_ != nullptr) {
        device_->run(step, buffers.data(), order_);
        return;
      }
      auto f = module_->find(step.name);
      PARTITA_CHECK(f.ok(), "a kernel that is not there");
      // In reverse, so that nothing depends on the order of units.
      for (int p = parts; p-- > 0;) (*f)(buffers.data(), step.units * p / parts, step.units * (p + 1) / parts);
      return;
    }
    case runtime::StepKind::kLibrary: {
      const OpDef* op = find_op(step.name);
      Attrs attrs;
      const bool product = step.name == "matmul", adds = step.name == "gather_grad" && step.inputs == 3,
                 views = step.params.contains("sizes"), last = step.params.contains("channels_last");
      for (const auto& [name, value] : step.params) {
        if (!product && !views && name != "channels_last" && name != "epilogue")
          std::visit([&, n = name](const auto& v) { attrs.set(n, v); }, value);
      }
      std::vector<Tensor> in;
      std::vector<const Tensor*> pointers;
      for (int k = 0; k < step.inputs; ++k) in.push_back(buffers[k] == nullptr ? Tensor{} : read(step.operands[k]));
      for (Tensor& t : in) t = last ? transposed(t, {0, 3, 1, 2}) : std::move(t);
      for (int k = 0; k < step.inputs; ++k) pointers.push_back(buffers[k] == nullptr ? nullptr : &in[k]);
      auto out = product ? evaluate_product(step, in, read(step.operands[static_cast<size_t>(step.inputs)]))
                 : views ? evaluate_attention(step, pointers)
                         : evaluate_op(*op, attrs, std::span(pointers).first(adds ? 2 : pointers.size()));
      for (size_t k = 0; adds && k < in[2].f.size(); ++k) out[0].f[k] += in[2].f[k];
      for (Tensor& t : out) t = last ? transposed(t, {0, 2, 3, 1}) : std::move(t);
      for (size_t k = 0; k < out.size(); ++k) write(step.operands[step.inputs + k], out[k]);
      return;
    }
    case runtime::StepKind::kCopy:
    case runtime::StepKind::kCollectiveStart:
      for (int k = 0; k < step.inputs; ++k)
        std::memmove(buffers[step.inputs + k], buffers[k],
                     static_cast<size_t>(byte_size({step.operands[k].dtype, step.operands[k].shape})));
      return;
    case runtime::StepKind::kCollectiveWait:
      return;
  }
}

// A GPU's steps in the order of its launches.
void Interpreter::run_segment(const runtime::ProgramSegment& segment, int parts) {
  const std::span<const runtime::Step> steps = segment.steps;
  if (device_ == nullptr || apart_) {
    for (const auto& step : steps) run_step(step, parts);
    return;
  }
  for (const auto& launch : runtime::batched_launches(steps, runtime::batched_kinds(steps), program_.slots)) {
    if (steps[launch[0]].params.count(runtime::kBatchedParam) == 0) {
      run_step(steps[launch[0]], parts);
      continue;
    }
    std::vector<const runtime::Step*> together;
    std::vector<std::byte*> addresses;
    for (size_t k : launch) {
      together.push_back(&steps[k]);
      for (const auto& o : steps[k].operands) addresses.push_back(reinterpret_cast<std::byte*>(address(o)));
    }
    device_->run_batched(together, addresses, order_);
    joined_ += static_cast<int>(launch.size());
  }
}

void Interpreter::run(int parts, const std::function<void(int)>& stage) {
  for (const auto& s : program_.states) {
    if (s.kind == StateKind::kAccumulator) write(s.operand, Tensor::zeros({s.operand.dtype, s.operand.shape}));
  }
  int staged = -1;
  for (const auto* schedule : {&program_.schedule}) {
    for (const auto& entry : *schedule) {
      bool forward = program_.segments[entry.segment].kind == Segment::kForward;
      if (stage && forward && staged != entry.micro_batch) stage(staged = entry.micro_batch);
      run_segment(program_.segments[entry.segment], parts);
    }
  }
}

Tensor transposed(const Tensor& x, std::vector<int64_t> permutation) {
  const Tensor* of[] = {&x};
  return evaluate_op(*find_op("transpose"), {{"permutation", std::move(permutation)}}, of)[0];
}

Tensor rounded(const Tensor& t) { return to_tensor(to_literal(t)); }

Tensor random_tensor(const TensorType& type, uint64_t seed, double scale, int64_t below) {
  std::mt19937_64 engine(seed * 7919 + 17);
  std::normal_distribution<double> normal(0, scale);
  Tensor t = Tensor::zeros(type);
  for (double& x : t.f) x = normal(engine);
  for (int64_t& x : t.i)
    x = static_cast<int64_t>(engine() % static_cast<uint64_t>(type.dtype == DType::kBool ? 2 : below));
  return rounded(t);
}

LocalProgram local_program(Graph graph) {
  LocalProgram local;
  auto place = [&](ValueId v) { return PlacedTensor{graph.type(v).shape, Sharding::replicated(graph.type(v).shape)}; };
  for (const GraphInput& i : graph.inputs) local.inputs.push_back(place(i.value));
  for (const State& s : graph.states) local.states.push_back(place(s.value));
  for (const GraphOutput& o : graph.outputs) local.outputs.push_back(place(o.value));
  local.graph = std::move(graph);
  return local;
}

namespace {

double tolerance_of(DType t, double given) {
  if (given > 0) return given;
  return t == DType::kF64 ? 1e-12 : t == DType::kF32 ? 2e-6 : t == DType::kF16 ? 2e-3 : t == DType::kBF16 ? 1.6e-2 : 0;
}

void compare(const std::string& what, const Tensor& found, const Tensor& expected, const CompareOptions& options) {
  ASSERT_EQ(found.type.shape, expected.type.shape) << what;
  double tolerance = tolerance_of(found.type.dtype, options.tolerance), largest = 0;
  for (double x : expected.f) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
  int faults = 0;
  for (size_t k = 0; k < expected.f.size() && faults < 3; ++k) {
    double x = found.f[k], y = expected.f[k];
    bool same = (std::isnan(x) && std::isnan(y)) || x == y ||
                std::abs(x - y) <= tolerance * (std::abs(y) + options.slack * largest);
    if (!same)
      ADD_FAILURE() << what << " " << to_string(found.type) << " [" << k << "]: found " << x << ", expected " << y,
          ++faults;
  }
  for (size_t k = 0; k < expected.i.size() && faults < 3; ++k) {
    if (found.i[k] != expected.i[k])
      ADD_FAILURE() << what << " " << to_string(found.type) << " [" << k << "]: found " << found.i[k] << ", expected "
                    << expected.i[k],
          ++faults;
  }
}

Tensor drawn(const Graph& graph, ValueId v, uint64_t seed, const CompareOptions& options) {
  return random_tensor(graph.type(v), seed, options.scale, options.below);
}

// The program of a graph, whose kernels the verifier proves.
absl::StatusOr<runtime::Program> proved_program(const LocalProgram& local, const TargetOptions& target) {
  PassRun run = PassRun::unchecked();
  PARTITA_ASSIGN_OR_RETURN(std::vector<EmittedProgram> emitted, emit_programs({local}, target, EmitUntil::kCode, run));
  EmittedProgram& e = emitted.front();
  std::vector<NodeId> from;
  PARTITA_ASSIGN_OR_RETURN(Graph code, verifier::expanded(e.claims.graph, from));
  code = verifier::with_turned_values(std::move(code), e.claims.steps, from);
  PARTITA_ASSIGN_OR_RETURN(const KernelNests nests, parse_kernels(print_kernels(e.claims.nests)));
  PARTITA_RETURN_IF_ERROR(verifier::check_steps(code, e.program, e.claims.steps, nests).status());
  return std::move(e.program);
}

}  // namespace

std::vector<Tensor> computed(const Graph& graph, const CompareOptions& options, int* kernels) {
  LocalProgram local = local_program(graph);
  auto program = proved_program(local, options.target);
  if (!program.ok()) {
    ADD_FAILURE() << program.status().message();
    return {};
  }
  bool gpu = !options.target.gpu.empty();
  Interpreter interpreter = gpu ? Interpreter(*std::move(program), options.order) : Interpreter(*std::move(program));
  for (size_t k = 0; k < graph.inputs.size(); ++k)
    interpreter.set_input(graph.inputs[k].name, drawn(graph, graph.inputs[k].value, k + 1, options));
  for (size_t k = 0; k < graph.states.size(); ++k)
    interpreter.set_state(graph.states[k].name, drawn(graph, graph.states[k].value, k + 1001, options));
  interpreter.run();
  std::vector<Tensor> results;
  for (const GraphOutput& o : graph.outputs) results.push_back(interpreter.output(o.name));
  for (const State& s : graph.states) results.push_back(interpreter.state(s.name));
  if (kernels != nullptr) *kernels = interpreter.kernels();
  return results;
}

int compare_with_reference(const Graph& graph, const CompareOptions& options) {
  std::map<ValueId, Tensor> feeds;
  for (size_t k = 0; k < graph.inputs.size(); ++k)
    feeds[graph.inputs[k].value] = drawn(graph, graph.inputs[k].value, k + 1, options);
  for (size_t k = 0; k < graph.states.size(); ++k)
    feeds[graph.states[k].value] = drawn(graph, graph.states[k].value, k + 1001, options);
  std::vector<ValueId> wanted;
  std::vector<std::string> names;
  for (const GraphOutput& o : graph.outputs) wanted.push_back(o.value), names.push_back(cat("output ", o.name));
  for (const State& s : graph.states)
    wanted.push_back(s.next == kNoValue ? s.value : s.next), names.push_back(cat("state ", s.name));
  const std::vector<Tensor> expected = evaluate_graph(graph, feeds, wanted);
  int kernels = -1;
  const std::vector<Tensor> found = computed(graph, options, &kernels);
  for (size_t k = 0; k < found.size(); ++k) compare(names[k], found[k], expected[k], options);
  return kernels;
}

}  // namespace partita

#include "tools/verify/steps/check_step.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/library_kernels.h"
#include "runtime/program/tree_sums.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"
#include "tools/verify/steps/check_steps.h"
#include "tools/verify/steps/check_versions.h"

namespace partita::verifier {
namespace {

runtime::Params params_of(const Attrs& attrs) {
  runtime::Params params;
  for (const auto& [name, value] : attrs.items()) {
    if (const DType* dtype = std::get_if<DType>(&value)) {
      params[name] = static_cast<int64_t>(*dtype);
    } else {
      std::visit(
          [&](const auto& v) {
            if constexpr (!std::is_same_v<std::decay_t<decltype(v)>, DType>) params[name] = v;
          },
          value);
    }
  }
  return params;
}

// How a state starts; numbers that its kind does not use are 0.
bool starts_alike(const Initial& initial, const runtime::InitialValue& found) {
  using runtime::InitialKind;
  const InitialRule* rule = std::get_if<InitialRule>(&initial);
  auto is = [&](InitialKind kind, double a, double b) { return found.kind == kind && found.a == a && found.b == b; };
  if (std::holds_alternative<std::monostate>(initial)) return is(InitialKind::kFill, 0, 0);
  if (rule == nullptr) return is(InitialKind::kFile, 0, 0);
  switch (rule->kind) {
    case InitialRuleKind::kConstant:
      return is(InitialKind::kFill, rule->a, 0);
    case InitialRuleKind::kNormal:
      return is(InitialKind::kNormal, rule->a, rule->b);
    case InitialRuleKind::kUniform:
      return is(InitialKind::kUniform, rule->a, rule->b);
  }
  return false;
}

// The group over these axes that a channel has, of several that it is among: they are in the channels' order.
int64_t group_of(const runtime::Program& program, const std::vector<int64_t>& axes, int64_t channel) {
  for (size_t g = 0; g < program.groups.size(); ++g) {
    const std::vector<int32_t>& own = program.groups[g].axes;
    if (std::equal(own.begin(), own.end(), axes.begin(), axes.end()) && channel-- == 0) return static_cast<int64_t>(g);
  }
  return -1;
}

absl::Status check_operand(const Graph& graph, ValueId v, const runtime::Operand& operand) {
  if (operand.dtype == graph.type(v).dtype && operand.shape == graph.type(v).shape) return absl::OkStatus();
  return differs("expected ", to_string(graph.type(v)), ", found ", dtype_name(operand.dtype),
                 to_string(operand.shape));
}

}  // namespace

int added_to(const Graph& graph, const std::vector<ValueId>& storage, int sum, int term) {
  const Node* node = graph.producer(sum);
  if (node == nullptr || node->inputs.size() != 2 || !(node->op->sums_micro_batches || node->op->name == "add"))
    return -1;
  for (size_t k = 0; k < 2; ++k) {
    ValueId x = node->inputs[k], y = node->inputs[1 - k];
    if (storage[x] == term && graph.type(x) == graph.type(y)) return storage[y];
  }
  return -1;
}

bool has_channels_last(const runtime::Step& step) {
  return std::ranges::count(kChannelsLastKernels, step.name) > 0 && step.params.count("channels_last") > 0;
}

absl::Status check_params(const Node& node, const runtime::Step& step, const std::string& epilogue) {
  if (!node.op->kernel || step.name != node.op->name)
    return differs("expected ", node.op->name, ", found ", quote(step.name));
  runtime::Params expected = params_of(node.attrs);
  if (!epilogue.empty()) expected["epilogue"] = epilogue;
  if (has_channels_last(step)) expected["channels_last"] = int64_t{1};
  if (step.params == expected) return absl::OkStatus();
  for (const auto& [name, value] : expected) {
    auto at = step.params.find(name);
    if (at == step.params.end() || at->second != value)
      return differs("expected parameter ", quote(name), " as its node has it, found another");
  }
  return differs("expected the parameters of its node, found more");
}

absl::Status check_collective(const Graph& graph, const Node& node, const runtime::Step& step,
                              const runtime::Program& program) {
  if (!node.op->communicates || step.name != node.op->name)
    return differs("expected ", node.op->name, ", found ", quote(step.name));
  auto at = step.params.find("group");
  const int64_t* group = at == step.params.end() ? nullptr : std::get_if<int64_t>(&at->second);
  if (group == nullptr || *group < 0 || *group >= static_cast<int64_t>(program.groups.size()))
    return differs("expected a group of ranks, found none");
  const std::vector<int32_t>& axes = program.groups[static_cast<size_t>(*group)].axes;
  const std::vector<int64_t>& along = node.attrs.ints("axes");
  const int64_t channel = node.attrs.i("channel", 0), number = group_of(program, along, channel);
  if (*group != number)
    return differs("expected group ", number, ", over ", to_string(along), " and of channel ", channel,
                   ", found group ", *group, " over ", to_string(Shape(axes.begin(), axes.end())));
  at = step.params.find("reduce");
  std::string reduce = "sum";
  if (at != step.params.end())
    reduce = std::holds_alternative<std::string>(at->second) ? std::get<std::string>(at->second) : "";
  if (reduce != node.attrs.s("reduce", "sum"))
    return differs("expected a reduction by ", node.attrs.s("reduce", "sum"), ", found ", quote(reduce));
  runtime::Params expected = params_of(node.attrs);
  expected.erase("channel");  // the group says it
  expected["group"] = *group;
  expected["reduce"] = reduce;
  if (node.attrs.has("in_flight") && step.params.count("outbox") > 0) expected["outbox"] = step.params.at("outbox");
  if (runtime::adds_up_ranks(step) && step.params.count("ordered") > 0) expected["ordered"] = int64_t{1};
  if (static_cast<size_t>(step.inputs) < node.inputs.size() && step.params.count("elements") > 0) {
    std::vector<int64_t> elements;
    for (ValueId v : node.inputs) elements.push_back(byte_size(graph.type(v)) / dtype_size(graph.type(v).dtype));
    expected["elements"] = elements;
  }
  for (const auto& [name, value] : step.params) {
    if (!expected.count(name)) return differs("expected no parameter ", quote(name), " of a ", step.name);
  }
  for (const auto& [name, value] : expected) {
    if (auto own = step.params.find(name); own == step.params.end() || own->second != value)
      return differs("expected parameter ", quote(name), " as its node has it, found another");
  }
  return absl::OkStatus();
}

absl::Status check_interface(const Graph& graph, const runtime::Program& program) {
  if (graph.states.size() != program.states.size() || graph.inputs.size() != program.inputs.size() ||
      graph.outputs.size() != program.outputs.size())
    return differs("the program's interface is not the graph's");
  for (size_t k = 0; k < graph.states.size(); ++k) {
    const State& s = graph.states[k];
    const runtime::ProgramState& p = program.states[k];
    absl::Status status = check_operand(graph, s.value, p.operand);
    if (status.ok() && (p.name != s.name || p.kind != s.kind || p.parameter != s.parameter))
      status = differs("expected a ", enum_name(s.kind), ", found ", enum_name(p.kind), " ", quote(p.name));
    if (status.ok() && !starts_alike(s.initial, p.initial)) status = differs("expected another first value");
    if (!status.ok()) return differs("state ", quote(s.name), ": ", status.message());
  }
  for (size_t k = 0; k < graph.inputs.size(); ++k) {
    absl::Status status = check_operand(graph, graph.inputs[k].value, program.inputs[k].operand);
    if (!status.ok()) return differs("input ", quote(graph.inputs[k].name), ": ", status.message());
  }
  for (size_t k = 0; k < graph.outputs.size(); ++k) {
    absl::Status status = check_operand(graph, graph.outputs[k].value, program.outputs[k].operand);
    if (status.ok() && program.outputs[k].name != graph.outputs[k].name)
      status = differs("expected it under its name, found ", quote(program.outputs[k].name));
    if (!status.ok()) return differs("output ", quote(graph.outputs[k].name), ": ", status.message());
  }
  return absl::OkStatus();
}

absl::Status check_schedule(const runtime::Program& program) {
  const bool updates = updates_each(program);
  std::map<std::pair<int32_t, int32_t>, int> times;
  for (const runtime::ScheduleEntry& e : program.schedule) ++times[{e.segment, e.micro_batch}];
  for (size_t s = 0; s < program.segments.size(); ++s) {
    Segment segment = program.segments[s].kind;
    const Runs runs = segment == Segment::kReduce && updates ? Runs::kEach : runs_of(segment);
    int64_t total = 0;
    for (int64_t m = 0; m < program.micro_batches; ++m) {
      auto at = times.find({static_cast<int32_t>(s), static_cast<int32_t>(m)});
      int count = at == times.end() ? 0 : at->second;
      total += count;
      if (runs == Runs::kEach && count != 1)
        return differs("schedule: expected segment ", enum_name(segment), " once for micro-batch ", m, ", found ",
                       count, " times");
    }
    if (runs == Runs::kOnce && total != 1)
      return differs("schedule: expected segment ", enum_name(segment), " once, found ", total, " times");
    if (runs == Runs::kEvaluation) return differs("schedule: expected no segment of another program's evaluation");
  }
  return absl::OkStatus();
}

std::vector<int> steps_of_nodes(const Graph& graph, const std::vector<Claim>& claims) {
  std::vector<int> steps(graph.nodes.size(), -1);
  auto note = [&](NodeId n, size_t step) {
    if (n >= 0 && steps[n] < 0) steps[n] = static_cast<int>(step);
  };
  for (size_t s = 0; s < claims.size(); ++s) {
    note(claims[s].node, s);
    for (int v : claims[s].values) {
      // An operand stands for its producer where that has no step of its own.
      if (v >= 0) note(graph.values[v].producer, s);
    }
  }
  return steps;
}

std::string describe_step(const runtime::Program& program, int id) {
  for (const auto& segment : program.segments) {
    for (const runtime::Step& step : segment.steps) {
      if (static_cast<int>(step.id) != id) continue;
      std::string origin = step.origin >= 0 && step.origin < static_cast<int32_t>(program.origins.size())
                               ? cat(" (", quote(program.origins[static_cast<size_t>(step.origin)]), ")")
                               : "";
      return cat("step ", id, " ", quote(step.name.empty() ? "copy" : step.name, 80), origin);
    }
  }
  return "no step";
}

}  // namespace partita::verifier

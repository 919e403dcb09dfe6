#include "passes/forward/join_teacher.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "passes/rewrite/clean_up.h"

namespace partita {
namespace {

constexpr std::string_view kTeacher = "teacher/";

// The model's data input of that name; kNoValue: it has none. The type must be the same.
absl::StatusOr<ValueId> shared_input(const Builder& b, const GraphInput& input, const TensorType& type) {
  for (const GraphInput& own : b.graph().inputs) {
    if (own.name != input.name) continue;
    if (b.type(own.value) == type) return own.value;
    return absl::InvalidArgumentError(cat("loss.teacher: its input ", quote(input.name, 100), " is ", to_string(type),
                                          ", and the model's is ", to_string(b.type(own.value)),
                                          "; export both with the same shapes and types"));
  }
  return kNoValue;
}

// Which values nodes or outputs take.
std::vector<bool> taken_values(const Graph& graph) {
  std::vector<bool> taken(graph.values.size(), false);
  for (const GraphOutput& o : graph.outputs) taken[o.value] = true;
  for (const Node& node : graph.nodes) {
    for (ValueId v : node.inputs) {
      if (v != kNoValue) taken[v] = true;
    }
  }
  return taken;
}

}  // namespace

std::string of_teacher(std::string_view name) { return cat(kTeacher, name); }
bool is_of_teacher(std::string_view name) { return name.starts_with(kTeacher); }
std::string name_at_teacher(std::string_view name) { return std::string(name.substr(kTeacher.size())); }

absl::StatusOr<Graph> join_teacher(const Graph& model, Graph teacher, const std::set<std::string>& wanted) {
  const auto is_wanted = [&](const GraphOutput& o) { return wanted.contains(o.name); };
  if (std::any_of(teacher.outputs.begin(), teacher.outputs.end(), is_wanted))
    std::erase_if(teacher.outputs, [&](const GraphOutput& o) { return !is_wanted(o); });
  PARTITA_ASSIGN_OR_RETURN(teacher, remove_dead_nodes(teacher, {}));
  const std::vector<bool> taken = taken_values(teacher);
  Builder b(model);
  std::vector<ValueId> now(teacher.values.size(), kNoValue);
  for (const GraphInput& in : teacher.inputs) {
    if (!taken[in.value]) continue;
    PARTITA_ASSIGN_OR_RETURN(now[in.value], shared_input(b, in, teacher.type(in.value)));
    if (now[in.value] == kNoValue) now[in.value] = b.input(in.name, teacher.type(in.value), in.kind);
  }
  for (const State& s : teacher.states) {
    if (!taken[s.value]) continue;
    State frozen = s;
    frozen.name = of_teacher(s.name), frozen.kind = StateKind::kFrozen, frozen.next = kNoValue;
    now[s.value] = b.state(std::move(frozen), teacher.type(s.value));
  }
  for (const Constant& c : teacher.constants) now[c.value] = b.constant(c.literal);
  for (const Node& node : teacher.nodes) {
    b.context() = {.segment = node.segment, .origin = b.origin(cat("teacher's ", teacher.origin(node)))};
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) inputs.push_back(v == kNoValue ? kNoValue : now[v]);
    const std::vector<ValueId> made = b.emit_all(node.op->name, std::move(inputs), node.attrs);
    for (size_t k = 0; k < made.size(); ++k) {
      now[node.outputs[k]] = made[k];
      const std::string& name = teacher.values[node.outputs[k]].name;
      if (!name.empty()) b.name(made[k], of_teacher(name));
    }
  }
  for (const GraphOutput& o : teacher.outputs) b.output(of_teacher(o.name), now[o.value]);
  return std::move(b).finish();
}

}  // namespace partita

// A second, frozen model beside the one that is trained, whose outputs its loss may take (distillation).
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"

namespace partita {

// How the teacher's outputs, weights and values are called in the joined graph, and the other way round.
std::string of_teacher(std::string_view name);
bool is_of_teacher(std::string_view name);
std::string name_at_teacher(std::string_view name);

// `model` with the teacher's outputs that are `wanted`, and what they are made of, after its own; with all of them
// where the teacher has none of those. Its inputs are the model's of the same name, or new ones; its weights are
// frozen. InvalidArgument where an input is of another type in both.
absl::StatusOr<Graph> join_teacher(const Graph& model, Graph teacher, const std::set<std::string>& wanted);

}  // namespace partita

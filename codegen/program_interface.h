// What a program shows to the outside: its states, inputs and outputs.
#pragma once

#include "codegen/steps/step_plan.h"
#include "partitioner/localize/local_program.h"
#include "runtime/program/program.h"

namespace partita {

runtime::Operand make_operand(const StepPlan& plan, const PlanOperand& o);

// `graph` is the one that `plan` was made for; its states, inputs and outputs are those of local.graph.
void make_interface(const LocalProgram& local, const Graph& graph, const StepPlan& plan, runtime::Program& program);

}  // namespace partita

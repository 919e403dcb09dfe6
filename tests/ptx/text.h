// PTX as text, taken apart (PTX ISA, "Syntax"): functions, their declarations and statements, nothing resolved yet.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/ptx/types.h"

namespace partita::ptx {

struct Variable {
  std::string name;
  Type type = Type::kB8;
  int64_t alignment = 1, bytes = 0;  // 0 bytes: as many as a launch gives (.extern .shared)
};

struct Operand {
  enum class Kind { kName, kNumber, kAddress, kList, kPair };
  Kind kind = Kind::kName;
  std::string name;     // of a register, a variable, a label; of an address its base, empty: none
  uint64_t bits = 0;    // of a number, as two's complement or as its floating-point form; of an address its offset
  int float_bytes = 0;  // of a number that is written as 0f or 0d: 4 or 8
  std::vector<Operand> parts;  // {a, b, …} and a|b
};

struct Statement {
  int line = 0;
  std::string guard;  // a predicate; empty: none
  bool guard_is_negated = false;
  std::vector<std::string> opcode;  // its parts: "ld", "global", "f32"
  std::vector<Operand> operands;
  // Of a call.
  std::string callee;
  std::vector<std::string> results, arguments;
};

struct Body {
  std::map<std::string, Type> registers;
  std::vector<Variable> shared, local, parameters;  // parameters: those that calls in it are given
  std::vector<Statement> statements;
  std::map<std::string, size_t> labels;  // at which statement
};

struct Function {
  std::string name;
  bool is_entry = false;
  int line = 0;
  std::vector<Variable> results, parameters;
  std::string_view text;  // of its body, within the braces
};

// A module's functions and variables; bodies are left alone until somebody wants them.
struct Text {
  std::string target;  // "sm_90"
  std::map<std::string, Function> functions;
  std::vector<Variable> shared;
};
// `text` outlives it. InvalidArgument, with the line, for what is no PTX.
absl::StatusOr<Text> read_text(std::string_view text);
absl::StatusOr<Body> read_body(const Function& function);

}  // namespace partita::ptx

#include "tests/counts/loop_faults.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "tests/ptx/text.h"

namespace partita::counts {
namespace {

bool is_costly(const ptx::Statement& s) {
  const auto has = [&](std::string_view part) {
    return std::find(s.opcode.begin(), s.opcode.end(), part) != s.opcode.end();
  };
  const std::string& name = s.opcode.front();
  if (name == "call" || name == "rem") return true;
  if (name == "div") return !has("full") && !has("approx");
  return (name == "ld" || name == "st") && has("local");
}

struct Loop {
  size_t begin = 0, end = 0;
};

}  // namespace

absl::StatusOr<std::vector<LoopFault>> loop_faults(std::string_view ptx) {
  std::vector<LoopFault> faults;
  PARTITA_ASSIGN_OR_RETURN(const ptx::Text text, ptx::read_text(ptx));
  for (const auto& [name, function] : text.functions) {
    if (function.text.empty()) continue;
    PARTITA_ASSIGN_OR_RETURN(const ptx::Body body, ptx::read_body(function));
    std::vector<Loop> loops;
    for (size_t k = 0; k < body.statements.size(); ++k) {
      const ptx::Statement& s = body.statements[k];
      if (s.opcode.front() != "bra" || s.operands.empty()) continue;
      const auto label = body.labels.find(s.operands.front().name);
      if (label != body.labels.end() && label->second <= k) loops.push_back({label->second, k});
    }
    for (size_t k = 0; k < body.statements.size(); ++k) {
      const ptx::Statement& s = body.statements[k];
      if (!is_costly(s)) continue;
      const Loop* around = nullptr;
      for (const Loop& loop : loops) {
        const bool holds = loop.begin <= k && k <= loop.end;
        if (holds && (around == nullptr || loop.end - loop.begin < around->end - around->begin)) around = &loop;
      }
      if (around == nullptr) continue;
      const bool innermost = std::none_of(loops.begin(), loops.end(), [&](const Loop& loop) {
        return &loop != around && loop.begin >= around->begin && loop.end <= around->end &&
               loop.end - loop.begin < around->end - around->begin;
      });
      std::string instruction;
      for (const std::string& part : s.opcode) append(instruction, instruction.empty() ? "" : ".", part);
      faults.push_back({name, std::move(instruction), s.line, innermost});
    }
  }
  return faults;
}

}  // namespace partita::counts

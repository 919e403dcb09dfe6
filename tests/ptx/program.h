// A kernel as it is executed: decoded once, run by warps many times.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/ptx/text.h"

namespace partita::ptx {

struct Instruction;
class Warp;
// Does what an instruction does, for the lanes given.
using Run = void (*)(Warp&, const Instruction&, uint32_t lanes);

// How a warp goes on after it.
enum class Flow : uint8_t {
  kNext,
  kMemory,    // the same, unless it has faulted
  kTogether,  // the lanes that it names wait for each other first
  kAligned,   // all lanes that have not ended do
  kBarrier,   // and then for the block's other warps
  kBranch,
  kCall,
  kReturn,
  kEnd
};

// What counters tell apart.
enum class Kind : uint8_t {
  kInteger,
  kFloat,
  kDouble,
  kSpecial,  // approximations, square roots, divisions
  kConvert,
  kMove,
  kCompare,
  kControl,
  kParameter,
  kGlobal,
  kShared,
  kLocal,
  kAsyncCopy,
  kAtomic,
  kMatrix,
  kExchange,  // shuffles and votes
  kBarrier
};
constexpr int kKinds = static_cast<int>(Kind::kBarrier) + 1;
const char* name_of(Kind kind);

// Registers lie in one file of a warp, a row of 32 lanes each; an operand is the offset of its row. Constants have rows
// of their own.
constexpr uint32_t kNoRow = ~uint32_t{0};

struct Instruction {
  Run run = nullptr;
  Flow flow = Flow::kNext;
  Kind kind = Kind::kInteger;
  uint8_t count = 1;  // elements of a vector
  bool guard_is_negated = false;
  uint32_t guard = kNoRow;
  int line = 0;
  uint32_t number = 0;          // its place in the program
  uint32_t target = 0;          // of a branch and of a call
  std::array<uint32_t, 14> at;  // operands, results first
  int64_t value = 0;            // an address's offset; what else an instruction has as an immediate
};

struct Constant {
  uint32_t row = 0;
  int bytes = 0;
  uint64_t bits = 0;
};

struct Program {
  std::string name;
  std::vector<Instruction> code;
  uint32_t begin = 0;  // functions that it calls come first
  uint32_t file_bytes = 0;
  std::vector<Constant> constants;
  std::vector<Variable> parameters;
  std::vector<int64_t> parameter_offsets;
  // Behind shared_bytes lies what the launch gives.
  int64_t parameter_bytes = 0, shared_bytes = 0, local_bytes = 0;
};

// A module that was loaded. Kernels are decoded when they are asked for; may be asked by several threads.
class Module {
 public:
  static absl::StatusOr<std::unique_ptr<Module>> load(std::string text);
  std::vector<std::string> kernels() const;
  // NotFound; InvalidArgument where it has an instruction that this interpreter has not, with its line.
  absl::StatusOr<const Program*> kernel(const std::string& name);
  std::string line(int number) const;

 private:
  std::string source_;
  Text text_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Program>> programs_;
};

}  // namespace partita::ptx

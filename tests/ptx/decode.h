// From statements to instructions. Each family of opcodes has a file that knows its variants; what is in none of them
// is an error.
#pragma once

#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "tests/ptx/program.h"

namespace partita::ptx {

// One function's names, and the statement that is being decoded.
class Decoder {
 public:
  struct Names {
    std::map<std::string, Type> types;  // of registers
    std::map<std::string, uint32_t> rows;
    std::map<std::string, int64_t> shared, local, parameters;  // addresses of variables
    std::set<std::string> in_registers;                        // a function's parameters, and what calls are given
  };
  Decoder(Program& program, Names& names) : program_(program), names_(names) {}
  void start(const Statement& s);

  // The next part of the opcode, if it is this one; a type; one of several.
  bool take(std::string_view part);
  std::optional<Type> take_type();
  template <typename... P>
  bool take_any(P... parts) {
    return (take(parts) || ...);
  }

  // Rows of operands. A register must be as wide as the type; a source may be a number.
  uint32_t result(size_t operand, Type t) { return row_of(operand_at(operand), t, false); }
  uint32_t source(size_t operand, Type t) { return row_of(operand_at(operand), t, true); }
  uint32_t row_of(const Operand& o, Type t, bool may_be_number);
  uint32_t wide_row(const Operand& o, Type t);  // of a register that is as wide or wider
  std::optional<Type> type_of(const Operand& o) const;
  uint32_t constant(uint64_t bits, int bytes);
  const Operand& operand_at(size_t k);
  size_t operands() const { return statement_->operands.size(); }
  std::optional<int64_t> address_of(const std::string& variable, const std::map<std::string, int64_t>& of) const;
  const Names& names() const { return names_; }

  // What is decoded; a null `run` is an unknown variant. The operands that are used must be all that there are.
  void finish(Kind kind, Flow flow, Run run, size_t operands);
  void refuse(const std::string& why) { why_ = why_.empty() ? why : why_; }

  Instruction made;
  absl::Status status() const;

 private:
  uint32_t new_row(int bytes);
  Program& program_;
  Names& names_;
  std::map<std::pair<uint64_t, int>, uint32_t> constants_;
  const Statement* statement_ = nullptr;
  size_t part_ = 0;
  std::string why_;
  Operand nothing_;
  friend class FunctionDecoder;
};

// The type of numbers, of which those of bits are unsigned ones; and its operands: a result and sources.
Type take_number(Decoder& d);
Kind kind_of(Type t);
void set_operands(Decoder& d, Type t, size_t count);
void finish(Decoder& d, Type t, Run run, size_t count);

using Decode = void (*)(Decoder&);
// By the first part of the opcode.
using Decoders = std::map<std::string, Decode, std::less<>>;
void add_arithmetic(Decoders& to);
void add_bits(Decoders& to);
void add_comparisons(Decoders& to);
void add_conversions(Decoders& to);
void add_memory(Decoders& to);
void add_atomics(Decoders& to);
void add_exchanges(Decoders& to);

}  // namespace partita::ptx

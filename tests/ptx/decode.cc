#include "tests/ptx/decode.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "tests/ptx/lanes.h"

namespace partita::ptx {

const char* name_of(Kind kind) {
  constexpr const char* kNames[kKinds] = {"integer",    "float",   "double",    "special",  "convert", "move",
                                          "compare",    "control", "parameter", "global",   "shared",  "local",
                                          "async copy", "atomic",  "matrix",    "exchange", "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

void Decoder::start(const Statement& s) {
  statement_ = &s;
  part_ = 1;
  why_.clear();
  made = {};
  made.line = s.line;
  made.at.fill(kNoRow);
  made.guard_is_negated = s.guard_is_negated;
  if (s.guard.empty()) return;
  Operand guard;
  guard.name = s.guard;
  made.guard = row_of(guard, Type::kPred, false);
}

bool Decoder::take(std::string_view part) {
  if (part_ >= statement_->opcode.size() || statement_->opcode[part_] != part) return false;
  ++part_;
  return true;
}
std::optional<Type> Decoder::take_type() {
  auto t = part_ < statement_->opcode.size() ? type_named(statement_->opcode[part_]) : std::nullopt;
  if (t)
    ++part_;
  else
    refuse("unknown variant");
  return t;
}

const Operand& Decoder::operand_at(size_t k) {
  if (k < statement_->operands.size()) return statement_->operands[k];
  refuse("too few operands");
  return nothing_;
}

uint32_t Decoder::new_row(int bytes) {
  const uint32_t row = program_.file_bytes;
  program_.file_bytes += static_cast<uint32_t>(kLanes * bytes);
  return row;
}

uint32_t Decoder::constant(uint64_t bits, int bytes) {
  if (bytes < 8) bits &= (uint64_t{1} << (8 * bytes)) - 1;
  auto [at, fresh] = constants_.try_emplace({bits, bytes}, 0);
  if (fresh) {
    at->second = new_row(bytes);
    program_.constants.push_back({at->second, bytes, bits});
  }
  return at->second;
}

std::optional<Type> Decoder::type_of(const Operand& o) const {
  auto at = names_.types.find(o.name);
  return o.kind == Operand::Kind::kName && at != names_.types.end() ? std::optional(at->second) : std::nullopt;
}

uint32_t Decoder::row_of(const Operand& o, Type t, bool may_be_number) {
  if (o.kind == Operand::Kind::kNumber && may_be_number) {
    if (t == Type::kPred) return constant(o.bits != 0 ? kAllLanes : 0, 4);
    if (o.float_bytes != 0 && o.float_bytes != bytes_of(t)) refuse("a number of another type");
    return constant(o.bits, register_bytes(t));
  }
  const auto type = type_of(o);
  if (!type) {
    refuse(cat("no register: ", o.name));
    return kNoRow;
  }
  if ((*type == Type::kPred) != (t == Type::kPred) || register_bytes(*type) != register_bytes(t))
    refuse(cat(o.name, " has another width"));
  auto [at, fresh] = names_.rows.try_emplace(o.name, 0);
  if (fresh) at->second = new_row(register_bytes(*type));
  return at->second;
}

uint32_t Decoder::wide_row(const Operand& o, Type t) {
  const auto type = type_of(o);
  if (type && register_bytes(*type) < register_bytes(t)) refuse(cat(o.name, " is too narrow"));
  return row_of(o, type.value_or(t), false);
}

std::optional<int64_t> Decoder::address_of(const std::string& variable,
                                           const std::map<std::string, int64_t>& of) const {
  auto at = of.find(variable);
  return at == of.end() ? std::nullopt : std::optional(at->second);
}

void Decoder::finish(Kind kind, Flow flow, Run run, size_t count) {
  made.kind = kind, made.flow = flow, made.run = run;
  if (run == nullptr || part_ != statement_->opcode.size()) refuse("unknown variant");
  if (operands() != count) refuse(cat(operands(), " operands instead of ", count));
}

Type take_number(Decoder& d) {
  const Type t = d.take_type().value_or(Type::kPred);
  return t == Type::kB16 ? Type::kU16 : t == Type::kB32 ? Type::kU32 : t == Type::kB64 ? Type::kU64 : t;
}
Kind kind_of(Type t) {
  return t == Type::kF64 ? Kind::kDouble : t == Type::kF32 || t == Type::kF16 ? Kind::kFloat : Kind::kInteger;
}
void set_operands(Decoder& d, Type t, size_t count) {
  d.made.at[0] = d.result(0, t);
  for (size_t k = 1; k < count; ++k) d.made.at[k] = d.source(k, t);
}
void finish(Decoder& d, Type t, Run run, size_t count) {
  set_operands(d, t, count);
  d.finish(kind_of(t), Flow::kNext, run, count);
}

absl::Status Decoder::status() const {
  if (why_.empty()) return absl::OkStatus();
  std::string opcode;
  for (const std::string& part : statement_->opcode) append(opcode, opcode.empty() ? "" : ".", part);
  return absl::InvalidArgumentError(cat("PTX, line ", statement_->line, ": ", opcode, ": ", why_));
}

namespace {

const Decoders& decoders() {
  static const Decoders all = [] {
    Decoders d;
    add_arithmetic(d);
    add_bits(d);
    add_comparisons(d);
    add_conversions(d);
    add_memory(d);
    add_atomics(d);
    add_exchanges(d);
    return d;
  }();
  return all;
}

int64_t place(int64_t& end, const Variable& v) {
  const int64_t at = (end + v.alignment - 1) / v.alignment * v.alignment;
  end = at + v.bytes;
  return at;
}

void run_nothing(Warp&, const Instruction&, uint32_t) {}

}  // namespace

// A kernel with the functions that it calls, which come before it: lanes that are in a function are then those with the
// lowest program counter, and the others wait for them.
class FunctionDecoder {
 public:
  FunctionDecoder(const Text& text, Program& program) : text_(text), program_(program) {}

  absl::Status decode_kernel(const Function& f) {
    for (const Variable& v : f.parameters) {
      program_.parameters.push_back(v);
      program_.parameter_offsets.push_back(place(program_.parameter_bytes, v));
      entry_parameters_[v.name] = program_.parameter_offsets.back();
    }
    PARTITA_RETURN_IF_ERROR(decode(f));
    program_.begin = begins_.at(f.name);
    for (uint32_t k = 0; k < program_.code.size(); ++k) program_.code[k].number = k;
    return absl::OkStatus();
  }

 private:
  absl::Status decode(const Function& f) {
    if (!open_.insert(f.name).second) return absl::InvalidArgumentError(cat("PTX: ", f.name, " calls itself"));
    PARTITA_ASSIGN_OR_RETURN(const Body body, read_body(f));
    for (const Statement& s : body.statements) {
      if (s.callee.empty() || begins_.count(s.callee) > 0) continue;
      auto callee = text_.functions.find(s.callee);
      if (callee == text_.functions.end())
        return absl::InvalidArgumentError(cat("PTX, line ", s.line, ": no function ", s.callee));
      PARTITA_RETURN_IF_ERROR(decode(callee->second));
    }
    Decoder::Names names;
    names.types = body.registers;
    if (f.is_entry) names.parameters = entry_parameters_;
    for (const Variable& v : body.shared) names.shared[v.name] = place(program_.shared_bytes, v);
    for (const Variable& v : body.local) names.local[v.name] = place(program_.local_bytes, v);
    Decoder d(program_, names);
    // A function's parameters and results, and what calls are given, are registers.
    std::vector<Variable> as_registers = body.parameters;
    if (!f.is_entry) {
      as_registers.insert(as_registers.end(), f.parameters.begin(), f.parameters.end());
      as_registers.insert(as_registers.end(), f.results.begin(), f.results.end());
    }
    for (const Variable& v : as_registers) {
      names.in_registers.insert(v.name);
      names.types[v.name] = v.type;
      names.rows[v.name] = d.new_row(register_bytes(v.type));
    }
    add_module_variables(f, names);
    if (!f.is_entry) names.rows[kBack] = backs_[f.name] = d.new_row(4);
    functions_[f.name] = {&f, names.rows};
    begins_[f.name] = static_cast<uint32_t>(program_.code.size());
    return decode_statements(f, body, names, d);
  }

  // What a launch gives a size lies behind all else, which the functions that a kernel calls have had by then.
  void add_module_variables(const Function& f, Decoder::Names& names) {
    for (const Variable& v : text_.shared) {
      if (v.bytes == 0) continue;
      auto [at, fresh] = module_shared_.try_emplace(v.name, 0);
      if (fresh) at->second = place(program_.shared_bytes, v);
      names.shared[v.name] = at->second;
    }
    if (!f.is_entry) return;
    program_.shared_bytes = (program_.shared_bytes + 15) / 16 * 16;
    for (const Variable& v : text_.shared) {
      if (v.bytes == 0) names.shared[v.name] = program_.shared_bytes;
    }
  }

  absl::Status decode_statements(const Function& f, const Body& body, Decoder::Names& names, Decoder& d) {
    std::vector<uint32_t> starts;
    std::vector<std::pair<size_t, std::string>> branches;
    for (const Statement& s : body.statements) {
      starts.push_back(static_cast<uint32_t>(program_.code.size()));
      d.start(s);
      if (s.opcode[0] == "call") {
        PARTITA_RETURN_IF_ERROR(decode_call(s, names, d));
        continue;
      }
      if (s.opcode[0] == "bra") {
        d.take("uni");
        branches.emplace_back(program_.code.size(), d.operand_at(0).name);
        d.finish(Kind::kControl, Flow::kBranch, run_nothing, 1);
      } else if (s.opcode[0] == "ret" || s.opcode[0] == "exit") {
        d.take("uni");
        if (!f.is_entry) d.made.at[0] = names.rows.at(kBack);
        d.finish(Kind::kControl, f.is_entry || s.opcode[0] == "exit" ? Flow::kEnd : Flow::kReturn, run_nothing, 0);
      } else if (auto decode = decoders().find(s.opcode[0]); decode != decoders().end()) {
        decode->second(d);
      } else {
        d.refuse("unknown opcode");
      }
      PARTITA_RETURN_IF_ERROR(d.status());
      program_.code.push_back(d.made);
    }
    starts.push_back(static_cast<uint32_t>(program_.code.size()));
    for (const auto& [at, label] : branches) {
      auto to = body.labels.find(label);
      if (to == body.labels.end())
        return absl::InvalidArgumentError(cat("PTX, line ", program_.code[at].line, ": no label ", label));
      program_.code[at].target = starts[to->second];
    }
    Instruction end;  // a body may end without saying so
    end.run = run_nothing, end.kind = Kind::kControl, end.flow = f.is_entry ? Flow::kEnd : Flow::kReturn;
    end.at[0] = f.is_entry ? kNoRow : names.rows.at(kBack);
    program_.code.push_back(end);
    return absl::OkStatus();
  }

  // Arguments into the function's registers, and its results out of them.
  absl::Status decode_call(const Statement& s, Decoder::Names& names, Decoder& d) {
    const auto& [f, rows] = functions_.at(s.callee);
    if (s.arguments.size() != f->parameters.size() || s.results.size() != f->results.size())
      return absl::InvalidArgumentError(cat("PTX, line ", s.line, ": ", s.callee, " has other parameters"));
    const auto copy = [&](uint32_t to, uint32_t from, int bytes) {
      Instruction i = d.made;
      i.kind = Kind::kMove, i.at[0] = to, i.at[1] = from;
      i.run = bytes == 8 ? run_lanes<Same, uint64_t, uint64_t> : run_lanes<Same, uint32_t, uint32_t>;
      program_.code.push_back(i);
    };
    const auto row = [&](const std::string& name) -> uint32_t {
      auto at = names.rows.find(name);
      if (at == names.rows.end()) d.refuse(cat("no parameter: ", name));
      return at == names.rows.end() ? 0 : at->second;
    };
    for (size_t k = 0; k < s.arguments.size(); ++k) {
      const Variable& v = f->parameters[k];
      if (bytes_of(v.type) < 4 || v.bytes != bytes_of(v.type)) d.refuse("a parameter of another kind than a number");
      copy(rows.at(v.name), row(s.arguments[k]), bytes_of(v.type));
    }
    Instruction call = d.made;
    call.kind = Kind::kControl, call.flow = Flow::kCall, call.run = run_nothing;
    call.at[0] = backs_.at(s.callee), call.target = begins_.at(s.callee);
    program_.code.push_back(call);
    for (size_t k = 0; k < s.results.size(); ++k)
      copy(row(s.results[k]), rows.at(f->results[k].name), bytes_of(f->results[k].type));
    return d.status();
  }

  struct Same {
    template <typename T>
    static T of(T x) {
      return x;
    }
  };
  struct Known {
    const Function* function;
    std::map<std::string, uint32_t> rows;
  };
  static constexpr const char* kBack = "return address";
  const Text& text_;
  Program& program_;
  std::set<std::string> open_;
  std::map<std::string, int64_t> entry_parameters_, module_shared_;
  std::map<std::string, uint32_t> begins_, backs_;
  std::map<std::string, Known> functions_;
};

absl::StatusOr<std::unique_ptr<Module>> Module::load(std::string text) {
  auto module = std::make_unique<Module>();
  module->source_ = std::move(text);
  PARTITA_ASSIGN_OR_RETURN(module->text_, read_text(module->source_));
  return module;
}

std::vector<std::string> Module::kernels() const {
  std::vector<std::string> names;
  for (const auto& [name, f] : text_.functions) {
    if (f.is_entry) names.push_back(name);
  }
  return names;
}

absl::StatusOr<const Program*> Module::kernel(const std::string& name) {
  std::lock_guard lock(mutex_);
  std::unique_ptr<Program>& made = programs_[name];
  if (made != nullptr) return made.get();
  auto f = text_.functions.find(name);
  if (f == text_.functions.end() || !f->second.is_entry) return absl::NotFoundError(cat("PTX: no kernel ", name));
  auto program = std::make_unique<Program>();
  program->name = name;
  PARTITA_RETURN_IF_ERROR(FunctionDecoder(text_, *program).decode_kernel(f->second));
  made = std::move(program);
  return made.get();
}

std::string Module::line(int number) const {
  size_t at = 0;
  for (int k = 1; k < number && at != std::string::npos; ++k) at = source_.find('\n', at) + 1;
  std::string text = source_.substr(at, source_.find('\n', at) - at);
  text.erase(0, text.find_first_not_of(" \t"));
  std::replace(text.begin(), text.end(), '\t', ' ');
  return text;
}

}  // namespace partita::ptx

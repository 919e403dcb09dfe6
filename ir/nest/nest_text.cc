#include "ir/nest/nest_text.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>

#include "base/cat.h"
#include "base/status.h"
#include "fmt/format.h"

namespace partita {
namespace {

constexpr std::string_view kScalarNames[] = {
    "input",        "constant", "add",  "sub",    "mul",    "div",   "max",   "min",   "pow",  "mod",
    "neg",          "abs",      "sqrt", "exp",    "log",    "log1p", "expm1", "tanh",  "erf",  "sin",
    "cos",          "tan",      "asin", "acos",   "atan",   "sinh",  "cosh",  "floor", "ceil", "round",
    "power_of_two", "eq",       "ne",   "lt",     "le",     "and",   "or",    "xor",   "not",  "shl",
    "shr",          "select",   "cast", "is_nan", "is_inf", "index", "philox"};
static_assert(std::size(kScalarNames) == static_cast<size_t>(ScalarOp::kPhilox) + 1);
constexpr std::string_view kReduceNames[] = {"sum", "max", "min", "prod"};

std::string access_text(const NestAccess& a) {
  std::string s = "[";
  for (size_t k = 0; k < a.strides.size(); ++k) append(s, k ? " " : "", a.strides[k]);
  s += "]";
  if (a.offset != 0) append(s, " + ", a.offset);
  return s;
}

std::string node_text(const NestNode& n) {
  const ScalarNode& x = n.scalar;
  switch (n.op) {
    case NestOp::kLoad:
      return cat("load ", n.access.operand, " ", access_text(n.access));
    case NestOp::kIndex:
      return cat("index ", access_text(n.access));
    case NestOp::kReduce:
      return cat(reduce_name(n.reduce), " over columns of %", x.a);
    case NestOp::kScalar:
      break;
  }
  std::string s(scalar_name(x.op));
  if (x.op == ScalarOp::kConstant)
    return is_float(x.type) ? cat("constant ", dtype_name(x.type), " ", fmt::format("{:.17g}", x.f),
                                  x.f != x.f ? cat(" #", std::bit_cast<uint64_t>(x.f)) : "")
                            : cat("constant ", dtype_name(x.type), " ", x.i);
  if (x.op == ScalarOp::kCast) append(s, " ", dtype_name(x.type));
  if (x.op == ScalarOp::kPhilox) append(s, " ", x.index, " key ", x.i);
  for (int operand : {x.a, x.b, x.c}) {
    if (operand >= 0) append(s, " %", operand);
  }
  return s;
}

// Takes pieces off the front of a line.
class Line {
 public:
  explicit Line(std::string_view text) : rest_(text) {}

  bool done() const { return rest_.empty(); }
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }
  template <typename T>
  bool number(T& value) {
    auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return false;
    rest_.remove_prefix(static_cast<size_t>(end - rest_.data()));
    return true;
  }
  std::string_view word() {
    std::string_view w = rest_.substr(0, rest_.find_first_of(" :,"));
    rest_.remove_prefix(w.size());
    return w;
  }
  bool type(DType& type) { return (type = parse_dtype(word())) != DType::kInvalid; }

 private:
  std::string_view rest_;
};

bool read_numbers(Line& line, std::vector<int64_t>& numbers) {
  if (!line.take("[")) return false;
  while (!line.take("]")) {
    if (!numbers.empty() && !line.take(" ")) return false;
    if (!line.number(numbers.emplace_back())) return false;
  }
  return true;
}

bool read_access(Line& line, NestAccess& access) {
  return read_numbers(line, access.strides) && (!line.take(" + ") || line.number(access.offset));
}

bool read_head(Line line, LoopNest& nest) {
  std::vector<int64_t> columns;
  if (!line.take("rows ") || !read_numbers(line, nest.sizes) || !line.take(" columns ") || !read_numbers(line, columns))
    return false;
  nest.columns = static_cast<int>(columns.size());
  nest.sizes.insert(nest.sizes.end(), columns.begin(), columns.end());
  if (!line.take(":")) return false;
  bool outputs = false;
  while (!line.done()) {
    if (!outputs && line.take(" ->")) {
      outputs = true;
      nest.inputs = static_cast<int>(nest.operands.size());
    }
    if (!line.take(" ") || !line.type(nest.operands.emplace_back())) return false;
  }
  return outputs;
}

bool read_schedule(Line line, LoopNest& nest) {
  if (!line.take("  ")) return false;
  nest.strict = line.take("strict, ");
  nest.lane_is_row = line.take("lanes along rows, ");
  if (line.take("tiles along row loop ") && !(line.number(nest.tile) && line.take(", "))) return false;
  if (!line.number(nest.rows_per_unit) || !line.take(" rows a unit")) return false;
  return (!line.take(", clip ") || line.number(nest.clip)) && line.done();
}

bool read_constant(Line& line, ScalarNode& x) {
  if (!line.take(" ") || !line.type(x.type) || !line.take(" ")) return false;
  if (!is_float(x.type)) return line.number(x.i);
  x.f = std::strtod(std::string(line.word()).c_str(), nullptr);
  uint64_t bits = 0;
  if (!line.take(" #")) return x.f == x.f;
  if (!line.number(bits)) return false;
  x.f = std::bit_cast<double>(bits);
  return true;
}

// The node whose text begins with `name`, of the nodes before it.
bool read_node(Line line, LoopNest& nest) {
  NestNode& n = nest.nodes.emplace_back();
  ScalarNode& x = n.scalar;
  const std::string name(line.word());
  if (name == "load") {
    n.op = NestOp::kLoad;
    if (!line.take(" ") || !line.number(n.access.operand) || !line.take(" ") || !read_access(line, n.access))
      return false;
    const int operand = n.access.operand;
    if (operand < 0 || operand >= static_cast<int>(nest.operands.size())) return false;
    x = {.op = ScalarOp::kInput, .type = nest.operands[static_cast<size_t>(operand)]};
    return line.done();
  }
  if (name == "index") {
    n.op = NestOp::kIndex;
    x = {.op = ScalarOp::kIndex, .type = DType::kI64};
    return line.take(" ") && read_access(line, n.access) && line.done();
  }
  const auto operand = [&](int& id) {
    return line.number(id) && id >= 0 && id + 1 < static_cast<int>(nest.nodes.size());
  };
  if (line.take(" over columns of %")) {
    n.op = NestOp::kReduce;
    const auto* kind = std::find(std::begin(kReduceNames), std::end(kReduceNames), name);
    if (kind == std::end(kReduceNames) || !operand(x.a)) return false;
    n.reduce = static_cast<ReduceKind>(kind - std::begin(kReduceNames));
    x.type = nest.nodes[static_cast<size_t>(x.a)].scalar.type;
    return line.done();
  }
  const auto* op = std::find(std::begin(kScalarNames), std::end(kScalarNames), name);
  if (op == std::end(kScalarNames)) return false;
  x.op = static_cast<ScalarOp>(op - std::begin(kScalarNames));
  if (x.op == ScalarOp::kConstant) return read_constant(line, x) && line.done();
  if (x.op == ScalarOp::kCast && !(line.take(" ") && line.type(x.type))) return false;
  if (x.op == ScalarOp::kPhilox && !(line.take(" ") && line.number(x.index) && line.take(" key ") && line.number(x.i)))
    return false;
  for (int* id : {&x.a, &x.b, &x.c}) {
    if (line.take(" %") && !operand(*id)) return false;
  }
  x.type = result_type(x, nest.nodes);
  return x.type != DType::kInvalid && line.done();
}

bool read_store(Line line, LoopNest& nest) {
  NestStore& s = nest.stores.emplace_back();
  return line.number(s.access.operand) && line.take(" ") && read_access(line, s.access) && line.take(" = %") &&
         line.number(s.node) && line.done();
}

// Where it is kept, a store of the same node says.
bool read_kept(Line line, LoopNest& nest) {
  NestStore k;
  if (!line.number(k.node) || !line.take(" in ") || !line.number(k.access.operand) || !line.done()) return false;
  auto at = std::find_if(nest.stores.begin(), nest.stores.end(),
                         [&](const NestStore& s) { return s.node == k.node && s.access.operand == k.access.operand; });
  if (at == nest.stores.end()) return false;
  nest.kept.push_back(*at);
  return true;
}

bool read_fold(Line line, LoopNest& nest) {
  NestFold& f = nest.folds.emplace_back();
  const auto* kind = std::find(std::begin(kReduceNames), std::end(kReduceNames), line.word());
  if (kind == std::end(kReduceNames)) return false;
  f.reduce = static_cast<ReduceKind>(kind - std::begin(kReduceNames));
  return line.take(" ") && line.number(f.access.operand) && line.take(" ") && read_access(line, f.access) &&
         line.take(" x ") && line.number(f.extent) && line.take(" of %") && line.number(f.node) && line.done();
}

// One of the lines after the first two.
bool read_line(Line line, LoopNest& nest) {
  if (line.take("  store ")) return read_store(line, nest);
  if (line.take("  keep %")) return read_kept(line, nest);
  if (line.take("  fold ")) return read_fold(line, nest);
  size_t number = 0;
  return line.take("  %") && line.number(number) && number == nest.nodes.size() && line.take(" = ") &&
         read_node(line, nest);
}

bool read_kernel(Line line, KernelNest& kernel) {
  kernel.name = std::string(line.word());
  kernel.host = line.take(" host");
  kernel.batched = line.take(" batched");
  return !kernel.name.empty() && line.done();
}

std::string kernel_line(const KernelNest& k) {
  return cat("kernel ", k.name, k.host ? " host" : "", k.batched ? " batched" : "", "\n");
}

}  // namespace

std::string_view scalar_name(ScalarOp op) { return kScalarNames[static_cast<int>(op)]; }
std::string_view reduce_name(ReduceKind kind) { return kReduceNames[static_cast<int>(kind)]; }

std::string to_string(const LoopNest& nest) {
  std::string s = "rows [";
  for (size_t k = 0; k < nest.sizes.size(); ++k)
    append(s, static_cast<int>(k) == nest.rows() ? "] columns [" : k ? " " : "", nest.sizes[k]);
  s += nest.columns == 0 ? "] columns []:" : "]:";
  for (size_t k = 0; k < nest.operands.size(); ++k)
    append(s, static_cast<int>(k) == nest.inputs ? " ->" : "", " ", dtype_name(nest.operands[k]));
  append(s, "\n  ", nest.strict ? "strict, " : "", nest.lane_is_row ? "lanes along rows, " : "",
         nest.tile >= 0 ? cat("tiles along row loop ", nest.tile, ", ") : "", nest.rows_per_unit, " rows a unit",
         nest.clip > 0 ? cat(", clip ", nest.clip) : "", "\n");
  for (size_t k = 0; k < nest.nodes.size(); ++k) append(s, "  %", k, " = ", node_text(nest.nodes[k]), "\n");
  for (const NestStore& store : nest.stores)
    append(s, "  store ", store.access.operand, " ", access_text(store.access), " = %", store.node, "\n");
  for (const NestStore& k : nest.kept) append(s, "  keep %", k.node, " in ", k.access.operand, "\n");
  for (const NestFold& fold : nest.folds) {
    append(s, "  fold ", reduce_name(fold.reduce), " ", fold.access.operand, " ", access_text(fold.access), " x ",
           fold.extent, " of %", fold.node, "\n");
  }
  return s;
}

std::string print_kernels(const KernelNests& nests) {
  std::string text = cat("# compiler ", nests.compiler, "\n# target ", nests.target, "\n");
  for (const KernelNest& k : nests.kernels) append(text, kernel_line(k), to_string(k.nest));
  return text;
}

absl::StatusOr<KernelNests> parse_kernels(std::string_view text) {
  KernelNests nests;
  int number = 0;
  size_t since = 0;  // lines of the kernel at hand
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view all = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), all.size() + 1));
    ++number;
    const auto fault = [&](std::string_view what) { return absl::DataLossError(cat("line ", number, ": ", what)); };
    Line line(all);
    if (number <= 2) {
      if (!line.take(number == 1 ? "# compiler " : "# target ")) return fault("expected the compiler and its target");
      (number == 1 ? nests.compiler : nests.target) = std::string(all.substr(all.find(' ', 2) + 1));
    } else if (line.take("kernel ")) {
      if (!read_kernel(line, nests.kernels.emplace_back())) return fault("expected a kernel's name");
      since = 0;
    } else if (nests.kernels.empty()) {
      return fault("expected a kernel");
    } else {
      LoopNest& nest = nests.kernels.back().nest;
      ++since;
      if (!(since == 1 ? read_head(line, nest) : since == 2 ? read_schedule(line, nest) : read_line(line, nest)))
        return fault("expected a line of a loop nest");
    }
  }
  if (print_kernels(nests) != text) return absl::DataLossError(cat("line ", number, ": expected another spelling"));
  return nests;
}

}  // namespace partita

// One pass over the characters; values are collected under their ids as they are defined, and put in order at the end.
#include "ir/text/parse.h"

#include <limits>

#include "absl/container/flat_hash_map.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/text/lexer.h"
#include "ir/text/print.h"

namespace partita {
namespace {

constexpr size_t kMaxAttributes = 64;
constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max() - 1;

class GraphParser {
 public:
  explicit GraphParser(std::string_view text) : in_(text) {}

  absl::StatusOr<Graph> parse() {
    if (!in_.accept_word("graph")) return in_.expected("'graph'");
    PARTITA_ASSIGN_OR_RETURN(g_.name, in_.string("the graph's name"));
    while (!in_.done()) PARTITA_RETURN_IF_ERROR(statement());
    return finish();
  }

 private:
  absl::Status statement() {
    if (in_.peek() == '%' || in_.peek() == '=') return node();
    if (in_.accept_word("origin")) {
      PARTITA_ASSIGN_OR_RETURN(std::string text, in_.string("an origin in quotes"));
      g_.origins.push_back(std::move(text));
      return absl::OkStatus();
    }
    if (in_.accept_word("input")) return input();
    if (in_.accept_word("state")) return state();
    if (in_.accept_word("constant")) return constant();
    if (in_.accept_word("output")) return output();
    return in_.expected("'%', origin, input, state, constant or output");
  }

  // %ID TYPE: a new value.
  absl::StatusOr<ValueId> definition() {
    size_t at = in_.at();
    PARTITA_RETURN_IF_ERROR(in_.expect('%'));
    PARTITA_ASSIGN_OR_RETURN(int64_t id, in_.integer("a value's number", 0, kMaxId));
    PARTITA_ASSIGN_OR_RETURN(TensorType t, type());
    auto [place, fresh] = place_of_.try_emplace(static_cast<ValueId>(id), values_.size());
    if (!fresh) return in_.fault(cat("value %", id, " is defined twice"), at);
    values_.push_back({.type = std::move(t), .name = {}});
    ids_.push_back({static_cast<ValueId>(id), at});
    return static_cast<ValueId>(id);
  }
  Value& value(ValueId id) { return values_[place_of_.at(id)]; }

  absl::StatusOr<TensorType> type() {
    size_t at = in_.at();
    TensorType t;
    std::string_view word = in_.word();
    t.dtype = parse_dtype(word);
    if (t.dtype == DType::kInvalid) return in_.expected("an element type");
    in_.skip(word);
    PARTITA_ASSIGN_OR_RETURN(t.shape, ints("a dimension", 0));
    if (!checked_elements(t.shape)) return in_.fault(cat("type ", to_string(t), " is too large"), at);
    return t;
  }

  absl::StatusOr<std::vector<int64_t>> ints(std::string_view what, int64_t least) {
    std::vector<int64_t> values;
    PARTITA_RETURN_IF_ERROR(in_.expect('['));
    while (!in_.accept(']')) {
      if (!values.empty()) PARTITA_RETURN_IF_ERROR(in_.expect(','));
      PARTITA_ASSIGN_OR_RETURN(int64_t v, in_.integer(what, least, std::numeric_limits<int64_t>::max()));
      values.push_back(v);
    }
    return values;
  }

  // [values], hex BYTES.
  absl::StatusOr<Literal> literal(const TensorType& type) {
    if (in_.word() == "elided")
      return in_.fault("this literal is elided: the text is a dump for people, not an exact one", in_.at());
    size_t size = static_cast<size_t>(byte_size(type));
    if (in_.accept_word("hex")) {
      PARTITA_ASSIGN_OR_RETURN(std::vector<std::byte> bytes, in_.hex(size));
      return make_literal(type, std::move(bytes));
    }
    size_t at = in_.at();
    std::vector<std::byte> bytes;
    PARTITA_RETURN_IF_ERROR(in_.expect('['));
    while (!in_.accept(']')) {
      if (!bytes.empty()) PARTITA_RETURN_IF_ERROR(in_.expect(','));
      std::string_view text = in_.number();
      auto element = element_literal(type.dtype, text);
      if (!element) return in_.expected(cat("a value of type ", dtype_name(type.dtype)));
      in_.skip(text);
      bytes.insert(bytes.end(), element->bytes().begin(), element->bytes().end());
    }
    if (bytes.size() != size) {
      return in_.fault(cat("expected ", elements(type.shape), " values for ", to_string(type), ", found ",
                           bytes.size() / static_cast<size_t>(dtype_size(type.dtype))),
                       at);
    }
    return make_literal(type, std::move(bytes));
  }

  // as "NAME": the value's own name, where it is not the given one.
  absl::Status alias(ValueId v, const std::string& name) {
    value(v).name = name;
    if (!in_.accept_word("as")) return absl::OkStatus();
    PARTITA_ASSIGN_OR_RETURN(value(v).name, in_.string("the value's name"));
    return absl::OkStatus();
  }

  absl::Status input() {
    GraphInput x;
    PARTITA_ASSIGN_OR_RETURN(x.value, definition());
    if (!kind(x.kind)) return in_.expected("data, micro_batch or coordinate");
    PARTITA_ASSIGN_OR_RETURN(x.name, in_.string("the input's name"));
    PARTITA_RETURN_IF_ERROR(alias(x.value, x.name));
    g_.inputs.push_back(std::move(x));
    return absl::OkStatus();
  }

  template <typename Kind>
  bool kind(Kind& into) {
    for (size_t k = 0; k < enum_names<Kind>().size(); ++k) {
      if (!in_.accept_word(enum_names<Kind>()[k])) continue;
      into = static_cast<Kind>(k);
      return true;
    }
    return false;
  }

  absl::Status state() {
    State s;
    PARTITA_ASSIGN_OR_RETURN(s.value, definition());
    if (!kind(s.kind)) return in_.expected("parameter, frozen, running, optimizer, step or accumulator");
    PARTITA_ASSIGN_OR_RETURN(s.name, in_.string("the state's name"));
    PARTITA_RETURN_IF_ERROR(alias(s.value, s.name));
    if (in_.accept_word("of")) {
      PARTITA_ASSIGN_OR_RETURN(s.parameter, in_.string("a parameter's name"));
    }
    if (in_.accept_word("initial")) {
      PARTITA_ASSIGN_OR_RETURN(s.initial, initial());
    }
    if (in_.accept_word("next")) {
      PARTITA_ASSIGN_OR_RETURN(s.next, later_value());
    }
    g_.states.push_back(std::move(s));
    return absl::OkStatus();
  }

  absl::StatusOr<Initial> initial() {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    if (in_.accept_word("file")) {
      FileRange file;
      PARTITA_ASSIGN_OR_RETURN(file.path, in_.string("a path"));
      PARTITA_ASSIGN_OR_RETURN(file.offset, in_.integer("an offset", 0, kMost));
      PARTITA_ASSIGN_OR_RETURN(file.bytes, in_.integer("a size in bytes", 0, kMost));
      return Initial(std::move(file));
    }
    if (in_.accept_word("rule")) {
      InitialRule rule;
      if (!kind(rule.kind)) return in_.expected("constant, normal or uniform");
      PARTITA_ASSIGN_OR_RETURN(rule.a, in_.real());
      PARTITA_ASSIGN_OR_RETURN(rule.b, in_.real());
      return Initial(std::move(rule));
    }
    PARTITA_ASSIGN_OR_RETURN(TensorType t, type());
    PARTITA_ASSIGN_OR_RETURN(Literal l, literal(t));
    return Initial(std::move(l));
  }

  absl::Status constant() {
    Constant c;
    PARTITA_ASSIGN_OR_RETURN(c.value, definition());
    PARTITA_RETURN_IF_ERROR(optional_name(c.value));
    PARTITA_RETURN_IF_ERROR(in_.expect('='));
    TensorType t = value(c.value).type;
    PARTITA_ASSIGN_OR_RETURN(c.literal, literal(t));
    g_.constants.push_back(std::move(c));
    return absl::OkStatus();
  }

  absl::Status optional_name(ValueId v) {
    if (in_.peek() != '"') return absl::OkStatus();
    PARTITA_ASSIGN_OR_RETURN(value(v).name, in_.string("the value's name"));
    return absl::OkStatus();
  }

  absl::Status output() {
    GraphOutput out;
    PARTITA_ASSIGN_OR_RETURN(out.name, in_.string("the output's name"));
    PARTITA_ASSIGN_OR_RETURN(out.value, later_value());
    g_.outputs.push_back(std::move(out));
    return absl::OkStatus();
  }

  // A value that may be defined further down.
  absl::StatusOr<ValueId> later_value() {
    size_t at = in_.at();
    PARTITA_RETURN_IF_ERROR(in_.expect('%'));
    PARTITA_ASSIGN_OR_RETURN(int64_t id, in_.integer("a value's number", 0, kMaxId));
    later_.push_back({static_cast<ValueId>(id), at});
    return static_cast<ValueId>(id);
  }

  absl::Status node() {
    // Its outputs become known to others only after its inputs have been read.
    struct Output {
      ValueId id;
      size_t at;
    };
    Node n;
    std::vector<Output> outputs;
    // A node without outputs begins with '='.
    for (bool more = in_.peek() == '%'; more; more = in_.accept(',')) {
      size_t at = in_.at();
      PARTITA_ASSIGN_OR_RETURN(ValueId v, definition());
      PARTITA_RETURN_IF_ERROR(optional_name(v));
      value(v).producer = static_cast<NodeId>(g_.nodes.size());
      value(v).output = static_cast<int>(outputs.size());
      outputs.push_back({v, at});
      n.outputs.push_back(v);
    }
    PARTITA_RETURN_IF_ERROR(in_.expect('='));
    size_t at = in_.at();
    PARTITA_ASSIGN_OR_RETURN(std::string name, in_.take_word("an op"));
    n.op = find_op(name);
    if (n.op == nullptr) return in_.fault(cat("no op ", quote(name)), at);
    PARTITA_RETURN_IF_ERROR(arguments(n));
    PARTITA_RETURN_IF_ERROR(attributes(n));
    PARTITA_RETURN_IF_ERROR(modifiers(n));

    std::vector<TensorType> types;
    for (ValueId v : n.inputs) types.push_back(v == kNoValue ? TensorType{} : value(v).type);
    auto inferred = infer_types(*n.op, {n.attrs, types});
    if (!inferred.ok()) return in_.fault(cat(name, ": ", inferred.status().message()), at);
    if (inferred->size() != outputs.size())
      return in_.fault(cat(name, ": expected ", inferred->size(), " results, found ", outputs.size()), at);
    for (size_t k = 0; k < outputs.size(); ++k) {
      const TensorType& found = value(outputs[k].id).type;
      if (found != (*inferred)[k])
        return in_.fault(cat(name, ": expected a result ", to_string((*inferred)[k]), ", found ", to_string(found)),
                         outputs[k].at);
    }
    g_.nodes.push_back(std::move(n));
    return absl::OkStatus();
  }

  absl::Status arguments(Node& n) {
    PARTITA_RETURN_IF_ERROR(in_.expect('('));
    while (!in_.accept(')')) {
      if (!n.inputs.empty()) PARTITA_RETURN_IF_ERROR(in_.expect(','));
      if (in_.accept_word("_")) {
        n.inputs.push_back(kNoValue);
        continue;
      }
      size_t at = in_.at();
      PARTITA_RETURN_IF_ERROR(in_.expect('%'));
      PARTITA_ASSIGN_OR_RETURN(int64_t id, in_.integer("a value's number", 0, kMaxId));
      auto place = place_of_.find(static_cast<ValueId>(id));
      if (place == place_of_.end() || values_[place->second].producer == static_cast<NodeId>(g_.nodes.size())) {
        return in_.fault(cat("value %", id, " is read before it is defined"), at);
      }
      n.inputs.push_back(static_cast<ValueId>(id));
    }
    return absl::OkStatus();
  }

  absl::Status attributes(Node& n) {
    if (!in_.accept('{')) return absl::OkStatus();
    while (!in_.accept('}')) {
      if (!n.attrs.items().empty()) PARTITA_RETURN_IF_ERROR(in_.expect(','));
      size_t at = in_.at();
      PARTITA_ASSIGN_OR_RETURN(std::string name, in_.take_word("an attribute's name"));
      if (n.attrs.items().size() == kMaxAttributes)
        return in_.fault(cat("more than ", kMaxAttributes, " attributes"), at);
      if (n.attrs.has(name)) return in_.fault(cat("attribute ", quote(name), " is given twice"), at);
      PARTITA_RETURN_IF_ERROR(in_.expect('='));
      PARTITA_ASSIGN_OR_RETURN(AttrValue v, attribute());
      n.attrs.set(name, std::move(v));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<AttrValue> attribute() {
    if (in_.peek() == '"') {
      PARTITA_ASSIGN_OR_RETURN(std::string s, in_.string("a string"));
      return AttrValue(std::move(s));
    }
    if (in_.peek() == '[') {
      PARTITA_ASSIGN_OR_RETURN(std::vector<int64_t> values,
                               ints("a whole number", std::numeric_limits<int64_t>::min()));
      return AttrValue(std::move(values));
    }
    if (in_.accept_word("floats")) {
      std::vector<double> values;
      PARTITA_RETURN_IF_ERROR(in_.expect('['));
      while (!in_.accept(']')) {
        if (!values.empty()) PARTITA_RETURN_IF_ERROR(in_.expect(','));
        PARTITA_ASSIGN_OR_RETURN(double v, in_.real());
        values.push_back(v);
      }
      return AttrValue(std::move(values));
    }
    std::string_view word = in_.word();
    DType dtype = parse_dtype(word);
    if (dtype != DType::kInvalid) {
      in_.skip(word);
      return AttrValue(dtype);
    }
    std::string_view n = in_.number();
    if (n.find_first_not_of("-0123456789") == n.npos) {
      PARTITA_ASSIGN_OR_RETURN(int64_t v, in_.integer("an attribute's value", std::numeric_limits<int64_t>::min(),
                                                      std::numeric_limits<int64_t>::max()));
      return AttrValue(v);
    }
    PARTITA_ASSIGN_OR_RETURN(double v, in_.real());
    return AttrValue(v);
  }

  absl::Status modifiers(Node& n) {
    PARTITA_RETURN_IF_ERROR(in_.expect('@'));
    if (!kind(n.segment)) return in_.expected("prologue, forward, backward, reduce, update or evaluation");
    // "origin" also starts a statement: there a string follows.
    while (true) {
      if (in_.word() == "origin") {
        Lexer before = in_;
        in_.skip("origin");
        if (in_.peek() == '"') {
          in_ = before;
          return absl::OkStatus();
        }
        PARTITA_ASSIGN_OR_RETURN(
            int64_t v, in_.integer("the number of an origin", 0, static_cast<int64_t>(g_.origins.size()) - 1));
        n.origin = static_cast<int32_t>(v);
      } else if (in_.accept_word("block")) {
        PARTITA_ASSIGN_OR_RETURN(int64_t v, in_.integer("a block's number", 0, kMaxId));
        n.block = static_cast<int32_t>(v);
      } else if (in_.accept_word("weight_gradient")) {
        n.weight_gradient = true;
      } else if (in_.accept_word("host")) {
        n.device = DeviceKind::kHost;
      } else if (in_.accept_word("chunk")) {
        PARTITA_ASSIGN_OR_RETURN(int64_t v, in_.integer("a chunk's number", 0, kMaxId));
        n.chunk = static_cast<int32_t>(v);
      } else if (in_.accept_word("turn")) {
        PARTITA_ASSIGN_OR_RETURN(int64_t v, in_.integer("a turn's number", 0, kMaxId));
        n.turn = static_cast<int32_t>(v);
      } else {
        return absl::OkStatus();
      }
    }
  }

  absl::StatusOr<Graph> finish() {
    for (auto [id, at] : later_) {
      if (!place_of_.contains(id)) return in_.fault(cat("value %", id, " is not defined"), at);
    }
    g_.values.resize(values_.size());
    for (size_t k = 0; k < values_.size(); ++k) {
      auto [id, at] = ids_[k];
      if (static_cast<size_t>(id) >= values_.size())
        return in_.fault(
            cat("value %", id, ": expected numbers without a gap, and there are ", values_.size(), " values"), at);
      g_.values[static_cast<size_t>(id)] = std::move(values_[k]);
    }
    return std::move(g_);
  }

  Lexer in_;
  Graph g_;
  std::vector<Value> values_;                      // in the order of their definitions
  std::vector<std::pair<ValueId, size_t>> ids_;    // of those: id, place in the text
  absl::flat_hash_map<ValueId, size_t> place_of_;  // id -> index into values_
  std::vector<std::pair<ValueId, size_t>> later_;  // reads of states' next values and outputs
};

}  // namespace

absl::StatusOr<Graph> parse_graph(std::string_view text) { return GraphParser(text).parse(); }

}  // namespace partita

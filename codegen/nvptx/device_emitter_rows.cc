// Passes over the columns of a row, and what they leave: values of the row, and partial results of a unit of rows.
#include <algorithm>
#include <limits>
#include <optional>

#include "codegen/nvptx/device_emitter_impl.h"

namespace partita {

using llvm::Value;

DeviceEmitter::Work DeviceEmitter::work_of(int pass) const {
  Work work;
  for (size_t k = 0; k < nest_.nodes.size(); ++k) {
    if (nest_.nodes[k].op == NestOp::kReduce && level_[k] == pass + 1) work.reductions.push_back(static_cast<int>(k));
  }
  for (size_t k = 0; k < nest_.stores.size(); ++k) {
    if (is_wide(nest_.stores[k].access) && level_[nest_.stores[k].node] == pass)
      work.stores.push_back(static_cast<int>(k));
  }
  for (size_t k = 0; k < nest_.folds.size(); ++k) {
    const NestFold& f = nest_.folds[k];
    if (!is_total(f) && level_[f.node] == pass) work.folds.push_back(static_cast<int>(k));
  }
  return work;
}

// The vector of that number among the columns; past the bound the last one, which is then not inside.
DeviceEmitter::Element DeviceEmitter::element_at(const Row& row, Value* number, Value* bound) {
  Element e = new_element(row);
  if (bound != nullptr) {
    e.inside = b_.CreateICmpSLT(number, bound);
    number = b_.CreateSelect(e.inside, number, n(0));
  }
  if (first_column_ <= last_loop()) decode(number, first_column_, last_loop() + 1, s_.vector, e.index);
  return e;
}

std::vector<DeviceEmitter::Element> DeviceEmitter::held_elements(const Row& row, Value* bound) {
  std::vector<Element> held;
  bool even = bound == nullptr && row_vectors() == int64_t{s_.held} * s_.team;
  for (int k = 0; k < s_.held; ++k) {
    bool always = bound == nullptr && int64_t{k + 1} * s_.team <= row_vectors();
    Value* limit = even || always ? nullptr : bound == nullptr ? n(row_vectors()) : bound;
    held.push_back(element_at(row, b_.CreateAdd(member_, n(int64_t{k} * s_.team)), limit));
  }
  return held;
}

// What does not vary along the columns is computed before them.
void DeviceEmitter::prepare_row(Row& row, const Work& work) {
  std::vector<bool> needed(nest_.nodes.size(), false);
  for (int r : work.reductions) needed[nest_.nodes[r].scalar.a] = true;
  for (int s : work.stores) needed[nest_.stores[s].node] = true;
  for (int f : work.folds) needed[nest_.folds[f].node] = true;
  for (size_t k = nest_.nodes.size(); k-- > 0;) {
    if (!needed[k] || nest_.nodes[k].op == NestOp::kReduce) continue;
    for (int operand : {nest_.nodes[k].scalar.a, nest_.nodes[k].scalar.b, nest_.nodes[k].scalar.c}) {
      if (operand >= 0) needed[operand] = true;
    }
  }
  for (size_t k = 0; k < nest_.nodes.size(); ++k) {
    if (needed[k] && !along_columns(static_cast<int>(k))) row_value(static_cast<int>(k), row);
  }
}

// What any pass reads of memory, so that one latency is waited for and not one a pass.
void DeviceEmitter::load_ahead(Row& row, std::vector<Element>& held) {
  if (held.empty()) return;
  pass_ = 0;
  for (size_t k = 0; k < nest_.nodes.size(); ++k) {
    const int id = static_cast<int>(k);
    if (nest_.nodes[k].op != NestOp::kLoad) continue;
    if (!along_columns(id)) row_value(id, row);
    for (Element& e : held) {
      for (unsigned v = 0; v < static_cast<unsigned>(s_.vector); ++v) value(id, row, e, v);
    }
  }
}

bool DeviceEmitter::shifts_by(int shift, int max) const {
  const auto node = [&](int id) -> const NestNode& { return nest_.nodes[static_cast<size_t>(id)]; };
  const auto is_constant = [&](int id, double value) {
    return id >= 0 && node(id).scalar.op == ScalarOp::kConstant && node(id).scalar.f == value;
  };
  if (shift == max) return true;
  const NestNode& n = node(shift);
  if (n.op != NestOp::kScalar || n.scalar.op != ScalarOp::kSelect || n.scalar.c != max || !is_constant(n.scalar.b, 0))
    return false;
  const ScalarNode& none = node(n.scalar.a).scalar;
  return node(n.scalar.a).op == NestOp::kScalar && none.op == ScalarOp::kEq && none.a == max &&
         is_constant(none.b, -std::numeric_limits<double>::infinity());
}

// The sum of the pass behind `pass`, where it can be added up along with the maximum that it needs.
std::optional<DeviceEmitter::OnlineSum> DeviceEmitter::online_sum(int pass) const {
  if (nest_.strict || s_.held > 0 || pass + 1 >= passes_) return std::nullopt;
  const Work next = work_of(pass + 1), now = work_of(pass);
  if (next.reductions.size() != 1 || !next.stores.empty() || !next.folds.empty()) return std::nullopt;
  const int sum = next.reductions[0];
  const auto node = [&](int id) -> const NestNode& { return nest_.nodes[static_cast<size_t>(id)]; };
  const auto is_scalar = [&](int id, ScalarOp op) {
    return node(id).op == NestOp::kScalar && node(id).scalar.op == op;
  };
  int at = node(sum).scalar.a;
  if (node(sum).reduce != ReduceKind::kSum) return std::nullopt;
  if (is_scalar(at, ScalarOp::kSelect)) {
    const int none = node(at).scalar.c, condition = node(at).scalar.a;
    if (!is_scalar(none, ScalarOp::kConstant) || node(none).scalar.f != 0 || level_[condition] > pass)
      return std::nullopt;
    at = node(at).scalar.b;
  }
  if (!is_scalar(at, ScalarOp::kExp) || !is_scalar(node(at).scalar.a, ScalarOp::kSub)) return std::nullopt;
  const ScalarNode& difference = node(node(at).scalar.a).scalar;
  if (level_[difference.a] > pass || along_columns(difference.b)) return std::nullopt;
  for (int max : now.reductions) {
    if (node(max).reduce == ReduceKind::kMax && node(max).scalar.type == node(sum).scalar.type &&
        shifts_by(difference.b, max))
      return OnlineSum{max, sum, difference.b, at};
  }
  return std::nullopt;
}

// A sum of exponentials that are shifted by `from`, as one of those that the row's maximum shifts.
Value* DeviceEmitter::shrunk(const OnlineSum& o, Row& row, Value* sum, Value* from) {
  const ScalarNode& exp = nest_.nodes[static_cast<size_t>(o.exp)].scalar;
  return b_.CreateFMul(sum, math_.apply(exp, exp.type, b_.CreateFSub(from, row_value(o.shift, row)), nullptr, nullptr));
}

// With what an element adds, when the maximum so far goes from `before` to `after`.
Value* DeviceEmitter::add_online(const OnlineSum& o, Row row, Element e, Value* before, Value* after, Value* sum) {
  row.known[static_cast<size_t>(o.max)] = after;
  sum = shrunk(o, row, sum, before);
  const NestNode& node = nest_.nodes[static_cast<size_t>(o.sum)];
  for (unsigned v = 0; v < static_cast<unsigned>(s_.vector); ++v)
    sum = math_.combine(node.reduce, node.scalar.type, sum, value(node.scalar.a, row, e, v));
  return sum;
}

// `bound`: vectors of this row; nullptr: all. `folded`: accumulators of each fold.
void DeviceEmitter::row_body(Row& row, Value* bound, std::vector<Values>& folded) {
  std::vector<Element> held;
  if (s_.held > 0) held = held_elements(row, bound);
  load_ahead(row, held);
  int summed = -1;  // a pass whose work the one before has done
  for (int pass = 0; pass < passes_; ++pass) {
    Work work = work_of(pass);
    if (work.empty() || pass == summed) continue;
    pass_ = pass;
    prepare_row(row, work);
    const std::optional<OnlineSum> online = online_sum(pass);
    const size_t max =
        !online ? 0
                : static_cast<size_t>(std::find(work.reductions.begin(), work.reductions.end(), online->max) -
                                      work.reductions.begin());
    Values sums;
    for (int r : work.reductions) sums.push_back(math_.identity(nest_.nodes[r].reduce, nest_.nodes[r].scalar.type, 1));
    if (s_.held > 0) {
      for (size_t e = 0; e < held.size(); ++e) {
        add_element(row, held[e], work, sums);
        for (int k : work.folds) {
          const NestFold& f = nest_.folds[k];
          for (unsigned v = 0; v < static_cast<unsigned>(s_.vector); ++v) {
            Value*& total = folded[k][e * static_cast<size_t>(s_.vector) + v];
            total = math_.combine(f.reduce, nest_.operands[f.access.operand], total, value(f.node, row, held[e], v));
          }
        }
      }
    } else {
      Value* end = bound == nullptr ? n(row_vectors()) : bound;
      if (online) sums.push_back(math_.identity(ReduceKind::kSum, nest_.nodes[online->sum].scalar.type, 1));
      sums = loop(member_, end, s_.team, std::move(sums), [&](Value* number, Values now) {
        Element e = element_at(row, number, nullptr);
        Value *before = online ? now[max] : nullptr, *sum = online ? now.back() : nullptr;
        if (online) now.pop_back();
        add_element(row, e, work, now);
        if (online) now.push_back(add_online(*online, row, e, before, now[max], sum));
        return now;
      });
    }
    Value *own = online ? sums[max] : nullptr, *total = online ? sums.back() : nullptr;
    if (online) sums.pop_back();
    sums = team_reduce(work.reductions, std::move(sums));
    for (size_t k = 0; k < sums.size(); ++k)
      row.known[work.reductions[k]] = rounded(nest_.nodes[work.reductions[k]].scalar.type, sums[k]);
    if (!online) continue;
    row.known[online->sum] = team_reduce({online->sum}, {shrunk(*online, row, total, own)})[0];
    summed = pass + 1;
  }
  row_stores(row);
}

void DeviceEmitter::add_element(Row& row, Element& e, const Work& work, Values& sums) {
  unsigned vector = static_cast<unsigned>(s_.vector);
  for (size_t k = 0; k < work.reductions.size(); ++k) {
    const NestNode& node = nest_.nodes[work.reductions[k]];
    for (unsigned v = 0; v < vector; ++v) {
      Value* next = math_.combine(node.reduce, node.scalar.type, sums[k], value(node.scalar.a, row, e, v));
      sums[k] = e.inside == nullptr ? next : b_.CreateSelect(e.inside, next, sums[k]);
    }
  }
  for (int s : work.stores) {
    for (unsigned v = 0; v < vector; ++v) value(nest_.stores[s].node, row, e, v);
  }
  if (s_.held == 0) {
    for (int f : work.folds) fold_in_memory(nest_.folds[f], row, e);
  }
  for (int s : work.stores) store(nest_.stores[s], row, e);
}

// All values of the row before any store, on all threads: a result may lie where an operand that another result is made
// from was.
void DeviceEmitter::row_stores(Row& row) {
  bool any = false;
  for (const NestStore& s : nest_.stores) {
    if (is_wide(s.access)) continue;
    row_value(s.node, row);
    any = true;
  }
  if (!any) return;
  team_barrier();
  Value* first = s_.team == 1 ? nullptr : b_.CreateICmpEQ(member_, n(0));
  if_inside(both(first, row.inside), [&] {
    Element none = new_element(row);
    for (const NestStore& s : nest_.stores) {
      if (!is_wide(s.access)) store(s, row, none);
    }
  });
}

void DeviceEmitter::units() {
  unit_ = b_.CreateZExtOrTrunc(block_, number_);
  member_ = b_.CreateZExtOrTrunc(thread_, number_);
  if (s_.teams > 1) {
    team_ = b_.CreateUDiv(thread_, b_.getInt32(static_cast<uint32_t>(s_.team)));
    member_ = b_.CreateURem(member_, n(s_.team));
  }
  std::vector<Values> folded(nest_.folds.size());
  Values carried;
  for (size_t k = 0; k < nest_.folds.size(); ++k) {
    const NestFold& f = nest_.folds[k];
    size_t count = is_total(f) ? 1 : static_cast<size_t>(s_.held) * static_cast<size_t>(s_.vector);
    folded[k].assign(count, math_.identity(f.reduce, folded_type(f), 1));
    carried.insert(carried.end(), folded[k].begin(), folded[k].end());
  }
  auto deal = [&](const Values& values) {
    size_t at = 0;
    for (Values& f : folded) {
      for (Value*& v : f) v = values[at++];
    }
  };
  if (s_.held == 0) clear_folds();
  Value* first = b_.CreateMul(unit_, n(nest_.rows_per_unit));
  Value* last = minimum(b_.CreateAdd(first, n(nest_.rows_per_unit)), n(nest_.items()));
  if (team_ != nullptr) first = b_.CreateAdd(first, b_.CreateZExtOrTrunc(team_, number_));
  carried = loop(first, last, s_.teams, std::move(carried), [&](Value* item, Values now) {
    deal(now);
    Row row = new_row();
    decode(item, 0, nest_.rows(), 1, row.index);
    Value* bound = nullptr;
    if (nest_.clip > 0) {
      int64_t size = nest_.sizes.back();
      Value* left = b_.CreateSub(n(nest_.clip), b_.CreateMul(row.index[nest_.rows() - 1], n(size)));
      bound = b_.CreateUDiv(minimum(left, n(size)), n(s_.vector));
    }
    row_body(row, bound, folded);
    Values next;
    for (size_t k = 0; k < nest_.folds.size(); ++k) {
      const NestFold& f = nest_.folds[k];
      if (is_total(f)) folded[k][0] = math_.combine(f.reduce, folded_type(f), folded[k][0], row.known[f.node]);
      next.insert(next.end(), folded[k].begin(), folded[k].end());
    }
    return next;
  });
  deal(carried);
  if (team_ != nullptr) add_teams(folded);
  Row none = new_row();
  std::vector<Element> held = held_elements(none, nullptr);
  auto by_first = [&](Value* condition, const std::function<void()>& then) {
    if_inside(both(team_ == nullptr ? nullptr : b_.CreateICmpEQ(team_, b_.getInt32(0)), condition), then);
  };
  for (size_t k = 0; k < nest_.folds.size(); ++k) {
    const NestFold& f = nest_.folds[k];
    DType type = nest_.operands[f.access.operand];
    auto put = [&](Value* v, Value* at) {
      b_.CreateAlignedStore(math_.to_stored(type, v), at, alignment(f.access.operand, 1));
    };
    if (is_total(f)) {
      by_first(b_.CreateICmpEQ(member_, n(0)), [&] { put(folded[k][0], pointer(f.access.operand, unit_)); });
      continue;
    }
    for (size_t e = 0; e < held.size(); ++e) {
      by_first(held[e].inside, [&] {
        for (unsigned v = 0; v < static_cast<unsigned>(s_.vector); ++v)
          put(folded[k][e * static_cast<size_t>(s_.vector) + v], fold_address(f, held[e].index, v));
      });
    }
  }
}

// Each thread clears what it alone will add to.
void DeviceEmitter::clear_folds() {
  loop(member_, n(row_vectors()), s_.team, {}, [&](Value* number, Values) {
    Element e = element_at(new_row(), number, nullptr);
    for (const NestFold& f : nest_.folds) {
      if (is_total(f)) continue;
      DType type = nest_.operands[f.access.operand];
      for (unsigned v = 0; v < static_cast<unsigned>(s_.vector); ++v)
        b_.CreateAlignedStore(math_.to_stored(type, math_.identity(f.reduce, type, 1)), fold_address(f, e.index, v),
                              alignment(f.access.operand, 1));
    }
    return Values{};
  });
}

void DeviceEmitter::fold_in_memory(const NestFold& f, Row& row, Element& e) {
  DType type = nest_.operands[f.access.operand];
  for (unsigned v = 0; v < static_cast<unsigned>(s_.vector); ++v) {
    Value* x = value(f.node, row, e, v);
    Value* at = fold_address(f, e.index, v);
    llvm::Align align = alignment(f.access.operand, 1);
    Value* old = math_.from_stored(type, b_.CreateAlignedLoad(stored_type(context_, type, 1), at, align));
    b_.CreateAlignedStore(math_.to_stored(type, math_.combine(f.reduce, type, old, x)), at, align);
  }
}

Value* DeviceEmitter::fold_address(const NestFold& f, const std::vector<Value*>& index, unsigned v) {
  int64_t step = last_loop() >= 0 ? f.access.strides[last_loop()] : 0;
  Value* at = b_.CreateMul(unit_, n(f.extent));
  return pointer(f.access.operand, b_.CreateAdd(at, element_number(f.access, index, step * v)));
}

}  // namespace partita

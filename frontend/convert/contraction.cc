// MatMul, Gemm, FusedMatMul and Einsum.
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

ValueId lead_ones(Emitter& e, ValueId v, int rank) {
  Shape s = e.shape(v);
  s.insert(s.begin(), static_cast<size_t>(rank) - s.size(), 1);
  return e.reshape(v, s);
}

// NumPy's matmul. A matrix on the right (a weight) meets all leading dimensions of the left as rows: one product, whose
// weight gradient is one product too.
ValueId product(Conversion& c, ValueId a, ValueId b, bool transpose_a, bool transpose_b) {
  Emitter& e = c.e;
  int ra = e.rank(a), rb = e.rank(b);
  c.require(ra >= 1 && rb >= 1, "a scalar cannot be multiplied as a matrix");
  bool row = ra == 1, column = rb == 1;
  if (row) a = e.reshape(a, {1, e.shape(a)[0]});
  if (column) b = e.reshape(b, {e.shape(b)[0], 1});
  transpose_a &= !row;
  transpose_b &= !column;
  ra = e.rank(a), rb = e.rank(b);
  ValueId y;
  if (rb == 2 && ra > 2 && !transpose_a) {
    Shape s = e.shape(a);
    int64_t k = s.back();
    s.pop_back();
    y = e.matmul(e.reshape(a, {elements(s), k}), b, false, transpose_b);
    s.push_back(e.shape(y)[1]);
    y = e.reshape(y, s);
  } else {
    int r = std::max(ra, rb);
    y = e.matmul(lead_ones(e, a, r), lead_ones(e, b, r), transpose_a, transpose_b);
  }
  if (row || column) {
    Shape s = e.shape(y);
    if (column) s.erase(s.end() - 1);
    if (row) s.erase(s.end() - (column ? 1 : 2));
    y = e.reshape(y, s);
  }
  return y;
}

void matmul(Conversion& c) { c.out(product(c, c.in(0), c.in(1), false, false)); }

ValueId batch_transposed(Emitter& e, ValueId v) {  // [m, batch…, k] -> [batch…, m, k]
  int r = e.rank(v);
  if (r < 3) return v;
  std::vector<int64_t> p;
  for (int d = 1; d < r - 1; ++d) p.push_back(d);
  p.push_back(0);
  p.push_back(r - 1);
  return e.transpose(v, p);
}

void fused_matmul(Conversion& c) {
  ValueId a = c.in(0), b = c.in(1);
  if (c.i("transBatchA", 0) != 0) a = batch_transposed(c.e, a);
  if (c.i("transBatchB", 0) != 0) b = batch_transposed(c.e, b);
  ValueId y = product(c, a, b, c.i("transA", 0) != 0, c.i("transB", 0) != 0);
  c.out(c.e.scale(y, c.f("alpha", 1)));
}

void gemm(Conversion& c) {
  Emitter& e = c.e;
  c.require(c.rank(0) == 2 && c.rank(1) == 2, "expected two matrices");
  ValueId y = e.matmul(c.in(0), c.in(1), c.i("transA", 0) != 0, c.i("transB", 0) != 0);
  y = e.scale(y, c.f("alpha", 1));
  double beta = c.f("beta", 1);
  if (c.has(2) && beta != 0) {
    auto shape = broadcast_shapes(e.shape(y), c.shape(2));
    c.require(shape && *shape == e.shape(y), "input C must broadcast to the product's shape");
    y = e.add(y, e.scale(c.in(2), beta));
  }
  c.out(y);
}

// --- Einsum: operands are multiplied two at a time; labels that nobody needs any more are summed on the way.

using Labels = std::vector<int>;  // a letter, or 256 + position for a dimension of "..."

struct Term {
  ValueId value;
  Labels labels;
};

bool contains(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

struct Equation {
  std::vector<std::string> inputs;
  std::string output;
  bool explicit_output = false;
};

Equation parse_equation(const Conversion& c, std::string text) {
  std::erase(text, ' ');
  Equation out;
  if (size_t arrow = text.find("->"); arrow != std::string::npos) {
    out.output = text.substr(arrow + 2);
    out.explicit_output = true;
    text.resize(arrow);
  }
  for (size_t at = 0; at <= text.size();) {
    size_t end = std::min(text.find(',', at), text.size());
    out.inputs.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  c.require(static_cast<int>(out.inputs.size()) == c.count(),
            cat("the equation has ", out.inputs.size(), " terms for ", c.count(), " inputs"));
  return out;
}

// `ellipsis`: dimensions that "..." stands for here; they are right-aligned to labels 256 + 0 … widest - 1.
Labels labels_of(const Conversion& c, const std::string& term, int ellipsis, int widest) {
  Labels labels;
  for (size_t k = 0; k < term.size(); ++k) {
    if (term[k] == '.') {
      c.require(term.compare(k, 3, "...") == 0, "a '.' of the equation is not part of '...'");
      for (int d = 0; d < ellipsis; ++d) labels.push_back(256 + widest - ellipsis + d);
      k += 2;
    } else {
      bool letter = (term[k] >= 'a' && term[k] <= 'z') || (term[k] >= 'A' && term[k] <= 'Z');
      c.require(letter, cat("the equation has the character ", quote(std::string(1, term[k]))));
      labels.push_back(term[k]);
    }
  }
  return labels;
}

// Sums the diagonal of a repeated label, one pair at a time: times an identity matrix, then a sum over the second of
// the two.
Term without_repeats(Conversion& c, Term t) {
  Emitter& e = c.e;
  for (size_t i = 0; i < t.labels.size(); ++i) {
    for (size_t j = i + 1; j < t.labels.size(); ++j) {
      if (t.labels[i] != t.labels[j]) continue;
      const Shape& s = e.shape(t.value);
      c.require(s[i] == s[j], "dimensions of a repeated label differ");
      Shape a(s.size(), 1), b(s.size(), 1);
      a[i] = b[j] = s[i];
      ValueId eye = e.cast(e.eq(e.reshape(e.iota(s[i]), a), e.reshape(e.iota(s[i]), b)), e.dtype(t.value));
      t.value = e.sum(e.mul(t.value, eye), {static_cast<int64_t>(j)}, false);
      t.labels.erase(t.labels.begin() + static_cast<std::ptrdiff_t>(j--));
    }
  }
  return t;
}

Term sum_out(Emitter& e, Term t, const Labels& keep) {
  std::vector<int64_t> dims;
  Labels left;
  for (size_t k = 0; k < t.labels.size(); ++k) {
    if (contains(keep, t.labels[k])) {
      left.push_back(t.labels[k]);
    } else {
      dims.push_back(static_cast<int64_t>(k));
    }
  }
  return {e.sum(t.value, dims, false), left};
}

int64_t size_of(Emitter& e, const Term& t, int label) {
  auto at = std::find(t.labels.begin(), t.labels.end(), label);
  return at == t.labels.end() ? -1 : e.shape(t.value)[at - t.labels.begin()];
}

// Drops dimensions of size 1 that are larger in the other operand.
Term drop_broadcast(Emitter& e, Term t, const Term& other) {
  Shape s;
  Labels labels;
  for (size_t k = 0; k < t.labels.size(); ++k) {
    int64_t mine = e.shape(t.value)[k];
    if (mine == 1 && size_of(e, other, t.labels[k]) > 1) continue;
    s.push_back(mine);
    labels.push_back(t.labels[k]);
  }
  return {e.reshape(t.value, s), labels};
}

// Dimensions in the order of the groups, each group made one dimension but for the first (the batch), which stays.
ValueId arranged(Emitter& e, const Term& t, const Labels& batch, const Labels& second, const Labels& third) {
  std::vector<int64_t> permutation;
  Shape shape;
  auto place = [&](const Labels& group, bool merge) {
    int64_t n = 1;
    for (int label : group) {
      permutation.push_back(std::find(t.labels.begin(), t.labels.end(), label) - t.labels.begin());
      n *= e.shape(t.value)[permutation.back()];
      if (!merge) shape.push_back(e.shape(t.value)[permutation.back()]);
    }
    if (merge) shape.push_back(n);
  };
  place(batch, false);
  place(second, true);
  place(third, true);
  return e.reshape(e.transpose(t.value, permutation), shape);
}

Term multiply(Conversion& c, Term a, Term b, const Labels& keep) {
  Emitter& e = c.e;
  Term a1 = drop_broadcast(e, a, b), b1 = drop_broadcast(e, b, a);
  Labels keep_a = keep, keep_b = keep;
  keep_a.insert(keep_a.end(), b1.labels.begin(), b1.labels.end());
  keep_b.insert(keep_b.end(), a1.labels.begin(), a1.labels.end());
  a1 = sum_out(e, a1, keep_a);
  b1 = sum_out(e, b1, keep_b);
  Labels batch, contracted, rows, columns;
  for (int label : a1.labels)
    (!contains(b1.labels, label) ? rows : contains(keep, label) ? batch : contracted).push_back(label);
  for (int label : b1.labels) {
    if (!contains(a1.labels, label)) columns.push_back(label);
  }
  for (int label : a1.labels) {
    int64_t other = size_of(e, b1, label);
    c.require(other < 0 || other == size_of(e, a1, label), "dimensions of one label differ");
  }
  Labels labels = batch;
  labels.insert(labels.end(), rows.begin(), rows.end());
  labels.insert(labels.end(), columns.begin(), columns.end());
  Shape shape;
  for (int label : labels) shape.push_back(std::max(size_of(e, a1, label), size_of(e, b1, label)));
  ValueId y;
  if (contracted.empty()) {
    y = e.mul(arranged(e, a1, batch, rows, {}), arranged(e, b1, batch, {}, columns));
  } else {
    y = e.matmul(arranged(e, a1, batch, rows, contracted), arranged(e, b1, batch, contracted, columns));
  }
  return {e.reshape(y, shape), labels};
}

void einsum(Conversion& c) {
  Emitter& e = c.e;
  Equation equation = parse_equation(c, c.s("equation", ""));
  std::vector<int> ellipsis(equation.inputs.size(), 0);
  int widest = 0;
  for (size_t k = 0; k < equation.inputs.size(); ++k) {
    const std::string& term = equation.inputs[k];
    bool dots = term.find('.') != std::string::npos;
    ellipsis[k] = dots ? c.rank(static_cast<int>(k)) - (static_cast<int>(term.size()) - 3) : 0;
    c.require(ellipsis[k] >= 0, "a term of the equation has more labels than its input has dimensions");
    widest = std::max(widest, ellipsis[k]);
  }
  std::vector<Term> terms;
  std::vector<int> uses(512, 0);
  for (size_t k = 0; k < equation.inputs.size(); ++k) {
    Term t{c.in(static_cast<int>(k)), labels_of(c, equation.inputs[k], ellipsis[k], widest)};
    c.require(static_cast<int>(t.labels.size()) == e.rank(t.value),
              "a term of the equation does not fit its input's rank");
    for (int label : t.labels) ++uses[label];
    terms.push_back(without_repeats(c, std::move(t)));
  }
  Labels output;
  if (equation.explicit_output) {
    output = labels_of(c, equation.output, equation.output.find('.') != std::string::npos ? widest : 0, widest);
  } else {
    for (int d = 0; d < widest; ++d) output.push_back(256 + d);
    for (int label = 0; label < 256; ++label) {
      if (uses[label] == 1) output.push_back(label);
    }
  }
  for (size_t k = 0; k < output.size(); ++k) {
    c.require(uses[output[k]] > 0 && std::count(output.begin(), output.end(), output[k]) == 1,
              "the equation's result has a label twice or one that no input has");
  }
  Term result = terms[0];
  for (size_t k = 1; k < terms.size(); ++k) {
    Labels keep = output;
    for (size_t j = k + 1; j < terms.size(); ++j)
      keep.insert(keep.end(), terms[j].labels.begin(), terms[j].labels.end());
    result = multiply(c, std::move(result), terms[k], keep);
  }
  result = sum_out(e, std::move(result), output);
  std::vector<int64_t> permutation;
  for (int label : output)
    permutation.push_back(std::find(result.labels.begin(), result.labels.end(), label) - result.labels.begin());
  c.out(e.transpose(result.value, permutation));
}

constexpr ConvertEntry kTable[] = {
    {"MatMul", 1, matmul},
    {"Gemm", 7, gemm},
    {"Einsum", 12, einsum},
    {"FusedMatMul", 1, fused_matmul, "com.microsoft"},
    {"TransposeMatMul", 1, fused_matmul, "com.microsoft"},
};

}  // namespace

std::span<const ConvertEntry> contraction_table() { return kTable; }

}  // namespace partita

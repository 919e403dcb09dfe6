// Attention and RotaryEmbedding.
#include <cmath>
#include <limits>

#include "base/cat.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

// [b, s, h*d] -> [b, h, s, d].
ValueId heads(Conversion& c, ValueId v, int64_t count) {
  Emitter& e = c.e;
  Shape s = e.shape(v);
  if (s.size() == 4) return v;
  c.require(s.size() == 3 && count > 0 && s[2] % count == 0,
            "expected [batch, sequence, heads * size] and the number of heads, or rank 4");
  return e.transpose(e.reshape(v, {s[0], s[1], count, s[2] / count}), {0, 2, 1, 3});
}

ValueId merged(Emitter& e, ValueId v) {
  Shape s = e.shape(v);
  return e.reshape(e.transpose(v, {0, 2, 1, 3}), {s[0], s[2], s[1] * s[3]});
}

// To rank 4, and as long as the keys: what the mask does not name is not attended.
ValueId full_mask(Conversion& c, ValueId mask, int64_t keys, DType type) {
  Emitter& e = c.e;
  Shape s = e.shape(mask);
  c.require(s.size() <= 4 && !s.empty(), "the mask's rank must be 1 to 4");
  bool flags = e.dtype(mask) == DType::kBool;
  if (!flags) mask = e.cast(mask, type);
  s.insert(s.begin(), 4 - s.size(), 1);
  mask = e.reshape(mask, s);
  if (s[3] != 1 && s[3] < keys)
    mask = e.pad(mask, flags ? e.scalar(DType::kBool, 0) : e.scalar(type, -std::numeric_limits<double>::infinity()),
                 {0, 0, 0, 0}, {0, 0, 0, keys - s[3]});
  return mask;
}

ValueId causal_mask(Emitter& e, int64_t queries, int64_t keys, int64_t offset) {
  ValueId row = e.add(e.reshape(e.iota(queries), {1, 1, queries, 1}), e.ints(DType::kI64, {}, {offset}));
  return e.le(e.reshape(e.iota(keys), {1, 1, 1, keys}), row);
}

void attention(Conversion& c) {
  Emitter& e = c.e;
  bool special = c.f("softcap", 0) != 0 || c.wants(3) || c.has(6) || c.i("left_window_size", -1) >= 0 ||
                 c.i("right_window_size", -1) >= 0;
  if (special) throw UseFunctionBody{};
  bool packed = c.rank(0) == 3;
  ValueId q = heads(c, c.in(0), c.i("q_num_heads", 0)), k = heads(c, c.in(1), c.i("kv_num_heads", 0)),
          v = heads(c, c.in(2), c.i("kv_num_heads", 0));
  c.require(e.rank(q) == 4 && e.rank(k) == 4 && e.rank(v) == 4, "expected [batch, heads, sequence, size]");
  int64_t past = 0, own = e.shape(k)[2];
  if (c.has(4)) {
    c.require(c.rank(4) == 4 && c.has(5), "past_key and past_value must be given together, with rank 4");
    past = c.shape(4)[2];
    k = e.concat({c.in(4), k}, 2);
    v = e.concat({c.in(5), v}, 2);
  }
  int64_t queries = e.shape(q)[2], keys = e.shape(k)[2];
  bool causal = c.i("is_causal", 0) != 0;
  ValueId mask = c.has(3) ? full_mask(c, c.in(3), keys, e.dtype(q)) : kNoValue;
  if (causal && own != queries) {  // the IR's causal mask is aligned to the last key
    ValueId own_mask = causal_mask(e, queries, keys, past);
    mask = mask == kNoValue ? own_mask
           : e.dtype(mask) == DType::kBool
               ? e.emit("and", {mask, own_mask})
               : e.select(own_mask, mask, e.like(mask, -std::numeric_limits<double>::infinity()));
    causal = false;
  }
  double scale = c.f("scale", 1 / std::sqrt(static_cast<double>(e.shape(q)[3])));
  std::vector<ValueId> in = {q, k, v};
  if (mask != kNoValue) in.push_back(mask);
  ValueId y = e.emit_all("attention", in, {{"scale", scale}, {"causal", int64_t{causal}}})[0];
  c.out(0, packed ? merged(e, y) : y);
  c.out(1, k);
  c.out(2, v);
}

ValueId rotate(Conversion& c, ValueId x, ValueId cosine, ValueId sine, bool interleaved) {
  Emitter& e = c.e;
  for (ValueId* table : {&cosine, &sine}) {  // [b, s, r/2] -> [b, 1, s, r/2]
    Shape s = e.shape(*table);
    c.require(s.size() == 3 && s == e.shape(sine), "cosine and sine must be [batch, sequence, size / 2]");
    *table = e.reshape(e.cast(*table, e.dtype(x)), {s[0], 1, s[1], s[2]});
  }
  c.require(2 * e.shape(cosine)[3] <= e.shape(x)[3], "the rotated part is larger than a head");
  return e.emit("rotary", {x, cosine, sine}, {{"interleaved", int64_t{interleaved}}});
}

void rotary_embedding(Conversion& c) {
  Emitter& e = c.e;
  bool packed = c.rank(0) == 3;
  ValueId x = heads(c, c.in(0), c.i("num_heads", 0));
  ValueId tables[2];
  for (int k : {1, 2}) {
    c.services.never_train(c.in(k));
    tables[k - 1] = c.has(3) ? e.gather(c.in(k), c.in(3), 0) : c.in(k);
  }
  ValueId y = rotate(c, x, tables[0], tables[1], c.i("interleaved", 0) != 0);
  c.out(packed ? merged(e, y) : y);
}

// com.microsoft: (input, position_ids, cos_cache, sin_cache); one position id is the first of a run.
void rotary_embedding_microsoft(Conversion& c) {
  Emitter& e = c.e;
  bool packed = c.rank(0) == 3;
  int64_t head = 2 * c.shape(2)[c.rank(2) - 1], rotated = c.i("rotary_embedding_dim", 0);
  int64_t count = c.i("num_heads", 0);
  if (packed && count == 0) count = rotated == 0 && head > 0 ? c.shape(0)[2] / head : 0;
  ValueId x = heads(c, c.in(0), count), positions = c.in(1);
  Shape s = e.shape(x);
  if (elements(e.shape(positions)) == 1 && s[0] * s[2] != 1) {
    positions = e.broadcast_to(
        e.add(e.reshape(positions, {1, 1}), e.reshape(e.iota(s[2], e.dtype(positions)), {1, s[2]})), {s[0], s[2]});
  }
  c.services.never_train(c.in(2));
  c.services.never_train(c.in(3));
  ValueId y =
      rotate(c, x, e.gather(c.in(2), positions, 0), e.gather(c.in(3), positions, 0), c.i("interleaved", 0) != 0);
  c.out(packed ? merged(e, y) : y);
}

constexpr ConvertEntry kTable[] = {
    {"Attention", 23, attention},
    {"RotaryEmbedding", 23, rotary_embedding},
    {"RotaryEmbedding", 1, rotary_embedding_microsoft, "com.microsoft"},
};

}  // namespace

std::span<const ConvertEntry> attention_table() { return kTable; }

}  // namespace partita

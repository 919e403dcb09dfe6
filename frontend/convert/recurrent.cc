// RNN, GRU and LSTM, unrolled over the sequence.
#include <algorithm>
#include <array>

#include "base/cat.h"
#include "base/quote.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

struct Activation {
  std::string name;
  double alpha = 0, beta = 0;
};

ValueId activate(Conversion& c, const Activation& a, ValueId x) {
  Emitter& e = c.e;
  ValueId zero = e.like(x, 0), positive = kNoValue;
  auto is_positive = [&] { return positive == kNoValue ? positive = e.lt(zero, x) : positive; };
  if (a.name == "Sigmoid") return e.emit("sigmoid", {x});
  if (a.name == "Tanh") return e.emit("tanh", {x});
  if (a.name == "Relu") return e.emit("relu", {x});
  if (a.name == "Affine") return e.shift(e.scale(x, a.alpha), a.beta);
  if (a.name == "LeakyRelu") return e.select(is_positive(), x, e.scale(x, a.alpha));
  if (a.name == "ThresholdedRelu") return e.select(e.lt(e.like(x, a.alpha), x), x, zero);
  if (a.name == "ScaledTanh") return e.scale(e.emit("tanh", {e.scale(x, a.beta)}), a.alpha);
  if (a.name == "HardSigmoid") return e.max(e.min(e.shift(e.scale(x, a.alpha), a.beta), e.like(x, 1)), zero);
  if (a.name == "Elu")
    return e.select(is_positive(), x, e.scale(e.emit("expm1", {e.select(is_positive(), zero, x)}), a.alpha));
  if (a.name == "Softsign") return e.div(x, e.shift(e.emit("abs", {x}), 1));
  if (a.name == "Softplus") return e.emit("softplus", {x});
  c.unsupported(cat("activation ", quote(a.name), " is not known"));
}

// What the three cells share: directions, weights of one direction, gates of one time step.
struct Recurrent {
  Conversion& c;
  Emitter& e = c.e;
  int gates;
  bool batch_first = c.i("layout", 0) != 0;
  std::string direction = c.s("direction", "forward");
  int64_t steps = 0, batch = 0, hidden = 0, directions = 1;
  double clip = c.f("clip", 0);
  std::vector<Activation> activations;
  ValueId x = kNoValue, lengths = kNoValue;

  Recurrent(Conversion& conversion, int gate_count, std::vector<std::string> defaults)
      : c(conversion), gates(gate_count) {
    c.require(c.rank(0) == 3 && c.rank(1) == 3 && c.rank(2) == 3, "expected X, W and R of rank 3");
    c.require(direction == "forward" || direction == "reverse" || direction == "bidirectional",
              cat("attribute direction: ", quote(direction), " is not known"));
    directions = direction == "bidirectional" ? 2 : 1;
    x = batch_first ? e.transpose(c.in(0), {1, 0, 2}) : c.in(0);
    steps = e.shape(x)[0], batch = e.shape(x)[1], hidden = c.shape(2)[2];
    c.require(c.i("hidden_size", hidden) == hidden, "attribute hidden_size differs from the weights");
    c.require(c.shape(1) == Shape({directions, gates * hidden, e.shape(x)[2]}) &&
                  c.shape(2) == Shape({directions, gates * hidden, hidden}),
              "the weights' shapes do not fit the input");
    c.require(steps > 0 && steps * directions <= 20000, "the sequence is empty or too long to unroll");
    read_activations(std::move(defaults));
    if (c.has(4) && !whole()) lengths = e.cast(c.in(4), DType::kI64);
  }

  bool whole() const {
    if (!e.is_known(c.in(4))) return false;
    auto v = c.known_ints(4, "sequence_lens");
    return std::all_of(v.begin(), v.end(), [&](int64_t n) { return n == steps; });
  }

  void read_activations(std::vector<std::string> defaults) {
    size_t per_direction = defaults.size();
    std::vector<std::string> names = c.strings("activations");
    if (names.empty()) {
      for (int64_t d = 0; d < directions; ++d) names.insert(names.end(), defaults.begin(), defaults.end());
    }
    c.require(names.size() == per_direction * static_cast<size_t>(directions),
              "attribute activations has the wrong length");
    std::vector<double> alpha = c.floats("activation_alpha"), beta = c.floats("activation_beta");
    size_t next_alpha = 0, next_beta = 0;  // listed only for those that have one
    auto take = [](const std::vector<double>& from, size_t& at, double otherwise) {
      return at < from.size() ? from[at++] : otherwise;
    };
    for (const std::string& name : names) {
      Activation a{name};
      if (name == "LeakyRelu") a.alpha = take(alpha, next_alpha, 0.01);
      if (name == "Elu" || name == "ThresholdedRelu") a.alpha = take(alpha, next_alpha, 1);
      if (name == "HardSigmoid") a.alpha = take(alpha, next_alpha, 0.2), a.beta = take(beta, next_beta, 0.5);
      if (name == "Affine" || name == "ScaledTanh")
        a.alpha = take(alpha, next_alpha, 1), a.beta = take(beta, next_beta, name == "Affine" ? 0 : 1);
      activations.push_back(a);
    }
  }

  ValueId act(int64_t d, size_t which, ValueId v) {
    if (clip > 0) v = e.max(e.min(v, e.like(v, clip)), e.like(v, -clip));
    return activate(
        c, activations[static_cast<size_t>(d) * (activations.size() / static_cast<size_t>(directions)) + which], v);
  }

  // Row `d` of input k: [directions, …] -> […].
  ValueId of_direction(int k, int64_t d) {
    Shape s = c.shape(k);
    c.require(!s.empty() && s[0] == directions, cat("input ", k, " does not fit the directions"));
    ValueId v = e.slice(c.in(k), 0, d, d + 1);
    s.erase(s.begin());
    return e.reshape(v, s);
  }

  ValueId initial(int k, int64_t d) {
    if (!c.has(k)) return e.full(e.dtype(x), {batch, hidden}, 0);
    ValueId all = batch_first ? e.transpose(c.in(k), {1, 0, 2}) : c.in(k);
    c.require(e.shape(all) == Shape({directions, batch, hidden}),
              cat("input ", k, " (an initial state) has the wrong shape"));
    return e.reshape(e.slice(all, 0, d, d + 1), {batch, hidden});
  }

  // Gate g of [batch, gates * hidden].
  ValueId gate(ValueId all, int64_t g) { return e.slice(all, e.rank(all) - 1, g * hidden, (g + 1) * hidden); }

  // X W^T + biases for all steps at once: [steps, batch, gates * hidden]. `with_recurrent_bias`: both halves of B.
  ValueId projected(int64_t d, bool with_recurrent_bias) {
    ValueId flat = e.reshape(x, {steps * batch, e.shape(x)[2]});
    ValueId y = e.matmul(flat, of_direction(1, d), false, true);
    if (c.has(3)) {
      ValueId b = of_direction(3, d);
      c.require(e.shape(b) == Shape{2 * gates * hidden}, "input B has the wrong shape");
      ValueId bias = e.slice(b, 0, 0, gates * hidden);
      if (with_recurrent_bias) {
        ValueId recurrent = recurrent_bias(d);
        // Keras's LSTM and SimpleRNN have one bias. Trained, the zeros that stand for the other would move as it does.
        if (c.services.producer() == "tf2onnx") recurrent = e.emit("stop_gradient", {recurrent});
        bias = e.add(bias, recurrent);
      }
      y = e.add(y, bias);
    }
    return e.reshape(y, {steps, batch, gates * hidden});
  }

  ValueId recurrent_bias(int64_t d) { return e.slice(of_direction(3, d), 0, gates * hidden, 2 * gates * hidden); }

  ValueId at(ValueId all, int64_t t) { return e.reshape(e.slice(all, 0, t, t + 1), {batch, e.shape(all)[2]}); }

  // Beyond a sequence's length the state stays and the output is zero.
  ValueId kept(int64_t t, ValueId now, ValueId before) {
    if (lengths == kNoValue) return now;
    return e.select(e.lt(e.ints(DType::kI64, {}, {t}), e.reshape(lengths, {batch, 1})), now, before);
  }

  // Runs `cell(direction, t)` -> output of the step; collects Y and returns final states per direction through `last`.
  template <typename Cell, typename Last>
  void run(const Cell& cell, const Last& last, int states) {
    std::vector<std::vector<ValueId>> finals(static_cast<size_t>(states));
    std::vector<ValueId> lines;
    for (int64_t d = 0; d < directions; ++d) {
      bool backward = direction == "reverse" || d == 1;
      std::vector<ValueId> outputs(static_cast<size_t>(steps));
      auto step = cell(d);
      for (int64_t k = 0; k < steps; ++k) {
        int64_t t = backward ? steps - 1 - k : k;
        ValueId h = step(t);
        outputs[static_cast<size_t>(t)] = e.reshape(kept(t, h, e.like(h, 0)), {1, 1, batch, hidden});
      }
      if (c.wants(0)) lines.push_back(e.concat(outputs, 0));
      for (int s = 0; s < states; ++s) finals[static_cast<size_t>(s)].push_back(e.reshape(last(s), {1, batch, hidden}));
    }
    if (c.wants(0)) {
      ValueId y = e.concat(lines, 1);
      c.out(0, batch_first ? e.transpose(y, {2, 0, 1, 3}) : y);
    }
    for (int s = 0; s < states; ++s) {
      if (!c.wants(s + 1)) continue;
      ValueId v = e.concat(finals[static_cast<size_t>(s)], 0);
      c.out(s + 1, batch_first ? e.transpose(v, {1, 0, 2}) : v);
    }
  }
};

void rnn(Conversion& c) {
  Recurrent r(c, 1, {"Tanh"});
  Emitter& e = c.e;
  ValueId h = kNoValue;
  r.run(
      [&](int64_t d) {
        ValueId xw = r.projected(d, true), recurrent = r.of_direction(2, d);
        h = r.initial(5, d);
        return [&, d, xw, recurrent](int64_t t) {
          ValueId now = r.act(d, 0, e.add(r.at(xw, t), e.matmul(h, recurrent, false, true)));
          return h = r.kept(t, now, h);
        };
      },
      [&](int) { return h; }, 1);
}

void gru(Conversion& c) {
  Recurrent r(c, 3, {"Sigmoid", "Tanh"});
  Emitter& e = c.e;
  bool linear_first = c.i("linear_before_reset", 0) != 0;
  ValueId h = kNoValue;
  r.run(
      [&](int64_t d) {
        int64_t n = r.hidden;
        ValueId xw = r.projected(d, false), recurrent = r.of_direction(2, d);
        ValueId rzr = e.slice(recurrent, 0, 0, 2 * n), rh = e.slice(recurrent, 0, 2 * n, 3 * n);
        ValueId bias = c.has(3) ? r.recurrent_bias(d) : kNoValue;
        h = r.initial(5, d);
        return [&, d, n, xw, rzr, rh, bias](int64_t t) {
          ValueId x = r.at(xw, t), zr = e.add(e.slice(x, 1, 0, 2 * n), e.matmul(h, rzr, false, true));
          if (bias != kNoValue) zr = e.add(zr, e.slice(bias, 0, 0, 2 * n));
          ValueId z = r.act(d, 0, r.gate(zr, 0)), reset = r.act(d, 0, r.gate(zr, 1));
          auto biased = [&](ValueId v) { return bias == kNoValue ? v : e.add(v, e.slice(bias, 0, 2 * n, 3 * n)); };
          ValueId inner = linear_first ? e.mul(reset, biased(e.matmul(h, rh, false, true)))
                                       : biased(e.matmul(e.mul(reset, h), rh, false, true));
          ValueId candidate = r.act(d, 1, e.add(r.gate(x, 2), inner));
          ValueId now = e.add(e.mul(e.sub(e.like(z, 1), z), candidate), e.mul(z, h));
          return h = r.kept(t, now, h);
        };
      },
      [&](int) { return h; }, 1);
}

void lstm(Conversion& c) {
  Recurrent r(c, 4, {"Sigmoid", "Tanh", "Tanh"});
  Emitter& e = c.e;
  bool coupled = c.i("input_forget", 0) != 0;
  ValueId h = kNoValue, cell = kNoValue;
  r.run(
      [&](int64_t d) {
        ValueId xw = r.projected(d, true), recurrent = r.of_direction(2, d);
        ValueId peephole = c.has(7) ? r.of_direction(7, d) : kNoValue;
        h = r.initial(5, d);
        cell = r.initial(6, d);
        return [&, d, xw, recurrent, peephole](int64_t t) {
          ValueId all = e.add(r.at(xw, t), e.matmul(h, recurrent, false, true));  // gates i, o, f, c
          auto peek = [&](int64_t g, ValueId v, ValueId state) {
            return peephole == kNoValue ? v : e.add(v, e.mul(r.gate(peephole, g), state));
          };
          ValueId i = r.act(d, 0, peek(0, r.gate(all, 0), cell));
          ValueId f = coupled ? e.sub(e.like(i, 1), i) : r.act(d, 0, peek(2, r.gate(all, 2), cell));
          ValueId now = e.add(e.mul(f, cell), e.mul(i, r.act(d, 1, r.gate(all, 3))));
          ValueId o = r.act(d, 0, peek(1, r.gate(all, 1), now));
          ValueId out = e.mul(o, r.act(d, 2, now));
          cell = r.kept(t, now, cell);
          return h = r.kept(t, out, h);
        };
      },
      [&](int s) { return s == 0 ? h : cell; }, 2);
}

constexpr ConvertEntry kTable[] = {{"RNN", 7, rnn}, {"GRU", 7, gru}, {"LSTM", 7, lstm}};

}  // namespace

std::span<const ConvertEntry> recurrent_table() { return kTable; }

}  // namespace partita

// A block may be divided among ranks, so its largest value is found in two steps: of pieces of a row, then of the
// block's pieces. Where a rank's border is one of pieces but not of blocks, what travels is a number for each piece:
//
//   [m, 768] -> pieces [m, 24, 32] -> largest [m, 24] -> [m, 3, 8] -> largest [m, 3]
#include "passes/training/block_codes.h"

#include <limits>
#include <numeric>

namespace partita {
namespace {

constexpr int64_t kBlock = 256, kPiece = 32;
constexpr int64_t kSmallestCoded = 4096;

bool has_whole_blocks(const Shape& shape) { return shape.back() % kBlock == 0; }
int64_t piece_of(const Shape& shape) { return std::gcd(shape.back(), kPiece); }
int64_t blocks_of(const Shape& shape) { return (elements(shape) + kBlock - 1) / kBlock; }
int64_t last_dim(const Shape& shape) { return static_cast<int64_t>(shape.size()) - 1; }

// The last dimension in parts of `size`.
Shape in_parts_of(Shape shape, int64_t size) {
  shape.back() /= size;
  shape.push_back(size);
  return shape;
}
Shape in_pieces(const Shape& shape) { return in_parts_of(shape, piece_of(shape)); }
// [.., 256 / piece] for blocks of pieces, [.., 1] for their scales.
Shape of_blocks(const Shape& shape, int64_t size) {
  Shape blocks = block_scales_shape(shape);
  blocks.push_back(size);
  return blocks;
}

// Of pieces that follow each other, of shape [elements / piece].
Attrs to_blocks(const Shape& shape) {
  const int64_t piece = piece_of(shape);
  return {{"low", std::vector<int64_t>{0}},
          {"high", std::vector<int64_t>{(blocks_of(shape) * kBlock - elements(shape)) / piece}}};
}

ValueId largest_of_blocks(Builder& b, ValueId pieces, const Shape& shape) {
  const int64_t piece = piece_of(shape), many = elements(shape) / piece;
  ValueId largest = b.reduce("reduce_max", b.emit("abs", {pieces}), {last_dim(in_pieces(shape))}, false);
  if (blocks_of(shape) * kBlock != elements(shape))
    largest = b.emit("pad", {b.reshape(largest, {many}), b.scalar(b.dtype(largest), 0)}, to_blocks(shape));
  const Shape blocks = of_blocks(shape, kBlock / piece);
  return b.reduce("reduce_max", b.reshape(largest, blocks), {last_dim(blocks)}, false);
}

// A block's number for each of its pieces: [.., 1] where pieces are [.., piece].
ValueId of_pieces(Builder& b, ValueId scales, const Shape& shape) {
  const int64_t piece = piece_of(shape), many = elements(shape) / piece;
  ValueId all = b.broadcast_to(b.reshape(scales, of_blocks(shape, 1)), of_blocks(shape, kBlock / piece));
  if (blocks_of(shape) * kBlock != elements(shape)) {
    all = b.emit("slice", {b.reshape(all, {blocks_of(shape) * kBlock / piece})},
                 {{"starts", std::vector<int64_t>{0}},
                  {"limits", std::vector<int64_t>{many}},
                  {"strides", std::vector<int64_t>{1}}});
  }
  Shape one = in_pieces(shape);
  one.back() = 1;
  return b.reshape(all, one);
}

}  // namespace

bool has_block_codes(const Shape& shape) { return elements(shape) >= kSmallestCoded; }

Shape block_scales_shape(const Shape& shape) {
  if (!has_whole_blocks(shape)) return {blocks_of(shape)};
  Shape scales = shape;
  scales.back() /= kBlock;
  return scales;
}

BlockCodes block_codes(Builder& b, ValueId v, bool has_sign) {
  const Shape shape = b.shape(v);
  if (!has_block_codes(shape)) return {v};
  ValueId pieces = b.reshape(v, in_pieces(shape)), scales = largest_of_blocks(b, pieces, shape);
  // Of zeros alone every share is zero.
  ValueId divisor = b.emit("max", {scales, b.scalar(b.dtype(v), std::numeric_limits<float>::min())});
  ValueId shares = b.div(pieces, of_pieces(b, divisor, shape));
  return {b.reshape(b.emit("dynamic_code", {shares}, {{"signed", int64_t{has_sign}}}), shape), scales};
}

ValueId decoded(Builder& b, const BlockCodes& of, bool has_sign) {
  if (of.scales == kNoValue) return of.codes;
  const Shape shape = b.shape(of.codes);
  ValueId shares = b.emit("dynamic_value", {b.reshape(of.codes, in_pieces(shape))},
                          {{"signed", int64_t{has_sign}}, {"to", b.dtype(of.scales)}});
  return b.reshape(b.mul(shares, of_pieces(b, of.scales, shape)), shape);
}

}  // namespace partita

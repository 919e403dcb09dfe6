// The text form of a graph, for dumps, golden tests and bug reports; parse_graph (parse.h) reads it back to the same
// graph.
//
//   graph "mlp"
//   origin "MatMul '/fc/MatMul'"
//   input %0 f32[2,3] data "x"
//   state %1 f32[3,4] parameter "w" initial file "w.bin" 0 48 next %5
//   constant %2 f32[] = [0.5]
//   %3 f32[2,4] = matmul(%0, %1) {transpose_a=0, transpose_b=0} @forward origin 0 block 1
//   %4 f32[2,2] "top", %5 i64[2,2] = topk(%3) {dim=1, k=2, largest=1} @forward
//   output "y" %4
//
// '_' is an absent input; '#' starts a comment. Doubles are written so that they read back to the same bits; a literal
// of more than 64 elements is `hex` and its bytes as stored. Value ids are those of the graph.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ir/graph/graph.h"

namespace partita {

enum class TextMode {
  kExact,  // everything
  kDump,   // for people: long literals are `elided` with their checksum, which parse_graph refuses
};

std::string print(const Graph& graph, TextMode mode = TextMode::kExact);

// A literal's elements as "[0.5, 1.0]", or "" where they are more than 64 or would not read back to the same bytes.
std::string values_text(const Literal& literal);
// The opposite: one element as text to a literal's bytes; nullopt where `text` is no value of the type.
std::optional<Literal> element_literal(DType dtype, std::string_view text);

// A double so that it reads back as one, to the same bits: "0.5", "1.0", "-inf", a NaN as "nan" or its bits
// "0x7ff8000000000001".
std::string double_text(double value);
std::optional<double> parse_double(std::string_view text);
// "text" with \" \\ \n and \xNN.
std::string string_text(std::string_view text);

}  // namespace partita

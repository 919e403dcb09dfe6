// Products that wait for a collective, or that one waits for, are cut into parts of rows: what one part sends or needs
// travels while another one is computed.
//
//   whole          | gather ······ | product ·········· | scatter ······ |
//   in two parts   | gather 1 ···  | product 1 | product 2 |
//                                  | gather 2 ···          | scatter 2 ·· |
//                                              | scatter 1 ·· |
//
// as asynchronous tensor parallelism does (Wang et al., 2023; PyTorch's async TP, Megatron's --tp-comm-overlap). Rows
// alone are cut, never what is summed over: each result has the bits that it had.
#pragma once

#include "partitioner/localize/local_program.h"

namespace partita {

// Cuts what lies between a collective of a micro-batch's values (a gather, a scattered or completed sum) and the
// products beside it, and what is computed row by row between these, into `parts` each, where the rows divide. Others
// read the parts joined. Gradients of weights, which need all rows, go behind the next sum of the same pass, and are
// computed while it travels. Returns how many products are cut; the program stays as it was where none is.
int64_t overlap_products(LocalProgram& program, int64_t parts);

}  // namespace partita

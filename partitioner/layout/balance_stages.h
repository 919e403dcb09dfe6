// Where to cut a chain of pieces of work into stages.
#pragma once

#include <cstdint>
#include <vector>

namespace partita {

struct CutPiece {
  double work = 0;      // seconds, or anything that adds up
  double crossing = 0;  // the same for what has to be sent where a cut is made before this piece
};

// The stage of each piece, ascending and none left out: the slowest stage (its work and what is sent to it) is as fast
// as it can be, and of such cuts the sum of crossings is least. There are at least as many pieces as stages.
std::vector<int> balanced_stages(const std::vector<CutPiece>& pieces, int stages);

}  // namespace partita

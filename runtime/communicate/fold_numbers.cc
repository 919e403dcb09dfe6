#include "runtime/communicate/fold_numbers.h"

#include <algorithm>

#include "base/cat.h"

namespace partita::runtime {

std::string fold_numbers(std::vector<int> numbers) {
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    append(text, i == 0 ? "" : ", ", numbers[i]);
    if (last > i) append(text, last == i + 1 ? ", " : "-", numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace partita::runtime

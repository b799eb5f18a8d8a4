#include "layer_clock.hpp"

#include <time.h>

namespace rl {
namespace {

int64_t now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

void start(LayerClock* clock) {
  if (clock != nullptr) clock->since = now();
}

void lap(LayerClock* clock, Pass pass, int layer) {
  if (clock == nullptr) return;
  const int64_t time = now();
  clock->nanoseconds[pass][layer] += time - clock->since;
  clock->since = time;
}

}  // namespace rl

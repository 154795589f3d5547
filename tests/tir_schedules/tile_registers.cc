// AMX's registers and instructions in C, as Intel's manual defines them, for processors without them.
// What a program must not do ends it: a register that is too wide, or of no rows, or sizes that do not fit.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

struct Configuration {
  uint8_t palette, start, unused[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};

thread_local Configuration configuration;
thread_local uint8_t registers[8][16][64];

void need(int holds, const char *what) {
  if (holds) return;
  std::fprintf(stderr, "tile registers: expected %s\n", what);
  std::abort();
}

void configured(int i) {
  need(configuration.palette == 1, "a configuration");
  need(configuration.rows[i] >= 1 && configuration.rows[i] <= 16, "1 to 16 rows");
  need(configuration.bytes[i] >= 1 && configuration.bytes[i] <= 64 && configuration.bytes[i] % 4 == 0, "1 to 64 bytes");
}

void fit(int sums, int x, int weight) {
  configured(sums);
  configured(x);
  configured(weight);
  need(configuration.rows[sums] == configuration.rows[x], "as many rows of x as of sums");
  need(configuration.bytes[x] == 4 * configuration.rows[weight], "as many steps of x as rows of the weight");
  need(configuration.bytes[sums] == configuration.bytes[weight], "as many columns of sums as of the weight");
}

float widened(const uint8_t *at) {
  uint32_t bits = (uint32_t)(at[0] | at[1] << 8) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

}  // namespace

extern "C" {

void emulated_ldtilecfg(const void *from) {
  memcpy(&configuration, from, 64);
  memset(registers, 0, sizeof registers);
}

void emulated_halo_whole_tiles() {
  Configuration whole = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
  emulated_ldtilecfg(&whole);
}

void emulated_tilerelease(void) { memset(&configuration, 0, sizeof configuration); }

void emulated_tilezero(int8_t i) {
  configured(i);
  memset(registers[i], 0, sizeof registers[i]);
}

void emulated_tileloadd64(int8_t i, const uint8_t *from, int64_t stride) {
  configured(i);
  memset(registers[i], 0, sizeof registers[i]);
  for (int r = 0; r < configuration.rows[i]; ++r) memcpy(registers[i][r], from + r * stride, configuration.bytes[i]);
}

void emulated_tilestored64(int8_t i, uint8_t *to, int64_t stride) {
  configured(i);
  for (int r = 0; r < configuration.rows[i]; ++r) memcpy(to + r * stride, registers[i][r], configuration.bytes[i]);
}

}  // extern "C"

// `Byte`: what the bytes of x are.
template <typename Byte>
static void multiply_bytes(int8_t sums, int8_t x, int8_t weight) {
  fit(sums, x, weight);
  for (int r = 0; r < configuration.rows[sums]; ++r)
    for (int c = 0; c < configuration.bytes[sums] / 4; ++c) {
      int32_t *sum = (int32_t *)registers[sums][r] + c;
      for (int k = 0; k < configuration.bytes[x]; ++k)
        *sum += (Byte)registers[x][r][k] * (int8_t)registers[weight][k / 4][4 * c + k % 4];
    }
}

extern "C" {

void emulated_tdpbusd(int8_t sums, int8_t x, int8_t weight) { multiply_bytes<uint8_t>(sums, x, weight); }

void emulated_tdpbssd(int8_t sums, int8_t x, int8_t weight) { multiply_bytes<int8_t>(sums, x, weight); }

void emulated_tdpbf16ps(int8_t sums, int8_t x, int8_t weight) {
  fit(sums, x, weight);
  for (int r = 0; r < configuration.rows[sums]; ++r)
    for (int c = 0; c < configuration.bytes[sums] / 4; ++c) {
      float *sum = (float *)registers[sums][r] + c;
      for (int k = 0; k < configuration.bytes[x] / 2; ++k)
        *sum = std::fma(widened(registers[x][r] + 2 * k), widened(registers[weight][k / 2] + 4 * c + 2 * (k % 2)), *sum);
    }
}

// What LLVM calls to round float32 to bfloat16, to nearest even, where the processor has no instruction for it: the
// result is in the low half of the register that a float is returned in.
float __truncsfbf2(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  memcpy(&value, &bits, 4);
  return value;
}

}  // extern "C"

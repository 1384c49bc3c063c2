/*
 * Shared by decoding and training on a CPU: vectors, an exponential, and operations that must have the same bits in both.
 *
 * Where float32 products are added, PyTorch rounds the products first. A compiler may fuse a product with the following
 * addition, so such products are computed in `multiply`, which is never inlined.
 */
#ifndef COHORT_COMMON_H
#define COHORT_COMMON_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#ifndef HEAD_DIM
#define HEAD_DIM 64
#endif

#define LANES 8                     /* doubles in the widest vector register; compilers split it for smaller registers */
#define VECTORS (HEAD_DIM / LANES)  /* registers that hold one head */
#define HALF (HEAD_DIM / 2)
#define LEAST (-700.0)              /* exp(-700) is 1e-304, negligible next to the largest weight, which is 1 */
#define APART __attribute__((noinline, unused))

typedef double doubles __attribute__((vector_size(64)));
typedef double four __attribute__((vector_size(32)));
typedef double two __attribute__((vector_size(16)));
typedef int64_t longs __attribute__((vector_size(64)));
typedef float floats __attribute__((vector_size(32), aligned(4)));

/* Intrinsics where a conversion is one instruction: compilers split the portable ones into halves. */
#ifdef __AVX512F__
static inline doubles widened(const float *x) { return (doubles)_mm512_cvtps_pd(_mm256_loadu_ps(x)); }
static inline floats narrowed(doubles x) { return (floats)_mm512_cvtpd_ps((__m512d)x); }
#else
static inline doubles widened(const float *x) { return __builtin_convertvector(*(const floats *)x, doubles); }
static inline floats narrowed(doubles x) { return __builtin_convertvector(x, floats); }
#endif

/* Add halves to halves: three vector additions instead of a sum of single elements. */
static inline double total(doubles x) {
  four halves[2];
  two quarters[2];
  memcpy(halves, &x, sizeof x);
  halves[0] += halves[1];
  memcpy(quarters, halves, sizeof quarters);
  quarters[0] += quarters[1];
  return quarters[0][0] + quarters[0][1];
}

static inline doubles exponential(doubles x) {
  const doubles least = {LEAST, LEAST, LEAST, LEAST, LEAST, LEAST, LEAST, LEAST};
  const double magic = 6755399441055744.0; /* 1.5 * 2^52: adding it rounds to an integer in the low bits */
  longs low = x < least;
  x = (doubles)(((longs)x & ~low) | ((longs)least & low));
  doubles shifted = x * 1.4426950408889634074 + magic, n = shifted - magic;
  doubles r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10; /* ln 2 in two parts */
  doubles p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0; /* Taylor up to r^13: |r| <= ln 2 / 2 leaves 4e-18 */
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return p * (doubles)(((longs)shifted + 1023) << 52);
}

static APART void multiply(const float *a, const float *b, float *into, int64_t n) {
  for (int64_t i = 0; i < n; i++) into[i] = a[i] * b[i];
}

/*
 * Sum a contiguous row in PyTorch's order: `lanes` columns, each in four interleaved strands, strands of more than 16
 * summands in blocks. The lanes depend on the registers that PyTorch was built for; the caller finds out which.
 */
#define STRANDS 4
#define LEVELS 4
#define MOST_LANES 16
static inline void strand_sums(const float *x, int64_t lanes, int64_t count, float *sums) {
  int64_t wide = STRANDS * lanes, power = 4;
  float level[LEVELS][STRANDS * MOST_LANES];
  int64_t bits = 0;
  while (((int64_t)1 << bits) < count) bits++;
  if (bits / LEVELS > power) power = bits / LEVELS;
  int64_t step = (int64_t)1 << power, i = 0;
  memset(level, 0, sizeof level);
  while (i + step <= count) {
    for (int64_t end = i + step; i < end; i++)
      for (int64_t k = 0; k < wide; k++) level[0][k] += x[i * wide + k];
    for (int64_t j = 1; j < LEVELS; j++) {
      for (int64_t k = 0; k < wide; k++) level[j][k] += level[j - 1][k], level[j - 1][k] = 0;
      if (i & ((step - 1) << (j * power))) break;
    }
  }
  for (; i < count; i++)
    for (int64_t k = 0; k < wide; k++) level[0][k] += x[i * wide + k];
  for (int64_t j = 1; j < LEVELS; j++)
    for (int64_t k = 0; k < wide; k++) level[0][k] += level[j][k];
  memcpy(sums, level[0], wide * sizeof(float));
}

static inline float sum_in_order(const float *x, int64_t n, int64_t lanes) {
  float sums[STRANDS * MOST_LANES], result = 0;
  int64_t vectors = n / lanes, even = vectors / STRANDS;
  strand_sums(x, lanes, even, sums);
  for (int64_t i = even * STRANDS; i < vectors; i++)
    for (int64_t k = 0; k < lanes; k++) sums[k] += x[i * lanes + k];
  for (int64_t strand = 1; strand < STRANDS; strand++)
    for (int64_t k = 0; k < lanes; k++) sums[k] += sums[strand * lanes + k];
  for (int64_t i = vectors * lanes; i < n; i++) result += x[i];
  for (int64_t k = 0; k < lanes; k++) result += sums[k];
  return result;
}

/* RMSNorm of a row, summed in PyTorch's order. Returns 1 / root mean square. `squares`: [width]. */
static inline float norm_row(const float *hidden, const float *weight, float *normed, float *squares, int64_t width,
                             int64_t lanes, float epsilon) {
  multiply(hidden, hidden, squares, width);
  const float mean = sum_in_order(squares, width, lanes) / (float)width, scale = 1.0f / sqrtf(mean + epsilon);
  for (int64_t i = 0; i < width; i++) normed[i] = hidden[i] * scale * weight[i];
  return scale;
}

/* Rotate the first half of a head with the second, in place. `scratch`: [2 * HEAD_DIM]. */
static inline void turn(float *head, const float *cosines, const float *sines, float *scratch) {
  float *first = head, *second = head + HALF;
  multiply(first, cosines, scratch, HALF);
  multiply(second, sines, scratch + HALF, HALF);
  multiply(second, cosines, scratch + 2 * HALF, HALF);
  multiply(first, sines, scratch + 3 * HALF, HALF);
  for (int64_t i = 0; i < HALF; i++) first[i] = scratch[i] - scratch[HALF + i];
  for (int64_t i = 0; i < HALF; i++) second[i] = scratch[2 * HALF + i] + scratch[3 * HALF + i];
}

#endif

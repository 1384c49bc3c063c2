/*
 * The operations of a decode step between its matrix products: norm, rotary embedding, attention over each row's own keys, and
 * the random numbers of the next token.
 *
 * It gives the bits of the PyTorch reference implementation (ops/fused/cpu.py), with these differences:
 *
 * - a row is read only up to its own length, not to that of the longest row;
 * - keys and values stay float32 in memory, half of what the reference reads, and are widened in registers: scores, softmax and
 *   mixture are float64, rounded to float32 once, as in the trainer;
 * - a key head is read once for all query heads of its group, and the data of one head stays in the first cache.
 *
 * Compiled for one HEAD_DIM, so that a head's accumulators are registers. One call processes the rows of one thread; calls
 * share no memory that they write.
 *
 * `decode_layers` takes the rows through all layers. The caller passes in PyTorch's matrix product and exponential, so the bits
 * are the same, and nothing waits for Python between two operations.
 */
#include "common.h"

#define AHEAD 16 /* positions to prefetch */
#define LINE 16  /* floats in a cache line */

/* Query heads processed at once: 4, 2 or 1, as many as keep their accumulators in 16 registers, at least one. */
#define TOGETHER 4
static inline int64_t heads_at_once(int64_t left) {
  return left >= 4 && 4 * VECTORS <= 16 ? 4 : left >= 2 && 2 * VECTORS <= 16 ? 2 : 1;
}

/* The rows of one thread and their scratch memory. native.py parses the fields of this struct. */
struct rows {
  float *hidden, *delta, *normed; /* [rows, width] */
  float *squares;                 /* [width], and then 2 * HEAD_DIM */
  float *qkv;                     /* [rows, (query heads + 2 kv heads) * HEAD_DIM] */
  float *mixed;                   /* [rows, query heads * HEAD_DIM] */
  double *scores;                 /* [group, length + LANES] */
  const float *turns;             /* [length, HEAD_DIM]: cosines, then sines, of HALF angles */
  const int64_t *positions;       /* [rows] */
  int64_t count, width, kv_heads, length, sum_lanes;
  int64_t group;                  /* query heads per kv head */
  double scaling, epsilon;
};

/* hidden += delta, if given; normed = RMSNorm(hidden) * weight. */
void normalize(const struct rows *rows, const float *weight, int64_t with_delta) {
  const int64_t width = rows->width;
  for (int64_t b = 0; b < rows->count; b++) {
    float *hidden = rows->hidden + b * width;
    const float *delta = rows->delta + b * width;
    if (with_delta)
      for (int64_t i = 0; i < width; i++) hidden[i] += delta[i];
    norm_row(hidden, weight, rows->normed + b * width, rows->squares, width, rows->sum_lanes, (float)rows->epsilon);
  }
}

static inline void ask_for(const float *position) {
  for (int64_t i = 0; i < HEAD_DIM; i += LINE) __builtin_prefetch(position + AHEAD * HEAD_DIM + i);
}

/* The products of `these` queries with `count` keys, and the largest product of each query. */
static inline __attribute__((always_inline)) void score_heads(const float *queries, const float *keys, int64_t count,
                                                              double scaling, double *scores, int64_t stride, double *most,
                                                              const int these) {
  doubles query[TOGETHER][VECTORS];
  for (int g = 0; g < these; g++) {
    for (int j = 0; j < VECTORS; j++) query[g][j] = widened(queries + g * HEAD_DIM + j * LANES) * scaling;
    most[g] = -HUGE_VAL;
  }
  for (int64_t t = 0; t < count; t++) {
    const float *key = keys + t * HEAD_DIM;
    ask_for(key);
    doubles x = widened(key), sum[TOGETHER];
    for (int g = 0; g < these; g++) sum[g] = query[g][0] * x;
    for (int j = 1; j < VECTORS; j++) {
      x = widened(key + j * LANES);
      for (int g = 0; g < these; g++) sum[g] += query[g][j] * x;
    }
    for (int g = 0; g < these; g++) {
      double score = total(sum[g]);
      scores[g * stride + t] = score;
      most[g] = score > most[g] ? score : most[g];
    }
  }
}

/* The softmax weights of `count` keys for the queries of a group, not yet divided by their sums, and the sums. */
static inline void weigh(const float *queries, const float *keys, int64_t count, double scaling, double *scores, int64_t stride,
                         int64_t group, double *sums) {
  double most[group];
  for (int64_t g = 0, these; g < group; g += these) {
    these = heads_at_once(group - g);
    const float *own = queries + g * HEAD_DIM;
    if (these == 4) score_heads(own, keys, count, scaling, scores + g * stride, stride, most + g, 4);
    else if (these == 2) score_heads(own, keys, count, scaling, scores + g * stride, stride, most + g, 2);
    else score_heads(own, keys, count, scaling, scores + g * stride, stride, most + g, 1);
  }
  const int64_t whole = (count + LANES - 1) / LANES * LANES;
  for (int64_t g = 0; g < group; g++) {
    double *row = scores + g * stride;
    doubles sum = {0};
    for (int64_t t = count; t < whole; t++) row[t] = -HUGE_VAL;
    for (int64_t t = 0; t < whole; t += LANES) {
      doubles x;
      memcpy(&x, row + t, sizeof x);
      x = exponential(x - most[g]);
      if (t + LANES > count)
        for (int64_t k = count - t; k < LANES; k++) x[k] = 0;
      sum += x;
      memcpy(row + t, &x, sizeof x);
    }
    sums[g] = total(sum);
  }
}

static inline __attribute__((always_inline)) void mix_heads(const double *weights, int64_t stride, const double *sums,
                                                            const float *values, int64_t count, float *out, const int these) {
  doubles mixed[TOGETHER][VECTORS];
  for (int g = 0; g < these; g++)
    for (int j = 0; j < VECTORS; j++) mixed[g][j] = (doubles){0};
  for (int64_t t = 0; t < count; t++) {
    const float *value = values + t * HEAD_DIM;
    for (int j = 0; j < VECTORS; j++) {
      doubles x = widened(value + j * LANES);
      for (int g = 0; g < these; g++) mixed[g][j] += weights[g * stride + t] * x;
    }
  }
  for (int g = 0; g < these; g++)
    for (int j = 0; j < VECTORS; j++) {
      floats rounded = narrowed(mixed[g][j] / sums[g]);
      memcpy(out + g * HEAD_DIM + j * LANES, &rounded, sizeof rounded);
    }
}

/* The values mixed by the weights of a group. */
static inline void mix(const double *weights, int64_t stride, const double *sums, const float *values, int64_t count,
                       int64_t group, float *out) {
  for (int64_t g = 0, these; g < group; g += these) {
    these = heads_at_once(group - g);
    const double *own = weights + g * stride;
    if (these == 4) mix_heads(own, stride, sums + g, values, count, out + g * HEAD_DIM, 4);
    else if (these == 2) mix_heads(own, stride, sums + g, values, count, out + g * HEAD_DIM, 2);
    else mix_heads(own, stride, sums + g, values, count, out + g * HEAD_DIM, 1);
  }
}

/*
 * Rotate queries and keys, store keys and values, and attend: from rows->qkv to rows->mixed. window: 0 means all positions.
 * Returns the first row whose position is outside its slot, before anything is written, or -1.
 */
int64_t attend(const struct rows *rows, float *keys, float *values, int64_t window) {
  const int64_t kv_heads = rows->kv_heads, group = rows->group, length = rows->length, stride = length + LANES;
  const int64_t size = HEAD_DIM * sizeof(float);
  for (int64_t b = 0; b < rows->count; b++)
    if (rows->positions[b] < 0 || rows->positions[b] >= length) return b;
  for (int64_t b = 0; b < rows->count; b++) {
    const int64_t at = rows->positions[b], first = window && at >= window ? at - window + 1 : 0, count = at + 1 - first;
    float *queries = rows->qkv + b * kv_heads * (group + 2) * HEAD_DIM;
    float *new_keys = queries + kv_heads * group * HEAD_DIM, *new_values = new_keys + kv_heads * HEAD_DIM;
    for (int64_t head = 0; head < kv_heads * (group + 1); head++)
      turn(queries + head * HEAD_DIM, rows->turns + at * HEAD_DIM, rows->turns + at * HEAD_DIM + HALF, rows->squares);
    for (int64_t head = 0; head < kv_heads; head++) {
      const int64_t slot = (b * kv_heads + head) * length * HEAD_DIM;
      float *key = keys + slot, *value = values + slot;
      memcpy(key + at * HEAD_DIM, new_keys + head * HEAD_DIM, size);
      memcpy(value + at * HEAD_DIM, new_values + head * HEAD_DIM, size);
      const float *own = queries + head * group * HEAD_DIM;
      double sums[group];
      weigh(own, key + first * HEAD_DIM, count, rows->scaling, rows->scores, stride, group, sums);
      mix(rows->scores, stride, sums, value + first * HEAD_DIM, count, group,
          rows->mixed + (b * kv_heads + head) * group * HEAD_DIM);
    }
  }
  return -1;
}

/* -- all layers -------------------------------------------------------------------------------------------------------- */

typedef void (*gemm)(const char *, const char *, const int *, const int *, const int *, const float *, const float *, const int *,
                     const float *, const int *, const float *, float *, const int *);

typedef int (*set_threads)(int);

/* The adapter of a layer whose outputs begin at column `first` of the fused projection; up: [outputs, rank]. */
struct part {
  const float *up;
  int64_t rank, first, outputs;
  double scale;
};

struct adapters {
  const float *down; /* [rank, inputs]: all A stacked */
  const struct part *parts;
  int64_t count, rank;
};

struct layer {
  const float *input_norm, *qkv, *qkv_bias, *out, *post_norm, *gate_up, *down; /* weights [inputs, outputs]; bias: optional */
  float *keys, *values;                                                        /* of the first row */
  int64_t window;                                                              /* 0: none */
  const struct adapters *qkv_adapters, *out_adapters, *gate_up_adapters, *down_adapters; /* optional */
};

struct stack {
  const struct rows *rows;
  const struct layer *layers;
  int64_t count, query_width, intermediate;
  float *gate_up, *activated; /* [rows, 2 * intermediate], [rows, intermediate] */
  float *reduced;             /* [rows, largest rank of adapters] */
  const float *embedding, *norm;
  const int64_t *tokens;
  gemm product;
  void *exponential;         /* of sixteen floats */
  set_threads threads;       /* for the calling thread's products; returns the old number */
};

/* out = in weight, called as PyTorch does: its rows are the library's columns. */
static void multiply_rows(const struct stack *stack, const float *in, const float *weight, float *out, int64_t inputs,
                          int64_t outputs) {
  const int rows = (int)stack->rows->count, k = (int)inputs, n = (int)outputs;
  const float one = 1.0f, zero = 0.0f;
  stack->product("n", "n", &n, &rows, &k, &one, weight, &n, in, &k, &zero, out, &n);
}

/* out += scale up (down in) in the columns of each adapter: the products of Adapters.add_to (projection.py). */
static void add_adapters(const struct stack *stack, const struct adapters *adapters, const float *in, float *out, int64_t inputs,
                         int64_t outputs) {
  if (!adapters) return;
  const int rows = (int)stack->rows->count, k = (int)inputs, n = (int)outputs, whole = (int)adapters->rank;
  const float one = 1.0f, zero = 0.0f, *reduced = stack->reduced;
  stack->product("t", "n", &whole, &rows, &k, &one, adapters->down, &k, in, &k, &zero, stack->reduced, &whole);
  for (const struct part *part = adapters->parts; part < adapters->parts + adapters->count; part++) {
    const int rank = (int)part->rank, own = (int)part->outputs;
    const float scale = (float)part->scale;
    stack->product("t", "n", &own, &rows, &rank, &scale, part->up, &rank, reduced, &whole, &one, out + part->first, &n);
    reduced += rank;
  }
}

/*
 * activated = silu(gate) * up. PyTorch processes two registers at a time, and the remainder of all rows one by one, with
 * another exponential. Vectors must not span rows: `intermediate` is a multiple of sixteen.
 */
static void activate(const struct stack *stack) {
#ifdef __AVX512F__
  __m512 (*exponential)(__m512) = (__m512(*)(__m512))stack->exponential;
  const int64_t width = stack->intermediate, count = stack->rows->count * width, even = count / 32 * 32;
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < count; i += 16) {
    const float *gate = stack->gate_up + i / width * 2 * width + i % width, *up = gate + width;
    float *into = stack->activated + i;
    if (i < even) {
      const __m512 x = _mm512_loadu_ps(gate), minus = _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
      const __m512 silu = _mm512_div_ps(x, _mm512_add_ps(one, exponential(minus)));
      _mm512_storeu_ps(into, _mm512_mul_ps(silu, _mm512_loadu_ps(up)));
    } else
      for (int64_t k = 0; k < 16; k++) into[k] = gate[k] / (1.0f + expf(-gate[k])) * up[k];
  }
#else
  (void)stack;
#endif
}

/* From tokens to normed hidden states. Like `attend`, returns a row outside its slot, or -1. */
int64_t decode_layers(const struct stack *stack) {
  const struct rows *rows = stack->rows;
  const int64_t width = rows->width, qkv_width = stack->query_width + 2 * rows->kv_heads * HEAD_DIM;
  const int before = stack->threads(1);
  int64_t outside = -1;
  for (int64_t b = 0; b < rows->count; b++)
    memcpy(rows->hidden + b * width, stack->embedding + stack->tokens[b] * width, width * sizeof(float));
  for (int64_t number = 0; number < stack->count && outside < 0; number++) {
    const struct layer *layer = stack->layers + number;
    normalize(rows, layer->input_norm, number > 0);
    multiply_rows(stack, rows->normed, layer->qkv, rows->qkv, width, qkv_width);
    if (layer->qkv_bias)
      for (int64_t b = 0; b < rows->count; b++)
        for (int64_t i = 0; i < qkv_width; i++) rows->qkv[b * qkv_width + i] += layer->qkv_bias[i];
    add_adapters(stack, layer->qkv_adapters, rows->normed, rows->qkv, width, qkv_width);
    outside = attend(rows, layer->keys, layer->values, layer->window);
    multiply_rows(stack, rows->mixed, layer->out, rows->delta, stack->query_width, width);
    add_adapters(stack, layer->out_adapters, rows->mixed, rows->delta, stack->query_width, width);
    normalize(rows, layer->post_norm, 1);
    multiply_rows(stack, rows->normed, layer->gate_up, stack->gate_up, width, 2 * stack->intermediate);
    add_adapters(stack, layer->gate_up_adapters, rows->normed, stack->gate_up, width, 2 * stack->intermediate);
    activate(stack);
    multiply_rows(stack, stack->activated, layer->down, rows->delta, stack->intermediate, width);
    add_adapters(stack, layer->down_adapters, stack->activated, rows->delta, stack->intermediate, width);
  }
  normalize(rows, stack->norm, 1);
  stack->threads(before);
  return outside;
}

static inline uint32_t scrambled(uint32_t bits) {
  bits = (bits ^ bits >> 16) * 0x7FEB352Du;
  bits = (bits ^ bits >> 15) * 0x846CA68Bu;
  return bits ^ bits >> 16;
}

/* The negated random numbers of ops/noise.py, [count, vocabulary], to which its logarithms are applied. */
void uniforms(const int32_t *keys, const int32_t *positions, int64_t count, int64_t vocabulary, float *negative) {
  for (int64_t b = 0; b < count; b++) {
    const uint32_t first = (uint32_t)keys[2 * b], second = (uint32_t)keys[2 * b + 1];
    const uint32_t spread = (uint32_t)positions[b] * 0x9E3779B9u;
    const uint32_t outer = scrambled(scrambled(spread + first) ^ second), inner = scrambled(scrambled(spread ^ second) + first);
    for (int64_t v = 0; v < vocabulary; v++) {
      uint32_t bits = (uint32_t)v * 0x85EBCA6Bu ^ outer;
      bits = (bits ^ bits >> 16) * 0x7FEB352Du + inner;
      bits = (bits ^ bits >> 15) * 0x846CA68Bu;
      bits = (bits ^ bits >> 16) & 0x7FFFFFFFu;
      const float uniform = ((float)(int32_t)bits + 0.5f) * 0x1p-31f, largest = 1.0f - 0x1p-24f;
      negative[b * vocabulary + v] = -(uniform < largest ? uniform : largest);
    }
  }
}

/*
 * The operations of training on a CPU between its matrix products: norms, rotary embedding and causal attention, with their
 * gradients, and the gradient of SwiGLU.
 *
 * Forward results have the bits of decoding (decode.c): norms and rotations are the same functions, and attention is accumulated
 * in float64 and rounded to float32 once. Gradients need no particular bits. They are accumulated in float64 in
 * attention and in float32 elsewhere, always in the same order, whatever the number of threads.
 *
 * Work is split into tasks. Every thread calls the same function with the same struct and takes the next task until none is
 * left, so a thread that starts late takes fewer. No two tasks write to the same memory. native.py parses the fields of
 * the structs.
 */
#include "common.h"

#define CHUNK 32 /* rows per task where rows are independent */
#define BLOCK 16 /* queries of a head that attention processes at once */
#define TILE 4   /* rows, and vectors of columns, of a product in registers */

typedef double loose __attribute__((vector_size(64), aligned(8)));
typedef float many __attribute__((vector_size(64), aligned(4)));
typedef int32_t ints __attribute__((vector_size(64), aligned(4)));
#define MANY 16

#if defined(__x86_64__) && defined(__GLIBC__)
/* Under its older name, so that a wheel's file loads wherever torch does: glibc 2.29 renamed the function. */
__asm__(".symver log, log@GLIBC_2.2.5");
#endif

static inline doubles loaded(const double *x) { return *(const loose *)x; }
static inline void store(double *x, doubles y) { *(loose *)x = y; }
static inline int64_t claim(int64_t *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t whole(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

/* -- norms ------------------------------------------------------------------------------------------------------------ */

struct norm {
  int64_t next, rows, width, sum_lanes;
  double epsilon;
  const float *hidden, *delta, *weight; /* delta: optional; without it total is hidden */
  float *total, *normed, *inverse;
  const float *d_normed, *d_total; /* d_total: optional */
  float *d_input, *d_weight;       /* d_weight: [tasks, width], the part of each task; optional */
};

void add_norm_forward(struct norm *job) {
  const int64_t width = job->width;
  float squares[width];
  for (int64_t task; (task = claim(&job->next)) * CHUNK < job->rows;)
    for (int64_t row = task * CHUNK, end = least(row + CHUNK, job->rows); row < end; row++) {
      float *total = job->total + row * width;
      if (job->delta)
        for (int64_t i = 0; i < width; i++) total[i] = job->hidden[row * width + i] + job->delta[row * width + i];
      job->inverse[row] = norm_row(total, job->weight, job->normed + row * width, squares, width, job->sum_lanes,
                                   (float)job->epsilon);
    }
}

/* The gradient before the norm has no part along the row, whose length the norm removes. */
void add_norm_backward(struct norm *job) {
  const int64_t width = job->width;
  float units[width], d_units[width];
  for (int64_t task; (task = claim(&job->next)) * CHUNK < job->rows;) {
    float *d_weight = job->d_weight ? job->d_weight + task * width : 0;
    if (d_weight) memset(d_weight, 0, width * sizeof(float));
    for (int64_t row = task * CHUNK, end = least(row + CHUNK, job->rows); row < end; row++) {
      const float *total = job->total + row * width, *d_normed = job->d_normed + row * width, inverse = job->inverse[row];
      float *d_input = job->d_input + row * width, sums[MANY] = {0}, along = 0;
      for (int64_t i = 0; i < width; i++) units[i] = total[i] * inverse, d_units[i] = d_normed[i] * job->weight[i];
      int64_t i = 0;
      for (; i + MANY <= width; i += MANY)
        for (int64_t k = 0; k < MANY; k++) sums[k] += d_units[i + k] * units[i + k];
      for (; i < width; i++) along = fmaf(d_units[i], units[i], along); /* explicit, because only some compilers would fuse it */
      for (int64_t k = 0; k < MANY; k++) along += sums[k];
      along /= (float)width;
      for (i = 0; i < width; i++) d_input[i] = (d_units[i] - units[i] * along) * inverse;
      if (job->d_total)
        for (i = 0; i < width; i++) d_input[i] += job->d_total[row * width + i];
      if (job->normed)
        for (i = 0; i < width; i++) job->normed[row * width + i] = units[i] * job->weight[i];
      if (d_weight)
        for (i = 0; i < width; i++) d_weight[i] += d_normed[i] * units[i];
    }
  }
}

/* -- rotary embedding ------------------------------------------------------------------------------------------------- */

struct rotary {
  int64_t next, rows, query_heads, kv_heads;
  const float *qkv, *cosines, *sines; /* [rows, (query heads + 2 kv heads) * HEAD_DIM], [rows, HALF] twice */
  float *query, *key;                 /* [rows, heads, HEAD_DIM] */
  const float *d_query, *d_key, *d_value;
  float *d_qkv;
};

void rotary_forward(struct rotary *job) {
  const int64_t turned = job->query_heads + job->kv_heads, stride = (turned + job->kv_heads) * HEAD_DIM;
  float scratch[2 * HEAD_DIM];
  for (int64_t task; (task = claim(&job->next)) * CHUNK < job->rows;)
    for (int64_t row = task * CHUNK, end = least(row + CHUNK, job->rows); row < end; row++)
      for (int64_t head = 0; head < turned; head++) {
        float *into = head < job->query_heads ? job->query + (row * job->query_heads + head) * HEAD_DIM
                                              : job->key + (row * job->kv_heads + head - job->query_heads) * HEAD_DIM;
        memcpy(into, job->qkv + row * stride + head * HEAD_DIM, HEAD_DIM * sizeof(float));
        turn(into, job->cosines + row * HALF, job->sines + row * HALF, scratch);
      }
}

/* Rotating by the opposite angle is the transpose of a rotation. */
void rotary_backward(struct rotary *job) {
  const int64_t turned = job->query_heads + job->kv_heads, stride = (turned + job->kv_heads) * HEAD_DIM;
  for (int64_t task; (task = claim(&job->next)) * CHUNK < job->rows;)
    for (int64_t row = task * CHUNK, end = least(row + CHUNK, job->rows); row < end; row++) {
      const float *cosines = job->cosines + row * HALF, *sines = job->sines + row * HALF;
      float *into = job->d_qkv + row * stride;
      for (int64_t head = 0; head < turned; head++, into += HEAD_DIM) {
        const float *from = head < job->query_heads ? job->d_query + (row * job->query_heads + head) * HEAD_DIM
                                                    : job->d_key + (row * job->kv_heads + head - job->query_heads) * HEAD_DIM;
        for (int64_t i = 0; i < HALF; i++) into[i] = from[i] * cosines[i] + from[HALF + i] * sines[i];
        for (int64_t i = 0; i < HALF; i++) into[HALF + i] = from[HALF + i] * cosines[i] - from[i] * sines[i];
      }
      memcpy(into, job->d_value + row * job->kv_heads * HEAD_DIM, job->kv_heads * HEAD_DIM * sizeof(float));
    }
}

/* -- SwiGLU ----------------------------------------------------------------------------------------------------------- */

struct swiglu {
  int64_t next, rows, width;
  const float *d_activation, *gate_up; /* [rows, width], [rows, 2 * width] */
  float *d_gate_up, *activation;       /* activation: optional */
};

/* Infinite slightly before float32 overflows: a quotient is then 0 instead of a small number times a huge gate. */
static inline many exponential_float(many x) {
  const float magic = 12582912.0f; /* 1.5 * 2^23 */
  const many most = (many){0} + 87.0f, infinite = (many){0} + INFINITY;
  const ints low = x < -most, high = x > most;
  x = (many)(((ints)x & ~low & ~high) | ((ints)-most & low));
  const many shifted = x * 1.44269504f + magic, n = shifted - magic;
  const many r = (x - n * 0.693145752f) - n * 1.42860677e-6f; /* ln 2 in two parts */
  many p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  p = p * (many)(((ints)shifted + 127) << 23);
  return (many)(((ints)p & ~high) | ((ints)infinite & high));
}

/* For up to MANY columns: the gradients of gate and up, and optionally the activation. */
static inline void swiglu_columns(const struct swiglu *job, int64_t row, int64_t column, int64_t count) {
  const int64_t at = row * 2 * job->width + column;
  many gate = {0}, up = {0}, d_activation = {0};
  const size_t size = count * sizeof(float);
  memcpy(&gate, job->gate_up + at, size);
  memcpy(&up, job->gate_up + at + job->width, size);
  memcpy(&d_activation, job->d_activation + row * job->width + column, size);
  const many sigmoid = 1.0f / (1.0f + exponential_float(-gate)), silu = gate * sigmoid;
  const many d_gate = d_activation * up * (sigmoid + silu * (1.0f - sigmoid)), d_up = d_activation * silu;
  memcpy(job->d_gate_up + at, &d_gate, size);
  memcpy(job->d_gate_up + at + job->width, &d_up, size);
  if (job->activation) {
    const many activation = silu * up;
    memcpy(job->activation + row * job->width + column, &activation, size);
  }
}

void swiglu_backward(struct swiglu *job) {
  for (int64_t task; (task = claim(&job->next)) * CHUNK < job->rows;)
    for (int64_t row = task * CHUNK, end = least(row + CHUNK, job->rows); row < end; row++) {
      int64_t column = 0;
      for (; column + MANY <= job->width; column += MANY) swiglu_columns(job, row, column, MANY);
      if (column < job->width) swiglu_columns(job, row, column, job->width - column);
    }
}

/* -- attention -------------------------------------------------------------------------------------------------------- */

/*
 * Rows with a common prompt are a cluster; a row without a shared prompt is a cluster with an empty prompt. A task is a
 * cluster and a key head: its keys and values are widened once, and the gradients of the prompt's are summed within it.
 */
struct attention {
  int64_t next, clusters, query_heads, kv_heads;
  int64_t stride;                                                           /* of the scratch memory: the longest row, padded */
  const int64_t *prompt_start, *prompt_length, *first_row;                  /* [clusters]; first_row has one more */
  const int64_t *own_start, *own_length;                                    /* [rows] */
  const float *query, *key, *value;                                         /* [tokens, heads, HEAD_DIM] */
  int64_t query_stride, key_stride, value_stride;                           /* between tokens */
  double scaling;
  float *out;                                                               /* [tokens, query heads, HEAD_DIM] */
  double *lse;                                                              /* [tokens, query heads] */
  const float *d_out;
  float *d_query, *d_key, *d_value;                                         /* contiguous, like out */
};

/* Scratch memory of a thread: keys and values of a row, with contiguous dimensions, or (across) with contiguous positions. */
struct desk {
  double *keys_across, *values, *queries, *scores, *mixed;      /* forward */
  double *keys, *values_across, *d_keys, *d_values, *d_out, *d_scores; /* backward */
};

static struct desk lay_desk(double *memory, int64_t stride, int backward) {
  struct desk desk;
  double **kept[] = {&desk.keys_across, &desk.values, &desk.keys, &desk.values_across, &desk.d_keys, &desk.d_values};
  double **rows[] = {&desk.scores, &desk.d_scores}, **blocks[] = {&desk.queries, &desk.mixed, &desk.d_out};
  for (int i = 0; i < (backward ? 6 : 2); i++, memory += stride * HEAD_DIM) *kept[i] = memory;
  for (int i = 0; i < (backward ? 2 : 1); i++, memory += stride * BLOCK) *rows[i] = memory;
  for (int i = 0; i < (backward ? 3 : 2); i++, memory += BLOCK * HEAD_DIM) *blocks[i] = memory;
  return desk;
}

/* c = a b, or c += a b if add, for rows x cols vectors; `depth` columns of a and rows of b; element (i, k) of a is a[i * down + k * right]. */
static inline __attribute__((always_inline)) void tile(const double *a, int64_t down, int64_t right, const double *b,
                                                       int64_t b_stride, double *c, int64_t c_stride, int64_t depth, int rows,
                                                       int cols, int add) {
  doubles sum[TILE][TILE], x[TILE];
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < cols; j++) sum[i][j] = add ? loaded(c + i * c_stride + j * LANES) : (doubles){0};
  for (int64_t k = 0; k < depth; k++) {
    for (int j = 0; j < cols; j++) x[j] = loaded(b + k * b_stride + j * LANES);
    for (int i = 0; i < rows; i++) {
      const double y = a[i * down + k * right];
      for (int j = 0; j < cols; j++) sum[i][j] += y * x[j];
    }
  }
  for (int i = 0; i < rows; i++)
    for (int j = 0; j < cols; j++) store(c + i * c_stride + j * LANES, sum[i][j]);
}

static void product(const double *a, int64_t down, int64_t right, const double *b, int64_t b_stride, double *c, int64_t c_stride,
                    int64_t rows, int64_t cols, int64_t depth, int add) {
  for (int64_t i = 0; i < rows;) {
    const int tall = rows - i >= TILE;
    for (int64_t j = 0; j < cols;) {
      const int broad = cols - j >= TILE * LANES;
      const double *from = a + i * down, *by = b + j;
      double *into = c + i * c_stride + j;
      if (tall && broad) tile(from, down, right, by, b_stride, into, c_stride, depth, TILE, TILE, add);
      else if (tall) tile(from, down, right, by, b_stride, into, c_stride, depth, TILE, 1, add);
      else if (broad) tile(from, down, right, by, b_stride, into, c_stride, depth, 1, TILE, add);
      else tile(from, down, right, by, b_stride, into, c_stride, depth, 1, 1, add);
      j += broad ? TILE * LANES : LANES;
    }
    i += tall ? TILE : 1;
  }
}

/* Widen one head of `count` tokens into positions from `at` on; `together` and `across` are optional. */
static void widen(const float *from, int64_t stride, int64_t count, int64_t at, double *together, double *across,
                  int64_t across_stride) {
  for (int64_t t = 0; t < count; t++, from += stride)
    for (int64_t i = 0; i < HEAD_DIM; i += LANES) {
      const doubles x = widened(from + i);
      if (together) store(together + (at + t) * HEAD_DIM + i, x);
      if (across)
        for (int k = 0; k < LANES; k++) across[(i + k) * across_stride + at + t] = x[k];
    }
  if (across) /* products read whole vectors of positions */
    for (int64_t t = at + count; t < whole(at + count); t++)
      for (int64_t i = 0; i < HEAD_DIM; i++) across[i * across_stride + t] = 0;
}

static void narrow(const double *from, int64_t count, double factor, float *into, int64_t stride) {
  for (int64_t t = 0; t < count; t++)
    for (int64_t i = 0; i < HEAD_DIM; i += LANES) {
      const floats x = narrowed(loaded(from + t * HEAD_DIM + i) * factor);
      memcpy(into + t * stride + i, &x, sizeof x);
    }
}

/* `count` queries of one head from `token` on. They see `before` positions of the desk, and those up to their own. */
struct block {
  int64_t token, count, before, head;
};

/* Scale the queries, and multiply them with all keys that the last of them sees. */
static void score(const struct attention *job, const struct desk *desk, const struct block *block) {
  widen(job->query + block->token * job->query_stride + block->head * HEAD_DIM, job->query_stride, block->count, 0,
        desk->queries, 0, 0);
  for (int64_t i = 0; i < block->count * HEAD_DIM; i += LANES) store(desk->queries + i, loaded(desk->queries + i) * job->scaling);
  product(desk->queries, HEAD_DIM, 1, desk->keys_across, job->stride, desk->scores, job->stride, block->count,
          whole(block->before + block->count), HEAD_DIM, 0);
}

/*
 * Mixed values are divided by the sum of their weights at the end, as in decoding. If all weights are equal (queries of zeros, as
 * in padding), the result may lie half-way between two floats, and would otherwise be rounded differently.
 */
/* Fill the last vector of `count` scores with minus infinity, and return the largest score. */
static inline double hide_and_find_most(double *row, int64_t count) {
  for (int64_t t = count; t < whole(count); t++) row[t] = -HUGE_VAL;
  doubles most = loaded(row);
  for (int64_t t = LANES; t < count; t += LANES) {
    const doubles x = loaded(row + t);
    const longs more = x > most;
    most = (doubles)(((longs)x & more) | ((longs)most & ~more));
  }
  double result = most[0];
  for (int k = 1; k < LANES; k++) result = most[k] > result ? most[k] : result;
  return result;
}

static void attend_block(const struct attention *job, const struct desk *desk, const struct block *block) {
  const int64_t seen = block->before + block->count, padded = whole(seen), heads = job->query_heads;
  double sum[BLOCK];
  score(job, desk, block);
  for (int64_t i = 0; i < block->count; i++) {
    const int64_t last = block->before + i;
    double *row = desk->scores + i * job->stride;
    const double most = hide_and_find_most(row, last + 1);
    doubles sums = {0};
    for (int64_t t = 0; t <= last; t += LANES) {
      const doubles x = exponential(loaded(row + t) - most);
      sums += x; /* hidden weights are 1e-304, negligible next to the largest, which is 1 */
      store(row + t, x);
    }
    memset(row + last + 1, 0, (padded - last - 1) * sizeof(double));
    sum[i] = total(sums);
    job->lse[(block->token + i) * heads + block->head] = most + log(sum[i]);
  }
  product(desk->scores, job->stride, 1, desk->values, HEAD_DIM, desk->mixed, HEAD_DIM, block->count, HEAD_DIM, seen, 0);
  for (int64_t i = 0; i < block->count * HEAD_DIM; i += LANES)
    store(desk->mixed + i, loaded(desk->mixed + i) / sum[i / HEAD_DIM]);
  narrow(desk->mixed, block->count, 1.0, job->out + (block->token * heads + block->head) * HEAD_DIM, heads * HEAD_DIM);
}

static void attend_block_backward(const struct attention *job, const struct desk *desk, const struct block *block) {
  const int64_t seen = block->before + block->count, padded = whole(seen), heads = job->query_heads;
  const int64_t place = (block->token * heads + block->head) * HEAD_DIM;
  score(job, desk, block);
  widen(job->d_out + place, heads * HEAD_DIM, block->count, 0, desk->d_out, 0, 0);
  product(desk->d_out, HEAD_DIM, 1, desk->values_across, job->stride, desk->d_scores, job->stride, block->count, padded, HEAD_DIM,
          0);
  for (int64_t i = 0; i < block->count; i++) {
    const int64_t last = block->before + i;
    const double lse = job->lse[(block->token + i) * heads + block->head];
    double *weights = desk->scores + i * job->stride, *d_scores = desk->d_scores + i * job->stride;
    doubles sums = {0};
    for (int64_t t = 0; t <= last; t += LANES) store(weights + t, exponential(loaded(weights + t) - lse));
    memset(weights + last + 1, 0, (padded - last - 1) * sizeof(double));
    for (int64_t t = 0; t < padded; t += LANES) sums += loaded(weights + t) * loaded(d_scores + t);
    const double along = total(sums);
    for (int64_t t = 0; t < padded; t += LANES) store(d_scores + t, loaded(weights + t) * (loaded(d_scores + t) - along));
  }
  product(desk->d_scores, job->stride, 1, desk->keys, HEAD_DIM, desk->mixed, HEAD_DIM, block->count, HEAD_DIM, seen, 0);
  narrow(desk->mixed, block->count, job->scaling, job->d_query + place, heads * HEAD_DIM);
  product(desk->d_scores, 1, job->stride, desk->queries, HEAD_DIM, desk->d_keys, HEAD_DIM, seen, HEAD_DIM, block->count, 1);
  product(desk->scores, 1, job->stride, desk->d_out, HEAD_DIM, desk->d_values, HEAD_DIM, seen, HEAD_DIM, block->count, 1);
}

/* Load `count` tokens from `token` on, after the `before` tokens already on the desk. */
static void attend_tokens(const struct attention *job, const struct desk *desk, int64_t kv_head, int64_t token, int64_t count,
                          int64_t before, int backward) {
  const float *key = job->key + token * job->key_stride + kv_head * HEAD_DIM;
  const float *value = job->value + token * job->value_stride + kv_head * HEAD_DIM;
  const size_t size = count * HEAD_DIM * sizeof(double);
  widen(key, job->key_stride, count, before, backward ? desk->keys : 0, desk->keys_across, job->stride);
  widen(value, job->value_stride, count, before, backward ? 0 : desk->values, backward ? desk->values_across : 0, job->stride);
  if (backward) memset(desk->d_keys + before * HEAD_DIM, 0, size), memset(desk->d_values + before * HEAD_DIM, 0, size);
  const int64_t group = job->query_heads / job->kv_heads;
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
    for (int64_t first = 0; first < count; first += BLOCK) {
      const struct block block = {token + first, least(BLOCK, count - first), before + first, head};
      if (backward) attend_block_backward(job, desk, &block);
      else attend_block(job, desk, &block);
    }
}

static void give_gradients(const struct attention *job, const struct desk *desk, int64_t kv_head, int64_t token, int64_t count,
                           int64_t at) {
  const int64_t place = (token * job->kv_heads + kv_head) * HEAD_DIM, stride = job->kv_heads * HEAD_DIM;
  narrow(desk->d_keys + at * HEAD_DIM, count, 1.0, job->d_key + place, stride);
  narrow(desk->d_values + at * HEAD_DIM, count, 1.0, job->d_value + place, stride);
}

static void attend_clusters(struct attention *job, double *memory, int backward) {
  const struct desk desk = lay_desk(memory, job->stride, backward);
  for (int64_t task; (task = claim(&job->next)) < job->clusters * job->kv_heads;) {
    const int64_t cluster = task / job->kv_heads, kv_head = task % job->kv_heads;
    const int64_t prompt = job->prompt_start[cluster], before = job->prompt_length[cluster];
    attend_tokens(job, &desk, kv_head, prompt, before, 0, backward);
    for (int64_t row = job->first_row[cluster]; row < job->first_row[cluster + 1]; row++) {
      attend_tokens(job, &desk, kv_head, job->own_start[row], job->own_length[row], before, backward);
      if (backward) give_gradients(job, &desk, kv_head, job->own_start[row], job->own_length[row], before);
    }
    if (backward) give_gradients(job, &desk, kv_head, prompt, before, 0);
  }
}

void attention_forward(struct attention *job, double *memory) { attend_clusters(job, memory, 0); }
void attention_backward(struct attention *job, double *memory) { attend_clusters(job, memory, 1); }

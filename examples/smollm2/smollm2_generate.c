// SPDX-License-Identifier: Apache-2.0
//
// Runs a real decoder, SmolLM2-135M-Instruct, with every attention layer computed by
// Tessera: two prompts of different lengths are read in one packed batch, then both are continued a
// token at a time from a paged key/value cache that they share. 9 query heads use 3 key/value
// heads.
//
//   smollm2_generate FOLDER      FOLDER holds the files that export_model.py writes
//
// Exit status: 0 all logits and tokens agree with two other implementations, 1 one does not, 2 bad
// input or no plan. The part about Tessera is under "Attention"; the rest is the model.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

enum { LAYERS = 30, WIDTH = 576, HEADS = 9, KV_HEADS = 3, DIM = 64, KV_WIDTH = KV_HEADS * DIM };
enum { INNER = 1536, VOCABULARY = 49152, MAX_TENSORS = 512, MAX_PIECE = 256 };
enum { BATCH = 2, ANSWER = 24, PAGE = 16, MAX_PAGES = 16, PAGES = BATCH * MAX_PAGES };

// Largest accepted difference of a logit. CTranslate2 in float32 is 5e-5 away from numpy in
// float64; ten times that is not rounding, and a softmax scale wrong by one part in 10,000 gives
// 2e-3. The chosen tokens are at least 0.01 ahead of the next, so rounding cannot change them.
static const double kBound = 5e-4;

static _Noreturn void fail(const char *what, const char *detail) {
  fprintf(stderr, "smollm2_generate: %s: %s\n", what, detail);
  exit(2);
}

static void *allocate(int64_t count, size_t size) {
  void *block = calloc((size_t)count, size);
  if (!block) fail("out of memory", "allocation failed");
  return block;
}

// ---- The model's files --------------------------------------------------------------------------

typedef enum { F32, Q4_1, Q8_0, I32 } kind;
static const struct {
  const char *name;
  int64_t values, bytes;  // of one block
} kKinds[] = {{"f32", 1, 4}, {"q4_1", 32, 20}, {"q8_0", 32, 34}, {"i32", 1, 4}};

typedef struct model {
  struct {
    char name[40];
    kind kind;
    long long offset, count;  // bytes, values
  } tensor[MAX_TENSORS];
  int tensors;
  long long size;
  unsigned char *bytes;
  char (*piece)[MAX_PIECE];  // text of each token
} model;

static unsigned char *read_file(const char *folder, const char *name, long long *size) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) fail(path, "cannot be opened");
  *size = ftell(file);
  rewind(file);
  unsigned char *bytes = allocate(*size + 1, 1);
  if (fread(bytes, 1, (size_t)*size, file) != (size_t)*size) fail(path, "cannot be read");
  fclose(file);
  return bytes;
}

static void read_model(model *m, const char *folder) {
  long long size;
  m->bytes = read_file(folder, "model.bin", &m->size);
  char *index = (char *)read_file(folder, "model.idx", &size), type[8];
  for (char *line = strtok(index, "\n"); line; line = strtok(NULL, "\n")) {
    if (m->tensors == MAX_TENSORS) fail("model.idx", "too many tensors");
    long long offset, count;
    const int t = m->tensors++;
    if (sscanf(line, "%39s %7s %lld %lld", m->tensor[t].name, type, &offset, &count) != 4)
      fail("model.idx", line);
    int k = 0;
    while (k < 4 && strcmp(type, kKinds[k].name)) ++k;
    if (k == 4 || count < 0 || count > m->size || offset < 0 || offset > m->size ||
        count / kKinds[k].values * kKinds[k].bytes > m->size - offset)
      fail("model.idx: not in model.bin", line);
    m->tensor[t].kind = (kind)k;
    m->tensor[t].offset = offset;
    m->tensor[t].count = count;
  }
  free(index);
  m->piece = allocate(VOCABULARY, MAX_PIECE);
  char *text = (char *)read_file(folder, "vocabulary.txt", &size);
  char *line = text;
  for (int i = 0; i < VOCABULARY; ++i, line += strcspn(line, "\n") + 1) {
    if (line >= text + size) fail("vocabulary.txt", "cut short");
    snprintf(m->piece[i], MAX_PIECE, "%.*s", (int)strcspn(line, "\n"), line);
  }
  free(text);
}

static int find(const model *m, const char *name, long long count) {
  int t = 0;
  while (t < m->tensors && strcmp(m->tensor[t].name, name)) ++t;
  if (t == m->tensors || m->tensor[t].count != count) fail(name, "missing or of another size");
  return t;
}

static const void *plain(const model *m, const char *name, kind k, long long count) {
  const int t = find(m, name, count);
  if (m->tensor[t].kind != k) fail(name, "is of another kind");
  return m->bytes + m->tensor[t].offset;
}

static float half_to_float(const unsigned char *p) {
  const int bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double value =
      exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);  // finite by format
  return (float)(bits >> 15 ? -value : value);
}

// row[count] = values count*index .. of a tensor; 32 of them share a step and, Q4_1, a minimum
static void dequantise(const model *m, int t, int64_t index, int64_t count, float *row) {
  const int64_t size = kKinds[m->tensor[t].kind].bytes;
  const unsigned char *block = m->bytes + m->tensor[t].offset + index * (count / 32) * size;
  for (int64_t i = 0; i < count; i += 32, block += size) {
    const float step = half_to_float(block);
    if (m->tensor[t].kind == Q8_0) {
      for (int j = 0; j < 32; ++j) row[i + j] = step * (float)(signed char)block[2 + j];
    } else {
      const float low = half_to_float(block + 2);
      for (int j = 0; j < 16; ++j) {
        row[i + j] = step * (float)(block[4 + j] & 15) + low;
        row[i + 16 + j] = step * (float)(block[4 + j] >> 4) + low;
      }
    }
  }
}

// ---- The model's arithmetic other than attention ------------------------------------------------

// y[rows, out] = x[rows, in] w[out, in]^T; sixteen partial sums may become vector lanes
static void linear(const model *m, const char *name, float *y, const float *x, int64_t rows,
                   int64_t in, int64_t out) {
  const int t = find(m, name, in * out);
  if (m->tensor[t].kind != Q4_1 && m->tensor[t].kind != Q8_0) fail(name, "is of another kind");
  float w[INNER];
  for (int64_t o = 0; o < out; ++o) {
    dequantise(m, t, o, in, w);
    for (int64_t r = 0; r < rows; ++r) {
      float sum[16] = {0}, total = 0;
      for (int64_t i = 0; i < in; i += 16)
        for (int l = 0; l < 16; ++l) sum[l] += w[i + l] * x[r * in + i + l];
      for (int l = 0; l < 16; ++l) total += sum[l];
      y[r * out + o] = total;
    }
  }
}

static void rms_norm(const model *m, const char *name, float *y, const float *x, int64_t rows) {
  const float *gain = plain(m, name, F32, WIDTH);
  for (int64_t r = 0; r < rows; ++r) {
    double square = 0;
    for (int i = 0; i < WIDTH; ++i) square += (double)x[r * WIDTH + i] * x[r * WIDTH + i];
    const double inverse = 1 / sqrt(square / WIDTH + 1e-5);
    for (int i = 0; i < WIDTH; ++i)
      y[r * WIDTH + i] = (float)(x[r * WIDTH + i] * inverse) * gain[i];
  }
}

// Rotary position embedding of one token's heads: elements 2i and 2i + 1 turn by an angle.
static void rotate(float *x, int heads, int64_t position) {
  for (int i = 0; i < DIM / 2; ++i) {
    const double angle = (double)position * pow(100000.0, -2.0 * i / DIM);
    const float c = (float)cos(angle), s = (float)sin(angle);
    for (float *p = x + 2 * i; p < x + heads * DIM; p += DIM) {
      const float even = p[0], odd = p[1];
      p[0] = even * c - odd * s;
      p[1] = even * s + odd * c;
    }
  }
}

// ---- Attention ----------------------------------------------------------------------------------

typedef struct cache {
  float *k[LAYERS], *v[LAYERS];  // [PAGES, KV_HEADS, PAGE, DIM]
  int32_t table[BATCH][MAX_PAGES];
  int32_t used[BATCH];  // tokens of each sequence that are in the cache
} cache;

static void check(tsr_status status, const char *what) {
  if (status != TSR_STATUS_SUCCESS) fail(what, tsr_last_message());
}

// Pages of both sequences alternate and run backwards: nothing may rely on their order. Every
// element is NaN until a token is stored there: nothing may read beyond a sequence's end.
static void cache_create(cache *c) {
  const int64_t size = (int64_t)PAGES * KV_WIDTH * PAGE;
  for (int l = 0; l < LAYERS; ++l) {
    c->k[l] = allocate(size, sizeof(float));
    c->v[l] = allocate(size, sizeof(float));
    for (int64_t i = 0; i < size; ++i) c->k[l][i] = c->v[l][i] = NAN;
  }
  for (int b = 0; b < BATCH; ++b)
    for (int p = 0; p < MAX_PAGES; ++p) c->table[b][p] = PAGES - 1 - (p * BATCH + b);
}

static void cache_store(const cache *c, float *pages, int b, int64_t position, const float *row) {
  for (int64_t g = 0; g < KV_HEADS; ++g) {
    const int64_t page = c->table[b][position / PAGE];
    memcpy(pages + ((page * KV_HEADS + g) * PAGE + position % PAGE) * DIM, row + g * DIM,
           DIM * sizeof *row);
  }
}

// Plan for `total` new tokens, at most `longest` of one sequence. The causal diagonal ends in the
// bottom-right corner: the last new token sees the whole cache, whatever its length.
static tsr_plan *attention_plan(int64_t total, int64_t longest) {
  tsr_problem problem = TSR_PROBLEM_INIT;
  problem.arrays = TSR_ARRAY_CU_Q | TSR_ARRAY_USED_K;
  problem.index_dtype = TSR_DTYPE_I32;
  problem.batch = BATCH;
  problem.heads_q = HEADS;
  problem.heads_kv = KV_HEADS;
  problem.seq_q = longest;
  problem.total_q = total;
  problem.dim_qk = problem.dim_v = DIM;
  problem.q.dtype = problem.k.dtype = problem.v.dtype = problem.o.dtype = TSR_DTYPE_F32;
  problem.q.order = problem.o.order = TSR_ORDER_BSHD;  // packed: [total, HEADS, DIM]
  problem.causal = TSR_CAUSAL_BOTTOM_RIGHT;
  problem.page_size = PAGE;
  problem.num_pages = PAGES;
  problem.max_pages = MAX_PAGES;
  tsr_plan *plan;
  check(tsr_plan_create(&plan, NULL, (tsr_device){0}, &problem), "tsr_plan_create");
  tsr_plan_info info = {.struct_size = sizeof info};
  check(tsr_plan_describe(plan, TSR_PASS_FORWARD, &info), "tsr_plan_describe");
  printf("attention: backend %s, kernel %s, %d new tokens\n", info.backend, info.kernel,
         (int)total);
  return plan;
}

// ---- The decoder --------------------------------------------------------------------------------

// Reads tokens starts[b] .. starts[b + 1] - 1 as the next ones of sequence b, adds them to the
// cache, and returns the logits [BATCH, VOCABULARY] of the token after each sequence's last.
static void step(const model *m, cache *c, const tsr_plan *plan, const int32_t *tokens,
                 const int32_t *starts, float *logits) {
  const int64_t total = starts[BATCH];
  float *x = allocate(total, WIDTH * sizeof *x), *h = allocate(total, WIDTH * sizeof *h);
  float *q = allocate(total, WIDTH * sizeof *q), *o = allocate(total, WIDTH * sizeof *o);
  float *k = allocate(total, INNER * sizeof *k), *v = allocate(total, INNER * sizeof *v);
  const int words = find(m, "token_embd", (long long)VOCABULARY * WIDTH);
  for (int64_t t = 0; t < total; ++t) {
    if (tokens[t] < 0 || tokens[t] >= VOCABULARY) fail("prompt", "token outside the vocabulary");
    dequantise(m, words, tokens[t], WIDTH, x + t * WIDTH);
  }
  int32_t used[BATCH];
  for (int b = 0; b < BATCH; ++b) used[b] = c->used[b] + starts[b + 1] - starts[b];
  for (int l = 0; l < LAYERS; ++l) {
    char name[32];
#define LAYER(what) (snprintf(name, sizeof name, "blk.%d." what, l), name)
    rms_norm(m, LAYER("attn_norm"), h, x, total);
    linear(m, LAYER("attn_q"), q, h, total, WIDTH, WIDTH);
    linear(m, LAYER("attn_k"), k, h, total, WIDTH, KV_WIDTH);
    linear(m, LAYER("attn_v"), v, h, total, WIDTH, KV_WIDTH);
    for (int b = 0; b < BATCH; ++b)
      for (int64_t t = starts[b]; t < starts[b + 1]; ++t) {
        const int64_t position = c->used[b] + t - starts[b];
        rotate(q + t * WIDTH, HEADS, position);
        rotate(k + t * KV_WIDTH, KV_HEADS, position);
        cache_store(c, c->k[l], b, position, k + t * KV_WIDTH);
        cache_store(c, c->v[l], b, position, v + t * KV_WIDTH);
      }
    tsr_args args = TSR_ARGS_INIT;
    args.q = q;
    args.k = c->k[l];
    args.v = c->v[l];
    args.cu_q = starts;
    args.used_k = used;
    args.page_table = c->table;
    args.o = o;
    check(tsr_forward(plan, &args), "tsr_forward");
    linear(m, LAYER("attn_output"), h, o, total, WIDTH, WIDTH);
    for (int64_t i = 0; i < total * WIDTH; ++i) x[i] += h[i];
    rms_norm(m, LAYER("ffn_norm"), h, x, total);
    linear(m, LAYER("ffn_gate"), k, h, total, WIDTH, INNER);
    linear(m, LAYER("ffn_up"), v, h, total, WIDTH, INNER);
    for (int64_t i = 0; i < total * INNER; ++i) v[i] *= k[i] / (1 + expf(-k[i]));
    linear(m, LAYER("ffn_down"), h, v, total, INNER, WIDTH);
    for (int64_t i = 0; i < total * WIDTH; ++i) x[i] += h[i];
#undef LAYER
  }
  memcpy(c->used, used, sizeof used);
  for (int b = 0; b < BATCH; ++b)  // only the last token of a sequence is asked for
    memcpy(h + b * WIDTH, x + (int64_t)(starts[b + 1] - 1) * WIDTH, WIDTH * sizeof *x);
  rms_norm(m, "output_norm", x, h, BATCH);
  linear(m, "token_embd", logits, x, BATCH, WIDTH, VOCABULARY);
  free(x), free(h), free(q), free(o), free(k), free(v);
}

// ---- Generation and comparison ------------------------------------------------------------------

// Largest difference from one expected set of logits at generation step n; NaN counts as infinite.
static double difference(const model *m, const char *name, int n, const float *logits) {
  const float *expected = plain(m, name, F32, (long long)BATCH * ANSWER * VOCABULARY);
  double worst = 0;
  for (int64_t b = 0; b < BATCH; ++b)
    for (int64_t i = 0; i < VOCABULARY; ++i) {
      const double error =
          fabs((double)logits[b * VOCABULARY + i] - expected[(b * ANSWER + n) * VOCABULARY + i]);
      if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
    }
  return worst;
}

int main(int argc, char **argv) {
  if (argc != 2) fail("usage", "smollm2_generate FOLDER");
  static model m;
  static cache c;
  static const char *const kExpected[] = {"logits.numpy_f64", "logits.ctranslate2"};
  read_model(&m, argv[1]);
  cache_create(&c);
  const int32_t *starts = plain(&m, "starts", I32, BATCH + 1), single[] = {0, 1, 2};
  for (int b = 0; b < BATCH; ++b)
    if (starts[0] || starts[b + 1] <= starts[b] ||
        starts[b + 1] - starts[b] + ANSWER > MAX_PAGES * PAGE)
      fail("starts", "a prompt is empty or too long for its pages");
  const int32_t *prompt = plain(&m, "prompt", I32, starts[BATCH]);
  const int32_t *answer = plain(&m, "answer", I32, BATCH * ANSWER);
  float *logits = allocate(BATCH * VOCABULARY, sizeof *logits);

  tsr_plan *plan = attention_plan(starts[BATCH], starts[BATCH]);
  step(&m, &c, plan, prompt, starts, logits);
  tsr_plan_destroy(plan);
  plan = attention_plan(BATCH, 1);
  int32_t generated[ANSWER][BATCH];
  double worst[2] = {0};
  int wrong = 0;
  for (int n = 0; n < ANSWER; ++n) {
    for (int e = 0; e < 2; ++e) worst[e] = fmax(worst[e], difference(&m, kExpected[e], n, logits));
    for (int b = 0; b < BATCH; ++b) {
      const float *row = logits + (int64_t)b * VOCABULARY;
      int best = 0;
      for (int i = 1; i < VOCABULARY; ++i) best = row[i] > row[best] ? i : best;
      generated[n][b] = best;
      wrong += best != answer[b * ANSWER + n];
    }
    if (n + 1 < ANSWER) step(&m, &c, plan, generated[n], single, logits);
  }
  tsr_plan_destroy(plan);

  for (int b = 0; b < BATCH; ++b) {
    printf("\nprompt %d: ", b);
    for (int t = starts[b]; t < starts[b + 1]; ++t) fputs(m.piece[prompt[t]], stdout);
    printf("\nanswer %d: ", b);
    for (int n = 0; n < ANSWER; ++n) fputs(m.piece[generated[n][b]], stdout);
    printf("\n");
  }
  printf("\ntokens               %d of %d differ: %s\n", wrong, BATCH * ANSWER,
         wrong ? "MISMATCH" : "ok");
  for (int e = 0; e < 2; ++e) {
    printf("%-20s largest difference %.2e, accepted %.0e: %s\n", kExpected[e], worst[e], kBound,
           worst[e] <= kBound ? "ok" : "MISMATCH");
    wrong += !(worst[e] <= kBound);
  }
  for (int l = 0; l < LAYERS; ++l) free(c.k[l]), free(c.v[l]);
  free(m.bytes), free(m.piece), free(logits);
  return wrong ? 1 : 0;
}

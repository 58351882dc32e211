// SPDX-License-Identifier: Apache-2.0
//
// Runs a real sentence encoder, all-MiniLM-L6-v2, with every attention layer computed by Tessera:
// sentences of different lengths are packed one after another into a single batch, embedded, and
// compared with each other and with embeddings that two other programs computed.
//
//   minilm_embed FOLDER      FOLDER holds model.bin and model.idx, written by export_model.py
//
// Exit status: 0 all embeddings agree, 1 one does not, 2 bad input or no plan.
// The part about Tessera is attention_create() and attention_run(); the rest is the model.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tessera/tessera.h>

enum { WIDTH = 384, INNER = 1536, VOCABULARY = 30522, POSITIONS = 512 };
enum { MAX_TENSORS = 128, MAX_SENTENCES = 64 };

// Largest accepted difference of a component of a unit embedding. float32 rounding through the six
// layers leaves 1e-7 to 3e-7 (measured; CTranslate2 against numpy in float64: 1.3e-7). Ten times
// that is not chance, and a softmax scale wrong by one part in 10,000 is already at 1.6e-5.
static const double kBound = 2e-6;

static _Noreturn void fail(const char *what, const char *detail) {
  fprintf(stderr, "minilm_embed: %s: %s\n", what, detail);
  exit(2);
}

static void *allocate(int64_t count, size_t size) {
  void *block = count >= 0 ? calloc((size_t)count + !count, size) : NULL;
  if (!block) fail("out of memory", "allocation failed");
  return block;
}

// ---- The model's file ---------------------------------------------------------------------------

typedef struct model {
  struct {
    char name[40];
    long long offset, count;  // in 4-byte values
  } tensor[MAX_TENSORS];
  int tensors, layers, heads, sentences;
  float epsilon;
  char sentence[MAX_SENTENCES][600];
  float *values;
  long long size;  // values in the file
} model;

static const float *tensor(const model *m, const char *name, long long count) {
  for (int t = 0; t < m->tensors; ++t) {
    if (strcmp(m->tensor[t].name, name)) continue;
    if (count && m->tensor[t].count != count) fail(name, "wrong number of values in model.idx");
    return m->values + m->tensor[t].offset;
  }
  fail(name, "tensor missing from model.idx");
}

static const float *layer_tensor(const model *m, int layer, const char *name, long long count) {
  char full[40];
  snprintf(full, sizeof full, "layer%d.%s", layer, name);
  return tensor(m, full, count);
}

static FILE *open_file(const char *folder, const char *name) {
  char path[4096];
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
    fail(folder, "path too long");
  FILE *file = fopen(path, "rb");
  if (!file) fail(path, "cannot be opened");
  return file;
}

static void read_index_line(model *m, const char *line) {
  char name[40];
  if (sscanf(line, "value layers %d", &m->layers) == 1) return;
  if (sscanf(line, "value heads %d", &m->heads) == 1) return;
  if (sscanf(line, "value epsilon %f", &m->epsilon) == 1) return;
  if (!strncmp(line, "sentence ", 9)) {
    if (m->sentences == MAX_SENTENCES) fail("model.idx", "too many sentences");
    strcpy(m->sentence[m->sentences++], line + 9);
    return;
  }
  if (m->tensors == MAX_TENSORS) fail("model.idx", "too many tensors");
  long long offset, count;
  if (sscanf(line, "tensor %39s %lld %lld", name, &offset, &count) != 3) fail("model.idx", line);
  if (offset < 0 || count < 0 || offset > m->size || count > m->size - offset)
    fail(name, "lies outside model.bin");
  strcpy(m->tensor[m->tensors].name, name);
  m->tensor[m->tensors].offset = offset;
  m->tensor[m->tensors++].count = count;
}

static void read_model(model *m, const char *folder) {
  FILE *file = open_file(folder, "model.bin");
  if (fseek(file, 0, SEEK_END)) fail("model.bin", "not a regular file");
  m->size = ftell(file) / 4;
  rewind(file);
  m->values = allocate(m->size, sizeof *m->values);
  if (fread(m->values, 4, (size_t)m->size, file) != (size_t)m->size) fail("model.bin", "cut short");
  fclose(file);
  file = open_file(folder, "model.idx");
  for (char line[600]; fgets(line, sizeof line, file);) {
    line[strcspn(line, "\n")] = '\0';
    read_index_line(m, line);
  }
  fclose(file);
  if (m->layers < 1 || m->heads < 1 || WIDTH % m->heads || m->sentences < 1)
    fail("model.idx", "layers, heads or sentences missing or out of range");
}

// ---- The model's arithmetic other than attention ------------------------------------------------

// y[rows, out] = x[rows, in] w[in, out] + bias
static void linear(float *y, const float *x, const float *w, const float *bias, int64_t rows,
                   int64_t in, int64_t out) {
  for (int64_t r = 0; r < rows; ++r) {
    float *row = y + r * out;
    memcpy(row, bias, (size_t)out * sizeof *row);
    for (int64_t i = 0; i < in; ++i) {
      const float xi = x[r * in + i], *wi = w + i * out;
      for (int64_t o = 0; o < out; ++o) row[o] += xi * wi[o];
    }
  }
}

// x = normalise(x + delta) * gain + bias, row by row; delta may be NULL
static void add_norm(float *x, const float *delta, const float *gain, const float *bias,
                     float epsilon, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    float *row = x + r * WIDTH;
    double mean = 0, variance = 0;
    for (int i = 0; i < WIDTH; ++i) mean += row[i] += delta ? delta[r * WIDTH + i] : 0;
    mean /= WIDTH;
    for (int i = 0; i < WIDTH; ++i) variance += (row[i] - mean) * (row[i] - mean);
    const double inverse = 1 / sqrt(variance / WIDTH + epsilon);
    for (int i = 0; i < WIDTH; ++i) row[i] = (float)((row[i] - mean) * inverse) * gain[i] + bias[i];
  }
}

static void gelu(float *x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
}

// ---- Attention ----------------------------------------------------------------------------------

typedef struct attention {
  tsr_plan *plan;
  const int32_t *starts;  // sentence b is rows starts[b] .. starts[b + 1] - 1
  void *workspace;
  size_t workspace_size;
} attention;

static void check(tsr_status status, const char *what) {
  if (status != TSR_STATUS_SUCCESS) fail(what, tsr_last_message());
}

// One plan serves all layers. Q, K and V are read in place, as columns of one [total, 3 * WIDTH]
// matrix; no row attends outside its own sentence, because both sides are packed by `starts`.
static void attention_create(attention *a, int heads, int sentences, const int32_t *starts) {
  const int64_t dim = WIDTH / heads, total = starts[sentences];
  const tsr_layout column = {
      .dtype = TSR_DTYPE_F32, .order = TSR_ORDER_STRIDED, .stride = {0, dim, 3 * WIDTH, 1}};
  tsr_problem problem = TSR_PROBLEM_INIT;
  problem.arrays = TSR_ARRAY_CU_Q | TSR_ARRAY_CU_K;
  problem.index_dtype = TSR_DTYPE_I32;
  problem.batch = sentences;
  problem.heads_q = problem.heads_kv = heads;
  problem.total_q = problem.total_k = total;
  problem.dim_qk = problem.dim_v = dim;
  problem.q = problem.k = problem.v = column;
  problem.o.dtype = TSR_DTYPE_F32;
  problem.o.order = TSR_ORDER_BSHD;  // packed: [total, H, D]
  check(tsr_plan_create(&a->plan, NULL, (tsr_device){0}, &problem), "tsr_plan_create");
  check(tsr_plan_workspace_size(a->plan, TSR_PASS_FORWARD, &a->workspace_size), "workspace");
  a->workspace_size = (a->workspace_size + 63) / 64 * 64;
  if (a->workspace_size && !(a->workspace = aligned_alloc(64, a->workspace_size)))
    fail("out of memory", "workspace");
  a->starts = starts;

  tsr_plan_info info = {.struct_size = sizeof info};
  check(tsr_plan_describe(a->plan, TSR_PASS_FORWARD, &info), "tsr_plan_describe");
  printf("attention: backend %s, kernel %s, %d heads of %d, %d sentences, %d tokens packed\n",
         info.backend, info.kernel, heads, (int)dim, sentences, (int)total);
}

static void attention_run(const attention *a, float *o, const float *qkv) {
  tsr_args args = TSR_ARGS_INIT;
  args.q = qkv;
  args.k = qkv + WIDTH;
  args.v = qkv + 2 * WIDTH;
  args.cu_q = args.cu_k = a->starts;
  args.o = o;
  args.workspace = a->workspace;
  args.workspace_size = a->workspace_size;
  check(tsr_forward(a->plan, &args), "tsr_forward");
}

// ---- The encoder --------------------------------------------------------------------------------

// hidden[total, WIDTH] of all sentences at once
static void encode(const model *m, const int32_t *starts, const int32_t *tokens, float *hidden) {
  const int64_t total = starts[m->sentences];
  const float *words = tensor(m, "words", VOCABULARY * WIDTH);
  const float *positions = tensor(m, "positions", POSITIONS * WIDTH);
  for (int s = 0; s < m->sentences; ++s)
    for (int64_t t = starts[s]; t < starts[s + 1]; ++t) {
      if (tokens[t] < 0 || tokens[t] >= VOCABULARY) fail("tokens", "id outside the vocabulary");
      for (int i = 0; i < WIDTH; ++i)
        hidden[t * WIDTH + i] =
            words[(int64_t)tokens[t] * WIDTH + i] + positions[(t - starts[s]) * WIDTH + i];
    }
  add_norm(hidden, NULL, tensor(m, "norm.weight", WIDTH), tensor(m, "norm.bias", WIDTH), m->epsilon,
           total);

  attention a = {0};
  attention_create(&a, m->heads, m->sentences, starts);
  float *wide = allocate(total, INNER * sizeof *wide);
  float *o = allocate(total, WIDTH * sizeof *o);
  float *delta = allocate(total, WIDTH * sizeof *delta);
  for (int l = 0; l < m->layers; ++l) {
    linear(wide, hidden, layer_tensor(m, l, "qkv.weight", 3 * WIDTH * WIDTH),
           layer_tensor(m, l, "qkv.bias", 3 * WIDTH), total, WIDTH, 3 * WIDTH);
    attention_run(&a, o, wide);
    linear(delta, o, layer_tensor(m, l, "out.weight", WIDTH * WIDTH),
           layer_tensor(m, l, "out.bias", WIDTH), total, WIDTH, WIDTH);
    add_norm(hidden, delta, layer_tensor(m, l, "norm1.weight", WIDTH),
             layer_tensor(m, l, "norm1.bias", WIDTH), m->epsilon, total);
    linear(wide, hidden, layer_tensor(m, l, "up.weight", WIDTH * INNER),
           layer_tensor(m, l, "up.bias", INNER), total, WIDTH, INNER);
    gelu(wide, total * INNER);
    linear(delta, wide, layer_tensor(m, l, "down.weight", INNER * WIDTH),
           layer_tensor(m, l, "down.bias", WIDTH), total, INNER, WIDTH);
    add_norm(hidden, delta, layer_tensor(m, l, "norm2.weight", WIDTH),
             layer_tensor(m, l, "norm2.bias", WIDTH), m->epsilon, total);
  }
  free(wide);
  free(o);
  free(delta);
  free(a.workspace);
  tsr_plan_destroy(a.plan);
}

// Mean over a sentence's tokens, scaled to unit length.
static void pool(const float *hidden, int64_t tokens, double *embedding) {
  double square = 0;
  for (int i = 0; i < WIDTH; ++i) {
    embedding[i] = 0;
    for (int64_t t = 0; t < tokens; ++t) embedding[i] += hidden[t * WIDTH + i];
    square += embedding[i] * embedding[i];
  }
  for (int i = 0; i < WIDTH; ++i) embedding[i] /= sqrt(square);
}

// Whether all embeddings are within kBound of one expected set; a NaN counts as infinitely far.
static int compare(const model *m, double (*embedding)[WIDTH], const char *name) {
  const float *expected = tensor(m, name, (long long)m->sentences * WIDTH);
  double worst = 0;
  for (int s = 0; s < m->sentences; ++s)
    for (int i = 0; i < WIDTH; ++i) {
      const double error = fabs(embedding[s][i] - expected[s * WIDTH + i]);
      if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
    }
  printf("%-20s largest difference %.2e, accepted %.0e: %s\n", name, worst, kBound,
         worst <= kBound ? "ok" : "MISMATCH");
  return worst <= kBound;
}

int main(int argc, char **argv) {
  if (argc != 2) fail("usage", "minilm_embed FOLDER");
  static model m;
  read_model(&m, argv[1]);
  const int32_t *starts = (const int32_t *)tensor(&m, "starts", m.sentences + 1);
  for (int b = 0; b < m.sentences; ++b)
    if (starts[0] || starts[b + 1] <= starts[b] || starts[b + 1] - starts[b] > POSITIONS)
      fail("starts", "sentences must have 1 to 512 tokens each, the first from token 0");
  const int32_t *tokens = (const int32_t *)tensor(&m, "tokens", starts[m.sentences]);
  float *hidden = allocate(starts[m.sentences], WIDTH * sizeof *hidden);
  encode(&m, starts, tokens, hidden);

  static double embedding[MAX_SENTENCES][WIDTH];
  printf("\ncosine similarity\n");
  for (int s = 0; s < m.sentences; ++s) {
    pool(hidden + (int64_t)starts[s] * WIDTH, starts[s + 1] - starts[s], embedding[s]);
    for (int r = 0; r <= s; ++r) {
      double product = 0;
      for (int i = 0; i < WIDTH; ++i) product += embedding[s][i] * embedding[r][i];
      printf(" %5.2f", product);
    }
    printf("%*s %.60s\n", 6 * (m.sentences - 1 - s), "", m.sentence[s]);
  }
  printf("\nembeddings against other implementations of the model\n");
  int agree = compare(&m, embedding, "expected.numpy_f64");
  agree &= compare(&m, embedding, "expected.ctranslate2");
  free(hidden);
  free(m.values);
  return agree ? 0 : 1;
}

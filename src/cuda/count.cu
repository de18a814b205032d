// The counting kernels: one launch adds one step of one batch to a block of counters.
//
// The block is `5 + 2 * positions` words of 64 bits, in this order:
//
//   0 drafts, 1 draft tokens, 2 accepted prefix, 3 emitted, 4 raw mask,
//   then drafted per position, then accepted per position.
//
// Every word of a step is added by one launch, so a copy ordered after the launch holds the step whole or not at all.
// One thread takes one sequence after another; its sums go to the block once, the positions as they come. A length
// below zero counts as zero. A sequence without drafted tokens is no draft and adds nothing, which is how rows that
// only pad a captured graph are left out.
//
// `drafted` may be null: then every sequence has drafted `k` tokens. Built for a host, the qualifiers are defined away
// and the same text counts on a CPU (see the simulated driver).

typedef unsigned long long word;

struct Sums {
    word drafts, draft_tokens, accepted, emitted, mask;
};

static __device__ word at_least_zero(long long value) {
    return value > 0 ? (word)value : 0;
}

static __device__ int drafted_by(const int *drafted, int row, int k) {
    int tokens = drafted ? drafted[row] : k;
    return tokens < 0 ? 0 : tokens > k ? k : tokens;
}

// A token id at `index` of an array of 4-byte or 8-byte integers.
static __device__ long long token_at(const void *ids, int bytes, long long index) {
    return bytes == 8 ? ((const long long *)ids)[index] : (long long)((const int *)ids)[index];
}

static __device__ void add_positions(word *block, int positions, long long drafted, long long accepted) {
    word *by_position = block + 5;
    #pragma unroll 1
    for (int position = 0; position < positions; position++) {
        if (position < drafted) atomicAdd(by_position + position, 1ull);
        if (position < accepted) atomicAdd(by_position + positions + position, 1ull);
    }
}

static __device__ void add_sums(word *block, const struct Sums *sums) {
    if (sums->drafts) atomicAdd(block + 0, sums->drafts);
    if (sums->draft_tokens) atomicAdd(block + 1, sums->draft_tokens);
    if (sums->accepted) atomicAdd(block + 2, sums->accepted);
    if (sums->emitted) atomicAdd(block + 3, sums->emitted);
    if (sums->mask) atomicAdd(block + 4, sums->mask);
}

static __device__ long long first_row() {
    return (long long)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ long long row_stride() {
    return (long long)gridDim.x * blockDim.x;
}

// `mask[batch][k]` says which drafted tokens the verifier accepted, each judged by itself; `output[batch][k + 1]` are
// the tokens put out, -1 where there is none.
extern "C" __global__ void spec_decode_count_mask(word *block, int positions, const unsigned char *mask,
                                                  const void *output, int id_bytes, const int *drafted, int batch,
                                                  int k) {
    struct Sums sums = {0, 0, 0, 0, 0};
    #pragma unroll 1
    for (long long row = first_row(); row < batch; row += row_stride()) {
        int tokens = drafted_by(drafted, (int)row, k);
        if (tokens == 0) continue;
        int prefix = 0, raw = 0, emitted = 0;
        #pragma unroll 1
        for (int position = 0; position < tokens; position++) {
            int accepted = mask[row * k + position] != 0;
            if (accepted && raw == position) prefix++;
            raw += accepted;
        }
        #pragma unroll 1
        for (int slot = 0; slot <= k; slot++) emitted += token_at(output, id_bytes, row * (k + 1) + slot) != -1;
        sums.drafts += 1;
        sums.draft_tokens += (word)tokens;
        sums.accepted += (word)prefix;
        sums.emitted += (word)emitted;
        sums.mask += (word)raw;
        add_positions(block, positions, tokens, prefix);
    }
    add_sums(block, &sums);
}

// `draft[batch][k]` are the drafted tokens and `target[batch][k + 1]` the ones that the target model chooses greedily
// at the same places: the prefix in which they agree is accepted, and one token of the target follows it.
extern "C" __global__ void spec_decode_count_tokens(word *block, int positions, const void *draft, const void *target,
                                                    int id_bytes, const int *drafted, int batch, int k) {
    struct Sums sums = {0, 0, 0, 0, 0};
    #pragma unroll 1
    for (long long row = first_row(); row < batch; row += row_stride()) {
        int tokens = drafted_by(drafted, (int)row, k);
        if (tokens == 0) continue;
        int prefix = 0, raw = 0;
        #pragma unroll 1
        for (int position = 0; position < tokens; position++) {
            int accepted = token_at(draft, id_bytes, row * k + position) ==
                           token_at(target, id_bytes, row * (k + 1) + position);
            if (accepted && raw == position) prefix++;
            raw += accepted;
        }
        sums.drafts += 1;
        sums.draft_tokens += (word)tokens;
        sums.accepted += (word)prefix;
        sums.emitted += (word)prefix + 1;
        sums.mask += (word)raw;
        add_positions(block, positions, tokens, prefix);
    }
    add_sums(block, &sums);
}

// Three lengths per sequence, as the engine's own sampler knows them. They are added as they are: if they contradict
// each other, whoever reads the totals can see it. The raw mask isn't known here and stays as it is.
extern "C" __global__ void spec_decode_count_lengths(word *block, int positions, const int *drafted,
                                                     const int *accepted, const int *emitted, int batch) {
    struct Sums sums = {0, 0, 0, 0, 0};
    #pragma unroll 1
    for (long long row = first_row(); row < batch; row += row_stride()) {
        word tokens = at_least_zero(drafted[row]);
        if (tokens == 0) continue;
        sums.drafts += 1;
        sums.draft_tokens += tokens;
        sums.accepted += at_least_zero(accepted[row]);
        sums.emitted += at_least_zero(emitted[row]);
        add_positions(block, positions, (long long)tokens, (long long)at_least_zero(accepted[row]));
    }
    add_sums(block, &sums);
}

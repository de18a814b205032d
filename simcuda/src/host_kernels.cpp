// The counting kernels, built for a CPU: CUDA's qualifiers are defined away, and a launch runs its threads one by one.

struct Index {
    unsigned x;
};
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

#define __global__
#define __device__

static void atomicAdd(unsigned long long *word, unsigned long long value) {
    __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}

#include "count.cu"

template <typename Thread> static void launch(unsigned grid, unsigned block, Thread thread) {
    gridDim.x = grid;
    blockDim.x = block;
    for (blockIdx.x = 0; blockIdx.x < grid; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < block; threadIdx.x++) thread();
}

template <typename T> static T argument(void **arguments, int index) {
    return *static_cast<T *>(arguments[index]);
}

// Runs the kernel with this number (its place in the table of modules.rs) on arguments as `cuLaunchKernel` takes them.
extern "C" void simcuda_host_launch(int kernel, void **a, unsigned grid, unsigned block) {
    word *words = argument<word *>(a, 0);
    int positions = argument<int>(a, 1);
    switch (kernel) {
    case 0:
        launch(grid, block, [&] {
            spec_decode_count_mask(words, positions, argument<const unsigned char *>(a, 2),
                                   argument<const void *>(a, 3), argument<int>(a, 4), argument<const int *>(a, 5),
                                   argument<int>(a, 6), argument<int>(a, 7));
        });
        break;
    case 1:
        launch(grid, block, [&] {
            spec_decode_count_tokens(words, positions, argument<const void *>(a, 2), argument<const void *>(a, 3),
                                     argument<int>(a, 4), argument<const int *>(a, 5), argument<int>(a, 6),
                                     argument<int>(a, 7));
        });
        break;
    case 2:
        launch(grid, block, [&] {
            spec_decode_count_lengths(words, positions, argument<const int *>(a, 2), argument<const int *>(a, 3),
                                      argument<const int *>(a, 4), argument<int>(a, 5));
        });
        break;
    }
}

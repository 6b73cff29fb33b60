# The sources of libshoal_cuda, for nvcc and for tests/harness/cuda_host.
set(SHOAL_CUDA_KERNELS
    library.cu elementwise.cu reduce.cu matmul.cu matmul_small.cu matmul_tiles.cu softmax.cu norm.cu index.cu rnn.cu random.cu optim.cu conv2d.cu conv2d_fused.cu
    conv2d_winners.cu conv2d_channels.cu pool.cu
    small_cnn.cu step.cu
    fedavg_cnn.cu fedavg_cnn_linear.cu fedavg_cnn_score.cu fedavg_cnn_conv2.cu fedavg_cnn_conv2_input.cu fedavg_cnn_conv2_weights.cu)
# What the CPU's kernels check on the host, with the same error texts.
set(SHOAL_CUDA_CHECKS ../cpu/dtype.c ../cpu/iter.c ../reduce_plan.c)
list(TRANSFORM SHOAL_CUDA_KERNELS PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM SHOAL_CUDA_CHECKS PREPEND ${CMAKE_CURRENT_LIST_DIR}/)

"""Water filling on a client: `fill_mod`, `gaussian_sampling` (the update rule), `water_filling`.

Below them `gradient_matrix`, `per_example` and `convolution` (gradients of single examples) and
`matrix_function`.
"""

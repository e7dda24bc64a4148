// Sums and the like among neighbouring lanes of a warp.

DEVICE float quad_max(float v) {
    v = fmaxf(v, other_lane(v, 1));
    return fmaxf(v, other_lane(v, 2));
}

DEVICE float quad_sum(float v) {
    v += other_lane(v, 1);
    return v + other_lane(v, 2);
}

DEVICE float oct_sum(float v) {
    v = quad_sum(v);
    return v + other_lane(v, 4);
}

DEVICE float gelu(float x) {
    return quotient(x, 1.0f + exp2_of(-2.302208198f * x * (1.0f + 0.044715f * x * x)));
}

DEVICE float mish(float x) {
    const float e = exp2_of(fminf(x, 20.0f) * 1.4426950408889634f), n = e * (e + 2.0f);
    return x * quotient(n, n + 2.0f);
}

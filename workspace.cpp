
#include <vector>

static std::vector<float> workspace;

// result = relu(x w^T + b); the sums stand in the workspace
extern "C" void layer(const float* x, const float* w, const float* b, float* result, long rows, long in, long out) {
    workspace.resize(rows * out);
    for (long r = 0; r < rows; ++r)
        for (long o = 0; o < out; ++o) {
            float sum = 0;
            for (long i = 0; i < in; ++i) sum += x[r * in + i] * w[o * in + i];
            workspace[r * out + o] = sum + b[o];
        }
    for (long i = 0; i < rows * out; ++i) {
        float sum = workspace[i];
        result[i] = sum > 0 || sum != sum ? sum : 0;
    }
}

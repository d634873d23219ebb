// SPDX-License-Identifier: Apache-2.0

int main() { return is_exact(specagg::lossless{}) ? 0 : 1; }

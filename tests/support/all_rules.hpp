// SPDX-License-Identifier: Apache-2.0
// Every rule of the library as the command line writes it (`realign` is `geometric` under its other
// name).
#pragma once

inline constexpr const char* all_rules[] = {"lossless",
                                            "lossy:alpha=0.2",
                                            "lenient:alpha=0.3",
                                            "mentored:kl=0.1",
                                            "chow:alpha=0.4",
                                            "chow-log:alpha=0.8",
                                            "diff:alpha=0.05",
                                            "diff-log:alpha=0.1",
                                            "opt:alpha=0.2",
                                            "opt-log:alpha=0.2",
                                            "bild:alpha=1",
                                            "token-v1:alpha=0.2",
                                            "token-v2:alpha=0.2",
                                            "token-v3:alpha=0.3",
                                            "ensemble:lambda=0.4",
                                            "contrastive:mu=0.2",
                                            "geometric:lambda=0.4",
                                            "power:lambda=0.4,rho=2",
                                            "min",
                                            "max"};

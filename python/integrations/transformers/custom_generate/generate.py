# SPDX-License-Identifier: Apache-2.0
from specagg import hf


def generate(model, inputs=None, input_ids=None, assistant_model=None, policy="lossless", verifier="token",
             decoder="speculative", gamma=4, seed=None, streamer=None, **options):
    """model.generate(custom_generate=...) calls this. options: those of model.generate()."""
    decode = hf.custom_generate(assistant_model, policy=policy, verifier=verifier, decoder=decoder, gamma=gamma, seed=seed,
                                streamer=streamer)
    return model.generate(inputs if input_ids is None else input_ids, custom_generate=decode, **options)

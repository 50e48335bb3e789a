"""Asks a model one question through libcsgl, by ctypes alone. Usage: generate.py LIBRARY MODEL QUESTION

The structs mirror include/csgl.h; they are filled by csgl_*_init, so only what is set here matters.
"""

import ctypes as c
import json
import sys

TEXT_CALL = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(c.c_char), c.c_size_t)


class Error(c.Structure):
    _fields_ = [("status", c.c_int), ("message", c.c_char * 512)]


class Config(c.Structure):
    _fields_ = [("model_path", c.c_char_p), ("random_weights", c.c_char_p),
                ("chat_template_path", c.c_char_p), ("device", c.c_char_p), ("threads", c.c_int),
                ("activations", c.c_int), ("kv_cache_dtype", c.c_int), ("quantization", c.c_int),
                ("max_running", c.c_int), ("max_queue", c.c_int), ("context_length", c.c_int),
                ("max_prefill_length", c.c_int), ("memory_ratio", c.c_double),
                ("kv_cache_gb", c.c_double), ("num_mamba_slots", c.c_int),
                ("mamba_ssm_dtype", c.c_int), ("mamba_cache_gb", c.c_double),
                ("on_progress", c.c_void_p), ("progress_context", c.c_void_p)]


class Result(c.Structure):
    _fields_ = [("finish", c.c_int), ("prompt_tokens", c.c_int), ("cached_tokens", c.c_int),
                ("output_tokens", c.c_int), ("queue_seconds", c.c_double),
                ("prefill_seconds", c.c_double), ("decode_seconds", c.c_double),
                ("error", c.c_char * 512)]


class Request(c.Structure):
    _fields_ = [("prompt", c.c_char_p), ("messages_json", c.c_char_p), ("tools_json", c.c_char_p),
                ("template_kwargs_json", c.c_char_p), ("tokens", c.c_void_p),
                ("n_tokens", c.c_size_t), ("max_tokens", c.c_int), ("temperature", c.c_double),
                ("top_k", c.c_double), ("top_p", c.c_double), ("min_p", c.c_double),
                ("repetition_penalty", c.c_double), ("presence_penalty", c.c_double),
                ("frequency_penalty", c.c_double), ("has_seed", c.c_int), ("seed", c.c_uint64),
                ("bias_tokens", c.c_void_p), ("biases", c.c_void_p), ("n_biases", c.c_size_t),
                ("stop", c.c_void_p), ("n_stop", c.c_size_t), ("ignore_eos", c.c_int),
                ("n_logprobs", c.c_int), ("on_text", TEXT_CALL), ("on_token", c.c_void_p),
                ("on_finish", c.c_void_p), ("on_start", c.c_void_p), ("context", c.c_void_p)]


def check(status, error):
    if status:
        sys.exit(error.message.decode())


def main():
    library, model, question = sys.argv[1:]
    csgl = c.CDLL(library)
    error, config, request, result = Error(), Config(), Request(), Result()
    engine = c.c_void_p()

    csgl.csgl_config_init(c.byref(config))
    config.model_path = model.encode()
    check(csgl.csgl_open(c.byref(engine), c.byref(config), c.byref(error)), error)

    @TEXT_CALL
    def on_text(_context, text, size):
        sys.stdout.write(text[:size].decode())
        sys.stdout.flush()
        return 0

    csgl.csgl_request_init(c.byref(request))
    request.messages_json = json.dumps([{"role": "user", "content": question}]).encode()
    request.temperature = 0
    request.max_tokens = 60
    request.on_text = on_text
    check(csgl.csgl_generate(engine, c.byref(request), c.byref(result), c.byref(error)), error)
    print(f"\n({result.prompt_tokens} tokens in, {result.output_tokens} out)")
    csgl.csgl_close(engine)


if __name__ == "__main__":
    main()

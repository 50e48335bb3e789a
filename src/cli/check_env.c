/* csgl check_env: the machine, what csgl uses of it, and with --measure what it can do. */
#include "base/log.h"
#include "base/thread_pool.h"
#include "cli/bench_common.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "device/cpu/cpu.h"
#include "device/device_open.h"

#include <curl/curl.h>
#include <event2/event.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <zmq.h>

/* Opens what --device auto takes; the log says why. */
static void report_auto_device(struct report *r)
{
    const struct cpu_options cpu = {.n_threads = 1, .isa = cpu_isa_best()};
    struct device *device;
    struct error error;
    if (device_open(&device, "auto", &cpu, &error) != OK) {
        report_text(r, "auto_device", "device, by --device auto", error.message);
        return;
    }
    report_text(r, "auto_device", "device, by --device auto", device->name);
    device->table->close(device);
}

static void report_use(struct report *r)
{
    enum cpu_isa isa = cpu_isa_best();
    report_text(r, "device", "device, by default", "cpu");
    report_auto_device(r);
    report_text(r, "kernels", "kernels that will be used", cpu_isa_name(isa));
    report_text(r, "activations", "quantized linears, by default",
                isa >= CPU_ISA_INT8
                    ? "int8 activations: the processor multiplies int8 in one instruction"
                    : "float activations: no instruction multiplies int8 at once");
    report_int(r, "threads", "threads, by default", thread_pool_default_size());
}

static void report_libraries(struct report *r)
{
    char text[64];
    int major, minor, patch;
    report_text(r, "csgl", "csgl", CSGL_VERSION);
    report_text(r, "compiler", "compiler", __VERSION__);
    zmq_version(&major, &minor, &patch);
    snprintf(text, sizeof text, "%d.%d.%d", major, minor, patch);
    report_text(r, "libzmq", "libzmq", text);
    report_text(r, "libevent", "libevent", event_get_version());
    report_text(r, "libcurl", "libcurl", curl_version_info(CURLVERSION_NOW)->version);
    if (pcre2_config(PCRE2_CONFIG_VERSION, text) > 0)
        report_text(r, "pcre2", "pcre2", text);
}

/* One limit with one thread and with all. */
static void report_pair(struct report *r, const char *key, const char *label,
                        const double values[2], double scale)
{
    char name[64], text[96];
    snprintf(name, sizeof name, "%s_one_thread", key);
    report_number(r, name, NULL, values[0] * scale);
    snprintf(name, sizeof name, "%s_all_threads", key);
    report_number(r, name, NULL, values[1] * scale);
    snprintf(text, sizeof text, "%.1f of one thread, %.1f of all", values[0] * scale,
             values[1] * scale);
    str_printf(&r->table, "%-34s %s\n", label, text);
}

static void report_limits(struct report *r, const struct cpu_limits *limits)
{
    report_int(r, "measured_threads", "measured with threads", limits->n_threads);
    report_pair(r, "read_4k_gb_per_s", "memory read, pages of 4 KiB, GB/s",
                limits->bytes_per_s[PAGES_4K], 1e-9);
    report_pair(r, "read_huge_gb_per_s", "memory read, huge pages, GB/s",
                limits->bytes_per_s[PAGES_HUGE], 1e-9);
    report_pair(r, "f32_gop_per_s", "f32, GOP/s", limits->operations_per_s[ARITHMETIC_F32], 1e-9);
    report_pair(r, "bf16_gop_per_s", "bf16, GOP/s (0: no instructions)",
                limits->operations_per_s[ARITHMETIC_BF16], 1e-9);
    report_pair(r, "int8_gop_per_s", "int8, GOP/s (0: no instructions)",
                limits->operations_per_s[ARITHMETIC_INT8], 1e-9);
    report_number(r, "round_trip_ns", "two threads' round trip, ns", limits->round_trip_s * 1e9);
}

int command_check_env(int argc, char **argv)
{
    bool is_json = false, measures = false;
    int threads = 0;
    const struct option options[] = {
        {"--measure", NULL, OPTION_FLAG, &measures, NULL, 0, 0,
         "measure memory and arithmetic too (a second)"},
        {"--threads", NULL, OPTION_INT, &threads, "N", 0, 1024,
         "of the measurement; 0: all processors"},
        {"--json", NULL, OPTION_FLAG, &is_json, NULL, 0, 0, "print one JSON object"},
    };
    struct command_line line = {.usage = "csgl check_env [options]",
                                .about = "Tells what this machine has and what csgl will use.",
                                .options = options,
                                .n_options = sizeof options / sizeof options[0]};
    int exit_status = command_line_parse(&line, argc, argv);
    if (exit_status >= 0)
        return exit_status;
    struct report r = {0};
    struct error error;
    struct cpu_limits limits;
    enum status status = OK;
    machine_report(&r);
    report_use(&r);
    report_libraries(&r);
    if (measures)
        status = cpu_measure(&limits, threads, cpu_isa_best(), &error);
    if (status == OK && measures)
        report_limits(&r, &limits);
    if (status == OK)
        status = report_finish(&r, is_json, NULL, &error);
    report_done(&r);
    if (status != OK)
        log_error("%s", error.message);
    return status == OK ? 0 : 1;
}

#include "checkpoint/hub_certificates.h"

#include "base/file.h"
#include "base/options.h"

const char *hub_certificates(void)
{
    static const char *const variables[] = {"SSL_CERT_FILE", "CURL_CA_BUNDLE"};
    static const char *const places[] = {
        "/etc/ssl/certs/ca-certificates.crt",                /* Debian, Ubuntu, Arch, Alpine */
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", /* Fedora, RHEL */
        "/etc/pki/tls/certs/ca-bundle.crt",                  /* older ones of them */
        "/etc/ssl/ca-bundle.pem",                            /* openSUSE */
        "/etc/ssl/cert.pem",                                 /* macOS, BSD */
    };
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *named = options_environment(variables[i]);
        if (named)
            return named;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (file_exists(places[i]))
            return places[i];
    return NULL;
}

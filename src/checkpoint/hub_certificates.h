/* Where a machine keeps the certificates of the authorities it trusts. */
#ifndef CSGL_CHECKPOINT_HUB_CERTIFICATES_H
#define CSGL_CHECKPOINT_HUB_CERTIFICATES_H

/* The path of a PEM bundle: what SSL_CERT_FILE or CURL_CA_BUNDLE names, else the first usual place
 * that has one, else NULL, for libcurl's own default. A libcurl that travels with csgl knows only
 * the place of the system it was built for. */
const char *hub_certificates(void);

#endif

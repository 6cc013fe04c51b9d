//! Tokens and keys made by another implementation (Python's `cryptography`), valid until the year
//! 2100.

pub(super) const RSA_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA0o1FVmcqd0W/qcxqXWj8\n\
R16J8jFgjJG+KkAw4xu+4Pd8H5m8dXgCsywfnCnB4DSp4jfG+CZ83d854pG5IO8K\n\
3g2FD29rTiNdNanRmzx4oLM4Z9YoOlFKC144t4NhPHA8U6Ae6U284+H9D0HVorrN\n\
CcBTZOgKc2JySipyS6OLnfE5rbP2EFWXZawEjfuif6bbTHE0BUvZOkVp6AEGBZhc\n\
6ruPqaxjpC7/M4ii9V4tzxd+O+YPzvHTL1TDRZxuLsCOnAJfLL/RH55O8UO4l2f0\n\
mAddiYzeWiNHiwnwGAF2b3FGj5d6CD/WQVDSYUmyUwapaHXPjDZJSDE5lr+or/qM\n\
7wIDAQAB\n\
-----END PUBLIC KEY-----";
pub(super) const P256_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE6mTwBObD1xop5NKDK7Ij5VP5tg99\n\
gxlNxM2RgiMjMhL/NCuYukWrD2Kk//e96f7yjde17mpnp/jr/MDju+1qDA==\n\
-----END PUBLIC KEY-----";
pub(super) const ED25519_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
MCowBQYDK2VwAyEA5yhNjJbu/t7ykjSU2dNHMLtgHt0tmGEkJwFNewFZ180=\n\
-----END PUBLIC KEY-----";
pub(super) const RSA_KEY_OF_1024_BITS: &str = "-----BEGIN PUBLIC KEY-----\n\
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQCubfq2qm9yShIptoUihPk9AR3k\n\
+GWKMovBaToyi7Pii+/eqzJ7H1qSFNBnh+tkpsjNqetGt5+CVXS9BBJo4MA7bud2\n\
JE3ILzaMx4XXkfz5cOQQvQ0W0C5xDWo+F/SpK1hch+aGbY0D5x9tujtPnL05fEB3\n\
lWPq73+RbRRwgdmqBQIDAQAB\n\
-----END PUBLIC KEY-----";
pub(super) const P384_KEY: &str = "-----BEGIN PUBLIC KEY-----\n\
MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAECgEMSslnpJVkuRp5er1rT2o0aLyXY1T5\n\
2JaDpXK5V9U/qZQ2EyYfLwuVr7oSW1VDNYREbL9W1QDhchHhn/PqeGiwBTY7bBey\n\
aXyT6JtPpCz8K8cZvcGC2kXWaMD8g/5r\n\
-----END PUBLIC KEY-----";
/// The device of all tokens.
pub(super) const DEVICE: &str = "thermometer-7";
/// Of the token with HS256.
pub(super) const SECRET: &str = "0123456789abcdef0123456789abcdef";
pub(super) const RS256: &str = "\
eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ0aGVybW9tZXRlci03IiwiZXhwIjo0MTAyNDQ0ODAwfQ.GD8O-5ZV\
LOb1G7BHpI9GaFTlyK-gMLyx0ve5hkqF7dhwP91YBxPw4ilGJkSR1nET_Vub9zCrebzgAMs0kAwSOWSim2vZk1bg1fOtJXqJJJrD\
3kSjToTLmUb8yeL5wipFzucP2UdCA-bvNIh1OPbazL4Hj3K9s7ifBeZHe2fxOdz-h3khujrgW4_NGntwDi614lqAc4Eqps2kbgDv\
LPjZyrDm33gcPVJBq9J5LWMqNwaF-4ImuFWimkNt5xMMPKDRbNr_g6PD0C8LrhmuKyX8NmitOKbY0ctqaTKon1i2zMP25gkjFr5n\
hktZLySAGLlc5hHDuOo2pZCvYxapUD0TKA";
pub(super) const ES256: &str = "\
eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ0aGVybW9tZXRlci03IiwiZXhwIjo0MTAyNDQ0ODAwfQ.JKe_9iph\
Wcb0Dg6jxVfafHwHt-Fbv7JLrzOEpWqaDl7rBe300r5NaB2g9AsE8Kc6ut60ZwghEkj63zjynji0oA";
pub(super) const EDDSA: &str = "\
eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ0aGVybW9tZXRlci03IiwiZXhwIjo0MTAyNDQ0ODAwfQ.5JEh82FF\
cEA9pLV8EuAqDGaA3WaEvsbA5AnAnns50W0l0c2sY98iU6_PiDqEQuoOhjpQYOipBRFRVtlxkx0ACw";
pub(super) const HS256: &str = "\
eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ0aGVybW9tZXRlci03IiwiZXhwIjo0MTAyNDQ0ODAwfQ.sbhGP1D8\
KxT5qSnZf7QFG8ilUIuda2Uzw5zl2HodZWs";
/// A token that claims HS256 and is signed with the RSA key's PEM text, which is public.
pub(super) const CONFUSED: &str = "\
eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJ0aGVybW9tZXRlci03IiwiZXhwIjo0MTAyNDQ0ODAwfQ.IVNyeC9n\
cdm4PudpNaaw4BClagM_cMh8bb8CoG5r5es";

//! Tests of the errors of origins with bad values.

use super::*;

#[test]
fn origins() {
    let as_sent = "an origin as browsers send it: scheme, host, and the port unless it is the scheme's own, in lower \
                   case, such as https://app.example or http://localhost:3000; or * for all";
    let refused = |origin: &str, allowed: &str| {
        format!("http.cors_origins[0] = {origin:?}: allowed is {allowed}")
    };
    let check = |origins: &[&str], expected: &str| {
        let json = serde_json::json!({"http": {"cors_origins": origins}}).to_string();
        check_all(&[(&json, expected)]);
    };
    check(&["https://app.example", "http://localhost:3000", "capacitor://localhost"], "");
    check(&["http://[::1]:8080"], "");
    check(&["*"], "");
    for origin in [
        "",
        "null",
        "app.example",
        "https://App.example",
        "HTTPS://app.example",
        "https://app.example/",
        "https://app.example:443",
        "http://app.example:80",
        "https://user@app.example",
        "https://*.app.example",
        "1://app.example",
    ] {
        check(&[origin], &refused(origin, as_sent));
    }
    check(&["*", "https://app.example"], &refused("*", "* alone: it stands for all origins"));
    check(
        &["https://app.example", "https://app.example"],
        "http.cors_origins[1] = \"https://app.example\": allowed is each origin once",
    );
}

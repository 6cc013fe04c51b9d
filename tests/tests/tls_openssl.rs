//! `openssl s_client` against the program: suites, keys, sessions, names, certificates.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use weir_tests::{Answer, Authority, Metrics, SClient, Server};

/// A server with a certificate for "localhost" of each kind of key.
struct House {
    authority: Authority,
    server: Server,
    tls: SocketAddr,
}

impl House {
    fn new(tls_section: &str) -> Result<House> {
        Self::with(Authority::new()?, tls_section)
    }

    fn with(authority: Authority, tls_section: &str) -> Result<House> {
        let certificates = authority.files("ecdsa", "localhost", false)?
            + &authority.files("rsa", "localhost", true)?;
        let server = Server::start_with_tls(&format!("[tls]\n{tls_section}\n{certificates}"))?;
        let tls = server.tls.context("it listens with TLS")?;
        Ok(House { authority, server, tls })
    }

    /// What a client that checks the server's certificate is called with.
    fn options(&self, more: &str) -> String {
        let authority = self.authority.path("ca.pem");
        let authority = authority.display();
        format!("-CAfile {authority} -verify_return_error -servername localhost {more}")
    }

    fn greet(&self, options: &str) -> Result<SClient> {
        SClient::greet(self.tls, &self.options(options), "s_client")
    }

    /// A client that is not let in, and says why.
    fn check_refused(&self, options: &str, why: &str) -> Result<()> {
        let mut client = SClient::start(self.tls, &self.options(options))?;
        client.await_word(why).with_context(|| format!("s_client {options}"))
    }

    /// Waits for a count in the samples of a metric with all these labels.
    fn await_count(&self, name: &str, labels: &[(&str, &str)], count: u32) -> Result<()> {
        let what = format!("{name} {labels:?} {count}");
        let is_reached = |metrics: &Metrics| metrics.sum_of(name, labels) == f64::from(count);
        self.server.await_metrics(&what, is_reached).map(drop)
    }
}

#[test]
fn every_suite_is_spoken() -> Result<()> {
    let house = House::new("")?;
    let suites = [
        ("TLS_AES_128_GCM_SHA256", "TLS13_AES_128_GCM_SHA256"),
        ("TLS_AES_256_GCM_SHA384", "TLS13_AES_256_GCM_SHA384"),
        ("TLS_CHACHA20_POLY1305_SHA256", "TLS13_CHACHA20_POLY1305_SHA256"),
        ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
        ("ECDHE-ECDSA-CHACHA20-POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
        ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
        ("ECDHE-RSA-AES256-GCM-SHA384", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
        ("ECDHE-RSA-CHACHA20-POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
    ];
    for (openssl, suite) in suites {
        let is_13 = suite.starts_with("TLS13");
        let option = if is_13 { "-tls1_3 -ciphersuites" } else { "-tls1_2 -cipher" };
        let mut client = house.greet(&format!("{option} {openssl}"))?;
        client.await_word(&format!("Cipher is {openssl}"))?;
        client.ping("once more")?;
        if is_13 {
            client.command("K")?;
            client.await_word("KEYUPDATE")?;
            client.ping("with other keys")?;
        }
        let version = if is_13 { "1.3" } else { "1.2" };
        let labels = [("suite", suite), ("version", version), ("kind", "full")];
        house.await_count("weir_tls_handshakes_total", &labels, 1)?;
    }
    house.await_count("weir_tls_handshakes_total", &[], 9)?;
    house.await_count("weir_tls_not_moved_total", &[], 0)
}

#[test]
fn keys_change_whenever_the_client_wishes() -> Result<()> {
    let house = House::new("")?;
    let mut client = house.greet("-tls1_3")?;
    // `k` changes the client's keys; `K` asks the server to change its own too.
    let mut changes = 0;
    for (round, letter) in ["k", "K", "K", "k", "K"].into_iter().enumerate() {
        client.command(letter)?;
        client.await_words("KEYUPDATE", round + 1)?;
        client.ping(&format!("round {round}"))?;
        changes += if letter == "K" { 2 } else { 1 };
        house.await_count("weir_tls_key_updates_total", &[], changes)?;
    }
    Ok(())
}

/// Two connections: the second one with the session of the first.
fn check_resumed(house: &House, options: &str, version: &str, kind: &str) -> Result<()> {
    let session = house.authority.path("session.pem");
    let session = session.display();
    let mut client = house.greet(&format!("{options} -sess_out {session}"))?;
    ensure!(client.said().contains("New, TLSv"), "{}", client.said());
    client.ping("the session is written by now")?;
    drop(client);
    let mut client = house.greet(&format!("{options} -sess_in {session}"))?;
    client.await_word(&format!("Reused, TLSv{version}"))?;
    client.ping("as before")?;
    let labels = [("version", version), ("kind", kind)];
    house.await_count("weir_tls_handshakes_total", &labels, 1)
}

#[test]
fn sessions_are_resumed() -> Result<()> {
    let house = House::new("")?;
    check_resumed(&house, "-tls1_3", "1.3", "ticket")?;
    check_resumed(&house, "-tls1_2", "1.2", "ticket")?;
    check_resumed(&house, "-tls1_2 -no_ticket", "1.2", "session_id")?;
    house.await_count("weir_tls_handshakes_total", &[("kind", "full")], 3)
}

#[test]
fn a_protocol_in_common_is_agreed_or_there_is_no_connection() -> Result<()> {
    let house = House::new("alpn = [\"weir.v2\", \"weir.v1\"]")?;
    for version in ["-tls1_3", "-tls1_2"] {
        let mut client = house.greet(&format!("{version} -alpn other,weir.v1"))?;
        client.await_word("ALPN protocol: weir.v1")?;
        let mut client = house.greet(&format!("{version} -alpn weir.v1,weir.v2"))?;
        client.await_word("ALPN protocol: weir.v2")?;
        house.greet(version)?.await_word("No ALPN negotiated")?;
        house.check_refused(&format!("{version} -alpn other"), "SSL alert number 120")?;
    }
    house.await_count("weir_tls_handshakes_failed_total", &[("cause", "no_protocol")], 2)?;
    house.await_count("weir_tls_alerts_sent_total", &[("alert", "no_application_protocol")], 2)
}

#[test]
fn the_name_chooses_the_certificate() -> Result<()> {
    let authority = Authority::new()?;
    let certificates =
        authority.files("one", "one.test", false)? + &authority.files("two", "two.test", true)?;
    let server = Server::start_with_tls(&certificates)?;
    let tls = server.tls.context("it listens with TLS")?;
    let trust = format!("-CAfile {} -verify_return_error", authority.path("ca.pem").display());
    for version in ["-tls1_3", "-tls1_2"] {
        // Who names nobody, or nobody that is known, is shown the first.
        for (option, shown) in [
            ("-servername one.test", "one.test"),
            ("-servername two.test", "two.test"),
            ("-servername three.test", "one.test"),
            ("-noservername", "one.test"),
        ] {
            let options = format!("{trust} {version} {option} -verify_hostname {shown}");
            let client = SClient::greet(tls, &options, "s_client")?;
            let said = client.said();
            ensure!(said.contains(&format!("subject=CN = {shown}")), "{option}: {said}");
        }
    }
    Ok(())
}

#[test]
fn a_client_that_does_not_trust_the_server_says_so() -> Result<()> {
    let house = House::new("")?;
    let stranger = Authority::new()?;
    let other = format!("-CAfile {} -verify_return_error", stranger.path("ca.pem").display());
    for (count, version) in ["-tls1_3", "-tls1_2"].into_iter().enumerate() {
        let mut client = SClient::start(house.tls, &format!("{other} {version}"))?;
        client.await_word("certificate verify failed")?;
        let count = u32::try_from(count)? + 1;
        let labels = [("cause", "alert_received")];
        house.await_count("weir_tls_handshakes_failed_total", &labels, count)?;
        house.await_count("weir_tls_alerts_received_total", &[], count)?;
    }
    Ok(())
}

#[test]
fn an_old_version_is_refused() -> Result<()> {
    let house = House::new("min_version = \"1.3\"")?;
    house.greet("-tls1_3")?;
    house.check_refused("-tls1_2", "SSL alert number 70")?;
    let usual = House::new("")?;
    // Not even the signatures that TLS 1.2 demands are in what it offers.
    usual.check_refused("-tls1_1 -cipher DEFAULT@SECLEVEL=0", "SSL alert number 40")?;
    usual.await_count("weir_tls_handshakes_failed_total", &[("cause", "incompatible")], 1)
}

/// What shows a certificate for `name`, signed by `by`.
fn identity(by: &Authority, name: &str, not_after: Option<i32>) -> Result<String> {
    let leaf = match not_after {
        None => by.sign(name, false)?,
        Some(year) => by.sign_until(name, year)?,
    };
    by.put(name, &leaf)?;
    let path = |end: &str| by.path(&format!("{name}.{end}")).display().to_string();
    Ok(format!("-cert {} -key {}", path("pem"), path("key")))
}

#[test]
fn a_clients_certificate_is_demanded_and_says_who_it_is() -> Result<()> {
    let authority = Authority::new()?;
    let ca = authority.path("ca.pem");
    let house = House::with(
        authority,
        &format!(
            "client_auth = \"required\"\nclient_identity = \"common_name\"\nclient_ca = {ca:?}\n\
             [auth]\nanonymous = false"
        ),
    )?;
    let good = identity(&house.authority, "gate-7", None)?;
    let expired = identity(&house.authority, "gate-8", Some(2001))?;
    let stranger = Authority::new()?;
    let strange = identity(&stranger, "gate-9", None)?;
    for version in ["-tls1_3", "-tls1_2"] {
        let options = house.options(&format!("{version} {good}"));
        let _client = SClient::greet(house.tls, &options, "")?;
        let connections = Answer::get(house.server.admin, "/v1/connections")?.body;
        ensure!(connections.contains("\"gate-7\""), "{connections}");
        // RFC 8446, section 6.2: certificate_expired, unknown_ca, certificate_required.
        house.check_refused(&format!("{version} {expired}"), "SSL alert number 45")?;
        house.check_refused(&format!("{version} {strange}"), "SSL alert number 48")?;
        house.check_refused(version, "SSL alert number 116")?;
    }
    house.await_count("weir_tls_handshakes_failed_total", &[("cause", "certificate")], 4)?;
    house.await_count("weir_tls_handshakes_failed_total", &[("cause", "no_certificate")], 2)
}
